"""`report`: a run as one HTML file that needs nothing else: no network, no library, no second file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.reports.details import Details
from tiltproof.reports.page_data import page_data, static_summary
from tiltproof.reports.picture_data import thumbnail_data
from tiltproof.reports.range_details import RangeDetails
from tiltproof.reports.sentences import facts, quote, scope
from tiltproof.runs.atomic_io import replace_bytes
from tiltproof.runs.manifest import package_version
from tiltproof.runs.reader import FinishedRun, check_images, check_model, read_finished
from tiltproof.verify.inputs import check_inputs, check_model_and_images, proof_on
from tiltproof.verify.results import ImageResult, Verdict

REPORT = "report.html"
DETAILS = 100
"""Images that are looked at closely unless said otherwise."""
MOST_BYTES, MOST_THUMBNAIL_BYTES = 28_000_000, 20_000_000
"""What a page may weigh in all, and what its small pictures may; the pictures or details beyond that are left out, and the page says so."""
SCRIPTS = ("format.js", "plot.js", "table.js", "detail.js", "start.js")


def report(
    folder: str | Path,
    model: nn.Module | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    *,
    out: str | Path | None = None,
    details: int = DETAILS,
    notices: tuple[str, ...] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Turn the run in ``folder`` into one HTML file, by default ``report.html`` beside it, and return its path.

    ``model``, ``images`` and ``labels`` are those of the run, images in its order; they are compared with the run's digests before
    anything is drawn. Without images there are no pictures; without the model no margins and bounds. ``details``: how many images
    are looked at closely, those that are not certified first and then the smallest margins. ``notices`` are shown in the page;
    ``progress`` is told how many of these images are done.
    """
    if details < 0:
        raise InputError("the number of images with details is not negative", got=details)
    run = read_finished(folder)
    if model is not None:
        check_model(run, model)
    if images is not None:
        images = check_images(run, images, labels)
    said = [*run.notices, *notices]
    thumbnails = [] if images is None else _thumbnails(images, said)
    blocks: dict[int, str] = {}
    if images is None:
        said.append("No data was given, so this report has no pictures.")
    elif model is None:
        said.append("No model was given, so this report shows no margins over parameters and no pixel bounds.")
    else:
        room = MOST_BYTES - sum(map(len, thumbnails)) - 200 * len(run.results)
        for row, detail in _details(run, model, images, details, progress):
            text = _json(detail)
            room -= len(text)
            if room < 0:
                break
            blocks[row] = text
    if blocks and len(blocks) < len(run.results):
        said.append(
            f"Margins and bounds are shown for {len(blocks):,} of the {len(run.results):,} images: {_which(run)}."
        )
    path = Path(out) if out is not None else run.folder / REPORT
    content = _page(run, page_data(run, thumbnails, sorted(blocks)), blocks, said).encode()
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path.resolve(), content)
    except OSError as error:
        raise InputError("the report cannot be written", got=f"{path} ({error.strerror or error})") from None
    return path


def _which(run: FinishedRun) -> str:
    return "the widest ranges" if run.regression else "those that are not certified first, then the smallest margins"


def _thumbnails(images: Tensor, said: list[str]) -> list[str]:
    found: list[str] = []
    total = 0
    for image in images:
        text = thumbnail_data(image.cpu().numpy())
        total += len(text)
        if total > MOST_THUMBNAIL_BYTES:
            said.append(f"To keep this file small, only the first {len(found):,} images have a picture.")
            break
        found.append(text)
    return found


def order(run: FinishedRun) -> list[int]:
    """Which images to look at first: open and broken ones, then the smallest margins; of a regression the widest ranges."""
    if run.regression:
        return sorted(range(len(run.results)), key=lambda k: -run.results[k].width)

    def urgency(k: int) -> tuple[bool, float]:
        result: ImageResult = run.results[k]
        return result.verdict not in (Verdict.UNKNOWN, Verdict.FALSIFIED), result.margin

    return sorted(range(len(run.results)), key=urgency)


def _details(
    run: FinishedRun,
    model: nn.Module,
    images: Tensor,
    count: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = order(run)[:count]
    if not rows:
        return
    method, semantics = str(run.settings.get("method", "affine")), str(run.claim.get("semantics", "real"))
    with proof_on(images):
        if run.regression:
            inputs = check_model_and_images(model, images[rows], run.transform, semantics)
        else:
            labels = images.new_tensor([run.results[row].label for row in rows]).long()
            inputs = check_inputs(model, images[rows], labels, run.transform, semantics)
        with inputs.eval_mode():
            looker = RangeDetails(inputs, method) if run.regression else Details(inputs, method)
            for k, row in enumerate(rows):
                result = run.results[row]
                yield row, looker.of_range(k, result) if isinstance(looker, RangeDetails) else looker.of(k, result)
                if progress is not None:
                    progress(k + 1, len(rows))


def _json(content: Any) -> str:
    """For a data block inside a page: nothing in it can end the block or begin a tag or a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _file(name: str) -> str:
    return (resources.files("tiltproof.reports") / "web" / name).read_text(encoding="utf-8")


def _page(run: FinishedRun, data: dict[str, Any], blocks: dict[int, str], said: list[str]) -> str:
    """Fill the template in one pass, so that no text from the run is ever read as a placeholder."""
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
        "notices": "".join(f"<li>{html.escape(text)}</li>" for text in said),
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
    """As a content security policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
