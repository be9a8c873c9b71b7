"""The numbers behind a report's page: one column a property, one entry an image; and the summary that needs no script."""

from __future__ import annotations

import html
from typing import Any

from tiltproof.reports.picture_data import digits, digits_above, digits_below
from tiltproof.reports.sentences import parameter_name, percent
from tiltproof.runs.reader import FinishedRun
from tiltproof.verify.results import ImageResult, RangeResult, Verdict

VERDICTS = [str(verdict) for verdict in Verdict]


def page_data(run: FinishedRun, thumbnails: list[str], detailed: list[int]) -> dict[str, Any]:
    """Everything the table and the curve need."""
    transform = run.transform
    common = {
        "task": "regression" if run.regression else "classification",
        "first": run.first,
        "count": len(run.results),
        "parameters": [
            {"name": parameter_name(part), "letter": part.letter, "unit": part.unit, "low": low, "high": high}
            for part, low, high in zip(transform.parts, transform.low, transform.high, strict=True)
        ],
        "thumbnails": thumbnails,
        "detailed": detailed,
        "boxes": [result.boxes for result in run.results],
        "seconds": [digits(result.seconds, 3) for result in run.results],
    }
    return common | (_ranges(run.results) if run.regression else _verdicts(run, run.results))


def _verdicts(run: FinishedRun, results: list[ImageResult]) -> dict[str, Any]:
    return {
        "verdictNames": VERDICTS,
        "labels": [result.label for result in results],
        "verdicts": [VERDICTS.index(str(result.verdict)) for result in results],
        "margins": [_margin(result) for result in results],
        "counterexamples": {k: result.counterexample for k, result in enumerate(results) if result.counterexample},
        "openBoxes": {k: result.open_box for k, result in enumerate(results) if result.open_box},
        "curve": _curve(run),
    }


def _margin(result: ImageResult) -> float | None:
    """With the digits that are shown; proved bounds rounded to the safe side."""
    if result.verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN):
        return digits_below(result.margin)
    return digits_above(result.margin) if result.verdict is Verdict.FALSIFIED else digits(result.margin)


def _curve(run: FinishedRun) -> list[dict[str, Any]] | None:
    """The points of the curve, with the images themselves as the range of size nothing where the range holds it."""
    if run.curve is None:
        return None
    points = [
        {
            "share": point.share,
            "transform": point.transform,
            "counts": [point.certified, point.falsified, point.unknown, point.misclassified],
        }
        for point in run.curve
    ]
    if all(low <= 0 <= high for low, high in zip(run.transform.low, run.transform.high, strict=True)):
        wrong = run.curve[0].misclassified
        none = {"share": 0, "transform": "no transformation", "counts": [len(run.results) - wrong, 0, 0, wrong]}
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
    }


def static_summary(run: FinishedRun) -> str:
    """Tiles with the numbers of the run, as HTML that is there without a script."""
    tiles = _range_tiles(run) if run.regression else _verdict_tiles(run)
    return "".join(
        f'<li class="tile {kind}"><span class="tile-name">{html.escape(name)}</span>'
        f'<strong class="tile-value">{html.escape(value)}</strong>'
        f'<span class="tile-note">{html.escape(note)}</span></li>'
        for name, value, note, kind in tiles
    )


def _verdict_tiles(run: FinishedRun) -> list[tuple[str, str, str, str]]:
    """Name, value, note and kind of each."""
    images = len(run.results)
    meanings = {
        "correct": ("Clean", "right without transformation", "plain"),
        "certified": ("Certified", "proved for the whole range", "certified"),
        "unfalsified": ("Unfalsified", "no counterexample found", "plain"),
        "unknown": ("Unknown", "neither proved nor broken", "unknown"),
    }
    return [
        (name, percent(run.summary[key], images), f"{run.summary[key]:,} of {images:,}: {meaning}", kind)
        for key, (name, meaning, kind) in meanings.items()
    ]


def _range_tiles(run: FinishedRun) -> list[tuple[str, str, str, str]]:
    images, summary = len(run.results), run.summary
    tiles = [
        ("Images", f"{images:,}", "each with a proved range", "plain"),
        ("Proved width", _finite(summary["mean_width"]), "mean; no output leaves these ranges", "certified"),
        ("Reached width", _finite(summary["mean_inner_width"]), "mean; no proof can give less", "plain"),
        ("As tight as asked", f"{summary['complete']:,}", f"of {images:,} images", "plain"),
    ]
    if "certified_mean_absolute_error" in summary:
        error = _finite(summary["certified_mean_absolute_error"])
        tiles.append(("Certified error", error, "mean of the largest error a range allows", "certified"))
    return tiles


def _finite(value: float | None) -> str:
    return "not bounded" if value is None else f"{value:.4g}"
