"""Pixel forms on a CPU: one formula for boxes in one cell or with a single value; only the others visit all points.

In one cell p = q + a t + b s + d t s, where t and s are distances from the cell's first lines, q its first pixel, a and b the differences
to the next column and row, and d the difference of these. Around the box's middle (m, n), with t = m + x and s = n + y:

    p = (q + a m + b n + d m n) + (a + d n) x + (b + d m) y + d x y,    |d x y| <= |d| h_t h_s

where h_t and h_s are half the box's sides. That is the residual's exact hull for the secant slopes g_u = a + d n and g_v = b + d m, as
`affine_by_points` has it. With u_c and v_c the centers of the positions' forms, x = (u - u_c) + (u_c - first line) - m, so the
form's center is q + b n + g_u (u_c - first line) + g_v (v_c - first line - n), and the rest of x and y is in the positions' forms.

An image that is the same all over what a box can see (the dark around a digit) is constant there, however many cells that are: the
formula holds with a = b = d = 0. So it does along an axis where a box lies outside of the image: a = d = 0.

Roundings, in units of u = 2^-53, with L the largest pixel, D the largest difference of two, and A the distance of a form's center from the
box's middle, which is at most the form's reach, as the box lies in its range:

- a and b are off by D, d by 4 D, g_u and g_v by 8 D, hence g_u t and g_v y by 16 D; b n by 2 D; d x y by 2 D.
- The distances u_c - first line, at most 1 + A, and v_c - first line - n, their products with slopes, which are at most D, and the three
  sums of the center: 3 L + |g_u| (4 A_u + 4) + |g_v| (4 A_v + 1).
- Where a box begins before line 0, its end's distance from the first line may be rounded down, by u if it lies in one cell and by 4 u
  otherwise, so that it reaches as far into the next: 4 D.
- So far 3 L + 29 D, for which there are 4 L + 40 D. The terms |g| A, four each, and three for products with the positions' slopes have 24
  times the reach.
- m is off by 2 u, and half the sides, as rounded, get 8 u more. All else are sums and products of numbers >= 0, off by less than 2^-47 of
  themselves; where numbers underflow, `SMALLEST` is more than they lose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.rounding import SMALLEST, UNIT
from tiltproof.pixels.bilinear import boxes_of, clipped, known_ends, some
from tiltproof.pixels.coordinates import Coordinates
from tiltproof.transforms.interpolation import reflects, ring_index, with_ring

CACHED_PIXELS = 2**15
"""Pixels of one channel bounded at a time: a dozen or two float64 numbers for each, which fit into a CPU's caches."""
BEFORE = 2
"""Grid lines of the table before the image's first one; no box begins before them."""
MOST_FLAT = 4
"""Cells in each direction that are tested for pixels of a single value."""
MOST_LEFT, MOST_CHANNELS = 0.75, 16
"""Share of remaining pixels from which on all are bounded together; and most channels, each of which is a step here."""
UPWARD = 1 + 2.0**-47


def applies(images: Tensor, place: Coordinates, padding: str) -> bool:
    """Return whether the formula applies: on a CPU, without gradients, and not for reflected images, whose lines
    change their order."""
    given = images, *(each for form in (place.column, place.row) for each in (form.stack, form.radius))
    plain = place.cells is None and not place.column.quadratic and not reflects(padding)
    exact = all(each.dtype == torch.float64 and not launch_bound(each) for each in given)
    graph = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    return plain and exact and not graph and images.shape[1] <= MOST_CHANNELS


def single_cell_form(
    images: Tensor,
    rows_of: Tensor,
    place: Coordinates,
    padding: str,
    box_of: Tensor | None,
    dtype: torch.dtype,
    otherwise: Callable[[Tensor, Tensor, Coordinates], AffineForm],
) -> AffineForm | None:
    """The form of `pixels.api.affine_of_exact`, which has these arguments; ``otherwise`` makes it, in ``dtype``, for images, the image of
    each pixel, and places of pixels for which the formula does not hold. None where those are too many."""
    (channels, height, width), count, symbols = images.shape[1:], len(rows_of), place.column.symbols
    mine, image = rows_of.unique(return_inverse=True)
    images, area = images[mine], height * width
    table = Table(images, padding)
    places = _Places.of(place, table, height, width)
    cells = int(places.cells.ceil().amax().clamp(1, MOST_FLAT))
    flat, size = table.flat(cells), max(1, CACHED_PIXELS // area)
    chunks = [slice(begin, begin + size) for begin in range(0, count, size)]

    def looked_at(rows: slice) -> tuple[Tensor, Tensor]:
        """First cells of pairs, in the table, and where the formula does not hold."""
        index, met = (some(each, boxes_of(box_of, rows)) for each in (places.index, places.cells))
        at = (index + (image[rows] * table.area).unsqueeze(1)).flatten()
        met = met.flatten()
        return at, _elsewhere(flat, at, met, cells) + rows.start * area

    looks, left = zip(*map(looked_at, chunks), strict=True)
    pixels = torch.cat(left)
    if len(pixels) > MOST_LEFT * count * area:
        return None
    stack = torch.empty(1 + symbols, count, channels, area, dtype=dtype)
    radius = torch.empty(count, channels, area, dtype=dtype)
    for rows, at in zip(chunks, looks, strict=True):
        numbers = some(places.numbers, boxes_of(box_of, rows), 1)
        for channel, planes in enumerate(table.planes):
            form = _form([plane.index_select(0, at).view(-1, area) for plane in planes], numbers, table.floor).to(dtype)
            stack[:, rows, channel], radius[rows, channel] = form.stack, form.radius
    if len(pixels):
        pair, spot = pixels // area, pixels % area
        form = otherwise(images, image[pair], place.of_pixels(boxes_of(box_of, pair) * area + spot))
        for channel in range(channels):
            here = (pair * channels + channel) * area + spot
            stack.view(1 + symbols, -1).index_copy_(1, here, form.stack[:, :, channel].flatten(1))
            radius.view(-1).index_copy_(0, here, form.radius[:, channel].flatten())
    shape = count, channels, height, width
    return AffineForm(stack.view(1 + symbols, *shape), radius.view(shape))


def _elsewhere(flat: Tensor, at: Tensor, met: Tensor, cells: int) -> Tensor:
    """Return the pixels for which the formula does not hold: those of more than one cell, and not of a single value."""
    holds = (met <= 1) | (flat.index_select(0, at) & (met <= cells))
    return (~holds).nonzero().flatten()


def chosen_pixels_form(
    images: Tensor, table: Table, place: Coordinates, otherwise: Callable[[Tensor, Tensor, Coordinates], AffineForm]
) -> AffineForm:
    """The same form for chosen pixels of one image [1, C, H, W], whose ``place`` has them as images of one pixel: [Q, C, 1, 1]. ``table``:
    of this image."""
    places = _Places.of(place, table, *images.shape[-2:])
    at, met = places.index.flatten(), places.cells.flatten()
    flat, cells = table.flat_within(int(met.ceil().amax().clamp(1, MOST_FLAT)) if len(met) else 1)
    left = _elsewhere(flat, at, met, cells)
    forms = [
        _form([plane.index_select(0, at).view(-1, 1) for plane in planes], places.numbers, table.floor)
        for planes in table.planes
    ]
    stack, radius = torch.stack([form.stack for form in forms], 2), torch.stack([form.radius for form in forms], 1)
    if len(left):
        form = otherwise(images, torch.zeros_like(left), place.of(left))
        stack[:, left], radius[left] = form.stack.flatten(3), form.radius.flatten(2)
    return AffineForm(stack.unsqueeze(-1), radius.unsqueeze(-1))


class Table:
    """Of each image, at every grid line: ``planes`` q, a, b, d of each channel, flat over images, rows and columns; and a ``floor`` for
    all roundings that are relative to pixels."""

    def __init__(self, images: Tensor, padding: str) -> None:
        height, width = images.shape[-2:]
        # one line more than boxes begin at, for the cell after it
        across, down = (ring_index(torch.arange(-BEFORE, size + 3), size, padding) for size in (width, height))
        ring = with_ring(images)[:, down][:, :, across].permute(3, 0, 1, 2).contiguous()
        right, below, mixed = torch.zeros(3, *ring.shape, dtype=ring.dtype)
        torch.sub(ring[..., 1:], ring[..., :-1], out=right[..., :-1])
        torch.sub(ring[..., 1:, :], ring[..., :-1, :], out=below[..., :-1, :])
        torch.sub(right[..., 1:, :], right[..., :-1, :], out=mixed[..., :-1, :])
        self.planes = [[plane[c].flatten() for plane in (ring, right, below, mixed)] for c in range(len(ring))]
        self.stride, self.area = ring.shape[-1], ring.shape[-1] * ring.shape[-2]
        low, high = ring.amin(), ring.amax()
        largest, spread = torch.maximum(-low, high), high - low
        self.floor = (4 * largest + 40 * spread) * UNIT[torch.float64] + SMALLEST[torch.float64]
        self.same = ((right == 0) & (below == 0)).all(0)
        self.known: dict[int, Tensor] = {}

    def flat_within(self, cells: int) -> tuple[Tensor, int]:
        """Return `flat` for this many cells, and that number; for each number it is worked out once."""
        if cells not in self.known:
            self.known[cells] = self.flat(cells)
        return self.known[cells], cells

    def flat(self, cells: int) -> Tensor:
        """Return where all pixels of this many cells in each direction are equal; beyond the last line they equal those on it."""
        # also differences that lead out of those cells have to be zero: more than needed is asked for
        flat = self.same
        for axis in (1, 2):
            part, flat = flat, flat.clone()
            for k in range(1, min(cells, part.shape[axis] - 1) + 1):
                count = part.shape[axis] - k
                flat.narrow(axis, 0, count).logical_and_(part.narrow(axis, k, count))
        return flat.flatten()


@dataclass
class _Places:
    """Source positions of each box's pixels, [B, HW]."""

    cells: Tensor  # met along either axis: where the box ends, from its first line on
    index: Tensor  # of the first cell, in an image's table
    numbers: Tensor  # for the formula, [7 + 2 d, B, HW]

    @classmethod
    def of(cls, place: Coordinates, table: Table, height: int, width: int) -> _Places:
        shape, symbols = place.column.shape, place.column.symbols
        m, n, center, aside, sides, cost_u, cost_v, *_ = numbers = place.column.stack.new_empty(7 + 2 * symbols, *shape)
        first_x, end_x, half_x = _axis(place.column, place.columns, width, m, center, cost_u)
        first_y, end_y, half_y = _axis(place.row, place.rows, height, n, aside, cost_v)
        aside.sub_(n)
        torch.mul(half_x, half_y, out=sides)
        numbers[7:] = torch.cat([place.column.slopes, place.row.slopes])
        index = ((first_y + BEFORE) * table.stride + (first_x + BEFORE)).long()
        return cls(torch.maximum(end_x, end_y).flatten(1), index.flatten(1), numbers.flatten(2))


def _form(cell: list[Tensor], numbers: Tensor, floor: Tensor) -> AffineForm:
    """The formula, for q, a, b and d, which are used up. ``numbers``: m, n, u_c - first line, v_c - first line - n, h_t h_s, what |g_u| and
    |g_v| cost; then the column's slopes, and the row's."""
    q, a, b, d = cell
    m, n, center, aside, sides, cost_u, cost_v, *slopes = numbers
    symbols = len(slopes) // 2
    stack = q.new_empty(1 + symbols, *q.shape)
    slope_u = a.addcmul_(d, n)
    torch.addcmul(q, b, n, out=stack[0]).addcmul_(slope_u, center)
    slope_v = b.addcmul_(d, m)
    stack[0].addcmul_(slope_v, aside)
    for k in range(symbols):
        torch.mul(slope_u, slopes[k], out=stack[1 + k]).addcmul_(slope_v, slopes[symbols + k])
    radius = torch.mul(d.abs_(), sides, out=q).add_(floor)
    radius.addcmul_(slope_u.abs_(), cost_u).addcmul_(slope_v.abs_(), cost_v).mul_(UPWARD)
    return AffineForm(stack, radius)


def _axis(
    form: AffineForm, box: Interval, size: int, middle: Tensor, center: Tensor, cost: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes, from the first line on, the box's middle and the form's center, and what a unit of absolute slope costs; returns the first
    line, where the box ends from there on, and half its side."""
    low, high = clipped(*known_ends(box), size)
    first = low.floor()
    begin, end = low - first, high - first
    torch.add(begin, end, out=middle).div_(2)
    torch.sub(form.center, first, out=center)
    torch.add(form.radius, form.reach(), alpha=24 * form.unit, out=cost)
    return first, end, (end - begin).abs_().mul_(0.5 + 4 * form.unit).add_(8 * form.unit)
