"""Exact values and adversarial float32 values of products, normalizations, softmax, fake quantization and smooth functions.

`exact_networks` asks here for every call that is not linear, a ReLU or a pooling. `EXACT` has each call's value in rational
arithmetic, roots and exponentials rounded to 60 digits; where a function has no value, it is `NOWHERE`, which no finite bound
contains. `FLOAT32` has what the package assumes of libraries at worst: as many units roundoff as the rules' docstrings state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from tests.soundness.exact_networks import LIBRARY, UNIT, Layer, Rational, _objects

NOWHERE = 2**4000
DIGITS = 60


def elementwise(function: Callable[[Any], Any], x: Rational) -> Rational:
    """Apply a function of real numbers, None where it is undefined, with at least 110 significant bits."""
    with mpmath.workdps(DIGITS):
        scale = mpmath.mpf(2) ** (-x.exp) / x.den
        values = {each: function(mpmath.mpf(each) * scale) for each in set(x.ints.flat)}
        sizes = [int(mpmath.frexp(y)[1]) for y in values.values() if y is not None and y != 0]
        bits = max(230, 110 - min(sizes, default=0))
        found = {
            each: NOWHERE << bits if y is None else int(mpmath.floor(mpmath.ldexp(y, bits) + 0.5))
            for each, y in values.items()
        }
    return Rational(_objects([found[each] for each in x.ints.flat], x.shape), bits)


def _power(x: Any, p: float) -> Any:
    if x == 0:
        return None if p < 0 else mpmath.mpf(0)
    return x ** (int(p) if float(p).is_integer() else p) if x > 0 or float(p).is_integer() else None


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, _: float = 1.0) -> Any:
    return scale * x if x > 0 else mpmath.mpf(scale) * alpha * mpmath.expm1(x)


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return x if x * beta > threshold else mpmath.log1p(mpmath.exp(x * beta)) / beta


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return x / 2 * mpmath.erfc(-x / mpmath.sqrt(2))
    return x / (1 + mpmath.exp(-mpmath.sqrt(8 / mpmath.pi) * (x + mpmath.mpf(0.044715) * x**3)))


def _between(x: Any, low: float | None, high: float | None) -> Any:
    x = x if low is None else max(x, low)
    return x if high is None else min(x, high)


CLAMPS = ("clamp.default", "hardtanh.default", "relu6.default")
SMOOTH: dict[str, Callable[..., Any]] = {
    "exp.default": mpmath.exp,
    "log.default": lambda x: mpmath.log(x) if x > 0 else None,
    "sqrt.default": lambda x: mpmath.sqrt(x) if x >= 0 else None,
    "rsqrt.default": lambda x: 1 / mpmath.sqrt(x) if x > 0 else None,
    "reciprocal.default": lambda x: 1 / x if x else None,
    "erf.default": mpmath.erf,
    "atan.default": mpmath.atan,
    "sin.default": mpmath.sin,
    "cos.default": mpmath.cos,
    "silu.default": lambda x: x / (1 + mpmath.exp(-x)),
    "mish.default": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "hardswish.default": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "gelu.default": _gelu,
    "elu.default": _elu,
    "selu.default": lambda x: _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "celu.default": lambda x, alpha=1.0: x if x > 0 else mpmath.mpf(alpha) * mpmath.expm1(x / mpmath.mpf(alpha)),
    "softplus.default": _softplus,
    "pow.Tensor_Scalar": _power,
    "square.default": lambda x: x * x,
    **dict.fromkeys(CLAMPS, lambda x, low=0.0, high=6.0: _between(x, low, high)),
}


def smooth(layer: Layer, x: Rational) -> Rational:
    return elementwise(lambda each: SMOOTH[layer.call](each, *layer.args[1:], **layer.options), x)


def mean(x: Rational, axes: tuple[int, ...]) -> Rational:
    count = math.prod(x.shape[axis] for axis in axes)
    return Rational(x.ints.sum(axes, keepdims=True), x.exp, x.den * count)


def inverse_root(x: Rational, epsilon: float) -> Rational:
    return elementwise(lambda each: 1 / mpmath.sqrt(each + epsilon) if each + epsilon > 0 else None, x)


def softmax(x: Rational, dim: int, absent: Tensor | None = None) -> Rational:
    """Softmax among the entries that are not absent, and 0 for those that are."""
    gone = np.broadcast_to(False if absent is None else absent.numpy(), x.shape)
    ints = np.where(gone, x.ints.min(), x.ints)  # which is no larger than what takes part
    first = Rational(ints - ints.max(dim, keepdims=True), x.exp, x.den)
    powers = elementwise(mpmath.exp, first)
    ints = np.where(gone, 0, powers.ints)
    with mpmath.workdps(DIGITS):
        sums = np.broadcast_to(ints.sum(dim, keepdims=True), powers.shape)
        shares = [(int(one) << powers.exp) // int(whole) for one, whole in zip(ints.flat, sums.flat, strict=True)]
    return Rational(_objects(shares, x.shape), powers.exp)


def quantized(x: Rational, factor: Fraction, step: float, low: int, high: int, slack: float = 0.0) -> Rational:
    """Round to the lowest whole number that is allowed or to the highest, in turn."""
    room, values = Fraction(1, 2) + Fraction(slack), []
    for k, each in enumerate(x.ints.flat):
        exactly = Fraction(int(each), x.den) / Fraction(2) ** x.exp * factor
        whole = math.floor(exactly + room) if k % 2 else math.ceil(exactly - room)
        values.append(Fraction(step) * min(max(whole, int(low)), int(high)))
    return Rational.fractions(values, x.shape)


def fake_quantized(x: Rational, scale: float, zero: int, low: int, high: int) -> Rational:
    return quantized(x, 1 / Fraction(scale), scale, low - zero, high - zero)


def constant(value: Tensor | None, otherwise: float, view: tuple[int, ...]) -> Rational:
    return Rational.of(np.full((1,) * len(view), otherwise) if value is None else value.double().numpy().reshape(view))


def axes_and_view(layer: Layer, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of a normalization: the shape in which rows are apart, counted with the batch, its axes, and the view of weights."""
    if layer.call in ("layer_norm.default", "rms_norm.default"):
        sizes = tuple(layer.args[1])
        return shape, tuple(range(len(shape) - len(sizes), len(shape))), sizes
    groups = layer.args[1] if layer.call == "group_norm.default" else shape[1]
    return (shape[0], groups, math.prod(shape[1:]) // groups), (2,), (-1, *[1] * (len(shape) - 2))


def settings(layer: Layer) -> tuple[Tensor | None, Tensor | None, float]:
    """Weight, bias and epsilon of a normalization."""
    if layer.call == "rms_norm.default":
        return layer.args[2], None, layer.args[3]
    if layer.call == "instance_norm.default":
        return layer.args[1], layer.args[2], layer.args[7]
    return layer.args[2], layer.args[3], layer.args[4]


def normalized(layer: Layer, x: Rational) -> Rational:
    apart, axes, view = axes_and_view(layer, x.shape)
    weight, bias, epsilon = settings(layer)
    rows = x.reshape(*apart)
    if layer.call != "rms_norm.default":
        rows = rows - mean(rows, axes)
    result = (rows * inverse_root(mean(rows * rows, axes), epsilon)).reshape(*x.shape)
    return result * constant(weight, 1.0, view) + constant(bias, 0.0, view)


def turned(x: Rational) -> Rational:
    return Rational(x.ints.swapaxes(-1, -2), x.exp, x.den)


def matrices(x: Rational, y: Rational) -> Rational:
    return Rational(np.matmul(x.ints, y.ints), x.exp + y.exp, x.den * y.den)


def attention(layer: Layer, before: Sequence[Rational]) -> Rational:
    query, key, value = before
    factor = layer.options.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = matrices(query, turned(key)) * Rational.of(np.float64(factor))
    return matrices(softmax(scores, -1), value)


NORMS = ("layer_norm.default", "rms_norm.default", "group_norm.default", "instance_norm.default")
RULES: dict[str, Callable[..., Tensor]] = {
    "rule.centered": lambda x, dims: x - x.mean(dims, keepdim=True),
    "rule.mean_square": lambda x, dims: (x * x).mean(dims, keepdim=True),
    "rule.inverse_root": lambda x, epsilon: (x + epsilon).rsqrt(),
    "tanhshrink.default": lambda x: x - x.tanh(),
    "masked_softmax.int": lambda x, dim, absent: x.masked_fill(absent, -math.inf).softmax(dim),
    "rule.quantize": lambda x, s: (x * s["factor"]).round().clamp(s["low"], s["high"]) * s["step"],
}
"""Rules that no single call of torch stands for, with torch's value."""

EXACT: dict[str, Callable[[Layer, list[Rational]], Rational]] = {
    **dict.fromkeys(SMOOTH, lambda layer, before: smooth(layer, before[0])),
    **dict.fromkeys(NORMS, lambda layer, before: normalized(layer, before[0])),
    **dict.fromkeys(("matmul.default", "bmm.default"), lambda _, before: matrices(*before)),
    "softmax.int": lambda layer, before: softmax(before[0], layer.args[1]),
    "masked_softmax.int": lambda layer, before: softmax(before[0], *layer.args[1:]),
    "scaled_dot_product_attention.default": attention,
    "fake_quantize_per_tensor_affine.default": lambda layer, before: fake_quantized(before[0], *layer.args[1:]),
    "rule.centered": lambda layer, before: before[0] - mean(before[0], tuple(layer.args[1])),
    "rule.mean_square": lambda layer, before: mean(before[0] * before[0], tuple(layer.args[1])),
    "rule.inverse_root": lambda layer, before: inverse_root(before[0], layer.args[1]),
    "rule.quantize": lambda layer, before: quantized(
        before[0],
        Fraction(layer.args[1]["factor"]),
        *(layer.args[1][name] for name in ("step", "low", "high", "slack")),
    ),
}  # fmt: skip


# Float32

Rng = np.random.Generator
ROOM = 1.5
"""Units roundoff left for the result's own rounding."""


def _size(layer: Layer, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By how many units roundoff a library may be off at x, where the true value is y: as the rules' docstrings have it."""
    name, one = layer.call.split(".")[0], np.ones_like(x)
    if name in ("gelu", "silu", "mish"):
        return (4 * LIBRARY if name == "mish" else LIBRARY + 8) * abs(x)
    if name == "pow":
        return (LIBRARY + 2 * abs(layer.args[1] * np.log(np.maximum(abs(x), 1e-60)))) * abs(y)
    if name == "softplus":
        beta = layer.args[1] if len(layer.args) > 1 else 1.0
        t = beta * x
        return ((LIBRARY + 2 * abs(t)) / (1 + np.exp(-t)) + LIBRARY * (1 + beta * abs(y))) / beta
    if name in ("elu", "selu", "celu"):
        factor = {"selu": 1.7580993408473766}.get(name) or (layer.args[1] if len(layer.args) > 1 else 1.0)
        return np.where(x > 0, 4 * abs(y), LIBRARY * factor)
    return {
        "exp": LIBRARY * abs(y), "rsqrt": LIBRARY * abs(y), "sqrt": 4 * abs(y), "reciprocal": 4 * abs(y),
        "log": LIBRARY * (1 + abs(y)), "hardswish": 8 * abs(x), "square": LIBRARY * abs(y),
    }.get(name, LIBRARY * one)  # fmt: skip


def float32_smooth(rng: Rng, layer: Layer, x: np.ndarray) -> np.ndarray:
    wide = torch.from_numpy(x.astype(np.float64))
    true = layer.apply({layer.inputs()[0]: wide}).numpy()
    off = np.maximum(_size(layer, wide.numpy(), true) - ROOM * abs(true), 0) * UNIT
    if layer.call in CLAMPS:
        off = 0 * off
    signs = rng.choice([-1, 0, 1], x.shape) if rng.random() < 0.3 else rng.choice([-1, 1])
    return (true + signs * off).astype(np.float32)


def float32_products(evaluation: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Multiply matrices, each sum in one order."""
    total = np.zeros((*x.shape[:-1], y.shape[-1]), np.float32)
    for k in evaluation.rng.permutation(x.shape[-1]):
        one, other = x[..., :, k, None], y[..., None, k, :]
        if evaluation.fused:
            total = (total.astype(np.float64) + one.astype(np.float64) * other).astype(np.float32)
        else:
            total = total + evaluation._flushed(one * other)
    return total


def float32_softmax(evaluation: Any, x: np.ndarray, dim: int) -> np.ndarray:
    t = x - x.max(dim, keepdims=True)
    powers = np.exp(t.astype(np.float64)) * (1 + 62 * UNIT * evaluation.rng.choice([-1, 0, 1], x.shape))
    powers = evaluation._flushed(powers)
    total = np.zeros_like(powers.sum(dim, keepdims=True))
    for k in evaluation.rng.permutation(x.shape[dim]):
        total = total + np.take(powers, [k], dim)
    return powers / total if evaluation.rng.random() < 0.5 else powers * (np.float32(1) / total)


def _float32_mean(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    total = np.zeros_like(x[..., :1])
    for k in order:
        total = total + x[..., k : k + 1]
    return total / np.float32(x.shape[-1])


def float32_normalized(evaluation: Any, layer: Layer, x: np.ndarray) -> np.ndarray:
    """By two passes, by Welford's updates, or by mean(x^2) - mean(x)^2; weights are applied one by one, or as one factor."""
    apart, axes, view = axes_and_view(layer, x.shape)
    weight, bias, epsilon = settings(layer)
    shape = x.reshape(apart).shape
    rows = x.reshape(*shape[: axes[0]], -1)
    order, rms = evaluation.rng.permutation(rows.shape[-1]), layer.call == "rms_norm.default"
    middle = np.float32(0) if rms else _float32_mean(rows, order)
    way = 0 if rms else evaluation.rng.integers(3)
    if way == 0:
        spread = _float32_mean((rows - middle) ** 2, order)
    elif way == 1:
        spread = np.maximum(_float32_mean(rows * rows, order) - middle * middle, np.float32(0))
    else:
        middle, total = np.zeros_like(rows[..., :1]), np.zeros_like(rows[..., :1])
        for number, k in enumerate(order):
            step = rows[..., k : k + 1] - middle
            middle = middle + step / np.float32(number + 1)
            total = total + step * (rows[..., k : k + 1] - middle)
        spread = total / np.float32(len(order))
    signs = evaluation.rng.choice([-1, 1], spread.shape)
    inverse = 1 / np.sqrt((spread + np.float32(epsilon)).astype(np.float64)) * (1 + 28 * UNIT * signs)
    inverse = inverse.astype(np.float32)
    gain, start = (
        np.float32(otherwise) if each is None else evaluation._flushed(each.numpy()).reshape(view)
        for each, otherwise in ((weight, 1), (bias, 0))
    )
    if evaluation.rng.random() < 0.5:
        return ((rows - middle) * inverse).reshape(x.shape) * gain + start
    middle, inverse = (np.broadcast_to(each, rows.shape).reshape(x.shape) for each in (middle, inverse))
    factor = inverse * gain
    return x * factor + (start - middle * factor)


def float32_attention(evaluation: Any, layer: Layer, before: Sequence[np.ndarray]) -> np.ndarray:
    query, key, value = before
    factor = np.float32(layer.options.get("scale") or 1 / math.sqrt(query.shape[-1]))
    if evaluation.rng.random() < 0.5:
        scores = float32_products(evaluation, query, key.swapaxes(-1, -2)) * factor
    else:
        root = np.float32(math.sqrt(factor))
        scores = float32_products(evaluation, query * root, key.swapaxes(-1, -2) * root)
    return float32_products(evaluation, float32_softmax(evaluation, scores, -1), value)


def float32_quantized(evaluation: Any, x: np.ndarray, scale: float, zero: int, low: int, high: int) -> np.ndarray:
    """Round ties up or down, multiply by the reciprocal or divide."""
    units = x * np.float32(1 / scale) if evaluation.rng.random() < 0.5 else x / np.float32(scale)
    half = np.float32(0.5)
    whole = np.floor(units + half) if evaluation.rng.random() < 0.5 else np.ceil(units - half)
    return (np.clip(whole + zero, low, high) - zero).astype(np.float32) * np.float32(scale)


FLOAT32: dict[str, Callable[[Any, Layer, list[np.ndarray]], np.ndarray]] = {
    **dict.fromkeys(SMOOTH, lambda run, layer, before: float32_smooth(run.rng, layer, before[0])),
    **dict.fromkeys(NORMS, lambda run, layer, before: float32_normalized(run, layer, before[0])),
    **dict.fromkeys(("matmul.default", "bmm.default"), lambda run, _, before: float32_products(run, *before)),
    "softmax.int": lambda run, layer, before: float32_softmax(run, before[0], layer.args[1]),
    "masked_softmax.int": lambda run, layer, before: float32_softmax(
        run, np.where(layer.args[2].numpy(), np.float32(-np.inf), before[0]), layer.args[1]
    ),
    "scaled_dot_product_attention.default": float32_attention,
    "fake_quantize_per_tensor_affine.default": lambda run, layer, before: float32_quantized(
        run, before[0], *layer.args[1:]
    ),
}
