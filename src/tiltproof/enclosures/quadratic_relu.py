"""ReLU over a box of one parameter as a parabola: relu(x) = x / 2 + shift + tilt e + curvature (2 e^2 - 1) + [-rest, rest].

A straight line that follows a kink in the middle of a box is off by a quarter of the slope; a parabola, by a sixteenth. Quadratic
forms carry
e^2 anyway, so it costs nothing but for the few entries that have a kink.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, GatheredForm
from tiltproof.enclosures.rounding import SMALLEST

ROUNDINGS = 256
"""Allowed for each parabola, relative to |c| + |g| + t; see `quadratic_relaxation`."""


@dataclass
class QuadraticRelaxation:
    """The parabolas of some entries of a batch of forms, one number each; ``where`` they are (an index for each dimension), and their
    own forms, [1, entries]."""

    where: tuple[Tensor, ...]
    form: AffineForm
    shift: Tensor
    tilt: Tensor
    curvature: Tensor
    rest: Tensor


def quadratic_relaxation(form: AffineForm) -> QuadraticRelaxation | None:
    """Parabolas for the entries of a quadratic form x = c + g e + [-t, t] with |c| < |g|, t all that is not the parameter itself.

    |x| / 2 differs from |c + g e| / 2 by t / 2 at most, and relu(x) = x / 2 + |x| / 2. What is left is a function of e alone, phi = |c +
    g e| / 2 - tilt e - curvature (2 e^2 - 1), for any two numbers. It is the larger of the parabolas with +-(c + g e) / 2 for the
    absolute value, both open below (curvature >= 0). So its largest value is that of one of them on [-1, 1]: of p + a e - 2 curvature e^2
    it is p + |a| - 2 curvature where |a| >= 4 curvature and p + a^2 / (8 curvature) otherwise. And its least value lies at an end of the
    box or at the kink. shift is the middle of the two, and rest half their distance. The two numbers are those that make rest least
    (Chebyshev's fit of |e - k| by a parabola).

    Rounding: every number here is at most 4 (|c| + |g| + t), and fewer than ROUNDINGS of them round on the way to the result and to
    the sums that it goes into.
    """
    if not (form.quadratic and form.unit and form.symbols > 1) or form.like.requires_grad:
        return None
    found = kinked_entries(form)
    if found is None:
        return None
    where, part = found
    (c, g, *others), t = part.stack[:, 0], part.radius[0]
    for other in others:
        t = t + other.abs()
    size, kink = g.abs(), -c / g
    k = kink.abs()
    middle = k <= 1 / 3
    curvature = size * torch.where(middle, 0.25 / (1 + k), 2 * (1 - k) / (3 - k) ** 2)
    tilt = -kink.sign() * size * torch.where(middle, k / (1 + k), 0.5 - 4 * ((1 - k) / (3 - k)) ** 2)
    highest = torch.maximum(*(_highest(sign * c / 2 + curvature, sign * g / 2 - tilt, curvature) for sign in (1, -1)))
    lowest = -tilt * kink - curvature * (2 * kink * kink - 1)
    for end in (1, -1):
        lowest = torch.minimum(lowest, (c + end * g).abs() / 2 - end * tilt - curvature)
    slack = (c.abs() + size + t) * (ROUNDINGS * form.unit) + ROUNDINGS * SMALLEST[c.dtype]
    return QuadraticRelaxation(
        where, part, (highest + lowest) / 2, tilt, curvature, (highest - lowest) / 2 + t / 2 + slack
    )


def kinked_entries(form: AffineForm) -> tuple[tuple[Tensor, ...], AffineForm] | None:
    """Indices where |c| < |g|, and the forms of these entries, [1, entries]; gathered rows copy no others and search for kinks once."""
    source, rows = (form.form, form.rows) if isinstance(form, GatheredForm) else (form, None)
    if source.kinks is None:
        source.kinks = kinked(source)
    where = (source.kinks if rows is None else source.kinks[rows]).nonzero(as_tuple=True)
    if not len(where[0]):
        return None
    there = where if rows is None else (rows[where[0]], *where[1:])
    stack = torch.stack([plane[there] for plane in source.stack])
    return where, AffineForm(stack.unsqueeze(1), source.radius[there].unsqueeze(0), form.unit, form.quadratic)


def kinked(form: AffineForm) -> Tensor:
    """Mask of |c| < |g|: false for a NaN."""
    return form.center.abs() < form.slopes[0].abs()


def _highest(p: Tensor, a: Tensor, curvature: Tensor) -> Tensor:
    """max of p + a e - 2 curvature e^2 over [-1, 1]; a quotient that is used is below 4, so nothing overflows."""
    a, smallest = a.abs(), SMALLEST[a.dtype]
    return p + torch.where(a < 4 * curvature, a / 8 * (a / curvature.clamp(min=smallest)), a - 2 * curvature)


def with_quadratic_relu(form: AffineForm, result: AffineForm) -> AffineForm:
    """ReLU's form ``result`` of ``form``, with parabolas where they leave less; ``result`` is overwritten."""
    result.quadratic, found = form.quadratic, quadratic_relaxation(form)
    if found is None:
        return result
    radius = found.form.radius[0] / 2 + found.rest
    better = radius < result.radius[found.where]  # false for a NaN
    where = tuple(index[better] for index in found.where)
    result.radius[where] = radius[better]
    stack = found.form.stack[:, 0, better] / 2
    stack[:3] += torch.stack([found.shift, found.tilt, found.curvature])[:, better]
    for plane, values in zip(result.stack, stack, strict=True):
        plane[where] = values
    magnitude = result.magnitude()
    magnitude[where] = stack.abs().sum(0)
    return AffineForm(result.stack, result.radius, form.unit, form.quadratic).with_magnitude(magnitude)


def least(first: Tensor, second: Tensor) -> Tensor:
    """min of first e + second (2 e^2 - 1) over [-1, 1]: inside where second > |first| / 4, else at an end."""
    a = first.abs()
    inside = -a / 8 * (a / second.clamp(min=SMALLEST[a.dtype])) - second
    return torch.where(a < 4 * second, inside, second - a)
