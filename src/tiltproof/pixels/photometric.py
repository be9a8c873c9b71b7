"""Bounds after one change of values: contrast and brightness before their clamp, gamma, a mix of colours, a blur."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.interval import Interval
from tiltproof.enclosures.relu import clamp01
from tiltproof.enclosures.rounding import UNIT, widen
from tiltproof.pixels.blur import filtered_form, filtered_interval
from tiltproof.transforms.base import Part
from tiltproof.transforms.blur import Filter
from tiltproof.transforms.photometric import ColourMatrix, Gamma, mixed


def changed_form(part: Part, picture: Any, value: AffineForm, padding: str) -> AffineForm:
    """``picture`` [P, C, H, W] with true values in [0, 1]; ``value`` is the part's parameter, [P, 1, 1, 1]."""
    if isinstance(part, Filter):
        return _no_worse_than_unit(filtered_form(part, picture, value, padding))
    if isinstance(part, Gamma):
        return power_form(picture, part.exponent(value))
    changed: AffineForm = part.pixels(picture, value)
    return _no_worse_than_unit(clamp01(changed)) if isinstance(part, ColourMatrix) else changed


def _no_worse_than_unit(form: AffineForm) -> AffineForm:
    """The values are in [0, 1]; a remainder of more than 1/2, also one that is no number, says less than that."""
    better = form.radius < 0.5
    plain = torch.zeros_like(form.stack)
    plain[0] = 0.5
    return AffineForm(torch.where(better, form.stack, plain), torch.where(better, form.radius, 0.5), form.unit)


def changed_interval(part: Part, picture: Interval, value: Interval, padding: str) -> Interval:
    if isinstance(part, Filter):
        return filtered_interval(part, picture, value, padding)
    if isinstance(part, Gamma):
        return power_interval(picture, part.exponent(value))
    if not isinstance(part, ColourMatrix):
        return part.pixels(picture, value)
    # For any one picture the result is linear in each number of the matrix, so it is least and greatest where these are at their ends.
    numbers, matrices = zip(*part.terms(value), strict=True)
    results = [
        mixed(picture, [(Interval(end, end), matrix) for end, matrix in zip(ends, matrices, strict=True)])
        for ends in itertools.product(*((number.lower, number.upper) for number in numbers))
    ]
    lower, upper = (torch.stack([getattr(result, side) for result in results]) for side in ("lower", "upper"))
    return Interval(lower.amin(0), upper.amax(0))


# x^g for a pixel x in [0, 1] and an exponent g > 0, both over a box (gamma).
#
# Around the exponent's center c, with t = g - c and |t| <= T:  x^g = x^c + t D(x) + t^2 / 2 x^m ln(x)^2  for some m between c and g,
# D(x) = x^c ln(x). All three terms stay finite down to x = 0, where they are 0:
#     x^c        is convex (c >= 1) or concave (c <= 1) in x: on one side of s x + const lie the ends, on the other any tangent
#     D(x)       is -z e^(-c z) with z = -ln(x): falls until z = 1/c, then rises; so its range over [x] is known exactly
#     x^m ln^2   is at most z^2 e^(-l z) with l the least exponent, which rises until z = 2/l, then falls
# All of this needs l > 0. The exponent is positive, but its computed lower bound may not be; such a bound proves nothing.
# The remainder is of second order wherever x stays away from 0: T width(D) and T^2 for the exponent, the gap of x^c for the pixel.


THIN = 2.0**-30
"""A pixel known better than that gets no slope: the secant would be rounding noise (any slope is sound)."""
SAFE = 1 + 2.0**-30
"""More than the relative error of what it multiplies."""


def power_interval(base: Interval, exponent: Interval) -> Interval:
    """Rises with x and, because x <= 1, falls with g. Library functions are right to a few units in the last place."""
    low, high = base.lower.clamp(0, 1), base.upper.clamp(0, 1)
    possible = exponent.lower > 0
    return Interval.outward(
        torch.where(possible, low**exponent.upper, 0.0), torch.where(possible, high**exponent.lower, 1.0), roundings=16
    ).clamp01()


def power_form(base: AffineForm, exponent: AffineForm) -> AffineForm:
    low, high = base.lower.clamp(0, 1), base.upper.clamp(0, 1)
    center, reach = exponent.center, exponent.deviation()
    slope, least, greatest, size = _power_of_pixel(low, high, center)
    # z = -ln(x) from x = high to x = low; infinite at x = 0
    near, far = -high.log(), -low.log()
    turn = torch.minimum(torch.maximum(center.reciprocal(), near), far)
    ends = [_change(center, z) for z in (near, far)]
    lowest, highest = _change(center, turn), torch.maximum(*ends)
    middle, spread = (lowest + highest) / 2, (highest - lowest) / 2
    smallest = exponent.lower
    peak = torch.minimum(torch.maximum(2 / smallest, near), far)
    bend = torch.where(near < torch.inf, peak * peak * (-smallest * peak).exp(), 0.0) * SAFE  # 0 where x is 0
    half = bend * reach * reach / 4  # t^2 / 2 x^m ln^2 lies in [0, 2 half]
    stack = slope * base.stack
    stack[1:] += middle * exponent.slopes
    stack[0] += (least + greatest) / 2 + half
    radius = slope * base.radius + (greatest - least) / 2 + middle.abs() * exponent.radius + reach * spread + half
    # z e^(-c z) is off by some 4 u (1 + 1 / c), because the exponential's argument is rounded
    magnitude = size + slope * base.magnitude() + (middle.abs() + 1 + 1 / center) * exponent.deviation()
    radius = torch.where(smallest > 0, widen(radius, magnitude, 32, UNIT[radius.dtype]), torch.inf)
    # where the box is large, what x^g can be at all may say much more; else slopes are kept, which the search splits by
    bounds = power_interval(Interval(low, high), Interval(smallest, exponent.upper))
    plain = AffineForm.between(bounds.lower, bounds.upper)
    better = radius <= 2 * plain.radius
    empty = torch.zeros_like(stack[1:])
    return AffineForm(
        torch.where(better, stack, torch.cat([plain.stack, empty])), torch.where(better, radius, plain.radius)
    )


def _power_of_pixel(low: Tensor, high: Tensor, power: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A slope s >= 0, bounds of x^c - s x over [low, high], and the size of what was rounded on the way to them."""
    middle, width = (low + high) / 2, high - low
    at_low, at_high, at_middle = low**power, high**power, middle**power
    slope = torch.where(width > THIN, (at_high - at_low) / width, 0.0).clamp(min=0)
    ends = at_low - slope * low, at_high - slope * high
    tangent = torch.where(middle > 0, power * at_middle / middle, 0.0)
    line = [at_middle + tangent * (x - middle) - slope * x for x in (low, high)]
    convex = power >= 1
    least = torch.where(convex, torch.minimum(*line), torch.minimum(*ends))
    greatest = torch.where(convex, torch.maximum(*ends), torch.maximum(*line))
    # the tangent moves by at most tangent * middle = c x^c over the interval
    return slope, least, greatest, at_high + (1 + power) * at_middle + slope * high


def _change(power: Tensor, z: Tensor) -> Tensor:
    """D = -z e^(-c z); 0 at infinity."""
    return torch.where(z < torch.inf, -z * (-power * z).exp(), 0.0)
