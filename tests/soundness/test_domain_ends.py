"""Ranges that end at the last float inside a transformation's domain, and bounds whose rounding crosses a case distinction.

Just inside the end of a domain, an outward-rounded bound of an intermediate value lies outside the domain: the exponent
1 + G / 100 is positive, but its computed lower bound is not. Code that distinguishes cases by such a bound must be right
for either sign.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support import photometric_oracle as photometric
from tests.support.cases import PADDINGS, make_part, make_thetas
from tests.support.exactly import symbols, violations
from tests.support.oracle import exact_image, transformed
from tiltproof import InputError, bound_pixels
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.pixels.photometric import power_form, power_interval
from tiltproof.transforms import Compose

PARTS = {  # letter, with its setting after @ -> the ends of its domain, or values at which its formula changes
    "G": (math.nextafter(-100, 0),),
    "Sc": (math.nextafter(-100, 0), 1e15),
    "Scu": (math.nextafter(-100, 0), 1e300),
    "Scv": (math.nextafter(-100, 0), 1e300),
    "R": (-360.0, 360.0, 90.0, -270.0),
    "Roll": (-360.0, 360.0),
    "H": (-360.0, 360.0),
    "S": (-100.0,),
    "C": (-100.0,),
    "Bl@3": (0.0, 5e-324, 0.02, 32.0),
    "Bl@1": (32.0,),
    "Mb@0": (0.0, 5e-324, 2.0, 128.0),
    "Mb@360": (0.0, 2.0),
    "Mb@-45": (128.0,),
    "Yaw@1000000": (-85.0, 85.0),
    "Pitch@0.01": (-85.0, 85.0),
}
LIMITS = {  # the largest boxes allowed
    **dict.fromkeys(("G", "Sc", "Scu", "Scv"), (math.nextafter(-100, 0), 1e300)),
    **dict.fromkeys(("R", "Roll", "H"), (-360.0, 360.0)),
    **dict.fromkeys(("Bl@3", "Bl@1"), (0.0, 32.0)),
    **dict.fromkeys(("Mb@0", "Mb@360", "Mb@-45"), (0.0, 128.0)),
    **dict.fromkeys(("Yaw@1000000", "Pitch@0.01"), (-85.0, 85.0)),
}
WIDTHS = (0.0, 1e-300, 1e-13, 1e-9, 0.4, 60.0)
BEFORE = {
    "nothing": [],
    "brightness": [("B", -0.4, -0.1)],
    "contrast": [("C", -30.0, 60.0)],
    "a shift": [("Tu", 0.1, 0.6)],
}
AFTER = {"nothing": [], "brightness": [("B", -0.2, 0.3)], "a shift": [("Tv", -0.7, 0.1)]}


def boxes(letter):
    """Yield boxes on either side of every end, as far as the domain allows."""
    least, most = LIMITS.get(letter, (-math.inf, math.inf))
    for end, width in itertools.product(PARTS[letter], WIDTHS):
        for low, high in ((end, min(end + width, most)), (max(end - width, least), end)):
            if low <= high:
                yield low, high


def image_for(letter, size, rng):
    image = rng.random((3 if letter in ("S", "H") else 1, *size))
    image[rng.random(image.shape) < 0.3] = 0
    image[rng.random(image.shape) < 0.2] = 1
    return image


def check(letters, lows, highs, padding, image, rng, many=3):
    """Check the image's bounds at parameters of the box; NaN bounds claim nothing."""
    parts = [
        make_part(letter, *LIMITS.get(letter, (low - 1, high + 1)))
        for letter, low, high in zip(letters, lows, highs, strict=True)
    ]
    transform = Compose(*parts, padding=padding)
    tensor = torch.tensor(image)[None]
    thetas = make_thetas(lows, highs, rng, many)
    thetas += [
        tuple(Fraction(min(math.nextafter(low, math.inf), high)) for low, high in zip(lows, highs, strict=True)),
        tuple(Fraction(max(math.nextafter(high, -math.inf), low)) for low, high in zip(lows, highs, strict=True)),
    ]
    finite, truth = 0, functools.cache(lambda theta: transformed(image, letters, theta, padding))
    for method in ("affine", "hull", "fgv"):
        try:
            form = bound_pixels(tensor, transform, method, lows, highs)
        except InputError:
            continue  # undefined for this method, or at a camera depth of zero
        for theta in thetas:
            numbers = [form.center[0], form.slopes[:, 0], form.radius[0], form.lower[0], form.upper[0]]
            known = torch.cat([n.reshape(-1, *form.radius[0].shape) for n in numbers]).isfinite().all(0)
            finite += int(known.sum())
            # an infinite form must be infinite in all its arrays, and is replaced by bounds that hold anyway
            assert not (form.lower[0] > -torch.inf)[~known].any() or not (form.upper[0] < torch.inf)[~known].any()
            for n, value in zip(numbers, (0, 0, 9, -9, 9), strict=True):
                n[..., ~known] = value
            found = violations(truth(theta), *numbers, symbols(theta, lows, highs))
            assert not found, f"{letters} {method} {padding} {lows} {highs} {[float(t) for t in theta]}: {found[:3]}"
    return finite


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "many"])
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("letter", PARTS)
def test_bounds_hold_at_the_ends_of_domains(letter, before, many):
    """Every box with nothing before it, and a third of them after each of the others; at length, every box after each."""
    rng = np.random.default_rng(sum(map(ord, letter + before)))
    finite, turn = 0, [*BEFORE].index(before)
    for number, (low, high) in enumerate(boxes(letter)):
        if turn and not many and number // 3 % 3 != turn - 1:
            continue
        after = AFTER[[*AFTER][number % 3]]
        outer = BEFORE[before] + [(letter, low, high)] + after
        letters, lows, highs = map(list, zip(*outer, strict=True))
        size = [(1, 1), (1, 4), (3, 2)][number % 3] if "@0.01" not in letter else (1, 1)
        image = image_for(letter, size, rng)
        finite += check(letters, lows, highs, PADDINGS[number % 3], image, rng)
    assert finite


@pytest.mark.parametrize("first", ["B", "C"])
def test_a_power_whose_exponent_may_be_zero_proves_nothing(first):
    """The exponent's bound rounds below zero: the second-order term would be taken at the wrong end of the pixel's range."""
    low, high = {"B": (-0.5, -0.1), "C": (-60.0, -10.0)}[first]
    rng = np.random.default_rng(0)
    for gamma in (-99.9999999999999, -99.99999999999999, math.nextafter(-100, 0)):
        for end in (0.0, -50.0, gamma + 1e-12):
            image = np.linspace(0.01, 1, 24).reshape(1, 4, 6)
            check([first, "G"], [low, gamma], [high, end], "zeros", image, rng, many=12)


SIGNS = (-1e-3, -1e-15, -5e-324, 0.0, 5e-324, 1e-300, 1e-15, 1e-3, 0.5)
"""Lower ends of a positive quantity: its computed bound may be any of these."""


TINY = Fraction(5e-324)


def positive(low):
    """Yield forms over one symbol around positive numbers, whose lower end is about ``low``, and the symbol's share of the width."""
    for high in (max(low, 0) + width for width in (1e-15, 1e-3, 2.0)):
        center, half = (low + high) / 2, (high - low) / 2
        for share in (0.0, 0.5, 1.0):
            stack = torch.tensor([center, share * half], dtype=torch.float64).view(2, 1)
            yield AffineForm(stack, torch.tensor([(1 - share) * half], dtype=torch.float64)), share


def members(form):
    """Yield positive members of the set, each with a possible symbol."""
    center, slope, radius = (Fraction(number.item()) for number in (form.center, form.slopes[0], form.radius))
    for e, rest in itertools.product((-1, Fraction(-9, 10), 0, 1), (-1, Fraction(1, 3), 1)):
        value = center + slope * e + radius * rest
        if value > 0:
            yield value, e
    if not center - slope - radius > 0 and slope + radius > 0:  # zero is not a member, but everything above it may be
        for value in (TINY, TINY * 2**60, (center + slope + radius) / 1000):
            share = (value - center) / (slope + radius)
            if abs(share) <= 1:
                yield value, share


def as_interval(form):
    return Interval(form.lower, form.upper)


def assert_in_form(form, value, e, allowed=0):
    """Assert that the value lies in the form at this symbol, and so between its ends; infinity and NaN claim nothing."""
    assert not form.lower.item() > value + allowed
    assert not form.upper.item() < value - allowed
    center, slope, radius = (number.item() for number in (form.center, form.slopes[0], form.radius))
    if math.isfinite(radius):
        assert abs(value - Fraction(center) - Fraction(slope) * e) <= Fraction(radius) + allowed


@pytest.mark.parametrize("low", SIGNS)
def test_reciprocals_of_bounds_of_either_sign(low):
    checked = 0
    for form, _ in positive(low):
        result, outer = form.reciprocal(), as_interval(form).reciprocal()
        for value, e in members(form):
            assert_in_form(result, 1 / value, e)
            assert not outer.lower.item() > 1 / value
            assert not outer.upper.item() < 1 / value
            checked += math.isfinite(result.radius.item())
    assert checked or low <= 1e-300


@pytest.mark.parametrize("low", SIGNS)
def test_quotients_of_bounds_of_either_sign(low):
    checked = 0
    for form, _ in positive(low):
        for center, slope in ((1.0, 0.0), (-0.3, 0.2), (0.0, 1.0)):
            above = AffineForm(
                torch.tensor([[center], [slope]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
            )
            result = above.over(form)
            for value, e in members(form):
                assert_in_form(result, (Fraction(center) + Fraction(slope) * e) / value, e)
                checked += math.isfinite(result.radius.item())
    assert checked or low <= 1e-300


@pytest.mark.parametrize("low", SIGNS)
def test_powers_of_exponents_with_bounds_of_either_sign(low):
    allowed = Fraction(1, 2**390)  # the oracle's own error
    for exponent, _ in positive(low):
        for left, right in ((0.0, 0.0), (0.0, 1e-300), (0.0, 0.4), (1e-12, 0.3), (0.2, 0.9), (0.9, 1.0), (0.0, 1.0)):
            numbers = torch.tensor([[(left + right) / 2], [0.0], [(right - left) / 2]], dtype=torch.float64)
            base = AffineForm(numbers[:2], numbers[2])
            result, outer = power_form(base, exponent), power_interval(as_interval(base), as_interval(exponent))
            ends = [Fraction(base.center.item()) + sign * Fraction(base.radius.item()) for sign in (-1, 1)]
            for (power, e), share in itertools.product(members(exponent), (0, Fraction(1, 64), Fraction(1, 2), 1)):
                x = min(max(ends[0] + share * (ends[1] - ends[0]), Fraction(0)), Fraction(1))
                value = photometric.gamma(exact_image([[[x]]]), power, Fraction(0))[0].fraction(0, 0, 0)
                assert_in_form(result, value, e, allowed)
                assert not outer.lower.item() > value + allowed
                assert not outer.upper.item() < value - allowed
