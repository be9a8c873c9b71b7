"""Progress, verdicts and results of a run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiltproof.verify.state import Search


class Verdict(StrEnum):
    """The four verdicts of an image."""

    CERTIFIED = "certified"  # proved: the network answers right for every parameter of the range
    FALSIFIED = "falsified"  # a parameter was found for which it does not
    UNKNOWN = "unknown"  # neither, within the budget
    MISCLASSIFIED = "misclassified"  # wrong already on the untransformed image

    @property
    def meaning(self) -> str:
        """What it says, in half a line."""
        return MEANINGS[self]


MEANINGS = {
    Verdict.CERTIFIED: "proved for every parameter of the range",
    Verdict.FALSIFIED: "a transformation breaks the answer",
    Verdict.UNKNOWN: "not decided within the budget or the splits",
    Verdict.MISCLASSIFIED: "wrong before any transformation",
}
"""Meaning of each verdict."""


class Reason(StrEnum):
    """Why an image is unknown."""

    BOXES = "boxes"
    SECONDS = "seconds"
    SPLITS = "splits"
    ROUNDING = "rounding"
    OPEN = "open"
    NOISE = "noise"
    TOLERANCE = "tolerance"
    TIES = "ties"

    @property
    def meaning(self) -> str:
        return REASONS[self][0]

    @property
    def advice(self) -> str:
        """What would help."""
        return REASONS[self][1]

    def sentence(self, ranges: bool = False) -> str:
        """Why, and what would help; ``ranges``: of a range of outputs that is not as tight as asked for."""
        meaning, advice = self.explained(ranges)
        return f"{meaning}. What would help: {advice}."

    def explained(self, ranges: bool) -> tuple[str, str]:
        return RANGE_REASONS.get(self, REASONS[self]) if ranges else REASONS[self]


REASONS = {
    Reason.BOXES: ("the budget of boxes was spent", "more boxes (--boxes), or a smaller range"),
    Reason.SECONDS: ("the seconds were spent", "more seconds (--seconds), a GPU, or a smaller range"),
    Reason.SPLITS: ("a box of the uniform grid stayed open", "a finer grid, or none, so that open boxes are halved"),
    Reason.ROUNDING: (
        "a float32 evaluation of a single point may be off by more than its margin",
        "--semantics real, or a network with smaller weights or fewer layers",
    ),
    Reason.OPEN: (
        "bounds stay open however small the box: the network amplifies the rounding of float64 to more than its margin",
        "no budget helps, only a network that amplifies less, e.g. one trained with tiltproof train",
    ),
    Reason.NOISE: (
        "bounds of the noise stay open at a single parameter, and noise is never divided into parts",
        "a smaller Linf, or a network trained for noise; no budget helps",
    ),
    Reason.TOLERANCE: (
        "the margin of an 8-bit picture is not above the tolerance of evaluations, or is not a number",
        "a smaller --tolerance, if the program always computes the same; a smaller range",
    ),
    Reason.TIES: (
        "too many pixels change their 8-bit value at the same parameter, or lie between two values, to try all combinations",
        "a range without that parameter, e.g. on either side of it; images of 8 bits",
    ),
}
"""Meaning of each reason, and what would help."""

RANGE_REASONS = {
    Reason.BOXES: (REASONS[Reason.BOXES][0], "more boxes (--boxes), a larger tolerance (--excess), or a smaller range"),
    Reason.SECONDS: (
        REASONS[Reason.SECONDS][0],
        "more seconds (--seconds), a GPU, a larger tolerance (--excess), or a smaller range",
    ),
    Reason.ROUNDING: (
        "a float32 evaluation of a single point may be off by more than the tolerance",
        "--semantics real, a larger tolerance (--excess or --width), or a network with smaller weights or fewer layers",
    ),
    Reason.OPEN: (
        "bounds stay wider than the tolerance however small the box: the network amplifies the rounding of float64",
        "a larger tolerance (--excess or --width), or a network that amplifies less; no budget helps",
    ),
}
"""The same for ranges of outputs, where it is something else."""


@dataclass(frozen=True)
class Progress:
    """The state of a run; passed to the ``progress`` callback after every step."""

    images: int
    done: int
    certified: int
    falsified: int
    unknown: int
    misclassified: int
    boxes: int
    seconds: float
    phase: str  # "attack" or "prove"; of a curve over smaller ranges "curve" or "curve at 50 %"
    seconds_left: float | None = None
    ranges: bool = False
    """Whether this is a run of `certify_range`: ``certified`` counts ranges within the tolerance, ``unknown`` the
    others."""


class Reporter:
    """Counts finished batches and the current search, and passes a `Progress` to the callback, if there is one."""

    def __init__(
        self,
        images: int,
        callback: Callable[[Progress], None] | None = None,
        ranges: bool = False,
        began: float | None = None,
    ) -> None:
        """``began``: start of the run by `time.perf_counter`; by default now."""
        self.images, self.callback, self.ranges = images, callback, ranges
        self.began = time.perf_counter() if began is None else began
        self.verdicts: Counter[Verdict] = Counter()
        self.boxes = self.earlier = 0
        self.search: Search | None = None

    def resumed(self, results: Sequence[ImageResult | RangeResult]) -> None:
        """Count the results of an earlier process; they took none of this one's time."""
        self.earlier = len(results)
        self.verdicts.update(result.verdict for result in results)

    def attacking(self) -> None:
        self._say("attack")

    def proving(self, search: Search) -> None:
        self.search = search
        self.report()

    def finished(self, results: Sequence[ImageResult | RangeResult]) -> None:
        """Count a finished batch."""
        self.search = None
        self.verdicts.update(result.verdict for result in results)
        self.boxes += sum(result.boxes for result in results)
        self.report()

    def report(self) -> None:
        self._say("prove")

    def _say(self, phase: str) -> None:
        if self.callback is None:
            return
        counts, boxes = self.verdicts.copy(), self.boxes
        if self.search is not None:
            counts.update(self.search.spec.tally(self.search.state))
            boxes += int(self.search.state.boxes.sum())
        seconds, done = time.perf_counter() - self.began, counts.total()
        here = done - self.earlier
        self.callback(
            Progress(
                images=self.images,
                done=done,
                **{str(verdict): counts[verdict] for verdict in Verdict},
                boxes=boxes,
                seconds=seconds,
                phase=phase,
                seconds_left=seconds * (self.images - done) / here if here and phase == "prove" else None,
                ranges=self.ranges,
            )
        )


# What a run says: one result per image, with its evidence, and a summary.


Box = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)  # slots: there are many, and they are made faster
class ImageResult:
    """The verdict of one image, with its evidence."""

    image: int
    label: int
    verdict: Verdict
    margin: float
    """certified: proved lower bound over the whole range; falsified: at the counterexample; unknown: best bound proved;
    misclassified: of the image itself."""
    grid: tuple[int, ...] | None  # certified: the initial grid ...
    tree: str | None  # ... and how the cells were halved (docs/run-folder.md)
    counterexample: tuple[float, ...] | None
    open_box: Box | None
    boxes: int
    seconds: float
    reason: Reason | None = None
    """unknown: why."""
    perturbation: str | None = None
    """falsified, with noise: which pixels of the counterexample move up by epsilon, the others down (docs/run-folder.md);
    None if the parameters alone change the answer."""
    reached: float | None = None
    """certified, if margins were tightened: an upper bound of the margin at ..."""
    reached_at: tuple[float, ...] | None = None
    """... these parameters."""
    pictures: int | None = None
    """uint8 semantics: the 8-bit pictures that were evaluated."""
    tolerance: float | None = None
    """uint8 semantics: all margins of a certified image exceed it."""

    def record(self) -> dict[str, Any]:
        """Return a plain dictionary for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.perturbation is None:
            del values["perturbation"]
        if self.reached is None:
            del values["reached"], values["reached_at"]
        reason = None if self.reason is None else str(self.reason)
        margin = self.margin if math.isfinite(self.margin) else None
        if self.pictures is None:
            del values["pictures"], values["tolerance"]
        return values | {"verdict": str(self.verdict), "margin": margin, "reason": reason}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> ImageResult:
        """Return the result that `record` wrote."""
        margin, box = record["margin"], record["open_box"]
        changed = {
            "verdict": Verdict(record["verdict"]),
            "margin": -math.inf if margin is None else float(margin),
            "open_box": None if box is None else (tuple(box[0]), tuple(box[1])),
        }
        for name in ("grid", "counterexample"):
            changed[name] = None if record[name] is None else tuple(record[name])
        if "reached_at" in record:
            changed["reached_at"] = tuple(record["reached_at"])
        changed["reason"] = _read_reason(record)
        return cls(**(record | changed))


def _read_reason(record: dict[str, Any]) -> Reason | None:
    reason = record.get("reason")  # folders of earlier versions give none
    return None if reason is None else Reason(reason)


def _count_reasons(results: Sequence[ImageResult | RangeResult]) -> dict[str, int]:
    return dict(sorted(Counter(str(result.reason) for result in results if result.reason).items()))


@dataclass(repr=False)
class Results:
    """The results of a run.

    Attributes
    ----------
    transform, method, semantics : str
        The claim: transformation, pixel bounds and arithmetic.
    results : list
        One entry per image, in the order given.
    seconds : float
        Time of the whole run.
    settings : dict
        All settings, with the device, the precision and the initial grid.
    """

    transform: str
    method: str
    semantics: str
    results: list[Any]
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Totals of the run.

        Returns
        -------
        dict
            Plain values, ready for JSON.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        """The claim, and images by verdict."""
        counts = Counter(str(result.verdict) for result in self.results)
        text = "".join(f", {count} {verdict}" for verdict, count in sorted(counts.items()))
        claim = f"{self.transform!r}, {self.method}, {self.semantics}{self._more()}"
        return f"{type(self).__name__}({claim}: {len(self.results)} images{text}, {self.seconds:.3g} s)"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from tiltproof.verify.notebook import as_html

        return as_html(self)

    def _more(self) -> str:
        """Return more words of the claim, for `repr`."""
        return ""

    def records(self) -> list[dict[str, Any]]:
        """The results as plain values.

        Returns
        -------
        list of dict
            One dictionary per image, ready for JSON.
        """
        return [result.record() for result in self.results]

    def to_json(self) -> dict[str, Any]:
        """The summary together with the records.

        Returns
        -------
        dict
            That of `summary`, and under ``records`` the list of `records`.
        """
        return self.summary() | {"records": self.records()}


@dataclass(repr=False)
class Certificate(Results):
    """The result of `certify`; every list has one entry per image, in the order given.

    Attributes
    ----------
    keep : str
        What is proved of the network, in words, unless that is that it predicts the label.
    """

    results: list[ImageResult]
    keep: str = ""

    def _more(self) -> str:
        return f", {self.keep}" if self.keep else ""

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of each image."""
        return [result.verdict for result in self.results]

    @property
    def margins(self) -> list[float]:
        """The margin of each image: the label's output minus the largest other one, or that of what else was to be
        kept. For a certified image it is a proved lower bound over the whole range."""
        return [result.margin for result in self.results]

    @property
    def counterexamples(self) -> list[tuple[float, ...] | None]:
        """The parameters that falsify each image, or None."""
        return [result.counterexample for result in self.results]

    @property
    def open_boxes(self) -> list[Box | None]:
        """For each unknown image a box of parameters, (low, high), that was not proved; None for the others."""
        return [result.open_box for result in self.results]

    @property
    def boxes(self) -> list[int]:
        """The number of parameter boxes bounded for each image."""
        return [result.boxes for result in self.results]

    def count(self, verdict: Verdict) -> int:
        """Count the images with a verdict.

        Parameters
        ----------
        verdict : Verdict
            The verdict, or its word.

        Returns
        -------
        int
            The number of images.
        """
        return sum(result.verdict == verdict for result in self.results)

    def summary(self) -> dict[str, Any]:
        """Counts and totals.

        Returns
        -------
        dict
            The claim (``transform``, ``method``, ``semantics``, ``keep`` unless it is the label), the number of ``images``
            and of each verdict, ``correct`` (not misclassified), ``unfalsified`` (certified or unknown), ``certified_percent``, ``boxes``,
            ``boxes_per_image``, ``pictures`` (uint8 semantics), ``seconds`` and the ``settings``.
        """
        counts = Counter(str(result.verdict) for result in self.results)
        images, certified, boxes = len(self.results), counts["certified"], sum(self.boxes)
        return {
            "transform": self.transform,
            "method": self.method,
            "semantics": self.semantics,
            **({"keep": self.keep} if self.keep else {}),
            "images": images,
            "correct": images - counts["misclassified"],
            **{str(verdict): counts[verdict] for verdict in Verdict},
            "unfalsified": certified + counts["unknown"],
            "unknown_reasons": _count_reasons(self.results),
            "certified_percent": 100 * certified / images,
            "boxes": boxes,
            "boxes_per_image": boxes / images,
            **self._pictures(),
            "seconds": self.seconds,
            "settings": self.settings,
        }

    def _pictures(self) -> dict[str, int]:
        """Return how many pictures were evaluated, with uint8 semantics."""
        counts = [result.pictures for result in self.results if result.pictures is not None]
        return {"pictures": sum(counts)} if counts else {}


# Regression: for each image a range that no output leaves, and how tight it is known to be.


Values = tuple[float, ...]


@dataclass(frozen=True)
class RangeResult:
    """The range of one image. Tuples have one entry per output, parameters one per parameter of the transformation."""

    image: int
    prediction: Values  # on the untransformed image
    lower: Values  # proved: no transformed image has a smaller output
    upper: Values
    inner_lower: Values  # reached, up to the rounding of one evaluation, at ...
    inner_upper: Values
    lowest_at: tuple[Values, ...]  # ... these parameters, one vector for each output
    highest_at: tuple[Values, ...]
    value: Values | None  # the target value, if one was given
    complete: bool  # False: the budget ended before the range was as tight as asked for
    grid: tuple[int, ...]  # the initial grid of the parameters' range ...
    tree: str  # ... and how the cells were halved (docs/run-folder.md)
    boxes: int
    seconds: float
    reason: Reason | None = None  # not complete: why

    def record(self) -> dict[str, Any]:
        """Return a plain dictionary for JSON; an infinite bound is null."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["reason"] = None if self.reason is None else str(self.reason)
        for name in ("lower", "upper"):
            values[name] = [x if abs(x) != float("inf") else None for x in values[name]]
        return values

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> RangeResult:
        """Return the result that `record` wrote."""
        changed: dict[str, Any] = {name: tuple(map(tuple, record[name])) for name in ("lowest_at", "highest_at")}
        for name, missing in (("lower", -float("inf")), ("upper", float("inf"))):
            changed[name] = tuple(missing if x is None else float(x) for x in record[name])
        for name in ("prediction", "inner_lower", "inner_upper", "grid"):
            changed[name] = tuple(record[name])
        changed["value"] = None if record["value"] is None else tuple(record["value"])
        changed["reason"] = _read_reason(record)
        return cls(**(record | changed))

    @property
    def verdict(self) -> Verdict:
        """Certified if the range is within the tolerance, else unknown; the range holds in either case."""
        return Verdict.CERTIFIED if self.complete else Verdict.UNKNOWN

    @property
    def width(self) -> float:
        """Width of the widest proved range of an output."""
        return max(b - a for a, b in zip(self.lower, self.upper, strict=True))

    @property
    def inner_width(self) -> float:
        """Width of the widest inner range, which no certified width can undercut.

        Ends for an output that does not move are rounded, and may be in the wrong order.
        """
        return max(0.0, *(b - a for a, b in zip(self.inner_lower, self.inner_upper, strict=True)))

    @property
    def error(self) -> float | None:
        """Mean absolute error of the prediction."""
        return (
            None
            if self.value is None
            else _mean([abs(p - v) for p, v in zip(self.prediction, self.value, strict=True)])
        )

    @property
    def certified_error(self) -> float | None:
        """Mean over the outputs of the largest absolute error that the proved range allows."""
        if self.value is None:
            return None
        triples = zip(self.lower, self.upper, self.value, strict=True)
        return _mean([max(abs(low - v), abs(high - v)) for low, high, v in triples])


@dataclass(repr=False)
class RangeCertificate(Results):
    """The result of `certify_range`; ``results`` has one entry per image, in the order given."""

    results: list[RangeResult]

    def summary(self) -> dict[str, Any]:
        """Means over the images, None where one is infinite.

        Returns
        -------
        dict
            The claim, the number of ``images`` and of ``complete`` ranges, why others are not (``unknown_reasons``),
            ``mean_width``, ``largest_width``,
            ``mean_inner_width``, ``boxes``, ``boxes_per_image``, ``seconds``, the ``settings``, and, if targets were
            given, ``mean_absolute_error`` and ``certified_mean_absolute_error``.
        """
        images, boxes = len(self.results), sum(result.boxes for result in self.results)
        valued = [result for result in self.results if result.value is not None]
        errors = {}
        if valued:
            errors = {
                "mean_absolute_error": _mean([result.error or 0.0 for result in valued]),
                "certified_mean_absolute_error": _mean([result.certified_error or 0.0 for result in valued]),
            }
        summary = {
            "task": "regression",
            "transform": self.transform,
            "method": self.method,
            "semantics": self.semantics,
            "images": images,
            "complete": sum(result.complete for result in self.results),
            "unknown_reasons": _count_reasons(self.results),
            "mean_width": _mean([result.width for result in self.results]),
            "largest_width": max(result.width for result in self.results),
            "mean_inner_width": _mean([result.inner_width for result in self.results]),
            **errors,
            "boxes": boxes,
            "boxes_per_image": boxes / images,
            "seconds": self.seconds,
            "settings": self.settings,
        }
        return {key: None if value == float("inf") else value for key, value in summary.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
