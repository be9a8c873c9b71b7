"""Bounds of pixels with noise: y = min(1, max(0, x + d)) for the transformed pixel x in [0, 1] and |d| <= epsilon.

max(0, x + d) with d >= -epsilon is at least max(0, x - epsilon) = x - min(x, epsilon), and min(1, x + d) with d <= epsilon
is at most min(1, x + epsilon) = x + min(1 - x, epsilon). So over all d, for x in [l, h]:

    x - min(h, epsilon) <= y <= x + min(1 - l, epsilon)

The bounds are sharp where l = h. The symbols of x stay what they are; nothing is added but to centers and radii.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.rounding import widen


def outward(epsilon: float) -> float:
    """One unit in the last place more, so that a decimal such as 0.1, which is not a float, is covered as well."""
    return math.nextafter(epsilon, math.inf)


def noisy_form(form: AffineForm, epsilon: float) -> AffineForm:
    """Bounds of transformed pixels under any noise up to epsilon; the true pixels of ``form`` are in [0, 1]."""
    epsilon = outward(epsilon)
    low, high = form.lower.clamp(0, 1), form.upper.clamp(0, 1)
    return _moved(form, -high.clamp(max=epsilon), (1 - low).clamp(max=epsilon))


def noisy_interval(image: Interval, epsilon: float) -> Interval:
    """The same for intervals: [max(0, l - epsilon), min(1, h + epsilon)]."""
    epsilon = outward(epsilon)
    return Interval.outward(image.lower - epsilon, image.upper + epsilon).clamp01()


def pushed_form(form: AffineForm, epsilon: float, up: Tensor) -> AffineForm:
    """Bounds of pixels that are moved by epsilon itself, ``up`` (bool [P, C, H, W]) or down, and clamped.

    Up: y = x + min(1 - x, epsilon), with the minimum between those at h and at l. Down: y = x - min(x, epsilon).
    """
    low, high = form.lower.clamp(0, 1), form.upper.clamp(0, 1)
    above, below = ((1 - end).clamp(max=epsilon) for end in (high, low))
    least, most = (-end.clamp(max=epsilon) for end in (high, low))
    return _moved(form, torch.where(up, above, least), torch.where(up, below, most))


def _moved(form: AffineForm, least: Tensor, most: Tensor) -> AffineForm:
    """The form plus [least, most]. At most six roundings of numbers no larger than |center| + 2: 1 - l, the middle, its sum
    with the center, half the width and the sum of radii."""
    stack = form.stack.clone()
    stack[0] += (least + most) / 2
    radius = widen(form.radius + (most - least) / 2, stack[0].abs() + 2, 6, form.unit)
    return AffineForm(stack, radius, form.unit, form.quadratic)
