"""A drive as a strip: for each frame, by how much a transformation may move an output at most, and what was reached."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from tiltproof.verify.results import RangeResult
from tiltproof.verify.sequence import deviations, sequence_statement

HEIGHT, LEFT, RIGHT, TOP, BASE = 176, 52, 10, 34, 150
LEAST_BAR = 1.05
"""Least width of a bar, in the picture's units; more frames share bars, each of which shows the worst of its own."""
WIDE, NARROW = 1100, 340
"""Widths of the picture on a large screen and on a phone, where text keeps its size."""


def sequence_strip(results: Sequence[RangeResult], width: int = WIDE) -> str:
    """Return an SVG picture of the sequence: a bar for each frame, the proved bound above what is reached; hatched without a bound.

    Parameters
    ----------
    results : sequence of RangeResult
        The results of the frames, in order.
    width : int
        The picture's width.

    Returns
    -------
    str
        A complete ``<svg>`` element, without script or outside reference; its colors are those of the page's style sheet.
    """
    statement = sequence_statement(results)
    proved = [max(deviations(result)) for result in results]
    reached = [
        max(max(high - middle, middle - low, 0.0) for low, middle, high in zip(*columns, strict=True))
        for columns in ((result.inner_lower, result.prediction, result.inner_upper) for result in results)
    ]
    top = max([each for each in proved if each < math.inf] + reached) or 1.0
    step = math.ceil(len(results) / ((width - LEFT - RIGHT) / LEAST_BAR))
    count = math.ceil(len(results) / step)
    wide = (width - LEFT - RIGHT) / count
    thin = 0.9 * wide if wide > 4 else wide + 0.4  # thin bars touch, without gaps of rounding
    worst = statement.worst_frame - results[0].image
    bars, mark = [], ""
    for k in range(count):
        frames = range(k * step, min((k + 1) * step, len(results)))
        row = max(frames, key=lambda frame: proved[frame])
        bound, found = proved[row], max(reached[frame] for frame in frames)
        numbers = f"{results[frames[0]].image}" + (f" to {results[frames[-1]].image}" if len(frames) > 1 else "")
        words = f"frame {numbers}: " + (f"at most {bound:.4g}" if bound < math.inf else "no bound")
        x, high = LEFT + k * wide, (BASE - TOP) * (min(bound, top) / top)
        low = (BASE - TOP) * found / top
        kind = "strip-unknown" if bound == math.inf else "strip-worst" if worst in frames else "strip-proved"
        bars.append(
            f'<g data-row="{row}"><title>{html.escape(words)}, {found:.4g} reached</title>'
            f'<rect x="{x:.2f}" y="{TOP}" width="{wide:.2f}" height="{BASE - TOP}" class="strip-ground"/>'
            f'<rect x="{x:.2f}" y="{BASE - high:.2f}" width="{thin:.2f}" height="{high:.2f}" class="{kind}"/>'
            f'<rect x="{x:.2f}" y="{BASE - low:.2f}" width="{thin:.2f}" height="{low:.2f}" class="strip-reached"/></g>'
        )
        if worst in frames:
            mark = _mark(x + thin / 2, width, statement.worst_frame, statement.largest_deviation)
    axis = (
        f'<path d="M{LEFT} {BASE}H{width - RIGHT}" class="axis"/><path d="M{LEFT} {TOP}H{width - RIGHT}" class="grid"/>'
        f'<text x="{LEFT}" y="{BASE + 18}">frame {results[0].image}</text>'
        f'<text x="{width - RIGHT}" y="{BASE + 18}" text-anchor="end">{results[-1].image}</text>'
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{top:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{BASE}" text-anchor="end">0</text>'
    )
    label = html.escape(f"Deviation by frame: {statement.sentence}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{label}">'
        f"{axis}{''.join(bars)}{mark}</svg>"
    )


def _mark(x: float, width: int, frame: int, deviation: float | None) -> str:
    """Return a marker above the worst frame's bar; its words stay inside the picture."""
    words = f"frame {frame}: " + ("no bound" if deviation is None else f"{deviation:.4g}")
    anchor, at = ("end", x + 6) if x > width / 2 else ("start", x - 6)
    return (
        f'<path d="M{x - 5:.2f} {TOP - 12}h10l-5 8z" class="strip-mark"/>'
        f'<text x="{at:.2f}" y="{TOP - 18}" text-anchor="{anchor}" class="readout">{html.escape(words)}</text>'
    )


def sequence_section(results: Sequence[RangeResult]) -> str:
    """Return the section of a report about a drive: one sentence, and the strip for large screens and for phones."""
    statement = sequence_statement(results)
    row = statement.worst_frame - results[0].image
    pictures = "".join(
        f'<div class="chart strip {name}">{sequence_strip(results, width)}</div>'
        for name, width in (("strip-wide", WIDE), ("strip-narrow", NARROW))
    )
    keys = [
        ("strip-proved", "proved: no transformation moves an output further"),
        ("strip-reached", "reached for certain"),
    ]
    if not statement.proved:
        keys.append(("strip-unknown", "no bound"))
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" class="{name}"/></svg>{text}</li>'
        for name, text in keys
    )
    sentence = statement.sentence[0].upper() + statement.sentence[1:]
    return (
        '<section aria-labelledby="drive-heading" class="card" id="drive"><h2 id="drive-heading">The whole drive, frame by frame</h2>'
        f'<p>{html.escape(sentence)}.</p>{pictures}<ul class="legend">{legend}</ul>'
        f'<p class="actions"><button type="button" class="quiet" id="worst" data-row="{row}" hidden>'
        f"Open frame {statement.worst_frame}, the worst</button></p></section>"
    )
