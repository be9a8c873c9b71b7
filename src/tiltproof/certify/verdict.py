"""What a run says: one verdict per image, with its evidence, and a summary."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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


@dataclass
class Certificate:
    """The result of `certify`: lists with one entry per image, in the order given."""

    transform: str
    method: str
    verdicts: list[Verdict] = field(repr=False)
    margins: list[float] = field(repr=False)
    """certified: proved lower bound over the whole range; falsified: at the counterexample; unknown: best bound
    proved; misclassified: of the image itself.
    """
    counterexamples: list[tuple[float, ...] | None] = field(repr=False)
    open_boxes: list[tuple[tuple[float, ...], tuple[float, ...]] | None] = field(repr=False)
    boxes: list[int] = field(repr=False)
    image_seconds: list[float] = field(repr=False)
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict, repr=False)

    def count(self, verdict: Verdict) -> int:
        return sum(each is verdict for each in self.verdicts)

    def summary(self) -> dict[str, Any]:
        """Counts and totals as plain numbers; ``unfalsified`` is certified plus unknown."""
        counts = Counter(str(verdict) for verdict in self.verdicts)
        images = len(self.verdicts)
        certified = counts["certified"]
        return {
            "transform": self.transform,
            "method": self.method,
            "images": images,
            "correct": images - counts["misclassified"],
            "certified": certified,
            "falsified": counts["falsified"],
            "unknown": counts["unknown"],
            "misclassified": counts["misclassified"],
            "unfalsified": certified + counts["unknown"],
            "certified_percent": 100 * certified / images,
            "boxes": sum(self.boxes),
            "boxes_per_image": sum(self.boxes) / images,
            "seconds": self.seconds,
            "settings": self.settings,
        }

    def records(self) -> list[dict[str, Any]]:
        """One plain dictionary per image, ready for JSON."""
        return [
            {
                "image": number,
                "verdict": str(verdict),
                "margin": self.margins[number] if math.isfinite(self.margins[number]) else None,
                "counterexample": self.counterexamples[number],
                "open_box": self.open_boxes[number],
                "boxes": self.boxes[number],
                "seconds": self.image_seconds[number],
            }
            for number, verdict in enumerate(self.verdicts)
        ]

    def to_json(self) -> dict[str, Any]:
        return self.summary() | {"records": self.records()}
