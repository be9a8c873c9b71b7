"""Pixels over a box of one parameter as in `pixels.polynomial`, with more bits than a float64: for networks that multiply the
roundings of the pixels beyond their margins.

Positions and the bilinear functions of cells are computed in whole numbers (`enclosures.fixed`); what a pixel gains where its path crosses
a grid line is as small as the box, and computed in float64, like its columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.enclosures.centered import BITS, ONE
from tiltproof.enclosures.fixed import Fixed, Unsupported
from tiltproof.enclosures.pair_form import PairForm, with_errors
from tiltproof.enclosures.pairs import Pair, U, summed
from tiltproof.enclosures.polynomial import Polynomial
from tiltproof.pixels.crossings import Crossing, crossing_columns
from tiltproof.pixels.polynomial import Axis, Source, _as_quadratic, _assembled, parameters, polynomial_form, positions
from tiltproof.transforms.base import Spatial, Transform
from tiltproof.transforms.interpolation import keeps_plane


def pair_form(
    images: Tensor, image: Tensor, transform: Transform, low: Tensor, high: Tensor, degree: int = 4, symbols: int = 0
) -> PairForm:
    """As `polynomial_form`, for one pair: the head is [center, T_1(e), ..., T_degree(e)]. In pairs of floats for affine moves of pixels in
    the plane; for other transformations, its low parts are zero."""
    if [kind for kind, _ in transform.stages()] == [Spatial]:
        ((_, run),) = transform.stages()
        try:
            found = _spatial(images, image, transform, run, low, high, degree, symbols)
        except Unsupported:
            found = None
        if found is not None:
            return found
    return PairForm.of(polynomial_form(images, image, transform, low, high, degree, symbols), degree + 1)


@dataclasses.dataclass
class Path:
    """Positions along an axis from the cell's first line on, one for each pixel; and how far they may be outside of the cell."""

    position: Fixed
    before: Any
    after: Any

    @classmethod
    def of(cls, position: Fixed, first: Tensor) -> Path:
        """Behind the lines ``first``. Where |c_1| > sum_k k^2 |c_k| over k >= 2, at least any slope of these, the path is monotonous, and
        ends at c_0 +- (c_1 + c_3 + ...) + c_2 + c_4 + ...."""
        lines = np.array([int(x) for x in first.flatten().tolist()], dtype=object) * ONE
        middle, *others = position.terms
        position = Fixed([middle - lines, *others], position.error)
        center, odd, even = position.terms[0], sum(others[::2]), sum(others[1::2])
        every = sum(abs(term) for term in others)
        steady = abs(others[0]) > sum((k + 2) ** 2 * abs(term) for k, term in enumerate(others[1:]))
        least = center + np.where(steady, even - abs(odd), -every) - position.error
        most = center + np.where(steady, even + abs(odd), every) + position.error
        return cls(position, np.maximum(-least, 0), np.maximum(most - ONE, 0))

    def axis(self, axis: Axis) -> Axis:
        """The axis with this path's distances outside of the cells that are looked at."""
        side = axis.side.flatten().tolist()
        numbers = [
            (0 if s < 0 else below) + (0 if s > 0 else above)
            for s, below, above in zip(side, self.before, self.after, strict=True)
        ]
        outside = _floats(np.array(numbers, dtype=object), axis.outside.shape, axis.outside)
        return dataclasses.replace(axis, outside=outside * (1 + 4 * U))


def _floats(numbers: Any, shape: Any, like: Tensor) -> Tensor:
    """Whole numbers in units of 2^-128 as the nearest floats."""
    return like.new_tensor([number / ONE for number in numbers.ravel()]).view(shape)


def _parameter(low: float, high: float, degree: int) -> Fixed:
    """The box [low, high] as c + h e. A box that ends on a grid line must not reach beyond it: c and h are off by two units."""
    ends = [top * ONE // bottom for top, bottom in (low.as_integer_ratio(), high.as_integer_ratio())]
    return Fixed([sum(ends) >> 1, (ends[1] - ends[0]) >> 1, *[0] * (degree - 1)], 4)


def _paths(transform: Transform, run: list[int], numbers: list[Fixed], height: int, width: int) -> Any:
    """Source column and row of every output pixel, from the middle of the first one on; None for what does not stay in the plane."""
    matrix: Any = transform.composed_inverse(run, numbers)
    if not keeps_plane(matrix):
        return None
    # twice the distances from the image's middle, to the right and upwards
    u = np.array([2 * j - (width - 1) for _ in range(height) for j in range(width)], dtype=object)
    v = np.array([(height - 1) - 2 * i for i in range(height) for _ in range(width)], dtype=object)
    found = []
    for row, sign, size in ((matrix[0], 1, width), (matrix[1], -1, height)):
        a, b, c = (each if isinstance(each, Fixed) else numbers[0].constant(each * ONE) for each in row)
        terms = [sign * (x * u + y * v + 2 * z) >> 1 for x, y, z in zip(a.terms, b.terms, c.terms, strict=True)]
        terms[0] = terms[0] + ((size - 1) * ONE >> 1)
        found.append(Fixed(terms, ((a.error * abs(u) + b.error * abs(v)) >> 1) + c.error + 1 + len(terms)))
    return found


def _spatial(
    images: Tensor,
    image: Tensor,
    transform: Transform,
    run: list[int],
    low: Tensor,
    high: Tensor,
    degree: int,
    symbols: int,
) -> PairForm | None:
    height, width = images.shape[-2:]
    values = parameters(low, high, degree)
    x, y = positions(transform, run, values, height, width)
    known = x.known & y.known
    left = (~known).flatten().nonzero().squeeze(1)
    if len(left):  # forms of second order are over this parameter
        numbers = [Fixed.of(values[k].stack[:, 0].tolist()) for k in run]
    else:
        numbers = [_parameter(float(low[0, k]), float(high[0, k]), degree) for k in run]
    places = _paths(transform, run, numbers, height, width)
    if places is None:
        return None
    across, down = Path.of(places[0], x.first), Path.of(places[1], y.first)
    x, y = across.axis(x), down.axis(y)
    source = Source(images, image, transform.padding)
    head, radius = _smooth(source, x, y, across.position, down.position)
    # what crossings add, and the pixels that are not known: in floats
    more, extra = torch.zeros_like(head.high), torch.zeros_like(radius)
    columns = list(crossing_columns(source, _crossings(x, y, known, across.position, down.position), more, extra))
    if len(left):
        inside = known.unsqueeze(1)
        head = head.apply(lambda part: torch.where(inside, part, 0.0))
        radius = torch.where(inside, radius, 0.0)
        columns += _as_quadratic(source, left, transform, run, low, high, more, extra)
    rest = PairForm.of(_assembled(more, extra, columns, symbols), degree + 1)
    total, off = summed([*head, rest.head.high])
    return PairForm(total, with_errors(rest.tail, radius + off.sum(0) * (1 + 8 * U)))


def _smooth(source: Source, x: Axis, y: Axis, u: Fixed, v: Fixed) -> tuple[Pair, Tensor]:
    """p = q + a u + b v + d u v in the cell that begins at pixel q, with differences a and b to the next column and row, and d that of
    these: in whole numbers. Pixels are rounded down, so q, a, b and d are off by 1, 2, 2 and 4 units at most."""
    start = source.start.view(-1, 1, 1)
    q, right, below, across = (
        _whole(source.pixel(x.first + j, y.first + i, start).permute(3, 0, 1, 2)) for i in (0, 1) for j in (0, 1)
    )
    a, b = right - q, below - q
    d = (across - below) - a
    both = u * v
    terms = [a * s + b * t + d * w >> BITS for s, t, w in zip(u.terms, v.terms, both.terms, strict=True)]
    terms[0] = terms[0] + q
    sizes = 2 * u.size() + 2 * v.size() + 4 * both.size()
    unknown = abs(a) * u.error + abs(b) * v.error + abs(d) * both.error + sizes
    error = (unknown >> BITS) + 4 + len(terms)
    channels = len(q)
    shape = (1, channels, *x.first.shape[1:])
    like = x.outside
    high = [_floats(term, shape, like) for term in terms]
    # what the nearest float leaves out, in whole units once more, and then rounded to a float
    low = [_floats(term - _whole(part[0].flatten(1)), shape, like) for term, part in zip(terms, high, strict=True)]
    pair = Pair(torch.stack(high), torch.stack(low))
    outside = (x.outside + y.outside) * source.largest.view(-1, 1, 1) * 5
    radius = _floats(error + 2 * len(terms), shape, like) + pair.low.abs().sum(0) * (2 * U) + outside.unsqueeze(1)
    return pair, radius * (1 + 16 * U)


def _whole(x: Tensor) -> Any:
    """Numbers [C, ...] in units of 2^-128, [C, pixels], off by less than one."""
    numbers = np.array([int(number * 2.0**BITS) for number in x.flatten().tolist()], dtype=object)
    return numbers.reshape(len(x), -1)


def _crossings(x: Axis, y: Axis, known: Tensor, u: Fixed, v: Fixed) -> Iterator[Crossing]:
    """As `pixels.polynomial`'s, with distances that are rounded only behind the line."""
    for sideways, across, along, distance, way in ((True, x, y, u, v), (False, y, x, v, u)):
        at = ((across.side != 0) & known).flatten().nonzero().squeeze(1)
        if not len(at):
            continue
        where = at.tolist()
        side = across.side.flatten()[at]
        signs = np.array([int(s) for s in side.tolist()], dtype=object)
        terms = [term[where] * signs for term in distance.terms]
        terms[0] = terms[0] - np.array([ONE if s > 0 else 0 for s in signs], dtype=object)
        beyond = _polynomial(terms, distance.error[where], across.outside)
        moved = [term[where] for term in way.terms]
        inside = _floats(moved[0], len(where), across.outside)
        moved[0] = moved[0] - _whole(inside[None])[0]  # what is left of the middle, a rounding
        tilted = _polynomial(moved, way.error[where] + 1, across.outside)
        # the middle goes into the radius
        rest = Polynomial(tilted.without_center().stack, (tilted.radius + tilted.center.abs()) * (1 + 4 * U))
        first, other = across.first.flatten()[at], along.first.flatten()[at]
        line = torch.where(side > 0, first + 1, first)
        lines = torch.where(side > 0, first, first + 1), line, line + side
        yield Crossing(at, beyond, rest, beyond.ends()[1], inside, lines, other, sideways)


def _polynomial(terms: list[Any], error: Any, like: Tensor) -> Polynomial:
    """Each term is rounded once."""
    stack = torch.stack([_floats(term, len(term), like) for term in terms])
    radius = _floats(error, len(error), like) + stack.abs().sum(0) * (2 * U)
    return Polynomial(stack, radius * (1 + 8 * U))
