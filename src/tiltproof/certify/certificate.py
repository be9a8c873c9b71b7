"""What a run says: one result per image, with its evidence, and a summary."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tiltproof.certify.verdict import Verdict

Box = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)  # slots: there are many, and they are made faster
class ImageResult:
    """One image: its verdict, and what it rests on."""

    image: int
    label: int
    verdict: Verdict
    margin: float
    """certified: proved lower bound over the whole range; falsified: at the counterexample; unknown: best bound proved;
    misclassified: of the image itself."""
    grid: tuple[int, ...] | None  # certified: how the range was cut to begin with ...
    tree: str | None  # ... and how the cells were halved (docs/run-folder.md)
    counterexample: tuple[float, ...] | None
    open_box: Box | None
    boxes: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """A plain dictionary, ready for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"verdict": str(self.verdict), "margin": self.margin if math.isfinite(self.margin) else None}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> ImageResult:
        """The result that `record` was made of."""
        margin, box = record["margin"], record["open_box"]
        changed = {
            "verdict": Verdict(record["verdict"]),
            "margin": -math.inf if margin is None else float(margin),
            "open_box": None if box is None else (tuple(box[0]), tuple(box[1])),
        }
        for name in ("grid", "counterexample"):
            changed[name] = None if record[name] is None else tuple(record[name])
        return cls(**(record | changed))


@dataclass
class Results:
    """What every run comes to; ``results`` has one entry per image, in the order given."""

    transform: str
    method: str
    semantics: str
    results: list[Any] = field(repr=False)
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict, repr=False)

    def summary(self) -> dict[str, Any]:
        """Totals as plain numbers."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """One plain dictionary per image, ready for JSON."""
        return [result.record() for result in self.results]

    def to_json(self) -> dict[str, Any]:
        return self.summary() | {"records": self.records()}


@dataclass
class Certificate(Results):
    """The result of `certify`; ``results`` has one entry per image, in the order given, and so have all lists made of it."""

    results: list[ImageResult] = field(repr=False)

    @property
    def verdicts(self) -> list[Verdict]:
        return [result.verdict for result in self.results]

    @property
    def margins(self) -> list[float]:
        return [result.margin for result in self.results]

    @property
    def counterexamples(self) -> list[tuple[float, ...] | None]:
        return [result.counterexample for result in self.results]

    @property
    def open_boxes(self) -> list[Box | None]:
        return [result.open_box for result in self.results]

    @property
    def boxes(self) -> list[int]:
        return [result.boxes for result in self.results]

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict is verdict for result in self.results)

    def summary(self) -> dict[str, Any]:
        """Counts and totals as plain numbers; ``unfalsified`` is certified plus unknown."""
        counts = Counter(str(result.verdict) for result in self.results)
        images, certified, boxes = len(self.results), counts["certified"], sum(self.boxes)
        return {
            "transform": self.transform,
            "method": self.method,
            "semantics": self.semantics,
            "images": images,
            "correct": images - counts["misclassified"],
            "certified": certified,
            "falsified": counts["falsified"],
            "unknown": counts["unknown"],
            "misclassified": counts["misclassified"],
            "unfalsified": certified + counts["unknown"],
            "certified_percent": 100 * certified / images,
            "boxes": boxes,
            "boxes_per_image": boxes / images,
            "seconds": self.seconds,
            "settings": self.settings,
        }
