"""The margin over one parameter: what sampling sees (a line) and what is proved for each box (steps below it)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image

from tiltproof.report.ink import INK, OPEN, PROVED, SAMPLED
from tiltproof.report.plot import Plot


def margin_picture(
    parameters: Sequence[float],
    sampled: Sequence[float],
    boxes: Sequence[tuple[float, float, float]],
    title: str,
    parameter_label: str,
    margin_label: str = "margin: score of the label minus the best other",
) -> Image.Image:
    """Draw margins sampled at ``parameters`` and the certified lower bounds ``(box low, box high, bound)``.

    A bound far below every sampled margin is drawn at the lower edge, so that the rest stays legible.
    """
    plot = _MarginPlot(*_ranges(parameters, sampled, boxes))
    plot.axes(parameter_label, margin_label)
    for low, high, bound in boxes:
        plot.step(low, high, bound)
    plot.zero_line()
    plot.curve(parameters, sampled)
    entries = [("sampled margin", SAMPLED), ("certified lower bound, box by box", PROVED)]
    if any(bound <= 0 for _, _, bound in boxes):
        entries.append(("not proved: bound at or below zero", OPEN))
    plot.heading(title, entries)
    return plot.finished()


def _ranges(
    parameters: Sequence[float], sampled: Sequence[float], boxes: Sequence[tuple[float, float, float]]
) -> tuple[float, float, float, float]:
    edges = [edge for low, high, _ in boxes for edge in (low, high)] + list(parameters)
    top, lowest = max([0.0, *sampled]), min([0.0, *sampled])
    spread = (top - lowest) or 1.0
    bounds = [bound for _, _, bound in boxes if math.isfinite(bound)]
    bottom = max(min([lowest, *bounds]), lowest - spread)
    return min(edges), max(edges), bottom - 0.06 * spread, top + 0.06 * spread


class _MarginPlot(Plot):
    """What is drawn between the axes."""

    def step(self, low: float, high: float, bound: float) -> None:
        colour, wash = (PROVED, "#d9efe4") if bound > 0 else (OPEN, "#f6ddd6")
        left, right, level, zero = self.x(low), self.x(high), self.y(bound), self.y(0)
        self.draw.rectangle((left, min(level, zero), right, max(level, zero)), fill=wash)
        self.line([(left, level), (right, level)], colour, 2)

    def zero_line(self) -> None:
        self.line([(self.x(self.low), self.y(0)), (self.x(self.high), self.y(0))], INK, 1.6)

    def curve(self, parameters: Sequence[float], sampled: Sequence[float]) -> None:
        self.line([(self.x(x), self.y(y)) for x, y in zip(parameters, sampled, strict=True)], SAMPLED, 2)
