"""Bounds of a resampled image for coordinate boxes of many cells, at a cost that does not grow with their size (a
sparse table).

`PatchExtrema` visits every point of a box, as many as it has cells: for boxes as wide as the image (HW)^2 in all. An
interpolated value is a mean of the pixels around it, so over a box it lies between the least and the largest pixel on
grid lines floor(low) .. ceil(high). These come from a table of windows whose sides are powers of two: the four
windows of sides 2^i <= a and 2^j <= b in the corners of a rectangle a x b cover exactly the rectangle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.enclosures.interval import Interval
from tiltproof.pixels.bilinear import FAR, clipped, known_ends
from tiltproof.transforms.interpolation import reflects, ring_index, with_ring

MOST_CELLS = 12
"""Boxes of more cells along an axis are bounded here; the bounds are wider by less than a cell on each side."""


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
