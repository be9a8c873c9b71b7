"""A drive as a strip: for each frame, by how much a transformation may move an output at most, and what was reached."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from tiltproof.verify.results import RangeResult
from tiltproof.verify.sequence import deviations, sequence_statement

WIDTH, HEIGHT, LEFT, BASE = 960, 150, 56, 124
MOST_BARS = 900
"""More frames share bars: a bar shows the worst of its frames."""
PROVED, REACHED, OPEN, INK = "#9db8d9", "#1f4e8c", "#c0392b", "#444"


def sequence_strip(results: Sequence[RangeResult]) -> str:
    """Return an SVG picture of the sequence: a bar for each frame, the proved bound above what is reached; red without a bound.

    Parameters
    ----------
    results : sequence of RangeResult
        The results of the frames, in order.

    Returns
    -------
    str
        A complete ``<svg>`` element, without script or outside reference.
    """
    statement = sequence_statement(results)
    proved = [max(deviations(result)) for result in results]
    reached = [
        max(max(high - middle, middle - low, 0.0) for low, middle, high in zip(*columns, strict=True))
        for columns in ((result.inner_lower, result.prediction, result.inner_upper) for result in results)
    ]
    top = max([each for each in proved if each < math.inf] + reached) or 1.0
    step = math.ceil(len(results) / MOST_BARS)
    count = math.ceil(len(results) / step)
    wide = (WIDTH - LEFT - 8) / count
    bars = []
    for k in range(count):
        frames = range(k * step, min((k + 1) * step, len(results)))
        bound, found = max(proved[frame] for frame in frames), max(reached[frame] for frame in frames)
        numbers = f"{results[frames[0]].image}" + (f" to {results[frames[-1]].image}" if len(frames) > 1 else "")
        words = f"frame {numbers}: " + (f"at most {bound:.4g}" if bound < math.inf else "no bound")
        x, high = LEFT + k * wide, (BASE - 20) * (min(bound, top) / top)
        color = PROVED if bound < math.inf else OPEN
        bars.append(
            f"<g><title>{html.escape(words)}, {found:.4g} reached</title>"
            f'<rect x="{x:.2f}" y="{BASE - high:.2f}" width="{max(0.5, wide * 0.9):.2f}" height="{high:.2f}" fill="{color}"/>'
            f'<rect x="{x:.2f}" y="{BASE - (BASE - 20) * found / top:.2f}" width="{max(0.5, wide * 0.9):.2f}" '
            f'height="{(BASE - 20) * found / top:.2f}" fill="{REACHED}"/></g>'
        )
    ends = (
        f'<text x="{LEFT}" y="{BASE + 16}">{results[0].image}</text>'
        f'<text x="{WIDTH - 8}" y="{BASE + 16}" text-anchor="end">{results[-1].image}</text>'
        f'<text x="{LEFT - 6}" y="24" text-anchor="end">{top:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{BASE}" text-anchor="end">0</text>'
    )
    label = html.escape(f"Deviation by frame: {statement.sentence}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">{"".join(bars)}{ends}</svg>'
    )
