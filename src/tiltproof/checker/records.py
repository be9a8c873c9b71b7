"""The records of a run: one verdict or one set of output ranges per image, and the totals in the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.strict_json import ensure, finite, flag, get, natural, same_number, vector
from tiltproof.checker.tiling import Tiled, Transform, read_tiling

VERDICTS = ("certified", "falsified", "unknown", "misclassified")
REASONS = ("boxes", "seconds", "splits", "rounding", "open", "noise", "tolerance", "ties")


@dataclass(frozen=True)
class VerdictRecord(Tiled):
    """The record of one image; only a certified one has a tiling, or one of which a share of the range was proved."""

    label: int
    verdict: str
    margin: float | None
    counterexample: list[float]
    share: float = 1.0
    """What was proved of the range, if the run has a radius for each image: each end times this, exactly."""
    perturbation: str | None = None
    """With noise: what moves the pixels of the counterexample, if anything does."""
    reached: float | None = None
    """The margin is at most this ..."""
    reached_at: tuple[float, ...] = ()
    """... at these parameters."""
    tolerance: float = 0.0
    """uint8 semantics: what margins are said to exceed."""


def read_labels(claim: dict[str, Any], count: int) -> list[int]:
    labels: list[int] = get(claim, "labels", list)
    ensure(all(type(label) is int and 0 <= label < 2**31 for label in labels), "a label is not a valid class index")
    ensure(count == len(labels), "the claim does not give one sha256 and one label for each image")
    return labels


def read_verdict(
    record: dict[str, Any],
    number: int,
    label: int,
    transform: Transform,
    radius: bool = False,
    pictures: bool = False,
) -> VerdictRecord:
    """Read the record of image ``number``. ``radius``: it says which share of the range was proved; ``pictures``: of a run with uint8
    semantics."""
    parts = len(transform.low)
    try:
        tolerance = 0.0
        if pictures:
            natural(record, "pictures")
            tolerance = finite(record, "tolerance")
            ensure(tolerance >= 0, "its tolerance is negative")
        ensure(
            natural(record, "image") == number, f"its record is missing or out of order: found image {record['image']}"
        )
        ensure(natural(record, "label") == label, f"its record has label {record['label']}, the claim {label}")
        verdict = get(record, "verdict", str)
        ensure(verdict in VERDICTS, f"unknown verdict {verdict[:40]!r}")
        natural(record, "boxes"), finite(record, "seconds")
        open_ended = verdict in ("unknown", "misclassified") and record.get("margin", 0) is None
        margin = None if open_ended else finite(record, "margin")
        for key, owner in {
            "grid": "certified",
            "tree": "certified",
            "counterexample": "falsified",
            "open_box": "unknown",
        }.items():
            ensure(key in record, f"{key} is missing")
            tiled = radius and owner == "certified" and verdict != "misclassified"
            ensure(verdict == owner or tiled or record[key] is None, f"{key} is given for a verdict {verdict}")
        check_reason(record, verdict == "unknown", f"a verdict {verdict}")
        share = 1.0
        if radius:
            share = finite(record, "share")
            ensure(0 <= share <= 1, f"its share {share} is none")
            ensure((share == 1) == (verdict == "certified"), f"share {share} is proved for a verdict {verdict}")
            ensure(share > 0 or record["tree"] is None, "it has a tiling, but no share of the range was proved")
        else:
            ensure("share" not in record, "a share of the range is given in a run about the whole one")
        push = record.get("perturbation")
        ensure(
            push is None or (verdict == "falsified" and transform.noise > 0 and type(push) is str),
            "it has a perturbation where none belongs",
        )
        ensure("reached" not in record or verdict == "certified", f"a margin is reached for a verdict {verdict}")
        if verdict == "certified":
            reached, at = read_reached(record, margin, transform) if "reached" in record else (None, ())
            return VerdictRecord(
                *(number, *read_tiling(record, parts), label, verdict, margin, []),
                tolerance=tolerance,
                reached=reached,
                reached_at=at,
            )
        tiling: tuple[list[int], str, int] = ([], "", 0)
        if radius and share > 0:
            ensure(verdict != "misclassified", "a share is proved of a misclassified image")
            tiling = read_tiling(record, parts)
        point: list[float] = []
        if verdict == "falsified":
            point = vector(get(record, "counterexample", list), parts)
        elif verdict == "unknown" and record["open_box"] is not None:
            ends = get(record, "open_box", list)
            ensure(len(ends) == 2 and all(type(end) is list for end in ends), "open_box is not [lows, highs]")
            lows, highs = vector(ends[0], parts), vector(ends[1], parts)
            ensure(
                all(
                    low <= a <= b <= high
                    for low, a, b, high in zip(transform.low, lows, highs, transform.high, strict=True)
                ),
                "its open box is not a box inside the range",
            )
        share = share if radius else 0.0
        return VerdictRecord(number, *tiling, label, verdict, margin, point, share, push, tolerance=tolerance)
    except CheckFailed as error:
        raise CheckFailed(error.what, number) from None


def read_reached(record: dict[str, Any], margin: float | None, transform: Transform) -> tuple[float, tuple[float, ...]]:
    """Read the margin that a certified image reaches somewhere in the range, and where."""
    reached, at = finite(record, "reached"), vector(get(record, "reached_at", list), len(transform.low))
    ensure(margin is not None and margin <= reached, "its proved margin is above the one that it reaches")
    inside = all(low <= x <= high for low, x, high in zip(transform.low, at, transform.high, strict=True))
    ensure(inside, "the margin is reached outside of the range")
    return reached, tuple(at)


def check_counts(summary: dict[str, Any], records: Sequence[VerdictRecord]) -> None:
    verdicts = [record.verdict for record in records]
    counts = {name: verdicts.count(name) for name in VERDICTS}
    counts |= {"images": len(verdicts), "correct": len(verdicts) - counts["misclassified"]}
    counts["unfalsified"] = counts["certified"] + counts["unknown"]
    for name, number in counts.items():
        ensure(natural(summary, name) == number, f"the summary says {name} {summary[name]}, the records say {number}")


def check_asked(tolerance: float, records: Sequence[VerdictRecord]) -> None:
    """Check that verdicts are about the tolerance that the run was asked for, or a larger one."""
    for record in records:
        if record.verdict in ("certified", "falsified") and not record.tolerance >= tolerance:
            raise CheckFailed("its tolerance is less than the run's settings say", record.image)


# Regression: one proved range per output and image, and the means of widths and errors.


Values = list[list[float]] | None
"""The target values: one number per output for each image, or None if the run was not given any."""


def check_reason(record: dict[str, Any], wanted: bool, what: str) -> None:
    """Refuse a reason that is none, or of a result that needs none. It says nothing that is proved, and records without
    it are as good."""
    reason = record.get("reason")
    known = wanted and type(reason) is str and reason in REASONS
    ensure(reason is None or known, f"the reason of {what} is {str(reason)[:40]!r}")


@dataclass(frozen=True)
class RangeRecord(Tiled):
    """The record of one image: lists with one entry per output. An infinite end claims nothing."""

    prediction: list[float]
    lower: list[float]
    upper: list[float]
    inner_lower: list[float]
    inner_upper: list[float]
    lowest_at: list[list[float]]
    highest_at: list[list[float]]
    value: list[float] | None
    complete: bool


def read_values(claim: dict[str, Any], count: int) -> Values:
    ensure("labels" not in claim, "a regression run's claim has labels")
    ensure("values" in claim, "values is missing")
    if claim["values"] is None:
        return None
    rows = get(claim, "values", list)
    ensure(count == len(rows), "the claim does not give one sha256 and one row of values for each image")
    ensure(all(type(row) is list and row for row in rows), "a row of values is not a list of numbers")
    return [vector(row, len(rows[0]), "a row of values") for row in rows]


def read_range(record: dict[str, Any], number: int, values: Values, position: int, transform: Transform) -> RangeRecord:
    """Read the record of image ``number``; its target values are row ``position`` of the claim's."""
    try:
        ensure(
            natural(record, "image") == number, f"its record is missing or out of order: found image {record['image']}"
        )
        natural(record, "boxes"), finite(record, "seconds")
        outputs = len(get(record, "prediction", list))
        ensure(outputs > 0, "it has no outputs")
        prediction, inner_lower, inner_upper = (
            vector(get(record, key, list), outputs, key) for key in ("prediction", "inner_lower", "inner_upper")
        )
        lower, upper = ends(record, "lower", outputs, -math.inf), ends(record, "upper", outputs, math.inf)
        lowest_at, highest_at = (points(record, key, outputs, transform) for key in ("lowest_at", "highest_at"))
        ensure("value" in record, "value is missing")
        value = None if record["value"] is None else vector(get(record, "value", list), outputs, "value")
        ensure(value == (None if values is None else values[position]), "its value is not that of the claim")
        complete = flag(record, "complete")
        check_reason(record, not complete, f"a range that is {'' if complete else 'not '}complete")
        for low, reached_low, reached_high, high in zip(lower, inner_lower, inner_upper, upper, strict=True):
            ensure(low <= high, "its range is empty")
            # lower <= f(lowest_at) <= inner_lower and inner_upper <= f(highest_at) <= upper, or one of the claims is false
            ensure(low <= reached_low and reached_high <= high, "its inner range is not inside the proved one")
        return RangeRecord(
            number,
            *read_tiling(record, len(transform.low)),
            prediction,
            lower,
            upper,
            inner_lower,
            inner_upper,
            lowest_at,
            highest_at,
            value,
            complete,
        )
    except CheckFailed as error:
        raise CheckFailed(error.what, number) from None


def ends(record: dict[str, Any], key: str, length: int, nothing: float) -> list[float]:
    """Read finite numbers; null means that nothing is claimed and becomes ``nothing``."""
    given = get(record, key, list)
    ensure(len(given) == length, f"{key} has the wrong length")
    return [nothing if value is None else vector([value], 1, key)[0] for value in given]


def points(record: dict[str, Any], key: str, length: int, transform: Transform) -> list[list[float]]:
    """Read one parameter vector per output, each inside the closed range exactly."""
    rows = get(record, key, list)
    ensure(len(rows) == length and all(type(row) is list for row in rows), f"{key} does not hold one vector per output")
    found = [vector(row, len(transform.low), key) for row in rows]
    for point in found:
        inside = all(a <= x <= b for a, x, b in zip(transform.low, point, transform.high, strict=True))
        ensure(inside, f"{key} is outside the range")
    return found


def check_means(summary: dict[str, Any], records: Sequence[RangeRecord]) -> None:
    """Recompute the summary's numbers from the records; an infinite one is null."""
    outputs = len(records[0].prediction)
    ensure(all(len(r.prediction) == outputs for r in records), "the records have different numbers of outputs")
    for name, number in (("images", len(records)), ("complete", sum(r.complete for r in records))):
        ensure(natural(summary, name) == number, f"the summary says {name} {summary[name]}, the records say {number}")
    widths = [max(map(float.__sub__, r.upper, r.lower)) for r in records]
    # ends for an output that does not move are rounded outward, past each other
    inner = [max(0.0, *map(float.__sub__, r.inner_upper, r.inner_lower)) for r in records]
    same_number(summary.get("largest_width"), max(widths), max(widths), "the summary's largest_width")
    means = {"mean_width": widths, "mean_inner_width": inner}
    errors: list[
        float
    ] = []  # of the prediction and, in the next list, the largest that the proved range allows: per output and image
    largest_errors: list[float] = []
    for r in records:
        for k, right in enumerate(r.value or []):
            errors.append(abs(r.prediction[k] - right))
            largest_errors.append(max(abs(r.lower[k] - right), abs(r.upper[k] - right)))
    for name, terms in (("mean_absolute_error", errors), ("certified_mean_absolute_error", largest_errors)):
        if terms:
            means[name] = terms
        else:
            ensure(name not in summary, f"the summary has a {name}, but the run has no values")
    for name, terms in means.items():
        mean, size = sum(terms) / len(terms), sum(map(abs, terms)) / len(terms)
        same_number(summary.get(name), mean, size, f"the summary's {name}")
