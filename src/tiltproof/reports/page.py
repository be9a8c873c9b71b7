"""Write a run as one HTML file that works offline."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.names import REPORT_DETAILS
from tiltproof.program import as_program
from tiltproof.reports import assessment
from tiltproof.reports.columns import page_data
from tiltproof.reports.details import ClassDetails, Details, PictureDetails, RangeDetails
from tiltproof.reports.encoding import thumbnail_data
from tiltproof.reports.sentences import quote, scope
from tiltproof.reports.strip import sequence_section
from tiltproof.runs.atomic_io import replace_bytes
from tiltproof.runs.manifest import package_version
from tiltproof.runs.reader import FinishedRun, check_images, check_model, read_finished
from tiltproof.verify.inputs import check_claimed, check_model_and_images, proof_on
from tiltproof.verify.options import EIGHT_BITS
from tiltproof.verify.results import ImageResult, Verdict

REPORT = "report.html"
SLIDERS = 1000
"""Number of further images with sampled margins, so that they turn in the page."""
MAX_BYTES = 10_000_000
"""Size limit of a page; further details are left out, and the page says so."""
MAX_THUMBNAIL_BYTES = 6_000_000
"""Size limit of the thumbnails; further ones are left out, and the page says so."""
MAPS = 24
"""Number of images whose map of two parameters shows the bound of each box."""
SCRIPTS = ("format.js", "plot.js", "warp.js", "turn.js", "table.js", "grid.js", "detail.js", "start.js")


def report(
    folder: str | Path,
    model: nn.Module | Callable[[Tensor], Any] | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    *,
    out: str | Path | None = None,
    details: int = REPORT_DETAILS,
    only: Sequence[int] | None = None,
    notices: tuple[str, ...] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a run as one HTML page that opens offline.

    Parameters
    ----------
    folder : str or Path
        The run folder of `certify` or `certify_range`.
    model : torch.nn.Module, optional
        The run's network or program; without it the page shows no margins and no pixel bounds.
    images, labels : Tensor, optional
        The run's images, in its order, and their labels; without images the page shows none.
    out : str or Path, optional
        The file to write; by default ``report.html`` in the run folder.
    details : int
        Number of images with pixel bounds and bounds box by box: first those that are not certified, then the smallest
        margins. A thousand more have sampled margins.
    only : sequence of int, optional
        Instead, the numbers of the images that have them, as the page shows them.
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
    rows = chosen_rows(run, details, only)
    network = None if model is None else as_program(model)
    if network is not None:
        check_model(run, network)
    if images is not None:
        images = check_images(run, images, labels)
    remarks = [*run.notices, *notices]
    thumbnails = [] if images is None else _thumbnails(images, remarks)
    blocks: dict[int, str] = {}
    if images is None:
        remarks.append("No data was given, so this report has no images.")
    elif network is None:
        remarks.append("No model was given, so this report shows no margins over parameters and no pixel bounds.")
    else:
        room = MAX_BYTES - sum(map(len, thumbnails)) - 200 * len(run.results)
        for row, detail in _details(run, network, images, *rows, progress):
            text = _json(detail)
            room -= len(text)
            if room < 0:
                break
            blocks[row] = text
        remarks += _left_out(run, blocks, rows[0], only is not None)
    path = Path(out) if out is not None else run.folder / REPORT
    content = _page(run, page_data(run, thumbnails, sorted(blocks)), blocks, remarks).encode()
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path.resolve(), content)
    except OSError as error:
        raise InputError("the report cannot be written", got=f"{path} ({error.strerror or error})") from None
    return path


def _left_out(run: FinishedRun, blocks: dict[int, str], close: list[int], asked: bool) -> list[str]:
    """Say which images the page shows less of."""
    images, full = len(run.results), sum(row in blocks for row in close)
    which = "the widest ranges" if run.regression else "those that are not certified first"
    which += ", then the smallest margins" if run.tightened else ""
    which = "those asked for" if asked else which
    said = []
    if full < images:
        said.append(f"Pixel bounds and bounds box by box are shown for {full:,} of the {images:,} images: {which}.")
    if len(blocks) < images:
        more = "tiltproof report DIR --images 5,17 writes a page with those of any others."
        said.append(f"{len(blocks):,} of the {images:,} images turn in this page. {more}")
    return said


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


RANKS = {Verdict.FALSIFIED: 0, Verdict.UNKNOWN: 1, Verdict.MISCLASSIFIED: 2, Verdict.CERTIFIED: 3}
"""What matters first."""


def order(run: FinishedRun) -> list[int]:
    """Rank images: falsified ones first, then unknown and misclassified ones, then the smallest margins, if they were
    tightened; the widest ranges of a regression."""
    if run.regression:
        return sorted(range(len(run.results)), key=lambda k: -run.results[k].width)

    def urgency(k: int) -> tuple[int, float]:
        result: ImageResult = run.results[k]
        # how early a proof succeeded ranks nothing: only margins that were tightened do
        return RANKS[result.verdict], result.margin if run.tightened else 0.0

    return sorted(range(len(run.results)), key=urgency)


def chosen_rows(run: FinishedRun, details: int, only: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Return the rows that are looked at closely, and those that only turn."""
    ranked = order(run)
    if only is not None:
        strange = [number for number in only if not 0 <= number - run.first < len(ranked)]
        if strange:
            last = run.first + len(ranked) - 1
            raise InputError(
                f"the run has no image {strange[0]}",
                got=", ".join(map(str, only)),
                do=f"give numbers from {run.first} to {last}",
            )
        asked = {number - run.first for number in only}
        close = [row for row in ranked if row in asked]
    else:
        close = ranked[:details]
    taken = set(close)
    return close, [row for row in ranked if row not in taken][: SLIDERS if only is None and details else 0]


def _details(
    run: FinishedRun,
    model: nn.Module,
    images: Tensor,
    close: list[int],
    more: list[int],
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the details of some images, closely of the first."""
    rows = close + more
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
            kind = PictureDetails if semantics == EIGHT_BITS else ClassDetails
            source: Details = RangeDetails(inputs, method) if run.regression else kind(inputs, method, rule)
            for k, row in enumerate(rows):
                yield row, source.of(k, run.results[row], closely=k < len(close), mapped=k < MAPS)
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
        "quote": html.escape(sentence).replace(" %", "\u00a0%"),
        "scope": html.escape(scope(run)),
        **assessment.blocks(run),
        "hero": _still(run, blocks),
        "drive": sequence_section(run.results) if run.regression and run.notes.get("sequence") is True else "",
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


def _still(run: FinishedRun, blocks: dict[int, str]) -> str:
    """Return the first image as it is and at its worst, for readers and printers without the script."""
    ranked = [row for row in order(run) if row in blocks]
    if not ranked or "turned" not in (detail := json.loads(blocks[ranked[0]])):
        return ""
    number = run.first + ranked[0]
    pictures = (("image", f"image {number}"), ("turned", f"image {number} at its worst"))
    return "".join(f'<img src="{html.escape(detail[key])}" alt="{text}" class="still">' for key, text in pictures)


def _hash(text: str) -> str:
    """Return the hash by which a content security policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
