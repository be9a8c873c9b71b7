"""What a classification run says: one verdict an image, and their counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.strict import ensure, finite, get, natural, vector
from tiltproof.checker.tiling import Tiled, Transform, read_tiling

VERDICTS = ("certified", "falsified", "unknown", "misclassified")


@dataclass(frozen=True)
class VerdictRecord(Tiled):
    """What the run says of one image; only a certified one has a tiling."""

    label: int
    verdict: str
    margin: float | None
    counterexample: list[float]


def read_labels(claim: dict[str, Any], count: int) -> list[int]:
    labels: list[int] = get(claim, "labels", list)
    ensure(all(type(label) is int and 0 <= label < 2**31 for label in labels), "a label is no class number")
    ensure(count == len(labels), "the claim does not give one sha256 and one label for each image")
    return labels


def read_verdict(record: dict[str, Any], number: int, label: int, transform: Transform) -> VerdictRecord:
    parts = len(transform.low)
    try:
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
            ensure(verdict == owner or record[key] is None, f"{key} is given for a verdict {verdict}")
        if verdict == "certified":
            return VerdictRecord(number, *read_tiling(record, parts), label, verdict, margin, [])
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
        return VerdictRecord(number, [], "", 0, label, verdict, margin, point)
    except CheckFailed as error:
        raise CheckFailed(error.what, number) from None


def check_counts(summary: dict[str, Any], records: Sequence[VerdictRecord]) -> None:
    verdicts = [record.verdict for record in records]
    counts = {name: verdicts.count(name) for name in VERDICTS}
    counts |= {"images": len(verdicts), "correct": len(verdicts) - counts["misclassified"]}
    counts["unfalsified"] = counts["certified"] + counts["unknown"]
    for name, number in counts.items():
        ensure(natural(summary, name) == number, f"the summary says {name} {summary[name]}, the records say {number}")
