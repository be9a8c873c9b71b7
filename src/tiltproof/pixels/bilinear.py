"""Exact extrema of a bilinearly interpolated image over coordinate boxes (method, section 3).

Inside a grid cell the image is a bilinear function, also after a plane is subtracted, and a bilinear function on a
rectangle has its extrema at the corners. Over a coordinate box it is therefore enough to visit the points (box edges
and grid lines in u) x (box edges and grid lines in v). Cells between the border and the padding are cells like any
other.

`PatchExtrema` visits every point of a box, as many as it has cells: for boxes as wide as the image (HW)^2 in all. Boxes
of many cells (`too_wide`) are bounded at a cost that does not grow with their size (`wide_hull`). An interpolated value
is a mean of the pixels around it, so over a box it lies between the least and the largest pixel on grid lines floor(low)
.. ceil(high). These come from a sparse table of windows whose sides are powers of two: the four windows of sides
2^i <= a and 2^j <= b in the corners of a rectangle a x b cover exactly the rectangle.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import Interval
from tiltproof.pixels.coordinates import Coordinates
from tiltproof.transforms.interpolation import pixels_at, reflects, ring_index, with_ring

FAR = 2.0**30
"""Positions of a reflected image beyond this may show any part of it."""
MOST_CELLS = 12
"""Boxes of more cells along an axis are bounded by their range's extrema (`wide_hull`), wider by less than a cell on each side."""


@dataclass
class Axis:
    """The points to visit along one axis: box edges and the grid lines between, for every pixel [P, H, W]."""

    base: Tensor  # the grid line at or below the box
    index: Tensor  # ring indices of the grid lines base, base + 1, ..., base + cells, [cells + 1, P, H, W]
    start: Tensor  # where the box begins inside the first cell, in [0, 1]
    ends: Tensor  # where the box ends inside each cell, in [0, 1], [cells, P, H, W]
    inside: Tensor  # whether the box reaches into that cell at all
    last: Tensor  # where the box ends
    points: Tensor  # the positions themselves: low edge, then the end of each cell, [cells + 1, P, H, W]
    true: bool  # whether ``points`` are the true positions (not so where a reflection is seen whole)

    def meets(self, cells: int) -> Tensor:
        """Return where the box lies in its first ``cells`` cells, including their borders, [P, H, W]."""
        return self.last <= self.base + cells

    def rows(self, which: Tensor | slice) -> Axis:
        """Return the lines of some boxes; boxes may repeat."""
        index, ends, inside, points = (
            some(each, which, 1) for each in (self.index, self.ends, self.inside, self.points)
        )
        base, start, last = (some(each, which) for each in (self.base, self.start, self.last))
        return Axis(base, index, start, ends, inside, last, points, self.true)


def some(values: Tensor, which: Tensor | slice, dim: int = 0) -> Tensor:
    """Return rows of a dimension: a view for a slice, ``index_select`` otherwise, because CPUs index slowly."""
    if isinstance(which, slice):
        return values[(slice(None),) * dim + (which,)]
    return values.index_select(dim, which)


def boxes_of(box_of: Tensor | None, pairs: Any) -> Any:
    """The boxes of some pairs: ``box_of`` says which is whose; by default pair p's is number p."""
    return pairs if box_of is None else box_of[pairs]


def known_ends(box: Interval) -> tuple[Tensor, Tensor]:
    """Box ends, with NaN replaced by -inf and +inf (unknown means unbounded)."""
    return box.lower.nan_to_num(nan=-torch.inf), box.upper.nan_to_num(nan=torch.inf)


def clipped(low: Tensor, high: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return boxes cut off one cell outside the image, where zeros and border padding are constant."""
    return low.clamp(-2, size + 1), high.clamp(-2, size + 1)


def axis(box: Interval, size: int, padding: str, cells: int | None = None) -> Axis:
    """Return the points: as many cells as the widest box needs, or ``cells`` if the caller knows that no box needs
    more.

    Zeros and border padding are constant below -1 and above size, so cells further out are omitted. Both ends of the
    constant, the grid line next to the image and the true edge of the box, are visited.
    """
    low, high = known_ends(box)
    first, last, true = low, high, True
    if reflects(padding) and size > 1:
        everything = (low < -FAR) | (high > FAR) | (high - low > 2 * size)  # a whole period holds every value there is
        true = not bool(everything.any())
        first, last = torch.where(everything, 0.0, low), torch.where(everything, 2.0 * size, high)
    else:
        first, last = clipped(low, high, size)
    base = first.floor()
    if cells is None:
        cells = max(1, int((last.ceil() - base).max().item()))
    lines = base + torch.arange(cells + 1, device=base.device).view(-1, *[1] * base.ndim)
    begins, beyond = lines[:-1], lines[1:]
    points = torch.cat([low[None], torch.where(beyond < last, beyond, high)])
    index = ring_index(lines.long(), size, padding)
    return Axis(base, index, first - base, (last - begins).clamp(0, 1), last >= begins, last, points, true)


class PatchExtrema:
    """Iterates over the image's values at every point of every pixel's coordinate box."""

    def __init__(self, images: Tensor, rows_of: Tensor, place: Coordinates, padding: str) -> None:
        """``images`` [N, C, H, W]; ``rows_of`` [P] is the image of each pair."""
        _, _, height, width = images.shape
        self.flat = with_ring(images).view(-1, images.shape[1])
        self.area, self.stride = (height + 2) * (width + 2), width + 2
        self.offset = rows_of.view(-1, 1, 1) * self.area
        self.x = axis(place.columns, width, padding, place.cells)
        self.y = axis(place.rows, height, padding, place.cells)

    def pairs(self, rows_of: Tensor, boxes: Tensor | slice) -> PatchExtrema:
        """Return the same images for other pairs, whose boxes are some of these; lines of a shared box are computed
        once."""
        walk = copy(self)
        walk.offset, walk.x, walk.y = rows_of.view(-1, 1, 1) * self.area, self.x.rows(boxes), self.y.rows(boxes)
        return walk

    @property
    def count(self) -> int:
        return len(self.x.points) * len(self.y.points)

    def pixel(self, column: int, row: int) -> Tensor:
        """The pixel on these grid lines, counted from each box's first, [P, H, W, C]."""
        return pixels_at(self.flat, self.offset + self.y.index[row] * self.stride + self.x.index[column])

    def _line(self, j: int | slice) -> Tensor:
        """Values at all points of the x axis [points, P, H, W, C], on grid line j (a row of the image); of several, lines come second."""
        start = self.offset + self.y.index[j] * self.stride
        index = self.x.index if isinstance(j, int) else self.x.index.unsqueeze(1)
        return _points(pixels_at(self.flat, start + index), self.x)

    def values(self) -> Tensor:
        """The values at all points at once, [y points, x points, P, H, W, C]."""
        return _points(self._line(slice(None)).transpose(0, 1), self.y)

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over the points; the values at each are [P, H, W, C]."""
        above, below = self._line(0), self._line(1)
        values = torch.lerp(above, below, self.y.start.unsqueeze(-1))
        yield from values
        for j, (end, inside) in enumerate(zip(self.y.ends, self.y.inside, strict=True)):
            if j:
                above, below = below, self._line(j + 1)
            values = torch.where(inside.unsqueeze(-1), torch.lerp(above, below, end.unsqueeze(-1)), values)
            yield from values


def _points(pixels: Tensor, line: Axis) -> Tensor:
    """Interpolate between neighbors along the leading dimension at the line's points; a cell the box does not reach repeats the last
    point. The first it does: base <= start <= last.
    """
    shape = -1, *[1] * (pixels.ndim - 1 - line.ends.ndim), *line.start.shape, 1
    ends, inside = line.ends.view(shape), line.inside.view(shape)
    values = torch.lerp(pixels[:-1], pixels[1:], ends)
    points = [torch.lerp(pixels[:1], pixels[1:2], line.start.view(shape)), values[:1]]
    for k in range(1, len(values)):
        points.append(torch.where(inside[k], values[k], points[-1]))
    return torch.cat(points)


def lines(box: Interval, size: int) -> tuple[Tensor, Tensor]:
    """Return the grid lines around each box, in [-2, size + 1], where every value further out is found as well."""
    low, high = clipped(*known_ends(box), size)
    return low.floor().long(), high.ceil().long()


def too_wide(columns: Interval, rows: Interval, height: int, width: int, padding: str) -> Tensor | None:
    """Return where a box has more than MOST_CELLS along an axis, as `Axis` counts them or fewer, [P, H, W]; None if
    none has."""
    # a box of width w meets at most ceil(w) + 1 cells; a NaN is not at most anything
    if all(bool((box.upper - box.lower).max() <= MOST_CELLS - 1) for box in (columns, rows)):
        return None
    wide = torch.zeros_like(columns.lower, dtype=torch.bool)
    for box, size in ((columns, width), (rows, height)):
        if reflects(padding):  # a reflection goes on for ever
            cells = box.upper.ceil() - box.lower.floor()
            wide |= ~(cells <= MOST_CELLS) | ~(box.lower >= -FAR) | ~(box.upper <= FAR)
        else:
            first, last = lines(box, size)
            wide |= last - first > MOST_CELLS
    return wide if bool(wide.any()) else None


def wide_hull(images: Tensor, rows_of: Tensor, columns: Interval, rows: Interval, padding: str) -> Interval:
    """Return the least and largest pixel of each box's rectangle of grid lines, [P, H, W, C]; of a whole reflected
    image."""
    height, width = images.shape[-2:]
    if reflects(padding):
        shape = (*columns.lower.shape, images.shape[1])
        least, largest = images.flatten(2).amin(2)[rows_of], images.flatten(2).amax(2)[rows_of]
        return Interval(least[:, None, None].expand(shape), largest[:, None, None].expand(shape))
    mine, image = rows_of.unique(return_inverse=True)
    across, down = (ring_index(torch.arange(-2, n + 2, device=mine.device), n, padding) for n in (width, height))
    table = with_ring(images[mine])[:, down][:, :, across]
    table = torch.cat([table, -table], -1)  # the largest is minus the least of the negatives
    left, right = (line + 2 for line in lines(columns, width))
    top, bottom = (line + 2 for line in lines(rows, height))
    wide, tall = _power(right - left + 1), _power(bottom - top + 1)
    image = image.view(-1, 1, 1).expand_as(left)
    result = table.new_empty(*left.shape, table.shape[-1])
    for i in range(int(tall.max()) + 1):
        row_table = table
        for j in range(int(wide.max()) + 1):
            here = ((tall == i) & (wide == j)).nonzero(as_tuple=True)
            if len(here[0]):
                sides = 2**i - 1, 2**j - 1
                corners = [
                    row_table[image[here], y, x]
                    for y in (top[here], bottom[here] - sides[0])
                    for x in (left[here], right[here] - sides[1])
                ]
                result[here] = torch.stack(corners).amin(0)
            row_table = _doubled(row_table, 2, 2**j)
        table = _doubled(table, 1, 2**i)
    least, largest = result.chunk(2, -1)
    return Interval(least, -largest)


def _power(length: Tensor) -> Tensor:
    """The largest k with 2^k <= length, exactly: length = m 2^e with 1/2 <= m < 1."""
    return torch.frexp(length.double()).exponent.long() - 1


def _doubled(table: Tensor, axis: int, side: int) -> Tensor:
    """Windows twice as long along an axis: the least of a window and the one that begins where it ends."""
    count = table.shape[axis] - side
    if count <= 0:
        return table
    return torch.minimum(table.narrow(axis, 0, count), table.narrow(axis, side, count))
