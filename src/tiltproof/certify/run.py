"""A run while it lasts: the results so far and how it goes on; `RunFolder` is one that survives on disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol


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

    def append(self, results: Sequence[Result], grid: tuple[int, ...] | None, device: str, seconds: float) -> None:
        """One batch's results."""
        self.results += results
        self.grid = self.grid or grid
        self.seconds += seconds

    def finish(self, summary: dict[str, Any]) -> None:
        """All batches are done."""

    def close(self) -> None:
        """The run ends, finished or not."""
