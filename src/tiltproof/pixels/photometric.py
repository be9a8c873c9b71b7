"""Bounds after one change of values: contrast and brightness before their clamp, gamma, a mix of colors, a blur."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.relu import clamp01
from tiltproof.enclosures.rounding import UNIT, widen
from tiltproof.transforms.base import Part
from tiltproof.transforms.blur import MIN_DEVIATION, Filter, GaussianBlur, Offset, both_sides, differences
from tiltproof.transforms.photometric import ColorMatrix, Gamma, mixed


def changed_form(part: Part, image: Any, value: AffineForm, padding: str) -> AffineForm:
    """``image`` [P, C, H, W] with true values in [0, 1]; ``value`` is the part's parameter, [P, 1, 1, 1]."""
    if isinstance(part, Filter):
        return _no_worse_than_unit(filtered_form(part, image, value, padding))
    if isinstance(part, Gamma):
        return power_form(image, part.exponent(value))
    changed: AffineForm = part.pixels(image, value)
    return _no_worse_than_unit(clamp01(changed)) if isinstance(part, ColorMatrix) else changed


def _no_worse_than_unit(form: AffineForm) -> AffineForm:
    """The values are in [0, 1]; a remainder of more than 1/2, also one that is no number, says less than that."""
    better = form.radius < 0.5
    plain = torch.zeros_like(form.stack)
    plain[0] = 0.5
    return AffineForm(torch.where(better, form.stack, plain), torch.where(better, form.radius, 0.5), form.unit)


def changed_interval(part: Part, image: Interval, value: Interval, padding: str) -> Interval:
    if isinstance(part, Filter):
        return filtered_interval(part, image, value, padding)
    if isinstance(part, Gamma):
        return power_interval(image, part.exponent(value))
    if not isinstance(part, ColorMatrix):
        return part.pixels(image, value)
    # For any one image the result is linear in each number of the matrix, so it is least and greatest where these are at their ends.
    numbers, matrices = zip(*part.terms(value), strict=True)
    results = [
        mixed(image, [(Interval(end, end), matrix) for end, matrix in zip(ends, matrices, strict=True)])
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
"""Narrower pixels get no slope: the secant would be rounding noise (any slope is sound)."""
SAFE = 1 + 2.0**-30
"""An upper bound of the relative error of the product."""


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


# Blurs: x' = x + sum_k w_k d_k with d_k = x shifted by k + x shifted by -k - 2 x (`transforms/blur.py`).
#
# The weights depend on the parameter alone, the d_k on the image alone and linearly. For an image c + sum_j G_j e_j + [-r, r] and weights
# w_k = a_k + sum_j b_kj e_j + [-q_k, q_k]:
#     center  c + sum_k a_k d_k(c)                 slopes  G_j + sum_k (a_k d_k(G_j) + b_kj d_k(c))
#     remainder  sum_k q_k |d_k(c)| + sum_k (sum_j |b_kj| + q_k) sum_j |d_k(G_j)|, of second order,
#                and what becomes of the image's own remainder: it is averaged with nonnegative weights


def filtered_form(part: Filter, image: AffineForm, value: AffineForm, padding: str) -> AffineForm:
    weights = enclose(part, value.center, value.lower, value.upper)
    forms = weights.forms(value)
    for offsets in part.passes():
        image = _pass(image, forms, weights, offsets, padding)
    return image


def _pass(image: AffineForm, forms: AffineForm, weights: Weights, offsets: list[Offset], padding: str) -> AffineForm:
    """``forms`` holds the weights as [P, taps, 1, 1]."""
    stack, spread = image.stack.clone(), forms.deviation()
    radius = image.radius * weights.middle
    for k, offset in enumerate(offsets):
        one = slice(k, k + 1)
        apart = differences(image.stack, offset, padding)
        stack = stack + forms.center[:, one] * apart
        stack[1:] += forms.slopes[:, :, one] * apart[0]
        radius = radius + forms.radius[:, one] * apart[0].abs() + spread[:, one] * apart[1:].abs().sum(0)
        radius = radius + weights.upper[:, one] * both_sides(image.radius, offset, padding)
    # |x'| and every intermediate result is below the largest |x| times this
    share = 1 + 4 * (forms.center.abs() + spread).sum(1, keepdim=True)
    largest = (image.magnitude() + image.radius).flatten(1).amax(1).view(-1, 1, 1, 1)
    unit = UNIT[stack.dtype]
    return AffineForm(stack, widen(radius, (largest * share).expand_as(radius), _roundings(offsets), unit))


def filtered_interval(part: Filter, image: Interval, value: Interval, padding: str) -> Interval:
    """Weights are not negative, so the least image gives the least result; there, each weight's worse end counts."""
    weights = enclose(part, (value.lower + value.upper) / 2, value.lower, value.upper)
    for offsets in part.passes():
        lower, upper = image.lower, image.upper
        for k, offset in enumerate(offsets):
            ends = weights.lower[:, k : k + 1], weights.upper[:, k : k + 1]
            below, above = (differences(end, offset, padding) for end in (image.lower, image.upper))
            lower = lower + torch.minimum(ends[0] * below, ends[1] * below)
            upper = upper + torch.maximum(ends[0] * above, ends[1] * above)
        slack = 8 * _roundings(offsets) * UNIT[lower.dtype]  # pixels are at most 1, and so are the weights together
        image = Interval(lower - slack, upper + slack).clamp01()
    return image


def _roundings(offsets: list[Offset]) -> int:
    """Sums over all taps; and taps at fractional places, which are off by some 16 u each, hence the image there by twice that."""
    whole = all(distance == int(distance) for offset in offsets for distance in offset)
    return 8 * len(offsets) + 32 + (0 if whole else 128 * len(offsets))


# The weights of a blur over an interval of its parameter: value and slope in the middle, curvature, and range.
#
# Each weight w is smooth enough for  w(p) = w(c) + w'(c) (p - c) + R,  |R| <= max|w''| (p - c)^2 / 2;  and over large boxes rather
# w(p) = w(c) + s (p - c) + R,  |R| <= max|w' - s| |p - c|,  s in the middle of the range of w'.
#
# Gaussian. With n_k = exp(-k^2 / (2 s^2)), Z = 1 + 2 sum n, E and V mean and variance of k^2 under the weights w_k = n_k / Z:
#     w_k' = w_k (k^2 - E) / s^3,   w_k'' = w_k (((k^2 - E)^2 - V) / s^6 - 3 (k^2 - E) / s^4)
# n_k, Z, E and the mean of k^4 rise with s (their slopes are covariances of rising functions of k^2). So w_k rises until E = k^2 and falls
# afterwards. n_k / s^m rises until s = k / sqrt(m), then falls: finite down to s = 0, where all weights but the middle one vanish.
#
# Motion, with h half the length: w_k is 0 up to h = k - 1, then (h - k + 1)^2 / (4 h), from k on (2 - (k + 1 - h)^2) / (4 h), from k + 1 on
# 1 / (2 h). Its slope is continuous, its curvature on the pieces (k - 1)^2, 2 - (k + 1)^2 and 2, each times 1 / (2 h^3); it rises until
# h = sqrt((k + 1)^2 - 2), then falls.


@dataclass
class Weights:
    """w_1, w_2, ... over intervals of the parameter: each tensor [P, taps, 1, 1]."""

    value: Tensor  # at the center, off by at most `error`
    slope: Tensor  # there too, off by at most `slope_error`
    bend: Tensor  # at least |w''| / 2 over the interval
    slopes: tuple[Tensor, Tensor]  # bounds of w' over the interval
    lower: Tensor
    upper: Tensor
    error: Tensor
    slope_error: Tensor

    @property
    def middle(self) -> Tensor:
        """At least w_0 = 1 - 2 sum w_k, [P, 1, 1, 1]."""
        return ((1 - 2 * self.lower.sum(1, keepdim=True)) * SAFE + 2.0**-40).clamp(0, 1)

    def forms(self, value: AffineForm) -> AffineForm:
        """The weights as affine forms in the parameter, [P, 1, 1, 1].

        Without a slope only where even the plain range is much narrower: the search splits along parameters whose slopes it sees.
        """
        reach = value.deviation()
        curved, steep = self.bend * reach, (self.slopes[1] - self.slopes[0]) / 2
        smooth = curved < steep
        slope = torch.where(smooth, self.slope, (self.slopes[1] + self.slopes[0]) / 2)
        remainder = torch.where(smooth, curved, steep) * reach
        half = (self.upper - self.lower) / 2
        better = remainder < 2 * half + self.error
        center = torch.where(better, self.value, (self.upper + self.lower) / 2)
        slopes = torch.where(better, slope * value.slopes, 0.0)
        remainder = remainder + self.error + self.slope_error * reach + slope.abs() * value.radius
        size = center.abs() + (slope.abs() + steep) * reach + half
        radius = widen(torch.where(better, remainder, half), size, 8, UNIT[size.dtype])
        return AffineForm(torch.cat([center[None], slopes]), radius)


def enclose(part: Filter, center: Tensor, low: Tensor, high: Tensor) -> Weights:
    """Over [low, high], each [P, 1, 1, 1]; below 0 the parameter means nothing."""
    center, low, high = (end.clamp(min=0) for end in (center, low, high))
    k = torch.arange(1, part.taps + 1, dtype=low.dtype, device=low.device).view(-1, 1, 1)
    return (_gaussian if isinstance(part, GaussianBlur) else _motion)(k, center, low, high)


@dataclass
class _Moments:
    part: Tensor  # n_k
    whole: Tensor  # Z
    mean: Tensor  # E
    fourth: Tensor  # mean of k^4

    @classmethod
    def at(cls, k: Tensor, deviation: Tensor) -> _Moments:
        part = (-0.5 * (k / deviation).square()).exp()
        whole = 1 + 2 * part.sum(1, keepdim=True)
        mean, fourth = (2 * (k**m * part).sum(1, keepdim=True) / whole for m in (2, 4))
        return cls(part, whole, mean, fourth)


def _gaussian(k: Tensor, center: Tensor, low: Tensor, high: Tensor) -> Weights:
    # below MIN_DEVIATION the weights, their slopes and curvatures are less than 1e-500, which every rounding slack covers
    center, low, high = (end.clamp(min=MIN_DEVIATION) for end in (center, low, high))
    here, begin, end = (_Moments.at(k, point) for point in (center, low, high))
    unit, taps, square = UNIT[low.dtype], len(k), k * k
    value = here.part / here.whole
    slope = value * (square - here.mean) / center**3
    # x e^-x <= 0.37: rounding the exponential's argument moves n_k by 2 u, and Z by 2 u taps
    error = torch.full_like(value, 32 * unit * (1 + taps))
    roundings = unit * (64 + 4 * square / center.square()) * (1 + taps)
    slope_error = roundings * value * (square + here.mean + 1) / center**3
    lower = torch.minimum(begin.part / begin.whole, end.part / end.whole)
    upper = torch.maximum(begin.part / begin.whole, end.part / end.whole)
    turns = (begin.mean < square * SAFE) & (end.mean * SAFE > square)
    upper = torch.where(turns, end.part / begin.whole, upper)
    distances = (square - begin.mean).abs(), (square - end.mean).abs()
    farthest = torch.maximum(*distances)
    nearest = torch.where((begin.mean <= square) & (square <= end.mean), 0.0, torch.minimum(*distances))
    least_variance = (begin.fourth - end.mean.square()).clamp(min=0)
    variance = (end.fourth - begin.mean.square()).clamp(min=0)
    first = torch.maximum(farthest.square() - least_variance, variance - nearest.square())
    second = _highest(k, 6, low, high) * first + 3 * _highest(k, 4, low, high) * farthest
    bend = second / (2 * begin.whole) * SAFE
    # w' is a product of three: n_k / s^3 between its ends and its peak, k^2 - E, 1 / Z
    factors = torch.minimum(_over(k, 3, low), _over(k, 3, high)), _highest(k, 3, low, high)
    distances = square - end.mean, square - begin.mean
    products = torch.stack([a * b / c.whole for a in factors for b in distances for c in (begin, end)])
    doubt = 2.0**-30 * factors[1] * (square + end.mean) / begin.whole
    slopes = products.amin(0) - doubt, products.amax(0) + doubt
    return Weights(value, slope, bend, slopes, (lower - error).clamp(min=0), upper + error, error, slope_error)


def _over(k: Tensor, power: int, s: Tensor) -> Tensor:
    """n_k / s^power."""
    return (-0.5 * (k / s).square()).exp() / s**power


def _highest(k: Tensor, power: int, low: Tensor, high: Tensor) -> Tensor:
    """The largest n_k / s^power over [low, high]."""
    return _over(k, power, torch.minimum(torch.maximum(k / power**0.5, low), high))


def _motion(k: Tensor, center: Tensor, low: Tensor, high: Tensor) -> Weights:
    center, low, high = center / 2, low / 2, high / 2  # half lengths
    turn = ((k + 1).square() - 2).sqrt()
    value, slope = _motion_weight(k, center), _motion_slope(k, center)
    at_low, at_high = _motion_weight(k, low), _motion_weight(k, high)
    upper = _motion_weight(k, torch.minimum(torch.maximum(turn, low), high))
    bend = torch.zeros_like(value)
    for begin, top in ((k - 1, (k - 1).square()), (k, (k + 1).square() - 2), (k + 1, torch.full_like(k, 2.0))):
        # each piece's curvature falls with h, so it is largest where the piece begins; pieces behind the interval may count too
        first = torch.maximum(low, begin)
        here = torch.where(top > 0, top / (2 * first**3), 0.0)
        bend = torch.maximum(bend, torch.where(high * SAFE >= begin, here, 0.0))
    error = torch.full_like(value, 32 * UNIT[low.dtype])
    # the slope does not turn within a piece
    places = [low.expand_as(value), high.expand_as(value)]
    places += [torch.minimum(torch.maximum(k + step, low), high) for step in (-1, 0, 1)]
    found = torch.stack([_motion_slope(k, place) for place in places])
    slopes = found.amin(0) / 2 - error, found.amax(0) / 2 + error
    # half lengths: one half for each slope, half of a quarter for the curvature
    lower = (torch.minimum(at_low, at_high) - error).clamp(min=0)
    return Weights(value, slope / 2, bend / 8 * SAFE, slopes, lower, upper + error, error, 2 * error)


def _motion_weight(k: Tensor, half: Tensor) -> Tensor:
    rising, further = (half - (k - 1)).clamp(0, 1), (half - k).clamp(0, 1)
    first = torch.where(k == 1, rising, rising * rising)  # h^2 / (4 h) = h / 4 up to h = 1
    return (first / 4 + further / 2 - further * further / 4) / half.clamp(min=1)


def _motion_slope(k: Tensor, half: Tensor) -> Tensor:
    square = half.clamp(min=2.0**-30).square()
    rising = (1 - (k - 1).square() / square) / 4
    bending = (((k + 1).square() - 2) / square - 1) / 4
    slope = torch.where(half < k, rising, torch.where(half < k + 1, bending, -0.5 / square))
    return torch.where(half < k - 1, 0.0, slope)
