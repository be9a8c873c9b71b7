"""The settings of a run, the same for all of its batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiltproof.errors import InputError
from tiltproof.verify.results import Budget


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of a certified range: ``excess`` over the inner range, relative to its width, or a total
    ``width``."""

    excess: float = 0.05
    width: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.excess < float("inf") and 0 <= self.width < float("inf")):
            raise InputError("excess and width must be finite and non-negative", got=(self.excess, self.width))


@dataclass(frozen=True)
class Settings:
    """Settings of the search. ``splits``: a uniform grid; ``tolerance``: of ranges, None for classes."""

    method: str
    splits: tuple[int, ...] | None
    budget: Budget
    samples: int
    seed: int
    tolerance: Tolerance | None = None

    def record(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "method": self.method,
            "splits": None if self.splits is None else list(self.splits),
            "budget_boxes": self.budget.boxes,
            "budget_seconds": self.budget.seconds,
            "samples": self.samples,
            "seed": self.seed,
        } | ({} if self.tolerance is None else asdict(self.tolerance))
