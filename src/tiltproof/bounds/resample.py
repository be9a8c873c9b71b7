"""Bounds of a resampled picture over a box of parameters: the exact interval hull, and the affine form."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.bent import bent
from tiltproof.bounds.cells import CellWalk
from tiltproof.bounds.coordinates import Coordinates
from tiltproof.bounds.interval import Interval
from tiltproof.bounds.rounding import UNIT, widen
from tiltproof.bounds.wide import MOST_CELLS, too_wide, wide_hull

MANY_POINTS = 36
"""Boxes that span more points than this get no slopes: a plane says nothing about so large a part of a picture."""


def hull(pictures: Tensor, rows_of: Tensor, place: Coordinates, padding: str) -> Interval:
    """Exact minimum and maximum of the picture over each pixel's coordinate box, channels first [P, C, H, W]; a little less than
    exact where a box spans many cells (`bounds.wide`)."""
    wide = _too_wide(pictures, place, padding)
    if wide is not None:
        place = replace(place, cells=MOST_CELLS)
    low = high = None
    for _, _, value in CellWalk(pictures, rows_of, place, padding):
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


def affine_of_exact(pictures: Tensor, rows_of: Tensor, place: Coordinates, padding: str) -> AffineForm:
    """p = residual + g_u (u - u_c) + g_v (v - v_c): the residual's exact hull, and u, v as affine forms."""
    walk = None if _too_wide(pictures, place, padding) is not None else CellWalk(pictures, rows_of, place, padding)
    if walk is None or walk.count > MANY_POINTS or not (walk.x.true and walk.y.true):
        interval = AffineForm.between(*_ends(hull(pictures, rows_of, place, padding)))
        empty = interval.stack.new_zeros(place.column.symbols, *interval.shape)
        return AffineForm(torch.cat([interval.stack, empty]), interval.radius, bent=place.column.bent)
    values = {(i, j): value for i, j, value in walk}
    last_x, last_y = len(walk.x.points) - 1, len(walk.y.points) - 1
    x = [(point - place.column.center).unsqueeze(-1) for point in walk.x.points]
    y = [(point - place.row.center).unsqueeze(-1) for point in walk.y.points]
    # Secant slopes from the four corners. Any slopes are sound: the residual below is measured against the ones used.
    sw, se, nw, ne = values[0, 0], values[last_x, 0], values[0, last_y], values[last_x, last_y]
    slope_u = _secant(se + ne - sw - nw, x[-1] - x[0])
    slope_v = _secant(nw + ne - sw - se, y[-1] - y[0])
    across = [slope_u * step for step in x]
    down = [slope_v * step for step in y]
    low = high = None
    for (i, j), value in values.items():
        residual = value - across[i] - down[j]
        low = residual if low is None else torch.minimum(low, residual)
        high = residual if high is None else torch.maximum(high, residual)
    assert low is not None
    assert high is not None
    unit = UNIT[pictures.dtype]
    u, v = place.column, place.row
    center = (low + high) / 2
    slopes = slope_u * u.slopes.unsqueeze(-1) + slope_v * v.slopes.unsqueeze(-1)
    size_u, size_v = slope_u.abs(), slope_v.abs()
    radius = (high - low) / 2 + size_u * u.radius.unsqueeze(-1) + size_v * v.radius.unsqueeze(-1)
    # Roundings: 12 of the interpolation, 8 of the residual and its mid-point, 3 of each slope; all relative to these.
    # The step x - u_c is itself rounded, relative to the positions, hence the term in |u| and |v|.
    largest_x = torch.maximum(x[0].abs(), x[-1].abs()) + u.center.abs().unsqueeze(-1) * (2 * unit)
    largest_y = torch.maximum(y[0].abs(), y[-1].abs()) + v.center.abs().unsqueeze(-1) * (2 * unit)
    magnitude = _largest(pictures) + size_u * (largest_x + u.slopes.abs().sum(0).unsqueeze(-1))
    magnitude = magnitude + size_v * (largest_y + v.slopes.abs().sum(0).unsqueeze(-1))
    stack, radius = torch.cat([center[None], slopes]), widen(radius, magnitude, 24, unit)
    form = AffineForm(stack, radius)
    if u.bent:
        form = bent(walk, place, form, _largest(pictures))
    return AffineForm(form.stack.permute(0, 1, 4, 2, 3), form.radius.permute(0, 3, 1, 2), bent=u.bent)


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
