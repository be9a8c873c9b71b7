"""Pixels whose path crosses a grid line: the kinks of their values, as functions of one parameter that get symbols of
their own.

On both sides of a line the image is bilinear, so beyond it the first cell's function gains (jump + tilt V) max(0, X):
X is how far the position is beyond the line, V how far it has moved along the line since the box's middle; the line's
second differences jump and tilt are the channels' own. So a crossing gives two functions of e to all channels, A =
max(0, X) and B = V A. Each is a polynomial plus delta y with a number delta and a function y in [-1, 1], and y is a
symbol: nothing of it goes into radii. A path that turns a corner crosses two lines, and gains also M max(0, X) max(0,
Y), M being the second difference of the second differences.

Pixels that cross lines with the same X share their functions: the four that a quarter turn permutes, all of an image
that is shifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tiltproof.enclosures.polynomial import Polynomial, U
from tiltproof.enclosures.relu import ROUNDINGS, absolute_parabola
from tiltproof.enclosures.rounding import SMALLEST, widen

if TYPE_CHECKING:
    from tiltproof.pixels.polynomial import Axis, Source

SAME = 2.0**-44
"""Crossings whose polynomials X differ by no more are taken together, and are charged for the difference."""


@dataclass
class Columns:
    """Multiples of functions y in [-1, 1]: entry i adds ``values[i]`` [C] times the function ``column[i]`` to pixel
    ``at[i]``, which is numbered by pair and position. All entries of a column are of one pair."""

    at: Tensor
    values: Tensor
    column: Tensor
    count: int


@dataclass
class Crossing:
    """Entries, one for each pixel and line that it crosses; stacks [1 + n, E]."""

    at: Tensor  # the pixel, numbered by pair and position
    beyond: Polynomial  # X
    along: Polynomial  # V
    highest: Tensor  # at least max X
    inside: Tensor  # the position along the line in the box's middle, from the cell's first line on
    lines: tuple[Tensor, Tensor, Tensor]  # the first cell's far line, the one that is crossed, and the next
    other: Tensor  # the cell's first line of the other kind
    sideways: bool  # whether the line that is crossed is a column of the image

    @classmethod
    def of(cls, across: Axis, along: Axis, at: Tensor, sideways: bool) -> Crossing:
        """The entries of the pixels ``at``."""

        def chosen(values: Tensor) -> Tensor:
            return values.flatten(-3).index_select(-1, at)

        side, first, other = chosen(across.side), chosen(across.first), chosen(along.first)
        line = torch.where(side > 0, first + 1, first)
        stack = chosen(across.position.stack) * side
        stack[0] -= (side > 0).to(stack)
        # one rounding of the distance
        beyond = Polynomial(stack, widen(chosen(across.position.radius), stack[0].abs(), 1, U))
        moved = Polynomial(chosen(along.position.stack), chosen(along.position.radius))
        inside = moved.center
        lines = torch.where(side > 0, first, first + 1), line, line + side
        return cls(at, beyond, moved.without_center(), beyond.ends()[1], inside, lines, other, sideways)

    def differences(self, source: Source, area: int) -> tuple[Tensor, Tensor, Tensor]:
        """Jump and tilt [E, C], and the sum of the differences that they are made of."""
        start = source.start[self.at // area]

        def pixels(line: Tensor, k: int) -> Tensor:
            other = self.other + k
            return source.pixel(line, other, start) if self.sideways else source.pixel(other, line, start)

        bends, sizes = [], []
        for k in (0, 1):
            before, here, after = (pixels(line, k) for line in self.lines)
            bends.append((after - here) - (here - before))
            sizes += [(after - here).abs(), (here - before).abs()]
        tilt = bends[1] - bends[0]
        return bends[0] + self.inside.unsqueeze(1) * tilt, tilt, torch.stack(sizes).sum(0)


def positive_part(x: Polynomial, highest: Tensor) -> Polynomial:
    """max(0, X) as a polynomial with a remainder, for a set X = sum_k x_k T_k + [-r, r] with X <= ``highest``.

    max(0, X) = X / 2 + |X| / 2, and |X| differs from |x_0 + x_1 e| by t = |x_2| + ... + |x_n| + r at most. The
    parabola of `absolute_parabola` for |x_0 + x_1 e| / 2 is off by rest. So what is left is rest + t / 2 + r / 2.
    Where |x_0| >= |x_1|, or where it is less, the middle of [0, highest] is taken.
    """
    (c, g), rest = x.stack[:2], x.radius
    higher = x.stack[2:].abs().sum(0)
    kinked = c.abs() < g.abs()
    shift, tilt, curvature, parabola = absolute_parabola(torch.where(kinked, c, 0.0), torch.where(kinked, g, 1.0))
    slack = (c.abs() + g.abs() + higher + rest) * (ROUNDINGS * U) + ROUNDINGS * SMALLEST[torch.float64]
    left = parabola + higher / 2 + rest + slack
    stack = x.stack / 2
    stack[:3] += torch.stack([shift, tilt, curvature])
    half = highest.clamp(min=0) / 2 * (1 + 4 * U)
    curved = kinked & (left < half)
    flat = torch.cat([half[None], torch.zeros_like(stack[1:])])
    return Polynomial(torch.where(curved, stack, flat), torch.where(curved, left, half * (1 + 4 * U)))


def crossing_columns(source: Source, crossings: Iterable[Crossing], stack: Tensor, radius: Tensor) -> Iterator[Columns]:
    """Add the crossings' polynomials to ``stack`` [1 + n, P, C, H, W], and what they cost to ``radius``, both in
    place; what is left of their kinks as columns."""
    each = list(crossings)
    if not each:
        return
    area = stack.shape[-1] * stack.shape[-2]
    parts = [crossing.differences(source, area) for crossing in each]
    jump, tilt, size = (torch.cat([part[k] for part in parts]) for k in range(3))
    at = torch.cat([crossing.at for crossing in each])
    x, v = (
        Polynomial(torch.cat([p.stack for p in polynomials], 1), torch.cat([p.radius for p in polynomials]))
        for polynomials in ([c.beyond for c in each], [c.along for c in each])
    )
    highest = torch.cat([crossing.highest for crossing in each]).clamp(min=0)
    group, first = _groups(at // area, x, v)
    mine = first[group]  # the entry whose functions each entry uses
    a = positive_part(Polynomial(x.stack[:, first], x.radius[first]), highest[first])
    along = Polynomial(v.stack[:, first], v.radius[first])
    b = along * a
    # V = factor V_0 + what is left, and X = X_0 + apart
    reference = along.stack[1][group]
    factor = torch.where(reference != 0, v.stack[1] / reference, 0.0)
    factor = torch.where(torch.isfinite(factor), factor, 0.0)
    alone = mine == torch.arange(len(mine), device=mine.device)
    apart = (x.stack - x.stack[:, mine]).abs().sum(0) + x.radius + x.radius[mine]
    turned = (v.stack - factor * v.stack[:, mine]).abs().sum(0) + v.radius + factor.abs() * v.radius[mine]
    turned = turned + v.stack.abs().sum(0) * (4 * U)
    apart, turned = (torch.where(alone, 0.0, value) * (1 + 16 * U) for value in (apart, turned))
    factor = torch.where(alone, 1.0, factor)
    second = tilt * factor.unsqueeze(1)
    added = jump.unsqueeze(0) * a.stack[:, group].unsqueeze(2) + second.unsqueeze(0) * b.stack[:, group].unsqueeze(2)
    sides = a.magnitude()[group] + b.magnitude()[group] * factor.abs().clamp(min=1)
    cost = jump.abs() * apart.unsqueeze(1)
    cost = cost + tilt.abs() * (turned * highest[mine] + v.deviation() * apart).unsqueeze(1)
    # Roundings: jump and tilt are off by fewer than 16 units of the differences they are made of, products and sums by
    # 8 more.
    cost = widen(cost, size * sides.unsqueeze(1), 32, U)
    yield from _added(at, added, cost, stack, radius)
    yield Columns(at, jump * a.radius[group].unsqueeze(1), group, len(first))
    yield Columns(at, second * b.radius[group].unsqueeze(1), group, len(first))
    yield from _corners(source, each, stack, radius)


def _groups(pair: Tensor, x: Polynomial, v: Polynomial) -> tuple[Tensor, Tensor]:
    """The number of each entry's group, and the entry of each group whose functions are the group's: that with the
    largest slope of V.

    Groups only decide who is charged for what: entries of one pair with nearly the same X, and V in proportion.
    """
    slope = v.stack[1]
    ratios = torch.where(slope != 0, v.stack[2:] / slope, 0.0).nan_to_num(0.0, 0.0, 0.0)
    numbers = torch.cat([x.stack, ratios])
    # a single number for each entry is faster to sort; neighbors are compared below
    weights = (torch.arange(1, len(numbers) + 1, dtype=numbers.dtype, device=numbers.device) * 2.5).sin()
    order = (numbers * weights.unsqueeze(1)).sum(0).argsort()
    order = order[pair[order].argsort(stable=True)]
    sorted_numbers = numbers[:, order]
    step = (sorted_numbers[:, 1:] - sorted_numbers[:, :-1]).abs()
    count = len(x.stack)
    new = (step[:count].sum(0) > SAME) | (step[count:].sum(0) > SAME * 2**8) | (pair[order][1:] != pair[order][:-1])
    group = torch.empty_like(order)
    group[order] = torch.cat([new.new_zeros(1), new]).cumsum(0)
    most = slope.new_full((int(group.amax()) + 1,), -1.0).scatter_reduce(0, group, slope.abs(), "amax")
    best = (slope.abs() == most[group]).nonzero().squeeze(1)
    first = torch.zeros(len(most), dtype=torch.int64, device=group.device)
    return group, first.scatter(0, group[best], best)


def _added(at: Tensor, added: Tensor, cost: Tensor, stack: Tensor, radius: Tensor) -> Iterator[Columns]:
    """Add ``added`` [1 + n, E, C] and ``cost`` [E, C] to the pixels ``at``; a pixel occurs twice at most. Yields
    nothing."""
    area = stack.shape[-1] * stack.shape[-2]
    where = at // area, at % area
    places = stack.flatten(3).permute(1, 3, 0, 2)  # a view, [P, H W, 1 + n, C]
    size = (places[where].abs() + added.movedim(0, 1).abs()).sum(1)
    places.index_put_(where, added.movedim(0, 1), accumulate=True)
    radius.flatten(2).permute(0, 2, 1).index_put_(where, widen(cost, size, 4, U), accumulate=True)
    yield from ()


def _corners(source: Source, each: list[Crossing], stack: Tensor, radius: Tensor) -> Iterator[Columns]:
    """M max(0, X) max(0, Y) for pixels that cross a column and a row: in [0, M m] or [M m, 0], m the product of their
    highest values."""
    if len(each) < 2:
        return
    columns, rows = each
    both = torch.isin(columns.at, rows.at)
    if not bool(both.any()):
        return
    area = stack.shape[-1] * stack.shape[-2]
    at = columns.at[both]
    there = torch.isin(rows.at, at)  # both lists are in the order of pixels
    start = source.start[at // area]
    lines, others = ([line[where] for line in each.lines] for each, where in ((columns, both), (rows, there)))
    mixed = size = source.pixel(lines[0], others[0], start) * 0
    for i, p in enumerate((1.0, -2.0, 1.0)):
        for j, q in enumerate((1.0, -2.0, 1.0)):
            pixel = source.pixel(lines[i], others[j], start)
            mixed, size = mixed + pixel * (p * q), size + pixel.abs() * abs(p * q)
    most = columns.highest[both].clamp(min=0) * rows.highest[there].clamp(min=0) / 2 * (1 + 8 * U)
    most = most.unsqueeze(1)
    half = mixed * most
    added = torch.cat([half[None], torch.zeros_like(half)[None].expand(len(stack) - 1, -1, -1)])
    yield from _added(at, added, widen(torch.zeros_like(half), size * most, 32, U), stack, radius)
    yield Columns(at, half, torch.arange(len(at), device=at.device), len(at))
