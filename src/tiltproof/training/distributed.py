"""Training in several processes started by torchrun; each processes some rows of every mini-batch.

Gradients are averaged by one all-reduce. DistributedDataParallel cannot be used: it hooks into the module's forward, which the
computation of bounds does not call.
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

TIMEOUT = timedelta(hours=6)
"""Longest wait of the other processes, while the first one certifies."""


@dataclass(frozen=True)
class Processes:
    """This process's rank and the number of processes; a single one unless torchrun started it."""

    rank: int = 0
    world: int = 1

    @property
    def shard(self) -> tuple[int, int]:
        return self.rank, self.world

    @property
    def first(self) -> bool:
        """Whether this process reports and writes for all."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """Return this process's rows of a mini-batch of ``batch`` images."""
        if batch % self.world:
            raise InputError(
                "the batch size must be a multiple of the number of processes",
                got=f"train.batch_size {batch} with {self.world} processes",
                do=f"set train.batch_size={batch // self.world * self.world or self.world}",
            )
        size = batch // self.world
        return slice(self.rank * size, (self.rank + 1) * size)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their means over all processes."""
        if self.world > 1:
            self._average([parameter.grad for parameter in parameters if parameter.grad is not None])

    def average_buffers(self, model: nn.Module) -> None:
        """Replace running statistics, such as those of batch norm, by their means over all processes."""
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
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started, if any; yields them and this process's device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(), device
        return
    if str(device) == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    # If this module is first imported later (optimizers do so), the defaults of its functions keep a reference to the process
    # group: its threads would outlive destroy_process_group and could abort the process at exit.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size()), device
    finally:
        dist.destroy_process_group()
