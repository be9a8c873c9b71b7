"""Weights of linear operations as pairs of floats, with more bits than the rounded constants of folded batch norms have."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from tiltproof.enclosures.pairs import TINY, Pair, summed, times
from tiltproof.network.graph import Formula, Operation

PRECISE = 2.0**-104
"""Relative error of a number that is rounded to two floats, 2^-106, and of an inverse root in whole numbers, 2^-126."""
ROOT_BITS = 128


class Constants(NamedTuple):
    """Weights, and the shift if there is one, as pairs; how far they may be off, entry by entry."""

    weight: Pair
    weight_off: Tensor
    shift: Pair | None
    shift_off: Tensor


def constants_of(operation: Operation) -> Constants | None:
    """The constants of a convolution, a linear layer or a scale; None where no more is known of them than their rounded values."""
    found: Constants | None = operation.once("pair constants", lambda: _computed(operation))
    return found


def _computed(operation: Operation) -> Constants | None:
    settings = operation.settings
    if operation.vanishing or operation.evaluation:
        return None
    if "folded" in settings:
        first, second = (constants_of(each) for each in settings["folded"])
        return None if first is None or second is None else _folded(first, second, settings["folded"][0].kind)
    if operation.kind in ("conv2d", "linear"):
        return None if settings.get("roundings") else _exact(settings["weight"], settings["bias"])
    formula = settings.get("formula")
    if operation.kind != "scale" or formula is None:
        return None
    if formula.kind == "exact":
        return _exact(settings["scale"], settings["shift"])
    if formula.kind == "reciprocal":
        return _reciprocal(formula, settings["scale"])
    return _batch_norm(settings["scale"], *formula.constants)


def _exact(weight: Tensor, shift: Tensor | None) -> Constants:
    zero = torch.zeros_like(weight, dtype=torch.float64)
    pair = None if shift is None else Pair.of(shift.double())
    return Constants(Pair.of(weight.double()), zero, pair, zero.new_zeros(()))


def _folded(first: Constants, second: Constants, kind: str) -> Constants:
    """s (W x + b) + t = (s W) x + (s b + t); for errors e of W and f of s, |s W - (s + f)(W + e)| <= |s| e + |W| f + e f."""
    factor, factor_off = second.weight, second.weight_off
    if kind == "conv2d":
        channels = len(first.weight.high)
        column = (channels, *[1] * (first.weight.high.ndim - 1))
        factor, factor_off = (
            factor.apply(lambda x: x.reshape(-1).expand(channels)),
            factor_off.reshape(-1).expand(channels),
        )
        wide, wide_off = factor.apply(lambda x: x.view(column)), factor_off.view(column)
    else:
        wide, wide_off = factor, factor_off
    weight, off = _product(first.weight, first.weight_off, wide, wide_off)
    if first.shift is None and second.shift is None:
        return Constants(weight, off, None, off.new_zeros(()))
    zero, shift, shift_off = torch.zeros_like(factor.high), None, torch.zeros_like(factor.high)
    if first.shift is not None:
        shift, shift_off = _product(first.shift, first.shift_off, factor, factor_off)
    if second.shift is not None:
        own, own_off = second.shift, second.shift_off
        if kind == "conv2d":
            own = own.apply(lambda x: x.reshape(-1).expand(len(zero)))
            own_off = own_off.reshape(-1).expand(len(zero))
        parts = [*(shift or Pair.of(zero)), *own]
        shift, more = summed(parts)
        shift_off = (shift_off + own_off + more) * (1 + 2.0**-40)
    return Constants(weight, off, shift, shift_off)


def _product(x: Pair, x_off: Tensor, y: Pair, y_off: Tensor) -> tuple[Pair, Tensor]:
    result, off = times(x, y)
    sizes = (pair.high.abs() + pair.low.abs() for pair in (x, y))
    x_size, y_size = sizes
    return result, (off + x_size * y_off + y_size * x_off + x_off * y_off) * (1 + 2.0**-40) + TINY


def _reciprocal(formula: Formula, scale: Tensor) -> Constants:
    """1 / c, rounded to two floats."""
    (number,) = formula.constants
    numbers = number.double().flatten().tolist() if isinstance(number, Tensor) else [float(number)]
    inverse = [1 / Fraction(each) for each in numbers]
    weight = _rounded(inverse, scale)
    return Constants(weight, weight.high.abs() * PRECISE + TINY, None, scale.new_zeros(()))


def _batch_norm(
    scale: Tensor, variance: Tensor, epsilon: float, weight: Tensor | None, mean: Tensor, bias: Tensor | None
) -> Constants | None:
    """s = w / sqrt(v + epsilon) and t = b - m s. With v + epsilon = p / q and k >= 128 bits after the point, the root of 4^k q / p,
    rounded down to a whole number of at least 127 bits, is off by less than 2^-126 of itself."""
    channels = len(variance)
    rows = [
        torch.full((channels,), number, dtype=torch.float64).tolist()
        if each is None
        else each.double().flatten().tolist()
        for each, number in ((variance, 0.0), (weight, 1.0), (mean, 0.0), (bias, 0.0))
    ]
    if not all(math.isfinite(number) for row in rows for number in row):
        return None
    scales, shifts, sizes = [], [], []
    for spread, gain, middle, offset in zip(*rows, strict=True):
        total = Fraction(spread) + Fraction(epsilon)
        if total <= 0:
            return None
        bits = ROOT_BITS + max(0, (total.numerator.bit_length() - total.denominator.bit_length()) // 2 + 1)
        root = Fraction(math.isqrt((total.denominator << (2 * bits)) // total.numerator), 1 << bits)
        scales.append(root * Fraction(gain))
        shifts.append(Fraction(offset) - Fraction(middle) * scales[-1])
        sizes.append(abs(offset) + abs(middle) * abs(float(scales[-1])))
    pair, shift = _rounded(scales, scale), _rounded(shifts, scale)
    size = scale.new_tensor(sizes, dtype=torch.float64).view_as(pair.high)
    return Constants(pair, pair.high.abs() * PRECISE + TINY, shift, size * (2 * PRECISE) + TINY)


def _rounded(numbers: list[Fraction], like: Tensor) -> Pair:
    """Each number as the nearest float and the float nearest to what is left."""
    high = [float(number) for number in numbers]
    low = [float(number - Fraction(float(number))) for number in numbers]
    return Pair(*(torch.tensor(part, dtype=torch.float64, device=like.device).view(like.shape) for part in (high, low)))
