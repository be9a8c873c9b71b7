"""ReLU with a symbol of its own for every kink, for forms whose left-over part is tracked by a ball.

In a small box few inputs of a ReLU change their sign. Where one does, relu(x) = s x + t / 2 + t / 2 m with a number m in [-1, 1] that
depends on x; as a symbol, m travels with its true coefficients through the layers that follow, instead of through their absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, added_lengths, row_length
from tiltproof.enclosures.relu import quadratic_relaxation, relu_chord, relu_gap
from tiltproof.enclosures.rounding import SMALLEST, widen


def with_symbols(form: AffineForm, most: int, negligible: float = 0.0) -> AffineForm:
    """Turn the largest radii of each row into symbols, up to ``most``, but for those whose length is ``negligible`` together: [-r_i,
    r_i] = r_i m_i, exactly. The rest keeps ``form.ball``, or gets the length of what remains."""
    radius = form.radius.flatten(1)
    values, index = largest(radius, most, negligible)
    count = len(values[0])
    stack = torch.cat([form.stack, form.stack.new_zeros(count, *form.shape)])
    place(stack[len(form.stack) :], values, index)
    radius = radius.scatter(1, index, SMALLEST[radius.dtype])
    ball = row_length(radius)
    if form.ball is not None:
        ball = torch.minimum(ball, form.ball)
    return AffineForm(stack, radius.view(form.shape), form.unit).with_ball(ball)


@dataclass
class KinkedRelu:
    """relu(x) over a form of x: the form ``slope`` x + ... without the symbols of its kinks, which are ``values`` [P, count] at the
    entries ``index`` [P, count] of each row. A row with fewer kinks than another has zeros there."""

    form: AffineForm
    slope: Tensor
    values: Tensor
    index: Tensor


def relu_with_symbols(form: AffineForm, most: int, negligible: float = 0.0) -> AffineForm:
    """`relu_with_kinks`, with the symbols of the kinks behind those of the form."""
    return with_columns(relu_with_kinks(form, most, negligible))


def with_columns(relu: KinkedRelu) -> AffineForm:
    """The form with its kinks' symbols."""
    form, columns = relu.form, relu.form.stack.new_zeros(relu.values.shape[1], *relu.form.shape)
    place(columns, relu.values, relu.index)
    result = AffineForm(torch.cat([form.stack, columns]), form.radius, form.unit, form.quadratic).with_ball(form.ball)
    return result.with_magnitude(form.magnitude())  # which includes the kinks


def relu_with_kinks(form: AffineForm, most: int, negligible: float = 0.0) -> KinkedRelu:
    """relu(x) = s x + t / 2 + [-t / 2, t / 2] with the chord's slope s in [0, 1] and t from `relu_gap`; the last part becomes a symbol
    for the largest t of each row, up to ``most`` of them, and joins radius and ball for the others, or for those whose length is
    ``negligible`` together.

    Of quadratic forms a parabola takes the chord's place where it leaves less: relu(x) = x / 2 + shift + tilt e + curvature (2 e^2 - 1) +
    [-rest, rest] (`enclosures.relu.quadratic_relaxation`).

    What is left over becomes s x (x / 2), whose length is at most max s times that of x, and the new errors.
    """
    above, below, slope = relu_chord(form)
    gap = relu_gap(slope, above, below)
    half = gap / 2
    # roundings are at most 8 units of this, as in `enclosures.relu.zonotope_relu`; |c| + sum |G_k| of the result is at most s |x| + t / 2
    # for some x, and t / 2 for the new symbol
    size = torch.add(above, gap, alpha=2)
    stack = form.stack * slope
    stack[0].add_(half)
    found = quadratic_relaxation(form)
    if found is not None:
        better = found.rest < half[found.where]  # false for a NaN
        where = tuple(index[better] for index in found.where)
        planes = found.form.stack[:, 0, better] / 2
        planes[:3] += torch.stack([found.shift, found.tilt, found.curvature])[:, better]
        for plane, numbers in zip(stack, planes, strict=True):
            plane[where] = numbers
        slope, half, size = slope.clone(), half.clone(), size.clone()
        slope[where], half[where] = 0.5, found.rest[better]
        # its own roundings are in the rest; the errors' are relative to this
        size[where] = torch.maximum(size[where], planes.abs().sum(0) * (1 + 2.0**-20) + 2 * half[where])
    flat = half.flatten(1)
    values, index = largest(flat, most, negligible)
    kept = flat.scatter(1, index, 0.0).view(form.shape) if values.shape[1] else half
    errors = widen(kept, size, 8, form.unit) + 16 * SMALLEST[half.dtype]
    moved = form.radius * slope
    ball = row_length(moved)
    if form.ball is not None:
        most_slope = slope.flatten(1).amax(1).double()
        ball = torch.minimum(ball, form.ball * most_slope * (1 + 4 * form.unit))
    ball = added_lengths(ball, row_length(errors), form.unit)
    radius = (moved + errors) * (1 + 4 * form.unit)
    result = AffineForm(stack, radius, form.unit, form.quadratic).with_ball(ball).with_magnitude(size)
    return KinkedRelu(result, slope, values, index)


def largest(sizes: Tensor, most: int, negligible: float) -> tuple[Tensor, Tensor]:
    """Values and places [P, count] of the largest numbers >= 0 of each row: at most ``most``, without those that are negligible in every
    row: zeros, and the least ones with a Euclidean length of ``negligible`` together."""
    values, index = sizes.topk(min(most, sizes.shape[1]), dim=1)
    outside = (sizes.square().sum(1) - values.square().sum(1)).clamp(min=0)
    rest = values.square().flip(1).cumsum(1).flip(1) + outside.unsqueeze(1)  # of each number and all smaller ones
    count = int(((rest.sqrt() > negligible) & (values > 0)).sum(1).max())
    return values[:, :count], index[:, :count]


def place(planes: Tensor, values: Tensor, index: Tensor) -> None:
    """planes[k, p] is ``values[p, k]`` at entry ``index[p, k]``; the planes are zero before."""
    flat = planes.flatten(2)
    flat.scatter_(2, index.T.unsqueeze(2), values.T.unsqueeze(2))
