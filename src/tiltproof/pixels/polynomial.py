"""Resampled pixels over a box of one parameter e as polynomials: c_0 + c_1 T_1(e) + ... + c_n T_n(e) + [-r, r]
(method, section 3).

Source positions are polynomials with remainders (`enclosures.polynomial`). Where a pixel's path stays in one grid cell
its value is a bilinear function of them, and r falls with the power n + 1 of the box's width. Where it crosses a grid
line the value gains a kink, which may be given a symbol of its own (`pixels.crossings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.centered import MOST, ONE, Centered
from tiltproof.enclosures.polynomial import Polynomial, U
from tiltproof.enclosures.relu import clamp01
from tiltproof.enclosures.rounding import widen
from tiltproof.pixels.api import affine_by_points, pair_bounds
from tiltproof.pixels.bilinear import FAR
from tiltproof.pixels.coordinates import coordinates
from tiltproof.pixels.coordinates import symbols as parameter_forms
from tiltproof.pixels.crossings import Columns, Crossing, crossing_columns
from tiltproof.transforms.base import Pixelwise, Spatial, Transform
from tiltproof.transforms.interpolation import centered_grid, keeps_plane, pixels_at, ring_index, with_ring

AT_ONCE = 2**15
"""Pixels of one channel bounded at a time: some dozens of float64 numbers for each, which fit into a CPU's caches."""
TOUCH = 2.0**-42
"""A path that leaves its cell by no more is charged for it; a path that leaves it further crosses a line."""
MOST_VALUE, MOST_PARTS = 2.0**20, 8
"""Larger parameters and longer sequences are not supported: exact numbers then stay within the range of floats."""
LEAST_SYMBOL = 2.0**-46
"""Least radius of a single entry that is worth a symbol of its own."""


def polynomial_form(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    low: Tensor,
    high: Tensor,
    degree: int = 4,
    symbols: int = 0,
) -> AffineForm:
    """Bound pairs: image ``rows_of[p]`` over the parameter box [low[p], high[p]], of which one parameter varies at
    most.

    Parameters
    ----------
    images : Tensor
        Images [N, C, H, W], float64.
    rows_of : Tensor
        The image of each of the P pairs.
    transform : Transform
        The transformation.
    low, high : Tensor
        A box for each pair [P, d], float64. In each at most one parameter may have low < high.
    degree : int
        The polynomials' degree, 2 to 4.
    symbols : int
        The most columns for kinks, for each pair.

    Returns
    -------
    AffineForm
        Forms [P, C, H, W], whose ``stack`` is [center, T_1(e), ..., T_degree(e), kinks...] with ``quadratic`` set; the
        number of kinks is the largest of the pairs', and at most ``symbols``. Column k of a pair has nothing to do with
        column k of another. For what polynomials do not support (`supported`), the form of `pixels.api.pair_bounds`.
    """
    if not supported(transform, low, high):
        return pair_bounds(images, rows_of, transform, "affine", low, high, quadratic=low.shape[1] == 1)
    size = max(1, AT_ONCE // (images.shape[-1] * images.shape[-2]))
    parts = [
        _some_pairs(images, mine, transform, below, above, degree, symbols)
        for mine, below, above in zip(rows_of.split(size), low.split(size), high.split(size), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    planes = max(len(part.stack) for part in parts)
    stack = parts[0].stack.new_zeros(planes, len(rows_of), *images.shape[1:])
    begin = 0
    for part in parts:
        stack[: len(part.stack), begin : begin + len(part)] = part.stack
        begin += len(part)
    return AffineForm(stack, torch.cat([part.radius for part in parts]), quadratic=True)


def supported(transform: Transform, low: Tensor, high: Tensor) -> bool:
    """Return whether forms are polynomials: at most one parameter of each box varies, and the stages are moves of
    pixels by matrices, changes of contrast and brightness, or the first and then the second; noise is left to plain
    forms."""
    if transform.noise or not all(part.by_matrix for part in transform.parts):
        return False
    kinds = [kind for kind, _ in transform.stages()] if len(transform.parts) <= MOST_PARTS else []
    plain = bool(((low < high).sum(1) <= 1).all()) and bool((torch.cat([low, high]).abs() < MOST_VALUE).all())
    return transform.interpolation == "bilinear" and plain and kinds in ([Spatial], [Pixelwise], [Spatial, Pixelwise])


def _some_pairs(
    images: Tensor, rows_of: Tensor, transform: Transform, low: Tensor, high: Tensor, degree: int, symbols: int
) -> AffineForm:
    values, form = parameters(low, high, degree), None
    for kind, run in transform.stages():
        if kind is Spatial:
            form = _spatial(images, rows_of, transform, run, values, low, high, symbols)
            continue
        if form is None:
            exact = Polynomial.constant(images[rows_of], degree)
            form = AffineForm(exact.stack, exact.radius, quadratic=True)
        for k in run:
            value = Polynomial(values[k].stack.view(degree + 1, -1, 1, 1, 1), values[k].radius.view(-1, 1, 1, 1))
            form = _changed(form, transform, k, value)
        form = _with_columns(clamp01(form), symbols - (form.symbols - degree))
    assert form is not None
    return form


def parameters(low: Tensor, high: Tensor, degree: int) -> list[Polynomial]:
    """Each parameter of the boxes [low, high] (float64 [P, d]) as a polynomial: c + h e exactly, without a radius.

    c is the midpoint as rounded and h a float that is larger than both distances from it, so that e = (parameter - c)
    / h is in [-1, 1]. As h is the next float after that of `coordinates.symbols`, whose radius is at least 2 u h,
    forms over its symbols hold for this e as well.
    """
    center = (low + high) / 2
    half = torch.maximum(high - center, center - low)
    half = torch.where(high > low, half.nextafter(torch.full_like(half, torch.inf)), 0.0)
    center = torch.where(high > low, center, low)
    stack = torch.cat([center[None], half[None], low.new_zeros(degree - 1, *low.shape)])
    return [Polynomial(stack[:, :, k], torch.zeros_like(center[:, k])) for k in range(low.shape[1])]


def _changed(form: AffineForm, transform: Transform, k: int, value: Polynomial) -> AffineForm:
    """Contrast or brightness of a form that may have kinks: x' = x f + g with f and g as polynomials.

    A kink's column times f is the column times f's center, and at most |column| times f's deviation.
    """
    degree, like = value.degree, value.center
    zero, one = (Polynomial.constant(torch.full_like(like, number), degree) for number in (0.0, 1.0))
    shift: Polynomial = transform.parts[k].pixels(zero, value)
    factor: Polynomial = transform.parts[k].pixels(one, value) - shift
    image = Polynomial(form.stack[: degree + 1], form.radius) * factor + shift
    kinks = form.stack[degree + 1 :]
    if not len(kinks):
        return AffineForm(image.stack, image.radius, quadratic=True)
    size, columns = kinks.abs().sum(0), kinks * factor.center
    radius = image.radius + size * factor.deviation()
    radius = widen(radius, size * factor.magnitude(), len(kinks) + 4, U)
    return AffineForm(torch.cat([image.stack, columns]), radius, quadratic=True)


def _with_columns(form: AffineForm, symbols: int) -> AffineForm:
    """Give the entries of each pair that have the largest radii symbols of their own."""
    if symbols <= 0:
        return form
    radius = form.radius.flatten(1)
    largest, at = radius.topk(min(symbols, radius.shape[1]), 1)
    largest = torch.where(largest > LEAST_SYMBOL, largest, 0.0)
    count = int((largest > 0).sum(1).amax())
    if not count:
        return form
    largest, at = largest[:, :count], at[:, :count]
    new = radius.new_zeros(count, *radius.shape)
    new.scatter_(2, at.T.unsqueeze(2), largest.T.unsqueeze(2))
    left = radius.scatter(1, at, torch.where(largest > 0, 0.0, radius.gather(1, at)))
    stack = torch.cat([form.stack, new.view(count, *form.radius.shape)])
    return AffineForm(stack, left.view_as(form.radius), quadratic=True)


# Source positions.


@dataclass
class Axis:
    """Positions along one axis and their cells, [P, H, W]."""

    position: Polynomial  # from the cell's first line on
    first: Tensor  # that line: at or below the position in the middle of the box
    side: Tensor  # 1: the path crosses the next line, -1: that line, 0: neither
    outside: Tensor  # how far the path may leave the cells that are examined
    known: Tensor  # whether it leaves them by next to nothing

    @classmethod
    def of(cls, coarse: Tensor, rest: Polynomial) -> Axis:
        """The position is coarse + rest; the difference of ``coarse`` and its grid line is exact."""
        middle = coarse + rest.center
        known = torch.isfinite(middle) & torch.isfinite(rest.deviation()) & (middle.abs() < FAR)
        first = torch.where(known, middle, 0.0).floor()
        position = rest + (coarse - first)
        low, high = position.ends()
        before, after = (-low).clamp(min=0), (high - 1).clamp(min=0)
        more, less = torch.maximum(before, after), torch.minimum(before, after)
        crosses = more > TOUCH
        side = torch.where(crosses, torch.where(after > before, 1.0, -1.0), 0.0)
        outside = torch.where(crosses, less, more + less)
        return cls(position, first, side, outside, known & (less <= TOUCH) & (more <= 1))


def positions(
    transform: Transform, run: list[int], values: list[Polynomial], height: int, width: int
) -> tuple[Axis, Axis]:
    """Source column and row of every output pixel.

    With c the entries' values in the middle of the box, split into multiples of 2^-36 and the rest: a pixel's position
    is a sum of products of the former with half integers, which floats hold exactly, and a small number. So only the
    fraction of a pixel rounds.
    """
    matrix = transform.composed_inverse(run, [Centered.around(values[k]) for k in run])
    degree, like = values[0].degree, values[0].center
    u, v = centered_grid(height, width, like)
    middle = (width - 1) / 2, (height - 1) / 2

    def entries(row: tuple[object, object, object]) -> Iterator[Centered]:
        for entry in row:
            if isinstance(entry, Centered):
                yield entry
            else:
                yield Centered.around(Polynomial.constant(torch.full_like(like, float(entry)), degree))  # type: ignore[arg-type]

    def combined(row: tuple[object, object, object], sign: int, offset: float) -> tuple[Tensor, Polynomial]:
        a, b, c = entries(row)
        (coarse_a, fine_a), (coarse_b, fine_b), (coarse_c, fine_c) = (
            [part[:, None, None] for part in each.halves()] for each in (a, b, c)
        )
        coarse = (coarse_a * u + coarse_b * v + coarse_c) * sign + offset
        size = coarse_a.abs() * u.abs() + coarse_b.abs() * v.abs() + coarse_c.abs() + abs(offset)
        rest = [Polynomial(x.rest.stack[..., None, None] * sign, x.rest.radius[:, None, None]) for x in (a, b, c)]
        total = rest[0] * u + rest[1] * v + rest[2] + (fine_a * u + fine_b * v + fine_c) * sign
        # numbers of at most 2^-37 in four roundings each, and the slacks
        slack = 2.0**-84 + (a.slack + b.slack + c.slack) / ONE * 2
        total = total._plus_unknown((u.abs() + v.abs() + 1) * slack)
        return torch.where(size < MOST, coarse, torch.nan), total

    if keeps_plane(matrix):
        return Axis.of(*combined(matrix[0], 1, middle[0])), Axis.of(*combined(matrix[1], -1, middle[1]))

    def rounded(row: tuple[object, object, object]) -> Polynomial:
        a, b, c = (each.polynomial() for each in entries(row))
        a, b, c = (Polynomial(x.stack[..., None, None], x.radius[:, None, None]) for x in (a, b, c))
        return a * u + b * v + c

    x, y, w = (rounded(line) for line in matrix)
    zero = torch.zeros_like(w.center)
    return Axis.of(zero, x.over(w) + middle[0]), Axis.of(zero, -y.over(w) + middle[1])


def _spatial(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    run: list[int],
    values: list[Polynomial],
    low: Tensor,
    high: Tensor,
    symbols: int,
) -> AffineForm:
    """Resample exact images by a run of spatial parts."""
    height, width = images.shape[-2:]
    x, y = positions(transform, run, values, height, width)
    source = Source(images, rows_of, transform.padding)
    stack, radius = smooth(source, x, y)
    known = x.known & y.known
    columns = list(crossing_columns(source, _crossings(x, y, known), stack, radius))
    left = (~known).flatten().nonzero().squeeze(1)
    if len(left):
        columns += _as_quadratic(source, left, transform, run, low, high, stack, radius)
    return _assembled(stack, radius, columns, symbols)


def _crossings(x: Axis, y: Axis, known: Tensor) -> Iterator[Crossing]:
    """The pixels whose path crosses a column of the grid, then those that cross a row."""
    for sideways, across, along in ((True, x, y), (False, y, x)):
        at = ((across.side != 0) & known).flatten().nonzero().squeeze(1)
        if len(at):
            yield Crossing.of(across, along, at, sideways)


class Source:
    """The images of pairs, and their pixels on grid lines."""

    def __init__(self, images: Tensor, rows_of: Tensor, padding: str) -> None:
        self.images, self.rows_of, self.padding = images, rows_of, padding
        self.height, self.width = images.shape[-2:]
        self.flat = with_ring(images).view(-1, images.shape[1])
        self.largest = images.abs().flatten(1).amax(1)[rows_of]  # of each pair
        self.start = rows_of * ((self.height + 2) * (self.width + 2))

    def pixel(self, column: Tensor, row: Tensor, start: Tensor) -> Tensor:
        """The pixels where these grid lines cross, [..., C]."""
        i = ring_index(row.long(), self.height, self.padding) * (self.width + 2)
        return pixels_at(self.flat, start + i + ring_index(column.long(), self.width, self.padding))


def smooth(source: Source, x: Axis, y: Axis) -> tuple[Tensor, Tensor]:
    """The bilinear function of each pixel's cell, inside that cell or not: coefficients [1 + n, P, C, H, W], and a
    radius.

    With (t, s) the position in the cell at the box's middle, U and V the polynomials around it, q the cell's first
    pixel, a and b the differences to the next column and row, and d the difference of these: p = (q + a t + s g_v) +
    g_u U + g_v V + d U V, with g_u = a + d s and g_v = b + d t.

    Roundings in units of u, with D = |a| + |b| + |d|, at least any difference of two neighbors; t and s, in [0, 1],
    are off by 1. a, b: D; d: 4 D; g_u, g_v: 10 D; a t: 3 D; s g_v: 12 D; the sums 2 (|q| + D), and |q| + D more for
    the one with d (U V)_0. The other coefficients: 10 D of g_u and g_v, 4 D of d, and 5 for products and sums, of the
    polynomials' coefficients. Where the path leaves the cells that are examined, both the image and the function
    change by at most 2 max|p| a pixel along each axis.
    """
    start = source.start.view(-1, 1, 1)
    cell = [source.pixel(x.first + j, y.first + i, start).permute(0, 3, 1, 2) for i in (0, 1) for j in (0, 1)]
    q, right, below, across = cell
    a, b = right - q, below - q
    d = (across - below) - a
    t, s = (axis.position.center.unsqueeze(1) for axis in (x, y))
    slope_u, slope_v = a + d * s, b + d * t
    around = [axis.position.without_center() for axis in (x, y)]
    square = around[0] * around[1]
    (u, v), uv = (each.stack.unsqueeze(2) for each in around), square.stack.unsqueeze(2)
    stack = u.new_empty(len(u), *slope_u.shape)
    for k in range(1, len(u)):
        torch.mul(slope_u, u[k], out=stack[k]).addcmul_(slope_v, v[k]).addcmul_(d, uv[k])
    torch.addcmul(q, a, t, out=stack[0]).addcmul_(slope_v, s).addcmul_(d, uv[0])
    size = a.abs() + b.abs() + d.abs()
    moved = around[0].deviation() + around[1].deviation() + square.deviation()
    outside = (x.outside + y.outside) * source.largest.view(-1, 1, 1) * 5
    radius = slope_u.abs() * around[0].radius.unsqueeze(1) + slope_v.abs() * around[1].radius.unsqueeze(1)
    radius = radius + d.abs() * square.radius.unsqueeze(1) + outside.unsqueeze(1)
    magnitude = q.abs() * 3 + size * (moved.unsqueeze(1) + 1) * 24
    return stack, widen(radius, magnitude, 1, U)


def _as_quadratic(
    source: Source,
    at: Tensor,
    transform: Transform,
    run: list[int],
    low: Tensor,
    high: Tensor,
    stack: Tensor,
    radius: Tensor,
) -> list[Columns]:
    """Overwrite the pixels ``at`` by their forms of second order, whose hinges and radii become columns.

    Each is treated as an image of one pixel, so that each has its own hinge.
    """
    channels, area = radius.shape[1], source.height * source.width
    boxes, box = (at // area).unique(return_inverse=True)
    low, high = low[boxes], high[boxes]
    # one symbol for the one parameter that varies, and one for its T_2
    forms = [
        AffineForm(
            torch.stack([form.center, form.slopes.sum(0), torch.zeros_like(form.center)]), form.radius, quadratic=True
        )
        for form in parameter_forms(low, high)
    ]
    place = coordinates(transform, run, forms, low, high, source.height, source.width)
    place = place.of_pixels(box * area + at % area)
    rows_of = source.rows_of[at // area]
    form = affine_by_points(source.images, rows_of, place, source.padding, None, torch.float64)
    found, left = form.stack.flatten(2), form.radius.flatten(1)
    where = at // area, at % area
    count = min(3, len(found))
    places = stack.flatten(3).permute(1, 3, 0, 2)  # views, [P, H W, 1 + n, C] and [P, H W, C]
    values = stack.new_zeros(len(at), len(stack), channels)
    values[:, :count] = found[:count].movedim(0, 1)
    places[where] = values
    radius.flatten(2).permute(0, 2, 1)[where] = 0.0
    number = torch.arange(len(at), device=at.device)
    columns = [Columns(at, hinge, number, len(at)) for hinge in found[count:]]
    for channel in range(channels):
        values = torch.zeros_like(left)
        values[:, channel] = left[:, channel]
        columns.append(Columns(at, values, number, len(at)))
    return columns


def _assembled(stack: Tensor, radius: Tensor, columns: list[Columns], symbols: int) -> AffineForm:
    """Append the columns that weigh most, at most ``symbols`` for each pair; |values y| <= |values| of others go into
    radii."""
    columns = [each for each in columns if len(each.at)]
    if not columns:
        return AffineForm(stack, radius, quadratic=True)
    pairs, _, height, width = radius.shape
    area, begin, number = height * width, 0, []
    for each in columns:
        number.append(each.column + begin)
        begin += each.count
    at, values, column = torch.cat([c.at for c in columns]), torch.cat([c.values for c in columns]), torch.cat(number)
    weight = values.new_zeros(begin).index_add_(0, column, values.abs().sum(1))
    pair = torch.zeros(begin, dtype=torch.int64, device=at.device).scatter_(0, column, at // area)
    order = weight.argsort(descending=True)
    order = order[pair[order].argsort(stable=True)]
    counts = torch.zeros(pairs, dtype=torch.int64, device=at.device).index_add_(0, pair, torch.ones_like(pair))
    rank = torch.empty_like(order)
    rank[order] = torch.arange(begin, device=at.device) - (counts.cumsum(0) - counts)[pair[order]]
    chosen = (rank < symbols) & (weight > LEAST_SYMBOL)
    kept = chosen[column]
    left = ~kept
    radius.flatten(2).permute(0, 2, 1).index_put_(
        (at[left] // area, at[left] % area), values[left].abs() * (1 + 8 * U), accumulate=True
    )
    radius = radius * (1 + 16 * U)  # a pixel is in fewer than eight columns
    count = int(rank[chosen].amax()) + 1 if bool(chosen.any()) else 0
    planes = stack.new_zeros(len(stack) + count, *radius.shape)
    planes[: len(stack)] = stack
    where = len(stack) + rank[column[kept]], at[kept] // area, at[kept] % area
    # of two entries of a column at a pixel, the sum is rounded once
    planes.flatten(3).permute(0, 1, 3, 2).index_put_(where, values[kept], accumulate=True)
    radius.flatten(2).permute(0, 2, 1).index_put_(where[1:], values[kept].abs() * (4 * U), accumulate=True)
    return AffineForm(planes, radius, quadratic=True)
