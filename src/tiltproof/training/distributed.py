"""Training by several processes at once, as torchrun starts them: one mini-batch, each process its rows of it.

Gradients are averaged by one plain all-reduce. DistributedDataParallel is not used: it watches the module's forward,
and bounds go through the parameters without calling it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tiltproof.errors import InputError

PATIENCE = timedelta(hours=6)
"""The others wait that long while the first process certifies."""


@dataclass(frozen=True)
class Processes:
    """This process among its like; alone unless torchrun says otherwise."""

    rank: int = 0
    world: int = 1

    @property
    def share(self) -> tuple[int, int]:
        return self.rank, self.world

    @property
    def first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """This process's rows of a mini-batch of so many images."""
        if batch % self.world:
            raise InputError(
                "the batch size must be a multiple of the number of processes",
                got=f"train.batch_size {batch} with {self.world} processes",
                do=f"set train.batch_size={batch // self.world * self.world or self.world}",
            )
        size = batch // self.world
        return slice(self.rank * size, (self.rank + 1) * size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.world > 1:
            self._average([parameter.grad for parameter in parameters if parameter.grad is not None])

    def average_buffers(self, model: nn.Module) -> None:
        """Running statistics, such as those of batch norm, become those of all processes."""
        if self.world > 1:
            self._average([buffer for buffer in model.buffers() if buffer.is_floating_point()])

    def _average(self, tensors: list[Tensor]) -> None:
        if not tensors:
            return
        flat = self.sum(torch.cat([tensor.reshape(-1) for tensor in tensors])).div_(self.world)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """Join the other processes that torchrun started, if it did; also which device is this process's own."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(), device
        return
    if str(device) == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    # Loaded later, as an optimizer does in passing, this module keeps the group of that moment in its functions' defaults:
    # the group's threads would outlive destroy_process_group and could abort the process on its way out.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size()), device
    finally:
        dist.destroy_process_group()
