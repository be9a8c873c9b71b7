"""Exact values and float32 values of piecewise linear functions, of functions written as others, and of maxima of two.

The float32 values are torch's own, or those of torch in float64 rounded once: two libraries that the package allows for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import torch

from tests.soundness import exact_functions
from tests.soundness.exact_functions import elementwise, mean
from tests.soundness.exact_networks import Layer, Of, Rational


def _shrunk(x: Any, bound: float = 0.5) -> Any:
    return x - bound if x > bound else x + bound if x < -bound else mpmath.mpf(0)


def _number(sign: bool) -> Any:
    return mpmath.mpf(int(sign))


PIECEWISE: dict[str, Callable[..., Any]] = {
    "abs.default": abs,
    "clamp_min.default": max,
    "clamp_max.default": min,
    "hardsigmoid.default": lambda x: min(max(x / 6 + mpmath.mpf(0.5), 0), 1),
    "threshold.default": lambda x, bound, value: x if x > bound else mpmath.mpf(value),
    "softshrink.default": _shrunk,
    "hardshrink.default": lambda x, bound=0.5: x if abs(x) > bound else mpmath.mpf(0),
    "sign.default": mpmath.sign,
    "gt.Scalar": lambda x, bound: _number(x > bound),
    "ge.Scalar": lambda x, bound: _number(x >= bound),
    "lt.Scalar": lambda x, bound: _number(x < bound),
    "le.Scalar": lambda x, bound: _number(x <= bound),
}
SINGLE: dict[str, Callable[..., Any]] = {
    "tanhshrink.default": lambda x: x - mpmath.tanh(x),
    "log_sigmoid.default": lambda x: -mpmath.log1p(mpmath.exp(-x)),
    "expm1.default": mpmath.expm1,
    "log1p.default": lambda x: mpmath.log1p(x) if x > -1 else None,
    "exp2.default": lambda x: mpmath.mpf(2) ** x,
}
"""Functions of one number."""


def single(layer: Layer, x: Rational) -> Rational:
    function = {**PIECEWISE, **SINGLE}[layer.call]
    return elementwise(lambda each: function(each, *layer.args[1:]), x)


def power_of(layer: Layer, x: Rational) -> Rational:
    return elementwise(lambda each: mpmath.mpf(layer.args[0]) ** each, x)


def extreme(layer: Layer, before: list[Rational], choose: Callable[[Any, Any], Any]) -> Rational:
    """The larger or the smaller of two, of which one may be a constant."""
    rest = iter(before)
    first, second = (next(rest) if isinstance(arg, Of) else Rational.of(arg) for arg in layer.args)
    one, other, exp, den = first._aligned(second)
    return Rational(choose(one, other), exp, den)


def prelu(layer: Layer, x: Rational) -> Rational:
    weight = layer.args[1].double().numpy()
    view = () if weight.size == 1 else (-1, *[1] * (len(x.shape) - 2))
    high, low, exp, den = x._aligned(x * Rational.of(weight.reshape(view)))
    return Rational(np.where(high > 0, high, low), exp, den)


def chosen(before: list[Rational]) -> Rational:
    condition, x, other = before
    one, two, exp, den = x._aligned(other)
    return Rational(np.where(condition.ints > 0, one, two), exp, den)


def interpolated(layer: Layer, before: list[Rational]) -> Rational:
    weight = Rational.of(np.float64(layer.args[2]))
    return before[0] + weight * (before[1] - before[0])


def axes_of(x: Rational, dim: Any) -> tuple[int, ...]:
    return tuple(d % len(x.shape) for d in (dim if isinstance(dim, list) else [dim]))


def log_sum(x: Rational, axes: tuple[int, ...]) -> Rational:
    powers = elementwise(mpmath.exp, x)
    return elementwise(mpmath.log, Rational(powers.ints.sum(axes, keepdims=True), powers.exp, powers.den))


def gated(layer: Layer, x: Rational) -> Rational:
    (axis,) = axes_of(x, layer.args[1])
    first, second = (Rational(part, x.exp, x.den) for part in np.split(x.ints, 2, axis))
    return first * elementwise(lambda each: 1 / (1 + mpmath.exp(-each)), second)


def variance(layer: Layer, x: Rational) -> Rational:
    axes = axes_of(x, layer.args[1])
    count, centered = math.prod(x.shape[axis] for axis in axes), x - mean(x, axes)
    correction = layer.options["correction"] if layer.options else int(layer.args[2])
    square = mean(centered * centered, axes)
    return Rational(square.ints * count, square.exp, square.den * (count - correction))


def length(layer: Layer, x: Rational) -> Rational:
    return elementwise(
        mpmath.sqrt, Rational((x * x).ints.sum(axes_of(x, layer.args[2]), keepdims=True), 2 * x.exp, x.den**2)
    )


PIECES: dict[str, Callable[[Layer, list[Rational]], Rational]] = {
    **dict.fromkeys(PIECEWISE, lambda layer, before: single(layer, before[0])),
    "maximum.default": lambda layer, before: extreme(layer, before, np.maximum),
    "minimum.default": lambda layer, before: extreme(layer, before, np.minimum),
    "prelu.default": lambda layer, before: prelu(layer, before[0]),
    "where.self": lambda _, before: chosen(before),
}
WRITTEN: dict[str, Callable[[Layer, list[Rational]], Rational]] = {
    **dict.fromkeys(SINGLE, lambda layer, before: single(layer, before[0])),
    "pow.Scalar": lambda layer, before: power_of(layer, before[0]),
    "addcmul.default": lambda _, before: before[0] + before[1] * before[2],
    "lerp.Scalar": interpolated,
    "logsumexp.default": lambda layer, before: log_sum(before[0], axes_of(before[0], layer.args[1])),
    "log_softmax.int": lambda layer, before: before[0] - log_sum(before[0], axes_of(before[0], layer.args[1])),
    "glu.default": lambda layer, before: gated(layer, before[0]),
    "var.correction": lambda layer, before: variance(layer, before[0]),
    "std.correction": lambda layer, before: elementwise(mpmath.sqrt, variance(layer, before[0])),
    "var.dim": lambda layer, before: variance(layer, before[0]),
    "std.dim": lambda layer, before: elementwise(mpmath.sqrt, variance(layer, before[0])),
    "linalg_vector_norm.default": lambda layer, before: length(layer, before[0]),
}
EXACT = {**exact_functions.EXACT, **PIECES, **WRITTEN}


def float32_by_torch(evaluation: Any, layer: Layer, before: list[np.ndarray]) -> np.ndarray:
    """Torch's own float32 value, or, of functions written as others, now and then the float64 value of the same numbers."""
    wide = layer.call in WRITTEN and evaluation.rng.random() < 0.3
    dtype = torch.float64 if wide else torch.float32
    values = {name: torch.from_numpy(x).to(dtype) for name, x in zip(layer.inputs(), before, strict=True)}
    return layer.apply(values, dtype).numpy().astype(np.float32)


FLOAT32 = {**exact_functions.FLOAT32, **dict.fromkeys((*PIECES, *WRITTEN), float32_by_torch)}
