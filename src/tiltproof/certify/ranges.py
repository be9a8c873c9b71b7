"""What a regression run says: for each image a range that no output leaves, and how tight it is known to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiltproof.certify.certificate import Results

Values = tuple[float, ...]


@dataclass(frozen=True)
class RangeResult:
    """One image. All tuples have one entry an output, parameters one a parameter of the transform."""

    image: int
    prediction: Values  # on the untransformed image
    lower: Values  # proved: no transformed image has a smaller output
    upper: Values
    inner_lower: Values  # reached, up to the rounding of one evaluation, at ...
    inner_upper: Values
    lowest_at: tuple[Values, ...]  # ... these parameters, one vector for each output
    highest_at: tuple[Values, ...]
    value: Values | None  # the right answer, where it was given
    complete: bool  # False: the budget ended before the range was as tight as asked for
    grid: tuple[int, ...]  # how the parameters' range was cut to begin with ...
    tree: str  # ... and how the cells were halved (docs/run-folder.md)
    boxes: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """A plain dictionary, ready for JSON; an end that could not be bounded is null."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("lower", "upper"):
            values[name] = [x if abs(x) != float("inf") else None for x in values[name]]
        return values

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> RangeResult:
        """The result that `record` was made of."""
        changed: dict[str, Any] = {name: tuple(map(tuple, record[name])) for name in ("lowest_at", "highest_at")}
        for name, missing in (("lower", -float("inf")), ("upper", float("inf"))):
            changed[name] = tuple(missing if x is None else float(x) for x in record[name])
        for name in ("prediction", "inner_lower", "inner_upper", "grid"):
            changed[name] = tuple(record[name])
        changed["value"] = None if record["value"] is None else tuple(record["value"])
        return cls(**(record | changed))

    @property
    def width(self) -> float:
        """Of the widest output's range."""
        return max(b - a for a, b in zip(self.lower, self.upper, strict=True))

    @property
    def inner_width(self) -> float:
        """Of the widest range that evaluations are known to reach; the certified width cannot be less.

        Ends of an output that does not move at all are rounded, and may stand in the wrong order.
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


@dataclass
class RangeCertificate(Results):
    """The result of `certify_range`; ``results`` has one entry per image, in the order given."""

    results: list[RangeResult] = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """Means over the images as plain numbers, None where one is infinite; errors only where right answers were given."""
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
