"""Bicubic interpolation: the image is p(x, y) = sum k(y - n) k(x - m) p_nm over whole n and m, clamped to [0, 1], with
    k(d) = 5/4 |d|^3 - 9/4 |d|^2 + 1 up to |d| = 1,  -3/4 (|d|^3 - 5 |d|^2 + 8 |d| - 4) up to 2, and 0 beyond.

Of any four distances t + 1, t, 1 - t and 2 - t the values of k add up to 1 and their sizes to 1 + 3/2 t (1 - t) <= 11/8. Those of
k' add up to 0 and their sizes to at most 3, those of k'' likewise to at most 12. k' is continuous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.photometric import clamped, endless

SIZE, SIZE_1, SIZE_2 = 11 / 8, 3.0, 12.0
FARTHEST, WIDEST = 2.0**20, 8
WEIGHT_ERROR = 2.0**14 * UNIT  # of a sum of 16 products of two weights each, relative to the largest pixel


def kernel(d: Tensor) -> Tensor:
    d = d.abs()
    inner, outer = (1.25 * d - 2.25) * d * d + 1, -0.75 * (((d - 5) * d + 8) * d - 4)
    return torch.where(d <= 1, inner, torch.where(d < 2, outer, 0.0))


def slope(d: Tensor) -> Tensor:
    size = d.abs()
    inner, outer = (3.75 * size - 4.5) * size, -0.75 * ((3 * size - 10) * size + 8)
    return torch.where(size <= 1, inner, torch.where(size < 2, outer, 0.0)) * d.sign()


def resample_cubic(image: Form, column: Form, row: Form, padding: str) -> Form:
    """Enclose the image at (column, row), [P, H, W] each.

    Let m be a number and h >= |p_nm - m| for all pixels that have a weight anywhere in the rectangle of positions, taken so large
    that it holds the forms' centers. Then p - m is at most (11/8)^2 h, and Taylor's formula around the centers gives
        p = p_0 + p_x (x - x_0) + p_y (y - y_0) + rest,  |rest| <= 11/8 12 h (dx^2 + dy^2) / 2 + 9 h dx dy.
    Of the two, the one with the smaller radius is taken. A part of the image that depends on parameters, sum_k slope_k e_k +
    [-radius, radius], is interpolated term by term, each as an interval.
    """
    x, y = Axis(column), Axis(row)
    near = x.near & y.near
    data, flat, size = expanded(image.center, x, y, near, padding)
    taylor = data[-1] < flat[1]  # false for what is not a number
    rows = torch.stack([flat[0], *(torch.zeros_like(flat[0]) for _ in range(len(data) - 2)), flat[1]])
    data = torch.where(taylor, data, rows)
    size = torch.where(taylor, size, flat[0].abs() + flat[1])
    if image.rows[1:].any():
        for k in range(1, len(data)):
            middle, half = within(*expanded(image.rows[k], x, y, near, padding)[:2])
            size = size + middle.abs() + half
            if k < len(data) - 1:
                data[k], data[-1] = data[k] + middle, data[-1] + half
            else:
                low, high = reach_of(image.rows[k], x, y, near, padding)
                data[-1] = data[-1] + torch.maximum(low.abs(), high.abs()) * (SIZE * SIZE)
    return clamped(enclose(data, size, 16, 0.0, 0))


def within(data: Tensor, flat: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the middle and half width of the narrower of two intervals."""
    half = data[1:].abs().sum(0) * (1 + 64 * UNIT)
    narrower = half < flat[1]
    return torch.where(narrower, data[0], flat[0]), torch.where(narrower, half, flat[1])


def expanded(
    values: Tensor, x: Axis, y: Axis, near: Tensor, padding: str
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """Return Taylor's formula as rows, the middle and half width of the other inequality, and what roundings are relative to."""
    low, high = reach_of(values, x, y, near, padding)
    middle = (low + high) / 2
    h = torch.maximum(high - middle, middle - low) * (1 + 8 * UNIT)
    known = near[:, None]
    h_all = torch.where(known, h, torch.inf)
    at, along, across = Grid(values, padding).sums(x, y)
    dx, dy = x.far[:, None], y.far[:, None]
    rest = h_all * (SIZE * SIZE_2 * (dx * dx + dy * dy) / 2 + SIZE_1 * SIZE_1 * dx * dy)
    largest = values.abs().amax()
    data = along * x.form.rows[:, :, None] + across * y.form.rows[:, :, None]
    data[0] = at
    data[-1] = along.abs() * x.form.radius[:, None] + across.abs() * y.form.radius[:, None]
    data[-1] += rest * (1 + 64 * UNIT) + WEIGHT_ERROR * largest * (1 + dx + dy)
    size = at.abs() + along.abs() * x.form.reach[:, None] + across.abs() * y.form.reach[:, None]
    return data, (middle, h * (SIZE * SIZE * (1 + 8 * UNIT)) + 4 * UNIT * middle.abs()), size


class Axis:
    """Positions along one axis, [P, H, W]."""

    def __init__(self, form: Form) -> None:
        low, high = (torch.minimum(form.lower(), form.center), torch.maximum(form.upper(), form.center))
        self.near = (high - low < WIDEST) & (low.abs() < FARTHEST) & (high.abs() < FARTHEST)
        self.low, self.high = (torch.where(self.near, end, 0.0) for end in (low, high))
        self.form = Form(torch.where(self.near, form.rows, 0.0))
        self.far = torch.maximum(self.high - self.form.center, self.form.center - self.low) * (1 + 8 * UNIT)


class Grid:
    """The endless image around it, for each pair and channel."""

    def __init__(self, values: Tensor, padding: str) -> None:
        self.shape, self.padding = values.shape, padding
        self.flat = torch.nn.functional.pad(values.flatten(2), (0, 1))  # the last one is a zero

    def at(self, row: Tensor, column: Tensor) -> Tensor:
        """Return the pixels at whole positions [P, H, W], [P, C, H, W]."""
        pairs, channels, height, width = self.shape
        (i, inside_i), (j, inside_j) = (
            endless(line.long(), side, self.padding) for line, side in ((row, height), (column, width))
        )
        index = torch.where(inside_i & inside_j, i * width + j, height * width).reshape(pairs, 1, -1)
        return self.flat.gather(2, index.expand(-1, channels, -1)).view(pairs, channels, *row.shape[1:])

    def sums(self, x: Axis, y: Axis) -> tuple[Tensor, Tensor, Tensor]:
        """Return p, its derivative along columns, and along rows, at the forms' centers."""
        left, top = x.form.center.floor(), y.form.center.floor()
        at = along = across = torch.zeros(())
        for i in range(-1, 3):
            for j in range(-1, 3):
                d, e = x.form.center - (left + j), y.form.center - (top + i)
                pixel = self.at(top + i, left + j)
                at = at + (kernel(e) * kernel(d))[:, None] * pixel
                along = along + (kernel(e) * slope(d))[:, None] * pixel
                across = across + (slope(e) * kernel(d))[:, None] * pixel
        return at, along, across


def reach_of(values: Tensor, x: Axis, y: Axis, near: Tensor, padding: str) -> tuple[Tensor, Tensor]:
    """Return the least and greatest of the pixels that have a weight in a rectangle; of all where it is wide or far away."""
    whole = values.flatten(2)
    if padding == "zeros":
        whole = torch.nn.functional.pad(whole, (0, 1))
    grid = Grid(values, padding)
    low = high = grid.at(y.low.floor(), x.low.floor())
    down, right = (int((axis.high.floor() - axis.low.floor()).max()) + 4 for axis in (y, x))
    for i in range(down):
        for j in range(right):
            line, place = (
                torch.minimum(axis.low.floor() - 1 + k, axis.high.floor() + 2) for axis, k in ((y, i), (x, j))
            )
            pixel = grid.at(line, place)
            low, high = torch.minimum(low, pixel), torch.maximum(high, pixel)
    known = near[:, None]
    ends = whole.amin(2)[:, :, None, None], whole.amax(2)[:, :, None, None]
    return torch.where(known, low, ends[0]), torch.where(known, high, ends[1])
