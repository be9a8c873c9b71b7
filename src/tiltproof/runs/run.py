"""A run in memory: its results so far, and the loop over its batches; `StoredRun` stores it on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from tiltproof.device import few_threads
from tiltproof.runtime.batch_size import AdaptiveBatchSize, keep_freed_memory
from tiltproof.verify.batch import Grid, Job
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.options import Execution
from tiltproof.verify.results import Reporter


class Result(Protocol):
    """The result of one image, which can be written as a record and read back."""

    @property
    def image(self) -> int: ...

    def record(self) -> dict[str, Any]: ...

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Result: ...


@dataclass(frozen=True)
class Batch:
    """The results of the images from ``start`` on."""

    start: int
    results: Sequence[Any]
    grid: Grid | None
    device: str


class Workers(Protocol):
    """Other processes that prove batches, such as `RayWorkers`."""

    def connect(self) -> None:
        """Raise InputError if there are no workers; called before a run folder is created."""
        ...

    def work(
        self, inputs: Inputs, job: Job, batches: Sequence[slice], grid: Grid | None, pairs: int
    ) -> Generator[Batch, None, None]:
        """Yield every batch once, in any order; ``grid``: the initial grid, if known."""
        ...


SMALLEST_BATCH, LARGEST_BATCH = 16, 16_384
LARGEST_SHARED_BATCH = 64
"""Most images per batch if workers share a run. It does not depend on their number, so results do not either."""


def plan_batches(images: int, pairs: int, execution: Execution) -> dict[str, int]:
    """Plan equal batches of about as many images as pairs are bounded at once, so that each takes a few dozen steps,
    or of at most ``batch_images``. A resumed run keeps its plan."""
    largest = LARGEST_BATCH if execution.workers is None else LARGEST_SHARED_BATCH
    size = execution.batch_images or max(1 if execution.batch_size else SMALLEST_BATCH, min(largest, pairs))
    return {"pairs_at_once": pairs, "images_per_batch": math.ceil(images / math.ceil(images / size))}


class Run:
    """``settings``: those requested; ``grid``: the initial grid, once a batch has chosen one; ``seconds``: of all
    batches."""

    def __init__(self, settings: dict[str, Any], plan: dict[str, int]) -> None:
        self.settings, self.plan = settings, plan
        self.results: list[Any] = []
        self.grid: Grid | None = None
        self.seconds = 0.0
        self.devices: set[str] = set()

    def work(self, inputs: Inputs, job: Job, reporter: Reporter, workers: Workers | None = None) -> None:
        """Prove all remaining batches. Workers may finish them in any order; they are appended in the order of the
        images, so a run is always complete up to some image."""
        size, images, began = self.plan["images_per_batch"], len(inputs.images), time.perf_counter()
        batches = [slice(k, min(k + size, images)) for k in range(len(self.results), images, size)]
        early: dict[int, Batch] = {}
        device = inputs.images.device
        with inputs.eval_mode(), few_threads(device):
            if workers is None:
                done = self._alone(inputs, job, batches, reporter)
            else:
                done = workers.work(inputs, job, batches, self.grid, self.plan["pairs_at_once"])
            with inputs.memory.watched() if workers is None else nullcontext(), closing(done):
                for batch in done:
                    early[batch.start] = batch
                    reporter.finished(batch.results)
                    while (start := len(self.results)) in early:
                        next_one, now = early.pop(start), time.perf_counter()
                        self.append(next_one.results, next_one.grid, next_one.device, now - began)
                        began = now

    def _alone(
        self, inputs: Inputs, job: Job, batches: Sequence[slice], reporter: Reporter
    ) -> Generator[Batch, None, None]:
        """Prove one batch after the other in this process."""
        keep_freed_memory(inputs.memory)
        pairs = AdaptiveBatchSize(self.plan["pairs_at_once"], inputs.memory, job.each(inputs))
        device = str(inputs.images.device)
        for rows in batches:
            yield Batch(rows.start, *job.part(rows).batch(inputs.part(rows), self.grid, pairs, reporter), device)

    def append(self, results: Sequence[Result], grid: Grid | None, device: str, seconds: float) -> None:
        """Append the results of one batch."""
        self.results += results
        self.grid = self.grid or grid
        self.seconds += seconds
        self.devices.add(device)

    def finish(self, summary: dict[str, Any]) -> None:
        """Finish a run whose batches are all done."""

    def close(self) -> None:
        """Close the run, finished or not."""
