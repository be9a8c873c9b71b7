"""The price of provability: networks as points, clean accuracy across, certified share up, boxes an image as the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from tiltproof.report.ink import FAINT, INK, PROVED, SAMPLED
from tiltproof.report.plot import FINENESS, Plot


@dataclass(frozen=True)
class Point:
    """One network: percentages of some images, and the mean number of boxes bounded for one of them."""

    name: str
    clean: float
    certified: float
    boxes: float


def best(points: Sequence[Point]) -> list[Point]:
    """The front: networks that no other one beats in clean accuracy and in certified share, from left to right.

    >>> [p.name for p in best([Point("a", 80, 70, 9), Point("b", 82, 65, 9), Point("c", 79, 60, 9)])]
    ['a', 'b']
    """
    kept = [p for p in points if not any(q.clean >= p.clean and q.certified >= p.certified and q != p for q in points)]
    return sorted(kept, key=lambda point: point.clean)


def front_picture(points: Sequence[Point], title: str) -> Image.Image:
    """Draw all points with their names and boxes, and a line along the front."""
    across, up = ([getattr(point, name) for point in points] for name in ("clean", "certified"))
    plot = Plot(
        math.floor(min(across) - 1), math.ceil(max(across) + 1), math.floor(min(up) - 1), math.ceil(max(up) + 1)
    )
    plot.axes("clean accuracy, %", "certified, %")
    front = best(points)
    plot.line([(plot.x(point.clean), plot.y(point.certified)) for point in front], PROVED, 2)
    for point in points:
        x, y = plot.x(point.clean), plot.y(point.certified)
        radius = FINENESS * (3 + 2 * math.log10(max(point.boxes, 1.0)))
        colour = PROVED if point in front else SAMPLED
        plot.draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        plot.text(x + radius + 4 * FINENESS, y - 7 * FINENESS, point.name, 12, INK, "lm")
        plot.text(x + radius + 4 * FINENESS, y + 8 * FINENESS, f"{point.boxes:,.0f} boxes an image", 11, FAINT, "lm")
    plot.heading(title, [("on the front", PROVED), ("beaten in both", SAMPLED)])
    return plot.finished()
