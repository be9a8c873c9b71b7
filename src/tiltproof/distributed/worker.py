"""A worker: it receives the network once, traces it, and proves the batches that the driver sends."""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.device import choose_device
from tiltproof.errors import InputError
from tiltproof.network import eval_mode, proof_arithmetic
from tiltproof.runs.manifest import graph_digest, package_version
from tiltproof.runtime.batch_size import AdaptiveBatchSize, keep_freed_memory
from tiltproof.transforms import Transform
from tiltproof.verify.batch import Grid, Job
from tiltproof.verify.inputs import Inputs, check_model_and_images


@dataclass(frozen=True)
class Package:
    """What every worker needs, on the CPU; ``pairs``: bounded at once on a device of type ``planned_for``."""

    model: nn.Module
    image: Tensor  # [1, C, H, W], to read the network with
    transform: Transform
    semantics: str
    job: Job
    pairs: int
    planned_for: str
    graph: str
    limit: int | None = None  # bytes that each worker may take

    @classmethod
    def of(cls, inputs: Inputs, job: Job, pairs: int) -> Package:
        device = inputs.images.device
        model = inputs.model if device.type == "cpu" else copy.deepcopy(inputs.model).cpu()
        image = inputs.images[:1].cpu()
        here = (
            inputs if device.type == "cpu" else check_model_and_images(model, image, inputs.transform, inputs.semantics)
        )
        only = job.part(slice(0, 1))
        return cls(
            model, image, inputs.transform, inputs.semantics, only, pairs, device.type, _graph(here), inputs.limit
        )


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all machines, because the run folder records one set."""
    return {"tiltproof": package_version(), "torch": torch.__version__}


class Worker:
    """A process of the cluster."""

    def prepare(self, packed: bytes, kind: str, expected: dict[str, str]) -> tuple[str, int]:
        """Trace the network; return the device of this worker, and its process."""
        if versions() != expected:
            raise InputError("its versions are not those of this run", got=f"{versions()} there, {expected} here")
        try:
            package: Package = pickle.loads(packed)
        except Exception as error:  # any kind: raised by the model's own code
            raise InputError(
                "the model cannot be unpacked there",
                got=f"{type(error).__name__}: {error}",
                why="the module that defines it is not installed on that machine",
                do="install it on all machines, or put it into a folder that all share and that is on PYTHONPATH",
            ) from None
        torch.set_num_threads(1)  # one worker per core, or per GPU, which leaves small tensors to the host
        given = package.transform, package.semantics
        with proof_arithmetic(torch.device("cpu")):
            inputs = check_model_and_images(package.model, package.image, *given)
            if _graph(inputs) != package.graph:
                raise InputError(
                    "the model that was unpacked there is another network", why="another version of its code"
                )
        device = choose_device(kind)
        if device.type != "cpu":
            with proof_arithmetic(device):
                inputs = check_model_and_images(package.model.to(device), package.image.to(device), *given)
        self.inputs = replace(inputs, limit=package.limit)
        self.inputs.memory.check(package.job.each(self.inputs))
        keep_freed_memory(self.inputs.memory)
        planned = device.type == package.planned_for
        pairs = package.pairs if planned else package.job.pairs(self.inputs)
        self.pairs = AdaptiveBatchSize(pairs, self.inputs.memory, package.job.each(self.inputs))
        return str(inputs.images.device), os.getpid()

    def batch(self, job: Job, images: Tensor, labels: Tensor, grid: Grid | None, scouting: bool) -> tuple[Any, Any]:
        """Return results and initial grid for these images; with ``scouting`` the grid alone."""
        device = self.inputs.images.device
        inputs = replace(self.inputs, images=images.to(device), labels=labels.to(device))
        with proof_arithmetic(device), eval_mode(inputs.model), inputs.memory.watched():
            return (None, job.grid(inputs, self.pairs)) if scouting else job.batch(inputs, grid, self.pairs)


def _graph(inputs: Inputs) -> str:
    return graph_digest(inputs.network_as(inputs.images.dtype))
