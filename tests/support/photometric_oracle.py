"""Gamma, saturation, hue and blurs in exact arithmetic, from the Convention blocks and from nothing else.

A letter's fixed setting follows an @: ``Bl@6`` has the radius 6, ``Mb@30`` the angle 30. Irrational numbers are accurate
to 2^-400, and the step's result is declared to be within 2^-300 of the truth.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from tests.support import (
    oracle,
)  # a circular import: each module uses the other only when called

LETTERS = ("G", "S", "H", "Bl", "Mb")
LUMA = [Fraction(213, 1000), Fraction(715, 1000), Fraction(72, 1000)]
TURN = [["-0.213", "-0.715", "0.928"], ["0.143", "0.140", "-0.283"], ["-0.787", "0.715", "0.072"]]
ONE = Fraction(1)


def changed(image: Any, error: Fraction, letter: str, value: Fraction, padding: str) -> tuple[Any, Fraction]:
    """Apply one transformation; return the image and its error bound, given one that is `error` from the truth."""
    name, _, setting = letter.partition("@")
    if name == "G":
        return gamma(image, 1 + value / 100, error)
    if name in ("S", "H"):
        return colors(image, name, value, error)
    if name == "Bl":
        return gaussian(image, value, int(setting), padding), error + Fraction(1, 2**300)
    assert name == "Mb"
    return motion(image, value, Fraction(setting), padding), error + Fraction(1, 2**300)


def nearest(value: Any) -> Fraction:
    with mpmath.workprec(oracle.BITS + 200):
        return Fraction(int(mpmath.nint(value * mpmath.mpf(2) ** oracle.BITS)), 2**oracle.BITS)


def number(value: Fraction) -> Any:
    return mpmath.mpf(value.numerator) / value.denominator


def gamma(image: Any, power: Fraction, error: Fraction) -> tuple[Any, Fraction]:
    assert power > 0

    def of(x: Fraction) -> Fraction:
        assert 0 <= x <= 1
        if x in (0, 1) or power == 1:
            return x
        with mpmath.workprec(oracle.BITS + 200):
            return nearest(number(x) ** number(power))

    result = oracle.exact_image(np.vectorize(of, otypes=[object])(image.fractions()))
    if error:  # |x^g - y^g| <= |x - y|^g for g <= 1, <= g |x - y| for g >= 1
        bits = error.denominator.bit_length() - 1 - error.numerator.bit_length()
        error = Fraction(1, 2 ** math.floor(bits * min(power, ONE))) * max(power, ONE)
    return result, error if power == 1 else error + Fraction(1, 2**300)


def colors(image: Any, name: str, value: Fraction, error: Fraction) -> tuple[Any, Fraction]:
    assert len(image.numerator) == 3
    rest = [[(i == j) - LUMA[j] for j in range(3)] for i in range(3)]
    if name == "S":
        parts = [(1 + value / 100, rest)]
    else:
        sine, cosine = map(Fraction, oracle.sine_cosine(value))
        parts = [(cosine, rest), (sine, [[Fraction(x) for x in row] for row in TURN])]
        error += Fraction(1, 2**300) if (value / 90).denominator != 1 else 0
    matrix = [[LUMA[j] + sum(factor * each[i][j] for factor, each in parts) for j in range(3)] for i in range(3)]
    x = image.fractions()
    mixed = np.stack([sum(matrix[i][j] * x[j] for j in range(3)) for i in range(3)])
    clamped = np.vectorize(lambda v: min(ONE, max(Fraction(0), v)), otypes=[object])(mixed)
    return oracle.exact_image(clamped), error * max(1, *(sum(map(abs, row)) for row in matrix))


def weighted(copies: list[tuple[Fraction, Any]]) -> Any:
    """Return a weighted sum of images."""
    common = math.lcm(*(weight.denominator * copy.denominator for weight, copy in copies))
    total = sum(copy.numerator * int(weight * common / copy.denominator) for weight, copy in copies)
    return oracle.Exact(total, common)


def moved(image: Any, right: Fraction, up: Fraction, padding: str) -> Any:
    """Return x(u + right, v + up), interpolated."""
    zero = Fraction(0)
    return oracle.resample(image, [[ONE, zero, right], [zero, ONE, up]], padding)


def gaussian(image: Any, deviation: Fraction, radius: int, padding: str) -> Any:
    if deviation == 0:
        return image
    with mpmath.workprec(oracle.BITS + 200):
        parts = [nearest(mpmath.exp(-number(Fraction(k * k) / (2 * deviation**2)))) for k in range(radius + 1)]
    whole = parts[0] + 2 * sum(parts[1:])
    weights = {k: parts[abs(k)] / whole for k in range(-radius, radius + 1) if parts[abs(k)]}
    image = weighted([(w, moved(image, Fraction(k), Fraction(0), padding)) for k, w in weights.items()])
    return weighted([(w, moved(image, Fraction(0), Fraction(k), padding)) for k, w in weights.items()])


def motion(image: Any, length: Fraction, angle: Fraction, padding: str) -> Any:
    if length == 0:
        return image

    def below(t: Fraction) -> Fraction:
        """Return the integral of max(0, 1 - |s|) over s from minus infinity to t."""
        t = min(max(t, -ONE), ONE)
        return (t + 1) ** 2 / 2 if t < 0 else 1 - (1 - t) ** 2 / 2

    sine, cosine = map(Fraction, oracle.sine_cosine(angle))
    reach = math.ceil(length / 2) + 1
    copies = []
    for k in range(-reach, reach + 1):
        weight = (below(length / 2 - k) - below(-length / 2 - k)) / length
        if weight:
            copies.append((weight, moved(image, k * cosine, k * sine, padding)))
    assert sum(weight for weight, _ in copies) == 1
    return weighted(copies)
