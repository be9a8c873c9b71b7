"""A run while it lasts: the results so far and how it goes on; `RunFolder` is one that survives on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tiltproof.certify.entry import Inputs
from tiltproof.certify.memory import Halving
from tiltproof.network import proof_arithmetic


class Result(Protocol):
    """What a run keeps for one image: something that becomes a record and comes back from it."""

    @property
    def image(self) -> int: ...

    def record(self) -> dict[str, Any]: ...

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Result: ...


SMALLEST_BATCH, LARGEST_BATCH = 16, 16_384


def plan_batches(images: int, pairs: int, smallest: int = SMALLEST_BATCH) -> dict[str, int]:
    """How a run is cut up: equal batches of about as many images as pairs are bounded at once, so that each is a few dozen steps
    of work. A resumed run keeps the plan it began with."""
    batches = math.ceil(images / max(smallest, min(LARGEST_BATCH, pairs)))
    return {"pairs_at_once": pairs, "images_per_batch": math.ceil(images / batches)}


class Run:
    """``settings``: what was asked for; ``grid``: the starting grid, once a batch has chosen one; ``seconds``: of all batches."""

    def __init__(self, settings: dict[str, Any], plan: dict[str, int]) -> None:
        self.settings, self.plan = settings, plan
        self.results: list[Any] = []
        self.grid: tuple[int, ...] | None = None
        self.seconds = 0.0

    def work(
        self, inputs: Inputs, batch: Callable[[slice, Halving], tuple[Sequence[Any], tuple[int, ...] | None]]
    ) -> None:
        """Batch after batch, from wherever the run stands; ``batch`` gives results and starting grid of some images."""
        device, pairs = inputs.images.device, Halving(self.plan["pairs_at_once"])
        with inputs.eval_mode(), proof_arithmetic(device):
            while (start := len(self.results)) < len(inputs.images):
                began = time.perf_counter()
                results, grid = batch(slice(start, start + self.plan["images_per_batch"]), pairs)
                self.append(results, grid, str(device), time.perf_counter() - began)

    def append(self, results: Sequence[Result], grid: tuple[int, ...] | None, device: str, seconds: float) -> None:
        """One batch's results."""
        self.results += results
        self.grid = self.grid or grid
        self.seconds += seconds

    def finish(self, summary: dict[str, Any]) -> None:
        """All batches are done."""

    def close(self) -> None:
        """The run ends, finished or not."""
