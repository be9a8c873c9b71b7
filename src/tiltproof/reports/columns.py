"""The data of the page's pictures, table and curve: one column per property, one entry per image."""

from __future__ import annotations

from typing import Any

from tiltproof.reports.encoding import digits, digits_above, digits_below
from tiltproof.reports.sentences import parameter_name
from tiltproof.runs.reader import FinishedRun
from tiltproof.transforms import LETTERS, Spatial, Transform, parse
from tiltproof.verify.results import ImageResult, RangeResult, Verdict
from tiltproof.verify.shares import scaled

IN_THE_PAGE = frozenset(
    ["R", "Roll", "Tu", "Tv", "Sc", "Scu", "Scv", "Sh", "Shv", "Yaw", "Pitch", "C", "B", "G", "S", "H"]
)
"""Letters of the transformations that `web/warp.js` computes by the same definition; others come as frames."""


def stages(transform: Transform) -> list[Any] | None:
    """Return what the page's script needs to transform an image itself: for each stage its kind, and index, letter and
    constant of each part. None if it does not know a part.

    >>> stages(parse("R(5), Sc(2), C(5)"))
    [['spatial', [[0, 'R', None], [1, 'Sc', None]]], ['values', [[2, 'C', None]]]]
    >>> stages(parse("R(5), Bl(2)")) is None
    True
    """
    if transform.interpolation != "bilinear":
        return None
    for part in transform.parts:
        letter = getattr(part, "letter", None)
        if letter not in IN_THE_PAGE or type(part) is not LETTERS[letter] or not {"range", "fixed"} >= set(vars(part)):
            return None
    return [
        [
            "spatial" if kind is Spatial else "values",
            [[k, transform.parts[k].letter, transform.parts[k].fixed] for k in indices],
        ]
        for kind, indices in transform.stages()
    ]


VERDICTS = [str(verdict) for verdict in Verdict]


def page_data(run: FinishedRun, thumbnails: list[str], detailed: list[int]) -> dict[str, Any]:
    """Return the data of the table and the curve: one column per property, one entry per image."""
    transform = run.transform
    common = {
        "task": "regression" if run.regression else "classification",
        "first": run.first,
        "count": len(run.results),
        "parameters": [
            {"name": parameter_name(part), "letter": part.letter, "unit": part.unit, "low": low, "high": high}
            for part, low, high in zip(transform.parts, transform.low, transform.high, strict=True)
        ],
        "stages": stages(transform),
        "padding": transform.padding,
        "noise": transform.noise or None,
        "size": run.claim["shape"][1:],
        "thumbnails": thumbnails,
        "detailed": detailed,
        "boxes": [result.boxes for result in run.results],
        "seconds": [digits(result.seconds, 3) for result in run.results],
    }
    return common | (_ranges(run.results) if run.regression else _verdicts(run, run.results))


def _verdicts(run: FinishedRun, results: list[ImageResult]) -> dict[str, Any]:
    return {
        "verdictNames": VERDICTS,
        **({} if run.keep is None else {"keep": run.keep.words}),
        "labels": [result.label for result in results],
        "verdicts": [VERDICTS.index(str(result.verdict)) for result in results],
        "tightened": run.tightened,
        "margins": [_margin(result) for result in results],
        "counterexamples": {k: result.counterexample for k, result in enumerate(results) if result.counterexample},
        "reasons": {k: result.reason.sentence() for k, result in enumerate(results) if result.reason},
        "openBoxes": {k: result.open_box for k, result in enumerate(results) if result.open_box},
        "curve": _curve(run),
        **({"radii": [_radius(run, result) for result in results]} if run.radii else {}),
    }


def _radius(run: FinishedRun, result: Any) -> list[list[float]]:
    """Return the ends of each parameter's range within which an image is proved."""
    return [
        [scaled(result.share, end) for end in ends] for ends in zip(run.transform.low, run.transform.high, strict=True)
    ]


def _margin(result: ImageResult) -> float | None:
    """Round a margin for display; proved bounds to the safe side."""
    if result.verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN):
        return digits_below(result.margin)
    return digits_above(result.margin) if result.verdict is Verdict.FALSIFIED else digits(result.margin)


def _curve(run: FinishedRun) -> list[dict[str, Any]] | None:
    """Return the points of the curve; the untransformed images are one if the range contains them."""
    if run.curve is None:
        return None
    points = [
        {
            "share": point.share,
            "transform": point.transform,
            "low": parse(point.transform).low,
            "high": parse(point.transform).high,
            "counts": [point.certified, point.falsified, point.unknown, point.misclassified],
        }
        for point in run.curve
    ]
    if all(low <= 0 <= high for low, high in zip(run.transform.low, run.transform.high, strict=True)):
        wrong = run.curve[0].misclassified
        counts, zero = [len(run.results) - wrong, 0, 0, wrong], [0.0] * len(run.transform.parts)
        none = {"share": 0, "transform": "no transformation", "low": zero, "high": zero, "counts": counts}
        points = [none, *points]
    return points


def _ranges(results: list[RangeResult]) -> dict[str, Any]:
    def table(name: str) -> list[list[float | None]]:
        rounding = {"lower": digits_below, "upper": digits_above}.get(name, digits)
        return [[rounding(x, 6) for x in getattr(result, name)] for result in results]

    return {
        **{name: table(name) for name in ("prediction", "lower", "upper", "inner_lower", "inner_upper")},
        "widths": [digits_above(result.width) for result in results],
        "innerWidths": [digits(result.inner_width) for result in results],
        "values": [None if result.value is None else [digits(x, 6) for x in result.value] for result in results],
        "complete": [int(result.complete) for result in results],
        "reasons": {k: result.reason.sentence(ranges=True) for k, result in enumerate(results) if result.reason},
    }
