"""Tiny networks as lists of ATen calls, evaluated in rational arithmetic and in adversarial float32.

A value is, per entry, an integer over a power of two and a common denominator, so the sums of a network of a few dozen
entries cost only Python integer arithmetic. Linear operations become matrices by applying torch's own operation to a basis,
which adds nothing but zeros to each weight; reshapes are read off the operation applied to numbered entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from tests.soundness.noise_networks import NO_EPS


@dataclass(frozen=True)
class Of:
    """An argument of a call: the value of an earlier layer."""

    name: str


@dataclass
class Layer:
    """One ATen call; ``call`` is the operation's name with its overload."""

    name: str
    call: str
    args: list[Any]
    options: dict[str, Any] = field(default_factory=dict)

    def inputs(self) -> list[str]:
        every = (each for arg in self.args for each in (arg if isinstance(arg, list) else [arg]))
        return [arg.name for arg in every if isinstance(arg, Of)]

    def apply(self, values: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
        """Apply the layer with torch, in another precision."""

        def given(arg: Any) -> Any:
            if isinstance(arg, list):
                return [given(each) for each in arg]
            if isinstance(arg, Of):
                return values[arg.name]
            return arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() else arg

        args = [given(arg) for arg in self.args]
        if self.call == "where.self":
            args[0] = args[0] > 0
        if self.call == "cat.default":  # a constant has a row for each image
            count = len(next(iter(values.values())))
            args[0] = [each[:1].expand(count, *each.shape[1:]) if isinstance(old, Tensor) else each
                       for each, old in zip(args[0], self.args[0], strict=True)]  # fmt: skip
        result = operation(self.call)(*args, **self.options)
        result = result[0] if isinstance(result, tuple) else result  # of a maximum with its place, the maximum
        return result.to(dtype) if result.dtype == torch.bool else result


def operation(call: str) -> Any:
    """Return torch's operation of this name, or a rule's own function (``rule.NAME``)."""
    from tests.soundness import exact_functions

    if call in exact_functions.RULES:
        return exact_functions.RULES[call]
    name, overload = call.split(".")
    return getattr(getattr(torch.ops.aten, name), overload)


@dataclass
class Rational:
    """ints / (den 2^exp), entry by entry."""

    ints: np.ndarray
    exp: int = 0
    den: int = 1

    @classmethod
    def of(cls, values: Any) -> Rational:
        """Convert finite floats."""
        floats = np.asarray(
            values.detach().double().numpy() if isinstance(values, Tensor) else values, dtype=np.float64
        )
        parts, exponents = np.frexp(floats)
        whole = (parts * 2.0**53).astype(np.int64)
        zeros = np.where(
            whole == 0, 0, np.log2((whole & -whole).astype(np.float64), where=whole != 0, out=np.zeros(floats.shape))
        )
        lowest = np.where(whole == 0, 2000, exponents - 53 + zeros.astype(np.int64))
        least = int(lowest.min()) if floats.size and lowest.min() < 2000 else 0
        shifts = np.where(whole == 0, 0, exponents - 53 - least)
        ints = [int(w) << int(s) if s >= 0 else int(w) >> int(-s) for w, s in zip(whole.flat, shifts.flat, strict=True)]
        return cls(_objects(ints, floats.shape), -least)

    @classmethod
    def fractions(cls, values: Sequence[Fraction], shape: tuple[int, ...]) -> Rational:
        den = math.lcm(*(value.denominator for value in values)) if values else 1
        return cls(_objects([value.numerator * (den // value.denominator) for value in values], shape), 0, den)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ints.shape

    def _aligned(self, other: Rational) -> tuple[np.ndarray, np.ndarray, int, int]:
        exp, den = max(self.exp, other.exp), math.lcm(self.den, other.den)
        first, second = (x.ints * ((den // x.den) << (exp - x.exp)) for x in (self, other))
        return first, second, exp, den

    def __add__(self, other: Rational) -> Rational:
        first, second, exp, den = self._aligned(other)
        return Rational(first + second, exp, den)

    def __neg__(self) -> Rational:
        return Rational(-self.ints, self.exp, self.den)

    def __sub__(self, other: Rational) -> Rational:
        return self + (-other)

    def __mul__(self, other: Rational) -> Rational:
        return Rational(self.ints * other.ints, self.exp + other.exp, self.den * other.den)

    def __matmul__(self, other: Rational) -> Rational:
        return Rational(np.dot(self.ints, other.ints), self.exp + other.exp, self.den * other.den)

    def __getitem__(self, index: Any) -> Rational:
        return Rational(self.ints[index], self.exp, self.den)

    def reshape(self, *shape: int) -> Rational:
        return Rational(self.ints.reshape(*shape), self.exp, self.den)

    def fraction(self, *index: int) -> Fraction:
        return Fraction(int(self.ints[index]), self.den) / Fraction(2) ** self.exp

    def nearest(self) -> np.ndarray:
        """Round to 64 bits, x86's extended format, whose exponent range far exceeds float64's."""
        quotients, exponents = [], []
        bits = self.den.bit_length()
        for each in self.ints.flat:
            size = abs(each)
            shift = 63 - size.bit_length() + bits
            quotients.append((size << shift) // self.den if shift >= 0 else size // (self.den << -shift))
            exponents.append(-shift - self.exp)
        wide = np.array(quotients, dtype=np.uint64).astype(np.longdouble)
        signs = np.array([1 if each >= 0 else -1 for each in self.ints.flat])
        return (np.ldexp(wide, np.array(exponents, dtype=np.int32)) * signs).reshape(self.shape)


def _objects(values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result.reshape(shape)


AVERAGES = ("avg_pool1d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default", "mean.dim")
MAXIMA = {
    **dict.fromkeys(("max_pool1d.default", "max_pool2d.default", "adaptive_max_pool2d.default", "amax.default"), 1),
    "amin.default": -1,
}
"""Calls that take the largest of some entries, or the smallest."""
SCALES = ("add.Tensor", "sub.Tensor", "rsub.Scalar", "mul.Tensor", "div.Tensor", "neg.default", "batch_norm.default")
LINEAR = (
    "mm.default", "addmm.default", "einsum.default", "tensordot.default", "cumsum.default", "sum.dim_IntList", "conv1d.default",
    "conv1d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "upsample_bilinear2d.vec", "upsample_linear1d.vec",
    "matmul.default",
)  # fmt: skip
"""With biases as torch has them; interpolated by a power of two, so that weights are float64 numbers."""
SUMS = (*AVERAGES, *LINEAR, "linear.default", "conv2d.default")
KINKED = {"relu.default": 0.0, "leaky_relu.default": None}
SMOOTH: dict[str, Callable[[Any], Any]] = {
    "sigmoid.default": lambda x: 1 / (1 + mpmath.exp(-x)),
    "tanh.default": mpmath.tanh,
}


def _basis(layer: Layer, shape: tuple[int, ...], args: list[Any], size: float = 1.0) -> np.ndarray:
    """Return the matrix [inputs, outputs] of a linear operation in float64: exact if an output has one weight per input."""
    count = math.prod(shape)
    one = size * torch.eye(count, dtype=torch.float64).view(count, *shape)
    wide = [arg.double() if isinstance(arg, Tensor) else arg for arg in args]
    return Layer(layer.name, layer.call, [Of("one"), *wide]).apply({"one": one}).reshape(count, -1).numpy()


def matrix(layer: Layer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return weights [inputs, outputs], biases [outputs] and, for an average, each output's divisor (its weights are then 1)."""
    if layer.call == "linear.default" and len(shape) == 1:
        _, weight, bias = layer.args
        return weight.double().T.numpy(), None if bias is None else bias.double().numpy(), None
    if layer.call == "conv2d.default":
        _, weight, bias, *geometry = layer.args
        found = _basis(layer, shape, [weight, None, *geometry])
        places = found.shape[1] // len(weight)
        return found, None if bias is None else np.repeat(bias.double().numpy(), places), None
    if layer.call in (*LINEAR, "linear.default"):
        return _linear(layer, shape)
    found = _basis(layer, shape, layer.args[1:])
    divisors = np.array([round(1 / column.max()) for column in found.T], dtype=np.int64)
    return (found > 0).astype(np.float64), None, divisors


def _linear(layer: Layer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None, None]:
    """Return what `matrix` does of a layer whose bias, if it has one, is the argument that is a tensor of one dimension."""
    count, (name,) = math.prod(shape), layer.inputs()
    biased = [isinstance(arg, Tensor) and arg.ndim == 1 for arg in layer.args]
    args = [torch.zeros_like(arg) if bias else arg for arg, bias in zip(layer.args, biased, strict=True)]
    one = torch.eye(count, dtype=torch.float64).view(count, *shape)
    found = Layer(layer.name, layer.call, args, layer.options).apply({name: one}).reshape(count, -1).numpy()
    if not any(biased):
        return found, None, None
    return found, layer.apply({name: torch.zeros_like(one[:1])}).flatten().numpy(), None


def product_with_constant(layer: Layer) -> bool:
    return layer.call == "matmul.default" and len(layer.inputs()) == 1


def moved(layer: Layer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each entry of the result the entry it copies, counted from 1, or 0 for a constant; and the constants."""
    numbered = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).view(1, *shape)
    constant = layer.apply({layer.inputs()[0]: 0 * numbered})[0]
    copied = layer.apply({layer.inputs()[0]: numbered})[0] - constant
    return copied.round().numpy().astype(np.int64), constant.numpy()


def entries(layer: Layer, shape: tuple[int, ...]) -> list[list[int]]:
    """Return the entries that each output of a maximum is taken of: those that change it."""
    sign = MAXIMA[layer.call]
    found = (sign * _basis(layer, shape, layer.args[1:], sign)) > 0
    return [np.flatnonzero(column).tolist() for column in found.T]


def extremes(layer: Layer, shape: tuple[int, ...], flat: np.ndarray) -> np.ndarray:
    """Return the largest or smallest of each output's entries, whatever the numbers are."""
    columns = [flat[:, row] for row in entries(layer, shape)]
    return np.stack([each.max(1) if MAXIMA[layer.call] > 0 else each.min(1) for each in columns], 1)


def root(value: Fraction) -> Fraction:
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    assert Fraction(top * top, bottom * bottom) == value, "a variance must be the square of a rational number"
    return Fraction(top, bottom)


def scale_and_shift(layer: Layer, shape: tuple[int, ...]) -> tuple[Rational, Rational]:
    """Return the factor and the summand of each entry."""

    def fractions(values: Any) -> list[Fraction]:
        if not isinstance(values, Tensor):
            return [Fraction(values)] * math.prod(shape)
        values = (
            values.double().view(-1, *[1] * (len(shape) - 1)) if layer.call.startswith("batch") else values.double()
        )
        return [Fraction(value) for value in values.expand(1, *shape).flatten().tolist()]

    one, zero = [Fraction(1)] * math.prod(shape), [Fraction(0)] * math.prod(shape)
    first, *rest = layer.args
    if layer.call == "batch_norm.default":
        weight, bias, mean, variance, _, _, epsilon, _ = rest
        least = (
            Fraction(0) if epsilon == NO_EPS else Fraction(epsilon)
        )  # whatever the roundings, no number here is as small
        spread = [root(each + least) for each in fractions(variance)]
        gain = one if weight is None else fractions(weight)
        factor = [g / s for g, s in zip(gain, spread, strict=True)]
        start = zero if bias is None else fractions(bias)
        shift = [b - m * f for b, m, f in zip(start, fractions(mean), factor, strict=True)]
    elif layer.call == "neg.default":
        factor, shift = [Fraction(-1)] * len(one), zero
    else:
        mine = isinstance(first, Of)
        constant = fractions(rest[0] if mine else first)
        sign = Fraction(1 if mine else -1)
        factor, shift = {
            "add.Tensor": (one, constant),
            "sub.Tensor": ([sign] * len(one), [-sign * c for c in constant]),
            "rsub.Scalar": ([Fraction(-1)] * len(one), constant),
            "mul.Tensor": (constant, zero),
            "div.Tensor": ([1 / c for c in constant] if layer.call == "div.Tensor" else one, zero),
        }[layer.call]
    return Rational.fractions(factor, (len(one),)), Rational.fractions(shift, (len(one),))


def shapes(layers: Sequence[Layer], shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    values = {"x": torch.zeros(1, *shape, dtype=torch.float64)}
    for layer in layers:
        values[layer.name] = layer.apply(values)
    return {name: tuple(value.shape[1:]) for name, value in values.items()}


def evaluate(layers: Sequence[Layer], x: Rational) -> dict[str, Rational]:
    """Return every layer's value, [N, ...], for ``x`` [N, ...]. Sigmoid and tanh are rounded to 70 digits."""
    from tests.soundness import exact_compounds

    known = shapes(layers, x.shape[1:])
    values, count = {"x": x}, x.shape[0]
    for layer in layers:
        names = layer.inputs()
        before = [values[name] for name in names]
        if layer.call in exact_compounds.EXACT and not product_with_constant(layer):
            result = exact_compounds.EXACT[layer.call](layer, before)
        elif layer.call in SUMS:
            weight, bias, divisors = matrix(layer, known[names[0]])
            result = before[0].reshape(count, -1) @ Rational.of(weight)
            if bias is not None:
                result = result + Rational.of(bias)
            if divisors is not None:
                result = result * Rational.fractions([Fraction(1, int(d)) for d in divisors], divisors.shape)
        elif len(names) == 2 and layer.call in ("add.Tensor", "sub.Tensor"):
            result = before[0] + before[1] if layer.call == "add.Tensor" else before[0] - before[1]
        elif len(names) == 2 and layer.call == "mul.Tensor":
            result = before[0] * before[1]
        elif layer.call in SCALES:
            factor, shift = scale_and_shift(layer, known[names[0]])
            result = before[0].reshape(count, -1) * factor + shift
        elif layer.call in KINKED:
            below = before[0] * Rational.of(np.float64(_negative(layer)))
            high, low, exp, den = before[0]._aligned(below)
            result = Rational(np.where(high > 0, high, low), exp, den)
        elif layer.call in SMOOTH:
            result = _smooth(layer.call, before[0])
        elif layer.call in MAXIMA:
            flat = before[0].reshape(count, -1)
            result = Rational(extremes(layer, known[names[0]], flat.ints), flat.exp, flat.den)
        elif layer.call in ("cat.default", "stack.default"):
            rest = iter(before)
            given = [next(rest) if isinstance(part, Of) else _repeated(part, count) for part in layer.args[0]]
            if layer.call == "stack.default":
                given = [Rational(np.expand_dims(each.ints, layer.args[1]), each.exp, each.den) for each in given]
            first = given[0]
            for other in given[1:]:
                left, right, exp, den = first._aligned(other)
                first = Rational(np.concatenate([left, right], layer.args[1]), exp, den)
            result = first
        else:
            (index, constant), flat = moved(layer, known[names[0]]), before[0].reshape(count, -1)
            padded = np.concatenate([np.zeros((count, 1), dtype=object), flat.ints], 1)
            result = Rational(padded[:, index.ravel()], flat.exp, flat.den) + Rational.of(constant.ravel())
        values[layer.name] = result.reshape(count, *known[layer.name])
    return values


def _repeated(constant: Tensor, count: int) -> Rational:
    return Rational.of(constant[:1].double().expand(count, *constant.shape[1:]))


def _negative(layer: Layer) -> float:
    return 0.0 if layer.call == "relu.default" else layer.args[1]


def _smooth(call: str, x: Rational) -> Rational:
    with mpmath.workdps(80):
        scale = mpmath.mpf(2) ** (-x.exp) / x.den
        function, known = SMOOTH[call], {}
        for each in set(x.ints.flat):
            known[each] = int(mpmath.floor(mpmath.ldexp(function(mpmath.mpf(each) * scale), 230) + 0.5))
    return Rational(_objects([known[each] for each in x.ints.flat], x.shape), 230)


UNIT, TINY = 2.0**-24, np.float32(2.0**-126)
LIBRARY = 32
"""Units roundoff by which the package assumes a library's sigmoid or tanh to be off at most."""


class Float32:
    """One float32 evaluation: sums from the largest term, from the smallest, or in random order.

    Optionally with fused multiply-add, and with denormal numbers flushed to zero.
    """

    ORDERS = 3

    def __init__(self, rng: np.random.Generator, order: int) -> None:
        self.rng, self.order = rng, order
        self.fused, self.flush = rng.random() < 0.4, rng.random() < 0.3

    def _flushed(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, dtype=np.float32)
        return np.where(np.abs(x) < TINY, np.float32(0), x) if self.flush else x

    def _sum(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """Sum x [N, n] times weight [n, m]; the bias is one more term."""
        if bias is not None:
            x = np.concatenate([x, np.ones_like(x[:, :1])], 1)
            weight = np.concatenate([weight, bias[None]])
        size = np.abs(x).mean(0) * np.abs(weight).max(1)
        total = np.zeros((len(x), weight.shape[1]), np.float32)
        for k in [np.argsort(-size, kind="stable"), np.argsort(size), self.rng.permutation(len(size))][self.order]:
            if self.fused:  # a product of float32 numbers is exact in float64
                total = (total.astype(np.float64) + x[:, k, None].astype(np.float64) * weight[k]).astype(np.float32)
            else:
                total = total + self._flushed(x[:, k, None] * weight[k])
            total = self._flushed(total)
        return total

    def run(self, layers: Sequence[Layer], x: np.ndarray) -> dict[str, np.ndarray]:
        """Return every layer's value, float32 [N, ...]."""
        known, count = shapes(layers, x.shape[1:]), len(x)
        values = {"x": self._flushed(x)}
        with np.errstate(all="ignore"):
            for layer in layers:
                before = [values[name] for name in layer.inputs()]
                result = self._layer(layer, before, [known[name] for name in layer.inputs()])
                values[layer.name] = self._flushed(result).reshape(count, *known[layer.name])
        return values

    def _layer(self, layer: Layer, before: list[np.ndarray], known: list[tuple[int, ...]]) -> np.ndarray:
        from tests.soundness import exact_compounds

        x, flat = before[0], before[0].reshape(len(before[0]), -1)
        if layer.call in exact_compounds.FLOAT32 and not product_with_constant(layer):
            return exact_compounds.FLOAT32[layer.call](self, layer, before)
        if layer.call in SUMS:
            weight, bias, divisors = matrix(layer, known[0])
            weight = self._flushed(weight)
            result = self._sum(flat, weight, None if bias is None else self._flushed(bias))
            if divisors is None:
                return result
            by = divisors.astype(np.float32)
            return result / by if self.rng.random() < 0.5 else result * (np.float32(1) / by)
        if len(before) == 2 and layer.call in ("add.Tensor", "sub.Tensor"):
            return x + before[1] if layer.call == "add.Tensor" else x - before[1]
        if len(before) == 2 and layer.call == "mul.Tensor":
            return x * before[1]
        if layer.call == "batch_norm.default":
            return self._batch_norm(layer, x)
        if layer.call in SCALES:
            first, *rest = layer.args
            mine = isinstance(first, Of)
            constant = self._flushed(np.asarray(rest[0] if mine else first, np.float32)) if rest else None
            return {
                "add.Tensor": lambda: x + constant,
                "sub.Tensor": lambda: x - constant if mine else constant - x,
                "rsub.Scalar": lambda: constant - x,
                "mul.Tensor": lambda: x * constant,
                "div.Tensor": lambda: x / constant,
                "neg.default": lambda: -x,
            }[layer.call]()
        if layer.call in KINKED:
            return np.where(x > 0, x, x * np.float32(_negative(layer)))
        if layer.call in SMOOTH:
            wide = x.astype(np.float64)
            true = np.tanh(wide) if layer.call == "tanh.default" else 1 / (1 + np.exp(-wide))
            signs = self.rng.choice([-1, 0, 1], x.shape) if self.rng.random() < 0.3 else self.rng.choice([-1, 1])
            wrong = (true + signs * LIBRARY * UNIT).astype(np.float32)
            far = np.abs(wrong - true) > LIBRARY * UNIT * (1 - 2.0**-20)
            return np.where(far, np.nextafter(wrong, true.astype(np.float32)), wrong)
        if layer.call in MAXIMA:
            return extremes(layer, known[0], flat)
        if layer.call in ("cat.default", "stack.default"):
            rest = iter(before)
            given = [next(rest) if isinstance(part, Of) else self._repeated(part, len(x)) for part in layer.args[0]]
            return (np.concatenate if layer.call == "cat.default" else np.stack)(given, layer.args[1])
        index, constant = (each.ravel() for each in moved(layer, known[0]))
        copied = np.concatenate([np.zeros((len(x), 1), np.float32), flat], 1)[:, index]
        return np.where(index > 0, copied, self._flushed(constant))

    def _repeated(self, constant: Tensor, count: int) -> np.ndarray:
        return self._flushed(constant[:1].float().expand(count, *constant.shape[1:]).numpy())

    def _batch_norm(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        weight, bias, mean, variance, _, _, epsilon, _ = layer.args[1:]
        view = (-1, *[1] * (x.ndim - 2))
        mean, variance = (self._flushed(each.numpy()).reshape(view) for each in (mean, variance))
        gain = np.float32(1) if weight is None else self._flushed(weight.numpy()).reshape(view)
        start = np.float32(0) if bias is None else self._flushed(bias.numpy()).reshape(view)
        inverse = np.float32(1) / np.sqrt(variance + np.float32(epsilon))
        way = self.rng.integers(3)
        if way == 0:
            return (x - mean) * inverse * gain + start
        if way == 1:
            return (x - mean) / np.sqrt(variance + np.float32(epsilon)) * gain + start
        factor = inverse * gain
        return x * factor + (start - mean * factor)
