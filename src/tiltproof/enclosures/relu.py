"""The zonotope (parallelogram) relaxation of ReLU, leaky ReLU and, composed of them, the clamp to [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.enclosures.affine_form import AffineForm, absolute_sum
from tiltproof.enclosures.quadratic_relu import with_quadratic_relu
from tiltproof.enclosures.rounding import SMALLEST
from tiltproof.kernel_registry import has_kernel


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
