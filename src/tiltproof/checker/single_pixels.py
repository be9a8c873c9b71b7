"""Which whole numbers single pixels may be rounded to over boxes of one parameter.

A pixel whose source stays in one cell of the image's grid, at (j + x, i + y) with x, y in [0, 1], has the value

    q + a x + b y + d x y,  q the cell's first corner, a and b the differences to the next column and row, d the mixed difference,

of which forms of x and y make a form. A source that may cross one grid line along each axis lies in one of up to four rectangles, on each
of which the value is bilinear and has its extremes at the corners: the ends of the box and the grid lines between. Everything else is
unknown. Contrast, brightness, gamma, saturation and hue work on each pixel alone, and blurs on whole images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.checker.alike import choices
from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.photometric import changed, clamped, endless
from tiltproof.checker.pixels import FARTHEST, parameters, source, transformed
from tiltproof.checker.tiling import BLURS, GROUND, MOVES, Transform

ALONE = frozenset(("C", "B", "G"))
COLORS = frozenset(("S", "H"))
TIE = 2.0**-36
"""Far more than the roundings of 255 p and its sum with 1/2."""
TOGETHER = 2**17
"""Pixels bounded together."""


class Units:
    """The numbers of a picture, with equal ones that stay equal counted once: ``values`` [K, N] are N pixels of K channels."""

    def __init__(self, image: Tensor, transform: Transform) -> None:
        self.image, self.transform, self.letter = image, transform, transform.letters[0]
        self.fixed = transform.fixed[0] if transform.fixed else 0.0
        self.channels, self.height, self.width = image.shape
        self.places: Tensor | None = None
        plane = image.reshape(self.channels, -1)
        if self.letter in ALONE:
            self.values, self.places = plane.reshape(1, -1).unique(dim=1, return_inverse=True)
        elif self.letter in COLORS:
            self.values, which = plane.unique(dim=1, return_inverse=True)
            self.places = torch.cat([which + k * self.values.shape[1] for k in range(self.channels)])
        else:
            self.values = plane
        self.rows, self.count = self.values.shape

    def pictures(self, numbers: Tensor) -> Tensor:
        """Return pictures [P, C, H, W] of numbers [P, K N]."""
        found = numbers if self.places is None else numbers[:, self.places]
        return found.view(-1, self.channels, self.height, self.width)

    def rounded(self, low: Tensor, high: Tensor, box: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and the greatest whole number [Q, K] that pixel ``number[q]`` may become over box ``box[q]`` of [low, high]."""
        ends = [
            self.between(low, high, box[part], number[part]) for part in torch.arange(len(box)).split(TOGETHER)
        ] or [(low.new_empty(0, self.rows),) * 2]
        lower, upper = (torch.cat(side) for side in zip(*ends, strict=True))
        # a number that is not known could be anything
        lower = torch.where(lower >= 0, lower, 0.0).clamp(max=1)
        upper = torch.where(upper <= 1, upper, 1.0).clamp(min=0)
        least, greatest = (255 * lower - 0.5 - TIE).ceil(), (255 * upper + 0.5 + TIE).floor()
        return least.clamp(0, 255), greatest.clamp(0, 255)

    def first_numbers(self, point: Tensor) -> Tensor:
        """Return the least numbers [1, K N] that the pixels may be rounded to at one parameter: a picture of the claim, but for ties."""
        every, ends = torch.arange(self.count), point.view(1)
        least, _ = self.rounded(ends, ends, torch.zeros_like(every), every)
        return least.T.reshape(1, -1)

    def between(self, low: Tensor, high: Tensor, box: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        if self.letter in BLURS:
            images = self.image.expand(len(low), -1, -1, -1)
            form = transformed(images, self.transform, low[:, None], high[:, None])
            lower, upper = (end.flatten(2).movedim(1, 2)[box, number] for end in (form.lower(), form.upper()))
            return lower, upper
        (value,) = parameters(low[box, None], high[box, None])
        if self.letter in MOVES:
            return self.moved(value, number)
        given = self.values[:, number].T[:, :, None, None]
        form = changed(
            Form(torch.cat([given[None], given.new_zeros(2, *given.shape)])), self.letter, value, self.fixed, "zeros"
        )
        form = clamped(form) if self.letter in ("C", "B") else form
        return form.lower().flatten(1), form.upper().flatten(1)

    def moved(self, value: Form, number: Tensor) -> tuple[Tensor, Tensor]:
        column, row = self.sources(value, number)
        ends = [column.lower(), column.upper(), row.lower(), row.upper()]
        far = ~(torch.stack(ends).abs().amax(0) < FARTHEST)
        left, right, top, bottom = (torch.where(far, 0.0, end) for end in ends)
        j, i = left.floor(), top.floor()
        unknown = far | (right > j + 2) | (bottom > i + 2)
        corners = self.corners(i, j)
        single = (right <= j + 1) & (bottom <= i + 1) & ~unknown
        lower, upper = extremes(corners, left - j, right - j, top - i, bottom - i)
        if bool(single.any()):
            form = in_cell(corners[:2, :2, single], offset(column, j, single), offset(row, i, single))
            lower[single] = torch.maximum(lower[single], form.lower())
            upper[single] = torch.minimum(upper[single], form.upper())
        nothing = unknown[:, None]
        return torch.where(nothing, -torch.inf, lower), torch.where(nothing, torch.inf, upper)

    def sources(self, value: Form, number: Tensor) -> tuple[Form, Form]:
        """Return column and row that each pixel comes from."""
        zero = value * 0
        u = zero + known((number % self.width).double() - (self.width - 1) / 2, zero)
        v = zero + known((self.height - 1) / 2 - (number // self.width).double(), zero)
        normals = self.transform.normals or (GROUND,)
        column, row = source([(self.letter, value, self.fixed)], normals, self.height, self.width, (u, v))
        column, row = (Form(f.rows.flatten(2).squeeze(2)) for f in (column, row))
        return column, row

    def choices(self, low: float, high: float, place: Tensor, lower: Tensor) -> Tensor:
        """Return equal small numbers for numbers of a picture, at these places, that are equal at every parameter of a piece."""
        channel, number = place // self.count, place % self.count
        named = list(zip(channel.tolist(), number.tolist(), lower.tolist(), strict=True))
        column = row = None
        if self.places is not None:
            return torch.arange(len(named))
        if self.letter in MOVES:
            ends = (torch.full((len(number), 1), end, dtype=torch.float64) for end in (low, high))
            (value,) = parameters(*ends)
            column, row = self.sources(value, number)
        return torch.tensor(choices(self.image, self.letter, self.transform.padding, named, column, row))

    def corners(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the image at three grid lines along each axis from row i and column j on, [3, 3, Q, K]."""
        flat = torch.nn.functional.pad(self.values, (0, 1))  # the last one is a zero
        steps = torch.arange(3)[:, None]
        rows, inside_rows = endless(i.long() + steps, self.height, self.transform.padding)
        columns, inside_columns = endless(j.long() + steps, self.width, self.transform.padding)
        index = rows[:, None] * self.width + columns[None]
        index = torch.where(inside_rows[:, None] & inside_columns[None], index, self.count)
        return flat[:, index].movedim(0, -1)


def known(numbers: Tensor, like: Form) -> Form:
    """Return these numbers [P] as a form of the shape of another one."""
    rows = torch.zeros_like(like.rows)
    rows[0] = numbers.view(like.shape)
    return Form(rows)


def offset(position: Form, line: Tensor, which: Tensor) -> Form:
    """Return the distance from a grid line for some positions."""
    rows = position.rows[:, which].clone()
    rows[0] -= line[which]
    return enclose(rows, position.magnitude[which] + line[which].abs(), 2, 0.0, 0)


def in_cell(corners: Tensor, x: Form, y: Form) -> Form:
    """Return the value's form [Q, K] inside one cell with these corners [2, 2, Q, K]."""
    q = corners[0, 0]
    a, b = corners[0, 1] - q, corners[1, 0] - q
    d = (corners[1, 1] - corners[1, 0]) - a
    mixed = x * y
    data = x.rows[:, :, None] * a + y.rows[:, :, None] * b + mixed.rows[:, :, None] * d
    data[0] += q
    data[-1] = x.radius[:, None] * a.abs() + y.radius[:, None] * b.abs() + mixed.radius[:, None] * d.abs()
    # |x|, |y| are at most 2, and the differences at most twice and four times the largest corner: 1 + 4 + 4 + 16 of it
    return enclose(data, 32 * corners.abs().amax((0, 1)), 16, 0.0, 0)


def extremes(corners: Tensor, left: Tensor, right: Tensor, top: Tensor, bottom: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value [Q, K] over the rectangle [left, right] x [top, bottom] in [0, 2]^2."""

    def along(lines: Tensor, begin: Tensor, end: Tensor) -> list[Tensor]:
        """Return the values at the begin, the grid line 1 if it is inside, and the end, from those at the lines 0, 1 and 2."""

        def at(place: Tensor) -> Tensor:
            place = place.clamp(0, 2)[:, None]
            first = lines[0] * (1 - place) + lines[1] * place
            second = lines[1] * (2 - place) + lines[2] * (place - 1)
            return torch.where(place <= 1, first, second)

        middle = torch.minimum(torch.maximum(torch.ones_like(begin), begin), end)
        return [at(place) for place in (begin, middle, end)]

    lines = [along(corners[k], left, right) for k in range(3)]
    points = torch.stack(
        [value for k in range(3) for value in along(torch.stack([line[k] for line in lines]), top, bottom)]
    )
    slack = 64 * UNIT * corners.abs().amax((0, 1))
    return points.amin(0) - slack, points.amax(0) + slack
