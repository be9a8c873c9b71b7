"""The four verdicts, what a verdict may cost, and how far a run has come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from tiltproof.errors import InputError


class Verdict(StrEnum):
    """The four things that can be said of an image."""

    CERTIFIED = "certified"  # proved: the network answers right for every parameter of the range
    FALSIFIED = "falsified"  # a parameter was found for which it does not
    UNKNOWN = "unknown"  # neither, within the budget
    MISCLASSIFIED = "misclassified"  # wrong already on the untransformed image


@dataclass(frozen=True)
class Budget:
    """How much one image may cost before it is given up as unknown."""

    boxes: int = 20_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.boxes, int) or self.boxes < 1:
            raise InputError("the budget needs at least one box per image", got=self.boxes)
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise InputError("the budget needs a positive number of seconds per image", got=self.seconds)

    def spent(self, boxes: Tensor, seconds: Tensor) -> Tensor:
        """Which of the images that took so many boxes and seconds may take no more."""
        spent = boxes >= self.boxes
        return spent if self.seconds is None else spent | (seconds >= self.seconds)


@dataclass(frozen=True)
class Progress:
    """Where a run stands; handed to the ``progress`` callback after every batch."""

    images: int
    done: int
    certified: int
    falsified: int
    unknown: int
    misclassified: int
    boxes: int
    seconds: float
    phase: str  # "attack" or "prove"
    seconds_left: float | None = None
