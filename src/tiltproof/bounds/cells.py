"""Exact extremes of a bilinearly interpolated picture over coordinate boxes (method, section 3).

Inside a grid cell the picture is a bilinear function, and so it stays when a plane is subtracted; a bilinear function
on a rectangle has its extremes at the corners. So over a coordinate box it is enough to look at the points (box edges
and grid lines in u) x (box edges and grid lines in v). Nothing else is assumed: cells between the border and the
padding are cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.bounds.coordinates import Coordinates
from tiltproof.bounds.interval import Interval
from tiltproof.transforms.sampling import ring_index, with_ring

FAR = 2.0**30
"""Positions of a reflected picture beyond this are taken to see any part of it."""


@dataclass
class Axis:
    """The points to look at along one axis: box edges and the grid lines between, for every pixel [P, H, W]."""

    base: Tensor  # the grid line at or below the box
    index: list[Tensor]  # ring indices of the grid lines base, base + 1, ..., base + cells
    start: Tensor  # where the box begins inside the first cell, in [0, 1]
    ends: list[Tensor]  # where the box ends inside each cell, in [0, 1]
    inside: list[Tensor]  # whether the box reaches into that cell at all
    last: Tensor  # where the box ends
    points: list[Tensor]  # the positions themselves: low edge, then the end of each cell
    true: bool  # whether ``points`` are the true positions (not so where a reflection is seen whole)

    def meets(self, cells: int) -> Tensor:
        """Where the box lies in its first ``cells`` cells, their borders included, [P, H, W]."""
        return self.last <= self.base + cells


def axis(box: Interval, size: int, padding: str, cells: int | None = None) -> Axis:
    """Cells that each box meets: as many as the widest needs, or ``cells`` if the caller knows that none meets more.

    Zeros and border padding are constant below -1 and above size, so cells further out add nothing: they are left out, and
    the constant's two ends, the grid line next to the picture and the box's true edge, are both looked at.
    """
    low, high = box.lower.nan_to_num(nan=-torch.inf), box.upper.nan_to_num(nan=torch.inf)
    first, last, true = low, high, True
    if padding == "reflect" and size > 1:
        everything = (low < -FAR) | (high > FAR) | (high - low > 2 * size)  # a whole period holds every value there is
        true = not bool(everything.any())
        first, last = torch.where(everything, 0.0, low), torch.where(everything, 2.0 * size, high)
    else:
        first, last = low.clamp(-2, size + 1), high.clamp(-2, size + 1)
    base = first.floor()
    if cells is None:
        cells = max(1, int((last.ceil() - base).max().item()))
    integer = base.long()
    index = [ring_index(integer + k, size, padding) for k in range(cells + 1)]
    ends, inside, points = [], [], [low]
    for k in range(cells):
        ends.append((last - (base + k)).clamp(0, 1))
        inside.append(last >= base + k)
        line = base + (k + 1)
        points.append(torch.where(line < last, line, high))
    return Axis(base, index, first - base, ends, inside, last, points, true)


class CellWalk:
    """Yields the picture's value at every point of every pixel's coordinate box, one [P, H, W, C] tensor at a time."""

    def __init__(self, pictures: Tensor, rows_of: Tensor, place: Coordinates, padding: str) -> None:
        """``pictures`` [N, C, H, W]; ``rows_of`` [P] says which picture each pair looks at."""
        _, _, height, width = pictures.shape
        self.flat = with_ring(pictures).reshape(-1, pictures.shape[1])
        self.offset = rows_of.view(-1, 1, 1) * ((height + 2) * (width + 2))
        self.stride = width + 2
        self.x = axis(place.columns, width, padding, place.cells)
        self.y = axis(place.rows, height, padding, place.cells)

    @property
    def count(self) -> int:
        return len(self.x.points) * len(self.y.points)

    def pixel(self, column: int, row: int) -> Tensor:
        """The pixel on these grid lines, counted from each box's first, [P, H, W, C]."""
        return self.flat[self.offset + self.y.index[row] * self.stride + self.x.index[column]]

    def _line(self, j: int) -> list[Tensor]:
        """Values on grid line j (a row of the picture) at all points of the x axis."""
        start = self.offset + self.y.index[j] * self.stride
        pixels = [self.flat[start + index] for index in self.x.index]
        return _points(pixels, self.x)

    def __iter__(self) -> Iterator[tuple[int, int, Tensor]]:
        """(number of the x point, number of the y point, value)."""
        above, below = self._line(0), self._line(1)
        values = [torch.lerp(a, b, self.y.start.unsqueeze(-1)) for a, b in zip(above, below, strict=True)]
        yield from ((i, 0, value) for i, value in enumerate(values))
        for j, (end, inside) in enumerate(zip(self.y.ends, self.y.inside, strict=True)):
            if j:
                above, below = below, self._line(j + 1)
            for i, (a, b) in enumerate(zip(above, below, strict=True)):
                value = torch.lerp(a, b, end.unsqueeze(-1))
                values[i] = torch.where(inside.unsqueeze(-1), value, values[i])
                yield i, j + 1, values[i]


def _points(pixels: list[Tensor], line: Axis) -> list[Tensor]:
    """Interpolate between neighbouring pixels at the line's points; a cell the box does not reach repeats the last
    point.
    """
    values = [torch.lerp(pixels[0], pixels[1], line.start.unsqueeze(-1))]
    for k, (end, inside) in enumerate(zip(line.ends, line.inside, strict=True)):
        value = torch.lerp(pixels[k], pixels[k + 1], end.unsqueeze(-1))
        values.append(torch.where(inside.unsqueeze(-1), value, values[-1]))
    return values
