"""How a certificate looks in a notebook: the claim, the verdicts, and the first images that are not certified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiltproof.verify.results import Results

SHOWN = 10
COLUMNS = ("image", "verdict", "label", "counterexample", "open_box", "reason", "lower", "upper")
"""What is shown of an image, as far as its record has it."""


def as_html(certificate: Results) -> str:
    """Return a table of verdicts, and one of images that are not certified."""
    counts = Counter(str(result.verdict) for result in certificate.results)
    rows = [(verdict, f"{count:,}") for verdict, count in sorted(counts.items())]
    claim = f"{certificate.transform}, method {certificate.method}, semantics {certificate.semantics}"
    text = f"<p><b>{escape(claim)}</b>: {len(certificate.results):,} images, {certificate.seconds:.3g} s</p>"
    text += _table(("verdict", "images"), rows)
    left = [result.record() for result in certificate.results if str(result.verdict) != "certified"]
    if left:
        columns = [name for name in COLUMNS if any(_filled(record.get(name)) for record in left[:SHOWN])]
        of_images = [tuple(_cell(record.get(name)) for name in columns) for record in left[:SHOWN]]
        text += "<p>not certified</p>" + _table(columns, of_images)
        text += f"<p>{len(left) - SHOWN:,} more in <code>records()</code></p>" if len(left) > SHOWN else ""
    return text


def _filled(value: object) -> bool:
    return value not in (None, "", (), [])


def _cell(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
