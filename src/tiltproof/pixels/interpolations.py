"""Bounds of images resampled by nearest or bicubic interpolation (`transforms/interpolation.py`) over coordinate boxes.

The pixel nearest to a position in [a, b] is one of those on the lines ceil(a - 1/2) ... floor(b + 1/2), both of two that are
equally near. A bilinear image over a box whose ends are grid lines is extreme at pixels, and takes the value of each there: so
the exact hull of the nearest pixels is the bilinear hull over the rounded box.

A bicubic image p is a sum of w_i(y) w_j(x) p_ij with weights that add up to 1. With m any number and h >= |p_ij - m| for the
pixels that the box can reach, and sum |w| <= 11/8, sum |w'| <= 3, sum |w''| <= 12 along each axis:
    |p - m| <= (11/8)^2 h,  |p_xx| and |p_yy| <= (11/8) 12 h,  |p_xy| <= 9 h.
The kernel is continuously differentiable, also at grid lines, where the second derivative jumps. So around any point c
    p = p(c) + p_x(c) (x - c_x) + p_y(c) (y - c_y) + rest,  |rest| <= 33/4 h (dx^2 + dy^2) + 9 h dx dy,
dx and dy how far the box reaches from c, and h over all pixels that the box or c can reach. Where the rest is larger than
what the first inequality allows, that one is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.relu import clamp01
from tiltproof.enclosures.rounding import widen
from tiltproof.pixels.bilinear import FAR
from tiltproof.pixels.coordinates import Coordinates
from tiltproof.transforms.interpolation import SHARPNESS, cubic_weights, pixels_at, ring_index, with_ring

Hull = Callable[[Tensor, Tensor, Coordinates, str], Interval]
"""`pixels.api.hull`: the extremes of bilinear images over boxes."""

OVERSHOOT = 121 / 64
"""(sum |w|)^2: along each axis it is 1 + 2 |a| t (1 - t) <= 11/8."""
BEND, TWIST = 33 / 4, 9.0
ROUNDED = 2.0**-40
"""Weights and their derivatives are off by less than 2^-45 each, sums of 16 products by less than 2^-42 of the largest pixel."""


def resampled_interval(
    image: Interval, rows_of: Tensor, place: Coordinates, padding: str, interpolation: str, hull: Hull
) -> Interval:
    """Bound an image known up to intervals [N, C, H, W] at the positions of boxes: [P, C, H, W]."""
    exact = image.lower is image.upper
    if interpolation == "nearest":
        place = rounded(place)
        lower = hull(image.lower, rows_of, place, padding)
        return Interval(lower.lower, (lower if exact else hull(image.upper, rows_of, place, padding)).upper)
    assert interpolation == "bicubic"
    if exact:
        return bicubic_interval(image.lower, rows_of, place, padding, hull).clamp01()
    form = AffineForm.between(image.lower, image.upper)
    middle = bicubic_interval(form.center, rows_of, place, padding, hull)
    radius = hull(form.radius, rows_of, reached(place), padding).upper * OVERSHOOT
    return Interval.outward(middle.lower - radius, middle.upper + radius).clamp01()


def resampled_form(
    image: AffineForm, rows_of: Tensor, place: Coordinates, padding: str, interpolation: str, hull: Hull
) -> AffineForm:
    """Bound an image that is itself a form over the box's parameters, or exact (no symbols), term by term: the look-up is
    linear in the image, so that of c + sum_k G_k e_k + [-r, r] is S(c) + sum_k S(G_k) e_k and at most sum |weight| r."""
    nearest = interpolation == "nearest"
    assert nearest or interpolation == "bicubic"
    window = rounded(place) if nearest else reached(place)

    def interval(values: Tensor) -> AffineForm:
        bounds = (
            hull(values, rows_of, window, padding)
            if nearest
            else bicubic_interval(values, rows_of, place, padding, hull)
        )
        return AffineForm.between(bounds.lower, bounds.upper)

    if nearest:
        flat = interval(image.center)
        form = AffineForm(_with_symbols(flat.stack, place.column.symbols), flat.radius)
    else:
        form = bicubic_form(image.center, rows_of, place, padding, hull)[0]
    if image.symbols:
        stack, radius = form.stack.clone(), form.radius
        for k in range(image.symbols):
            slope = interval(image.slopes[k])
            stack[1 + k] += slope.center
            radius = radius + slope.radius
        more = hull(image.radius, rows_of, window, padding).upper
        radius = radius + (more if nearest else more * OVERSHOOT)
        form = AffineForm(stack, widen(radius, stack.abs().sum(0), image.symbols + 4, form.unit), form.unit)
    return form if nearest else clamp01(form)


def rounded(place: Coordinates) -> Coordinates:
    """Return boxes whose ends are the first and last line that a position may be rounded to, either of two equally near.

    Rounding a - 1/2 and b + 1/2 to floats may move them to a whole number, but never past one.
    """
    columns, rows = (
        Interval((box.lower - 0.5).ceil(), (box.upper + 0.5).floor()) for box in (place.columns, place.rows)
    )
    return replace(place, columns=columns, rows=rows, cells=None if place.cells is None else place.cells + 1)


def reached(place: Coordinates) -> Coordinates:
    """Return the boxes of all pixels with a weight for a position in the box, or at the center of its form."""
    columns, rows = (
        Interval(box.lower.floor() - 1, box.upper.floor() + 2)
        for box in (_with_center(place.columns, place.column), _with_center(place.rows, place.row))
    )
    # a box of n cells reaches over n + 3; the form's center may lie outside of it, so they are counted
    return replace(place, columns=columns, rows=rows, cells=None)


def _with_center(box: Interval, form: AffineForm) -> Interval:
    return Interval(torch.minimum(box.lower, form.center), torch.maximum(box.upper, form.center))


def bicubic_interval(images: Tensor, rows_of: Tensor, place: Coordinates, padding: str, hull: Hull) -> Interval:
    """Return bounds of exact images, not clamped: where both inequalities agree."""
    form, flat = bicubic_form(images, rows_of, place, padding, hull)
    return Interval(torch.maximum(form.lower, flat.lower), torch.minimum(form.upper, flat.upper))


def bicubic_form(
    images: Tensor, rows_of: Tensor, place: Coordinates, padding: str, hull: Hull
) -> tuple[AffineForm, AffineForm]:
    """Return the form of exact images, not clamped, and the one by the first inequality alone, which is without symbols."""
    images = images.double()
    pixels = hull(images, rows_of, reached(place), padding)
    flat = AffineForm.between(pixels.lower, pixels.upper)
    spread = flat.radius  # h, around the middle m that the form has as its center
    flat = AffineForm(flat.stack, widen(spread * OVERSHOOT, flat.center.abs(), 4, flat.unit))

    near = torch.ones_like(place.column.center, dtype=torch.bool)
    for form, box in ((place.column, place.columns), (place.row, place.rows)):
        near &= (form.center.abs() < FAR) & (box.lower > -FAR) & (box.upper < FAR)
    x, y = _Axis.of(place.column, place.columns, near), _Axis.of(place.row, place.rows, near)
    value, slope_x, slope_y = _at_centers(images, rows_of, x, y, padding)
    size_x, size_y, d_x, d_y = slope_x.abs(), slope_y.abs(), x.distance.unsqueeze(1), y.distance.unsqueeze(1)
    rest = spread * (BEND * (d_x * d_x + d_y * d_y) + TWIST * d_x * d_y)
    slack = ROUNDED * images.abs().amax() * (1 + d_x + d_y)
    u, v = (AffineForm(form.stack.unsqueeze(2), form.radius.unsqueeze(1)) for form in (place.column, place.row))
    slopes = slope_x * u.slopes + slope_y * v.slopes
    radius = size_x * u.radius + size_y * v.radius + rest + slack
    magnitude = value.abs() + size_x * u.slopes.abs().sum(0) + size_y * v.slopes.abs().sum(0)
    radius = widen(radius, magnitude, 2 * u.symbols + 16, u.unit)
    better = near.unsqueeze(1) & (radius < flat.radius)  # false for a NaN
    stack = torch.where(better, torch.cat([value[None], slopes]), _with_symbols(flat.stack, u.symbols))
    return AffineForm(stack, torch.where(better, radius, flat.radius)), flat


def _with_symbols(stack: Tensor, symbols: int) -> Tensor:
    return torch.cat([stack, stack.new_zeros(symbols, *stack.shape[1:])])


class _Axis:
    """The centers of positions along one axis, [P, H, W]: the line before each, weights of four pixels, and their derivatives."""

    def __init__(self, center: Tensor, distance: Tensor) -> None:
        self.line, self.distance = center.floor(), distance
        t = (center - self.line).unsqueeze(-1)
        a, s = SHARPNESS, 1 - t
        self.weights = cubic_weights(t)
        self.slopes = (
            *(a * s * (1 - 3 * t), (3 * (a + 2) * t - 2 * (a + 3)) * t),
            *(-(3 * (a + 2) * s - 2 * (a + 3)) * s, -a * t * (1 - 3 * s)),
        )

    @classmethod
    def of(cls, form: AffineForm, box: Interval, near: Tensor) -> _Axis:
        center = torch.where(near, form.center, 0.0)
        distance = torch.maximum((box.upper - center).abs(), (box.lower - center).abs())
        return cls(center, torch.where(near, distance * (1 + 2.0**-50), 0.0))


def _at_centers(images: Tensor, rows_of: Tensor, x: _Axis, y: _Axis, padding: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return value and derivatives along columns and rows of each pair's image, [P, C, H, W]."""
    height, width = images.shape[-2:]
    flat = with_ring(images).view(-1, images.shape[1])
    start = rows_of.view(-1, 1, 1) * ((height + 2) * (width + 2))
    columns = [ring_index(x.line.long() + j, width, padding) for j in range(-1, 3)]
    value = slope_x = slope_y = torch.zeros((), dtype=images.dtype, device=images.device)
    for i in range(4):
        lines = start + ring_index(y.line.long() + i - 1, height, padding) * (width + 2)
        along = across = torch.zeros_like(value)
        for j, column in enumerate(columns):
            pixel = pixels_at(flat, lines + column)
            along, across = along + x.weights[j] * pixel, across + x.slopes[j] * pixel
        value, slope_x = value + y.weights[i] * along, slope_x + y.weights[i] * across
        slope_y = slope_y + y.slopes[i] * along
    return value.permute(0, 3, 1, 2), slope_x.permute(0, 3, 1, 2), slope_y.permute(0, 3, 1, 2)
