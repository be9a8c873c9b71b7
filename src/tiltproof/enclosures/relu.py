"""Relaxations of ReLU: the zonotope (parallelogram), also of leaky ReLU and the clamp to [0, 1]; and parabolas for quadratic forms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.device import has_kernel, launch_bound
from tiltproof.enclosures.affine_form import AffineForm, GatheredForm, absolute_sum
from tiltproof.enclosures.rounding import SMALLEST


def relu_chord(form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
    """How far x can be above and below zero, max(h, 0) and max(-l, 0), and the slope of the chord of ReLU over [l, h].

    The chord's slope is 1 where x cannot be negative and 0 where it cannot be positive.
    """
    reach = form.reach()
    above, below = (form.center + reach).clamp_(min=0), (reach - form.center).clamp_(min=0)
    return above, below, above / (above + below + SMALLEST[above.dtype])


def relu_gap(slope: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """t with 0 <= relu(x) - s x <= t for all x in [l, h] and any slope s in [0, 1].

    relu(x) - s x is (1 - s) x >= 0 for x >= 0 and -s x >= 0 for x < 0, so it is largest at an end: t = max(s max(-l,
    0), (1 - s) max(h, 0)). It holds for the slope actually used, however that was rounded.
    """
    return torch.maximum(slope * below, (1 - slope) * above)


def relax_relu(form: AffineForm, negative_slope: float = 0.0) -> AffineForm:
    """Relax f(x) = x for x >= 0, a x for x < 0 with a <= 1; ReLU of a quadratic form by parabolas where they are tighter."""
    if not (form.symbols or form.unit or negative_slope):
        # interval arithmetic in training: the same result in fewer steps
        upper, lower = (form.center + form.radius).relu(), (form.center - form.radius).relu()
        return AffineForm(((upper + lower) / 2)[None], (upper - lower) / 2, form.unit)
    if form.unit and not (negative_slope or launch_bound(form.stack) or form.stack.requires_grad):
        result = _zonotope_relu_on_cpu(form)
    else:
        result = zonotope_relu(form, negative_slope)
    return result if negative_slope else with_quadratic_relu(form, result)


@has_kernel("relu:relu")
def zonotope_relu(form: AffineForm, negative_slope: float = 0.0) -> AffineForm:
    """f(x) = a x + (1 - a) relu(x), step by step.

    relu(x) = s x + t/2 + [-t/2, t/2] with t from `relu_gap`. Slope: the chord's makes t least; but where the
    remainder r of x is large (2 r > h) the new remainder s r + t/2 is least for s = 0. Without symbols r is half the
    width, so s = 0 wherever the kink is inside, and the rule is then interval arithmetic.
    """
    above, below, slope = relu_chord(form)
    slope = torch.where(2 * form.radius > above, 0.0, slope)
    gap = relu_gap(slope, above, below)
    # s |x| + t is at most this for every x, because s |x| <= max(s h, -s l) <= max(h, t); likewise s |c| + s sum |G_k| and s r
    size = torch.add(above, gap, alpha=2) if form.unit else None
    if negative_slope:
        # |a x| + (1 - a)(s |x| + t): the two parts of the slope may nearly cancel, so their roundings are relative to both
        if size is not None:
            size = size * (1 - negative_slope) + (above + below) * abs(negative_slope)
        slope, gap = negative_slope + (1 - negative_slope) * slope, gap * (1 - negative_slope)
    half = gap / 2
    stack = form.stack * slope
    stack[0].add_(half)  # `+=` would write it twice
    radius = torch.addcmul(half, form.radius, slope if negative_slope >= 0 else slope.abs())
    if size is None:
        return AffineForm(stack, radius, form.unit)
    # With F = s (|c| + sum |G_k| + r): roundings of s x and of the sum 2 F + t, of t 3 t, of the radius and this very sum 5 (F + t / 2); so
    # at most 7 F + 7 t <= 8 size units roundoff. Twice that where the slope itself is composed of two parts.
    radius = radius.add_(size, alpha=(16 if negative_slope else 8) * form.unit).add_(16 * SMALLEST[radius.dtype])
    return AffineForm(stack, radius, form.unit).with_magnitude(size)


def _zonotope_relu_on_cpu(form: AffineForm) -> AffineForm:
    """The same relaxation in half as many passes over memory, which is what a CPU's time goes into.

    With D >= the deviation, h = c + D and l = c - D: a sum of two numbers rounds relatively, and to 0 only where it is 0, so that ``above``
    is max(h, 0) but for one rounding. The chord's slope is h / (2 D), or 1 where that is more. With u the unit roundoff, s 2 D is at most
    (1 + u) above, so that s max(-l, 0) = s (2 D - h) is at most (1 - s) above + 2 u above; where the quotient was cut to 1, -l is at most
    2 u above. So t = (1 - s) above will do, with 2 u above more in the radius. Where 2 D overflows, nothing is proved.
    """
    unit, smallest = form.unit, SMALLEST[form.stack.dtype]
    symbols = form.symbols
    width = form.radius + absolute_sum(form.slopes) if symbols else form.radius
    # 2 D: the sum rounds once for each symbol, this very line twice, all of it relatively; SMALLEST stands for underflows
    width = torch.add(width.new_full((), 2 * smallest), width, alpha=2 * (1 + (2 * symbols + 4) * unit))
    above = torch.add(form.center, width, alpha=0.5).clamp_(min=0)
    slope = (above / width).clamp_(max=1)
    slope = torch.ops.aten.threshold_backward(slope, torch.add(above, form.radius, alpha=-2), 0)  # 0 where 2 r >= h
    half = torch.addcmul(above, slope, above, value=-1).mul_(0.5)
    size = torch.add(above, half, alpha=4)  # above + 2 t, as in `zonotope_relu`
    stack = torch.empty_like(form.stack)
    torch.addcmul(half, form.center, slope, out=stack[0])
    if symbols:
        torch.mul(form.slopes, slope, out=stack[1:])
    radius = torch.addcmul(half, form.radius, slope)
    # Roundings, in units: of s c, its sum with t / 2, and s G_k, 2 s |c| + s sum |G_k| + t / 2; of above, (1 - s) above = t; of t itself
    # s above + t, and the 2 above that it lacks; of the radius and this very sum, 4 (s r + t / 2). s (|c| + sum |G_k| + r) is at most
    # above, and 2 s r at most s above, so that all this is at most (4 + 2 s) above + 4.5 t, less than 7 size.
    radius = radius.add_(size, alpha=7 * unit).add_(16 * smallest)
    return AffineForm(stack, radius, unit).with_magnitude(size)


def clamp01(form: AffineForm) -> AffineForm:
    """min(1, max(0, x)) = 1 - relu(1 - relu(x))."""
    return -relax_relu(-relax_relu(form) + 1.0) + 1.0


# ReLU over a box of one parameter as a parabola: relu(x) = x / 2 + shift + tilt e + curvature (2 e^2 - 1) + [-rest, rest].
# A straight line that follows a kink in the middle of a box is off by a quarter of the slope; a parabola, by a
# sixteenth. Quadratic forms carry e^2 anyway, so it costs nothing but for the few entries that have a kink.

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
    shift, tilt, curvature, rest = absolute_parabola(c, g)
    slack = (c.abs() + g.abs() + t) * (ROUNDINGS * form.unit) + ROUNDINGS * SMALLEST[c.dtype]
    return QuadraticRelaxation(where, part, shift, tilt, curvature, rest + t / 2 + slack)


def absolute_parabola(c: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(shift, tilt, curvature, rest) with |c + g e| / 2 = shift + tilt e + curvature (2 e^2 - 1) + [-rest, rest], but
    for roundings, for |c| < |g|; see `quadratic_relaxation`."""
    size, kink = g.abs(), -c / g
    k = kink.abs()
    middle = k <= 1 / 3
    curvature = size * torch.where(middle, 0.25 / (1 + k), 2 * (1 - k) / (3 - k) ** 2)
    tilt = -kink.sign() * size * torch.where(middle, k / (1 + k), 0.5 - 4 * ((1 - k) / (3 - k)) ** 2)
    highest = torch.maximum(*(_highest(sign * c / 2 + curvature, sign * g / 2 - tilt, curvature) for sign in (1, -1)))
    lowest = -tilt * kink - curvature * (2 * kink * kink - 1)
    for end in (1, -1):
        lowest = torch.minimum(lowest, (c + end * g).abs() / 2 - end * tilt - curvature)
    return (highest + lowest) / 2, tilt, curvature, (highest - lowest) / 2


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
