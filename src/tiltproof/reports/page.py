"""Write a run as one HTML file that works offline."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.names import REPORT_DETAILS
from tiltproof.reports.details import ClassDetails, Details, RangeDetails
from tiltproof.reports.encoding import digits, digits_above, digits_below, thumbnail_data
from tiltproof.reports.sentences import facts, parameter_name, percent, quote, scope
from tiltproof.runs.atomic_io import replace_bytes
from tiltproof.runs.manifest import package_version
from tiltproof.runs.reader import FinishedRun, check_images, check_model, read_finished
from tiltproof.verify.inputs import check_claimed, check_model_and_images, proof_on
from tiltproof.verify.results import ImageResult, RangeResult, Reason, Verdict

REPORT = "report.html"
MAX_BYTES = 28_000_000
"""Size limit of a page; further details are left out, and the page says so."""
MAX_THUMBNAIL_BYTES = 20_000_000
"""Size limit of the thumbnails; further ones are left out, and the page says so."""
SCRIPTS = ("format.js", "plot.js", "table.js", "detail.js", "start.js")


def report(
    folder: str | Path,
    model: nn.Module | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    *,
    out: str | Path | None = None,
    details: int = REPORT_DETAILS,
    notices: tuple[str, ...] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a run as one HTML page that opens offline.

    Parameters
    ----------
    folder : str or Path
        The run folder of `certify` or `certify_range`.
    model : torch.nn.Module, optional
        The run's network; without it the page shows no margins and no pixel bounds.
    images, labels : Tensor, optional
        The run's images, in its order, and their labels; without images the page shows none.
    out : str or Path, optional
        The file to write; by default ``report.html`` in the run folder.
    details : int
        Number of images with details: first those that are not certified, then the smallest margins.
    notices : tuple of str
        Remarks shown on the page.
    progress : callable, optional
        Called with the number of detailed images that are done, and of all of them.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If the run is not finished or damaged, the model, images or labels are not those of the run (by digest),
        or the file cannot be written.
    """
    if details < 0:
        raise InputError("the number of images with details must not be negative", got=details)
    run = read_finished(folder)
    if model is not None:
        check_model(run, model)
    if images is not None:
        images = check_images(run, images, labels)
    remarks = [*run.notices, *notices]
    thumbnails = [] if images is None else _thumbnails(images, remarks)
    blocks: dict[int, str] = {}
    if images is None:
        remarks.append("No data was given, so this report has no images.")
    elif model is None:
        remarks.append("No model was given, so this report shows no margins over parameters and no pixel bounds.")
    else:
        room = MAX_BYTES - sum(map(len, thumbnails)) - 200 * len(run.results)
        for row, detail in _details(run, model, images, details, progress):
            text = _json(detail)
            room -= len(text)
            if room < 0:
                break
            blocks[row] = text
    if blocks and len(blocks) < len(run.results):
        remarks.append(
            f"Margins and bounds are shown for {len(blocks):,} of the {len(run.results):,} images: {_which(run)}."
        )
    path = Path(out) if out is not None else run.folder / REPORT
    content = _page(run, page_data(run, thumbnails, sorted(blocks)), blocks, remarks).encode()
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path.resolve(), content)
    except OSError as error:
        raise InputError("the report cannot be written", got=f"{path} ({error.strerror or error})") from None
    return path


def _which(run: FinishedRun) -> str:
    return "the widest ranges" if run.regression else "those that are not certified first, then the smallest margins"


def _thumbnails(images: Tensor, remarks: list[str]) -> list[str]:
    found: list[str] = []
    total = 0
    for image in images:
        text = thumbnail_data(image.cpu().numpy())
        total += len(text)
        if total > MAX_THUMBNAIL_BYTES:
            remarks.append(f"To keep this file small, only the first {len(found):,} images are shown.")
            break
        found.append(text)
    return found


def order(run: FinishedRun) -> list[int]:
    """Rank images: unknown and falsified ones first, then the smallest margins; the widest ranges of a regression."""
    if run.regression:
        return sorted(range(len(run.results)), key=lambda k: -run.results[k].width)

    def urgency(k: int) -> tuple[bool, float]:
        result: ImageResult = run.results[k]
        return result.verdict not in (Verdict.UNKNOWN, Verdict.FALSIFIED), result.margin

    return sorted(range(len(run.results)), key=urgency)


def _details(
    run: FinishedRun, model: nn.Module, images: Tensor, count: int, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = order(run)[:count]
    if not rows:
        return
    method, semantics = str(run.settings.get("method", "affine")), str(run.claim.get("semantics", "real"))
    rule = None
    with proof_on(images):
        if run.regression:
            inputs = check_model_and_images(model, images[rows], run.transform, semantics)
        else:
            labels = torch.tensor([run.results[row].label for row in rows], device=images.device)
            keep = None if run.keep is None else run.keep.of_images(rows)
            inputs, rule = check_claimed(model, images[rows], labels, run.transform, semantics, keep)
        with inputs.eval_mode():
            source: Details = RangeDetails(inputs, method) if run.regression else ClassDetails(inputs, method, rule)
            for k, row in enumerate(rows):
                yield row, source.of(k, run.results[row])
                if progress is not None:
                    progress(k + 1, len(rows))


def _json(content: Any) -> str:
    """Serialize for a data block of a page: nothing in it can end the block, or begin a tag or a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _file(name: str) -> str:
    return (resources.files("tiltproof.reports") / "web" / name).read_text(encoding="utf-8")


def _page(run: FinishedRun, data: dict[str, Any], blocks: dict[int, str], remarks: list[str]) -> str:
    """Fill the template in one pass, so that no text from the run is read as a placeholder."""
    style, script = _file("page.css"), "".join(map(_file, SCRIPTS))
    sentence = quote(run)
    fields = {
        "policy": f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "title": html.escape(f"{run.name('model') or 'network'} under {run.transform}"),
        "quote": html.escape(sentence),
        "scope": html.escape(scope(run)),
        "summary": static_summary(run),
        "facts": "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts(run)),
        "notices": "".join(f"<li>{html.escape(text)}</li>" for text in remarks),
        "version": html.escape(package_version()),
        "data": _json(data),
        "details": "".join(
            f'<script type="application/json" id="detail-{row}">{text}</script>\n' for row, text in blocks.items()
        ),
    }
    first, *rest = _file("page.html").split("{{")
    pieces = [first]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [fields[name], after]
    return "".join(pieces)


def _hash(text: str) -> str:
    """Return the hash by which a content security policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
        "margins": [_margin(result) for result in results],
        "counterexamples": {k: result.counterexample for k, result in enumerate(results) if result.counterexample},
        "reasons": {k: _reason(result.reason) for k, result in enumerate(results) if result.reason},
        "openBoxes": {k: result.open_box for k, result in enumerate(results) if result.open_box},
        "curve": _curve(run),
    }


def _reason(reason: Reason) -> str:
    return f"{reason.meaning}. What would help: {reason.advice}."


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
    """Return the summary of the run as HTML that needs no script."""
    tiles = _range_tiles(run) if run.regression else _verdict_tiles(run)
    return "".join(
        f'<li class="tile {kind}"><span class="tile-name">{html.escape(name)}</span>'
        f'<strong class="tile-value">{html.escape(value)}</strong>'
        f'<span class="tile-note">{html.escape(note)}</span></li>'
        for name, value, note, kind in tiles
    )


def _verdict_tiles(run: FinishedRun) -> list[tuple[str, str, str, str]]:
    """Return the name, value, note and kind of each tile."""
    images = len(run.results)
    meanings = {
        "correct": ("Clean", f"{'correct' if run.keep is None else 'so'} without transformation", "plain"),
        "certified": ("Certified", "proved for the whole range", "certified"),
        "unfalsified": ("Unfalsified", "no counterexample found", "plain"),
        "unknown": ("Unknown", "neither proved nor disproved", "unknown"),
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
        ("Reached width", _finite(summary["mean_inner_width"]), "mean; a lower limit for every proof", "plain"),
        ("Within tolerance", f"{summary['complete']:,}", f"of {images:,} images", "plain"),
    ]
    if "certified_mean_absolute_error" in summary:
        error = _finite(summary["certified_mean_absolute_error"])
        tiles.append(("Certified error", error, "mean of the largest error a range allows", "certified"))
    return tiles


def _finite(value: float | None) -> str:
    return "not bounded" if value is None else f"{value:.4g}"
