"""Where each output pixel looks in the source picture, over all parameters of a box (method, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.interval import Interval
from tiltproof.bounds.rounding import widen
from tiltproof.transforms.base import Transform, centred_grid, plus, times


@dataclass
class Coordinates:
    """Source column and row of every output pixel as affine forms [P, H, W], and the box they stay in.

    The box is the meet of the forms' ranges with plain interval arithmetic: the first is tight for small boxes, the
    second for large ones, and the true position lies in both.
    """

    column: AffineForm
    row: AffineForm
    columns: Interval
    rows: Interval
    cells: int | None = None
    """Grid cells to look at along each axis, where it is known that no box meets more; proofs leave it out and have them counted."""


def symbols(low: Tensor, high: Tensor, bent: bool = False) -> list[AffineForm]:
    """Each parameter of the boxes [low, high] (float64 [P, d]) as center + half width * e_k; ``bent``, for d = 1 only: see `AffineForm`."""
    center = (low + high) / 2
    half = torch.maximum(high - center, center - low)
    forms = []
    for k in range(low.shape[1]):
        stack = low.new_zeros(1 + low.shape[1] + bent, len(low))
        stack[0], stack[1 + k] = center[:, k], half[:, k]
        # two roundings of magnitude |center| + half: of the half width, and of the midpoint
        radius = widen(torch.zeros_like(stack[0]), center[:, k].abs() + half[:, k], 2, 2.0**-53)
        forms.append(AffineForm(stack, radius, bent=bent))
    return forms


def interval_coordinates(
    transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int
) -> tuple[Interval, Interval]:
    """The paper's line 5: inverse maps applied one after the other in interval arithmetic; columns and rows [P, H,
    W].
    """
    grid_u, grid_v = centred_grid(height, width, low)
    shape = (len(low), height, width)
    u: Interval = Interval(grid_u.expand(shape), grid_u.expand(shape))
    v: Interval = Interval(grid_v.expand(shape), grid_v.expand(shape))
    for k in reversed(run):
        value = Interval(low[:, k].view(-1, 1, 1), high[:, k].view(-1, 1, 1))
        first, second = transform.parts[k].inverse_matrix(value)
        u, v = (plus(plus(times(m[0], u), times(m[1], v)), m[2]) for m in (first, second))
    return u + (width - 1) / 2, -v + (height - 1) / 2


def coordinates(
    transform: Transform,
    run: list[int],
    forms: list[AffineForm],
    low: Tensor,
    high: Tensor,
    height: int,
    width: int,
    cells: int | None = None,
) -> Coordinates:
    """Six affine matrix entries per box, then exact linear algebra over the pixel grid."""
    matrix = transform.composed_inverse(run, [forms[k] for k in run])
    u, v = centred_grid(height, width, low)
    symbol_count, bent = forms[0].symbols, forms[0].bent

    def combine(row: tuple[object, object, object], sign: int, offset: float) -> AffineForm:
        entries = [
            entry
            if isinstance(entry, AffineForm)
            else AffineForm.constant(torch.full_like(low[:, 0], float(entry)), symbol_count)  # type: ignore[arg-type]
            for entry in row
        ]
        a, b, c = (entry.stack[:, :, None, None] for entry in entries)
        stack = a * u + b * v + c
        if sign < 0:
            stack = -stack
        stack[0] += offset
        ra, rb, rc = (entry.radius[:, None, None] for entry in entries)
        ma, mb, mc = (entry.magnitude()[:, None, None] for entry in entries)
        magnitude = ma * u.abs() + mb * v.abs() + mc + abs(offset)
        return AffineForm(stack, widen(ra * u.abs() + rb * v.abs() + rc, magnitude, 8, 2.0**-53), bent=bent)

    column = combine(matrix[0], 1, (width - 1) / 2)
    row = combine(matrix[1], -1, (height - 1) / 2)
    columns, rows = interval_coordinates(transform, run, low, high, height, width)
    return Coordinates(column, row, _meet(column, columns), _meet(row, rows), cells)


def _meet(form: AffineForm, interval: Interval) -> Interval:
    return Interval(torch.maximum(form.lower, interval.lower), torch.minimum(form.upper, interval.upper))
