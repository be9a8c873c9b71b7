"""The price of provability: networks as points, clean accuracy across, certified share up, boxes an image as the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from tiltproof.reports.plots import FINENESS, Area, Plot
from tiltproof.reports.style import FAINT, INK, PROVED, SAMPLED, font


@dataclass(frozen=True)
class Point:
    """One network: percentages of some images, and the mean number of boxes bounded for one of them."""

    name: str
    clean: float
    certified: float
    boxes: float


def best(points: Sequence[Point]) -> list[Point]:
    """The front: networks that no other one beats in clean accuracy, certified share and boxes alike, from left to right.

    >>> [p.name for p in best([Point("a", 80, 70, 9), Point("b", 82, 65, 9), Point("c", 79, 60, 9), Point("d", 79, 60, 4)])]
    ['d', 'a', 'b']
    """
    return _unbeaten(points, lambda p: (p.clean, p.certified, -p.boxes))


def _unbeaten(points: Sequence[Point], merits: Callable[[Point], tuple[float, ...]]) -> list[Point]:
    def beats(one: Point, other: Point) -> bool:
        return merits(one) != merits(other) and all(a >= b for a, b in zip(merits(one), merits(other), strict=True))

    kept = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(kept, key=lambda point: point.clean)


def front_picture(points: Sequence[Point], title: str) -> Image.Image:
    """Draw all points with their names and boxes, and a line along those that are best in what the axes show."""
    across, up = ([getattr(point, name) for point in points] for name in ("clean", "certified"))
    plot = Plot(
        math.floor(min(across) - 1), math.ceil(max(across) + 1), math.floor(min(up) - 1), math.ceil(max(up) + 1)
    )
    plot.axes("clean accuracy, %", "certified, %")
    front, line = best(points), _unbeaten(points, lambda p: (p.clean, p.certified))
    plot.line([(plot.x(point.clean), plot.y(point.certified)) for point in line], PROVED, 2)
    taken = []
    for point in points:
        x, y = plot.x(point.clean), plot.y(point.certified)
        radius = FINENESS * (3 + 2 * math.log10(max(point.boxes, 1.0)))
        taken.append((x - radius, y - radius, x + radius, y + radius))
        plot.draw.ellipse(taken[-1], fill=PROVED if point in front else SAMPLED)
    for point, disc in zip(points, tuple(taken), strict=True):
        _label(plot, disc, point.name, f"{point.boxes:,.0f} boxes an image", taken)
    plot.heading(title, [("not beaten in clean, certified and boxes alike", PROVED), ("beaten", SAMPLED)])
    return plot.finished()


def _label(plot: Plot, disc: Area, name: str, more: str, taken: list[Area]) -> None:
    """Two lines of text beside a point, on the first side where they cover nothing."""
    gap, line = 4 * FINENESS, 15 * FINENESS
    wide = max(plot.draw.textlength(words, font=font(size * FINENESS)) for words, size in ((name, 12), (more, 11)))
    left, top, right, bottom = disc
    middle, level = (left + right) / 2, (top + bottom) / 2
    sides = [(right + gap, level - line), (left - gap - wide, level - line)]
    for far in range(4):
        out = gap + far * line
        sides += [(x, y) for y in (top - out - 2 * line, bottom + out) for x in (middle - wide / 2, right, left - wide)]
    areas = [(x, y, x + wide, y + 2 * line) for x, y in sides]
    area = next(
        (area for area in areas if plot.holds(area) and not any(_meet(area, other) for other in taken)), areas[0]
    )
    taken.append(area)
    plot.text(area[0], area[1] + line / 2, name, 12, INK, "lm")
    plot.text(area[0], area[1] + 3 * line / 2, more, 11, FAINT, "lm")


def _meet(one: Area, other: Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
