"""Bounds of a resampled picture over a box of parameters: the exact interval hull, and the affine form."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.interval import Interval
from tiltproof.enclosures.rounding import UNIT, widen
from tiltproof.pixels import single_cell as single_cell
from tiltproof.pixels.bilinear import PatchExtrema, boxes_of, some
from tiltproof.pixels.coordinates import Coordinates
from tiltproof.pixels.quadratic import quadratic_pixels
from tiltproof.pixels.range_extrema import MOST_CELLS, too_wide, wide_hull

MANY_POINTS = 36
"""Boxes that span more points than this get no slopes: a plane says nothing about so large a part of a picture."""
CACHED_ENTRIES = 2**14
"""Pixels bounded at a time on a CPU: some dozens of float64 numbers for each, which stay in its caches."""


def hull(pictures: Tensor, rows_of: Tensor, place: Coordinates, padding: str) -> Interval:
    """Exact minimum and maximum of the picture over each pixel's coordinate box, channels first [P, C, H, W]; a little less than
    exact where a box spans many cells (`bounds.wide`)."""
    wide = _too_wide(pictures, place, padding)
    if wide is not None:
        place = replace(place, cells=MOST_CELLS)
    low = high = None
    for value in PatchExtrema(pictures, rows_of, place, padding):
        low = value if low is None else torch.minimum(low, value)
        high = value if high is None else torch.maximum(high, value)
    assert low is not None
    assert high is not None
    if wide is not None:
        outer = wide_hull(pictures, rows_of, place.columns, place.rows, padding)
        low, high = torch.where(wide, outer.lower, low), torch.where(wide, outer.upper, high)
    # Two nested interpolations round at most 12 times, relative to the largest pixel.
    slack = _largest(pictures) * (12 * UNIT[pictures.dtype])
    return Interval((low - slack).permute(0, 3, 1, 2), (high + slack).permute(0, 3, 1, 2))


def hull_of_interval(picture: Interval, rows_of: Tensor, place: Coordinates, padding: str) -> Interval:
    """The same for a picture known only up to intervals: interpolation weights are not negative."""
    if picture.lower is picture.upper:
        return hull(picture.lower, rows_of, place, padding)
    return Interval(
        hull(picture.lower, rows_of, place, padding).lower, hull(picture.upper, rows_of, place, padding).upper
    )


def affine(picture: AffineForm, rows_of: Tensor, place: Coordinates, padding: str) -> AffineForm:
    """The resampled picture as an affine form over the box's parameters.

    A picture that itself depends on the parameters, c + sum_k G_k e_k + [-r, r] (contrast before a rotation), is
    resampled term by term: interpolation is linear in the picture with weights >= 0, so the value lies in S(c) +
    sum_k S(G_k) e_k + [-S(r), S(r)], S(G_k) in its hull m_k +- w_k gives slope m_k and remainder w_k.
    """
    form = affine_of_exact(picture.center, rows_of, place, padding)
    stack, radius = form.stack.clone(), form.radius
    for k in range(picture.symbols):
        slope = AffineForm.between(*_ends(hull(picture.slopes[k], rows_of, place, padding)))
        stack[1 + k] += slope.center
        radius = radius + slope.radius
    radius = radius + hull(picture.radius, rows_of, place, padding).upper
    magnitude = stack.abs().sum(0)
    return AffineForm(stack, widen(radius, magnitude, picture.symbols + 4, form.unit), form.unit)


def affine_of_exact(
    pictures: Tensor,
    rows_of: Tensor,
    place: Coordinates,
    padding: str,
    box_of: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> AffineForm:
    """p = residual + g_u (u - u_c) + g_v (v - v_c): the residual's exact hull, and u, v as affine forms; at last in ``dtype``.

    ``box_of`` [P]: the row of ``place`` that is each pair's box; by default pair p's is row p.
    """

    def by_points(pictures: Tensor, rows_of: Tensor, place: Coordinates) -> AffineForm:
        return affine_by_points(pictures, rows_of, place, padding, None, dtype)

    if single_cell.applies(pictures, place, padding):
        form = single_cell.form_by_need(pictures, rows_of, place, padding, box_of, dtype, by_points)
        if form is not None:
            return form
    return affine_by_points(pictures, rows_of, place, padding, box_of, dtype)


def affine_by_points(
    pictures: Tensor, rows_of: Tensor, place: Coordinates, padding: str, box_of: Tensor | None, dtype: torch.dtype
) -> AffineForm:
    """From the picture's values at all points of each pixel's box."""
    walk = None if _too_wide(pictures, place, padding) is not None else PatchExtrema(pictures, rows_of, place, padding)
    if walk is None or walk.count > MANY_POINTS or not (walk.x.true and walk.y.true):
        place = place if box_of is None else place.of(box_of)
        interval = AffineForm.between(*_ends(hull(pictures, rows_of, place, padding)))
        empty = interval.stack.new_zeros(place.column.symbols, *interval.shape)
        return AffineForm(torch.cat([interval.stack, empty]), interval.radius, quadratic=place.column.quadratic).to(
            dtype
        )
    x, y = (_Steps.of(line.points, form) for line, form in ((walk.x, place.column), (walk.y, place.row)))
    largest, forms = _largest(pictures), []
    entries = pictures.shape[1] * math.prod(place.column.shape[1:])
    size = max(1, len(rows_of) if pictures.is_cuda else CACHED_ENTRIES // entries)
    for begin in range(0, len(rows_of), size):
        pairs = slice(begin, begin + size)
        boxes = boxes_of(box_of, pairs)
        part = walk.pairs(rows_of[pairs], boxes)
        forms.append(_of_points(part, x.rows(boxes), y.rows(boxes), largest).to(dtype))
    stack, radius = forms[0].stack, forms[0].radius
    if len(forms) > 1:
        stack, radius = torch.cat([form.stack for form in forms], 1), torch.cat([form.radius for form in forms])
    return AffineForm(stack.permute(0, 1, 4, 2, 3), radius.permute(0, 3, 1, 2), forms[0].unit, place.column.quadratic)


@dataclass
class _Steps:
    """Positions along one axis for the pixels of boxes, with a dimension for channels: [P, H, W, 1]."""

    form: AffineForm  # the position u
    points: Tensor  # x - u_c for all points x of the axis, [points, P, H, W, 1]
    size: Tensor  # at least |x - u_c| + sum_k |slopes[k]|, what roundings are relative to

    @classmethod
    def of(cls, points: Tensor, form: AffineForm) -> _Steps:
        form = AffineForm(form.stack.unsqueeze(-1), form.radius.unsqueeze(-1), form.unit, form.quadratic)
        steps = points.unsqueeze(-1) - form.center
        # a step is itself rounded, relative to the positions
        largest = torch.maximum(steps[0].abs(), steps[-1].abs()) + form.center.abs() * (2 * form.unit)
        return cls(form, steps, largest + form.slopes.abs().sum(0))

    def rows(self, boxes: Tensor | slice) -> _Steps:
        form = AffineForm(
            some(self.form.stack, boxes, 1), some(self.form.radius, boxes), self.form.unit, self.form.quadratic
        )
        return _Steps(form, some(self.points, boxes, 1), some(self.size, boxes))


def _of_points(walk: PatchExtrema, x: _Steps, y: _Steps, largest: Tensor) -> AffineForm:
    """The form of `affine_of_exact` for the walk's pairs, channels last."""
    values, u, v = walk.values(), x.form, y.form
    # Secant slopes from the four corners. Any slopes are sound: the residual below is measured against the ones used.
    (sw, se), (nw, ne) = ((line[0], line[-1]) for line in (values[0], values[-1]))
    slope_u = _secant(se + ne - sw - nw, x.points[-1] - x.points[0])
    slope_v = _secant(nw + ne - sw - se, y.points[-1] - y.points[0])
    residual = values.sub_(slope_u * x.points).sub_((slope_v * y.points).unsqueeze(1)).flatten(0, 1)
    low, high = residual.amin(0), residual.amax(0)
    size_u, size_v = slope_u.abs(), slope_v.abs()
    radius = (high - low) / 2 + size_u * u.radius + size_v * v.radius
    # Roundings: 12 of the interpolation, 8 of the residual and its mid-point, 3 of each slope; all relative to these.
    magnitude = largest + size_u * x.size + size_v * y.size
    stack = torch.cat([((low + high) / 2)[None], slope_u * u.slopes + slope_v * v.slopes])
    form = AffineForm(stack, widen(radius, magnitude, 24, u.unit))
    return quadratic_pixels(walk, u, v, form, largest) if u.quadratic else form


def _too_wide(pictures: Tensor, place: Coordinates, padding: str) -> Tensor | None:
    """Where boxes span too many cells to be looked at one by one, [P, H, W, 1]; None if none does."""
    if place.cells is not None:  # the caller knows that there are few
        return None
    height, width = pictures.shape[-2:]
    wide = too_wide(place.columns, place.rows, height, width, padding)
    return None if wide is None else wide.unsqueeze(-1)


def _secant(rise: Tensor, run: Tensor) -> Tensor:
    """Slope of the plane; none where the box is so thin that the rise is only rounding noise (any slope is sound)."""
    return torch.where(run > 2.0**-30, rise / (2 * run), 0.0)


def _largest(pictures: Tensor) -> Tensor:
    return pictures.abs().amax()


def _ends(interval: Interval) -> tuple[Tensor, Tensor]:
    return interval.lower, interval.upper
