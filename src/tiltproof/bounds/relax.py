"""The parallelogram relaxation of a function with one kink at zero: ReLU, leaky ReLU and, from them, the clamp to [0,
1]."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.rounding import SMALLEST, widen


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


def relax_kink(form: AffineForm, negative_slope: float = 0.0) -> AffineForm:
    """f(x) = x for x >= 0, a x for x < 0, with a <= 1; that is a x + (1 - a) relu(x).

    relu(x) = s x + t/2 + [-t/2, t/2] with t from `relu_gap`. Slope: the chord's makes t least; but where the
    remainder r of x is large (2 r > h) the new remainder s r + t/2 is least for s = 0. Without symbols r is half the
    width, so s = 0 wherever the kink is inside, and the rule is then interval arithmetic.
    """
    above, below, slope = relu_chord(form)
    slope = torch.where(2 * form.radius > above, 0.0, slope)
    half = relu_gap(slope, above, below) / 2
    steepness = slope  # what the roundings of the slope are relative to: its two parts may nearly cancel
    if negative_slope:
        steepness = abs(negative_slope) + (1 - negative_slope) * slope
        slope, half = negative_slope + (1 - negative_slope) * slope, half * (1 - negative_slope)
    stack = form.stack * slope
    stack[0] += half
    radius = form.radius * (slope if negative_slope >= 0 else slope.abs()) + half
    magnitude = None
    if form.unit:
        # 8 roundings of s, s x, t / 2 and their sum, relative to s |x| + t
        magnitude = torch.addcmul(2 * half, steepness, form.center.abs() + form.reach())
        radius = widen(radius, magnitude, 8, form.unit)
    result = AffineForm(stack, radius, form.unit)
    return result if magnitude is None else result.with_magnitude(magnitude)


def clamp01(form: AffineForm) -> AffineForm:
    """min(1, max(0, x)) = 1 - relu(1 - relu(x))."""
    return -relax_kink(-relax_kink(form) + 1.0) + 1.0
