"""Normalization by the image's own statistics: layer, group, instance and RMS norm.

Each becomes a few operations, whose rules are below and in `products`: x - mean(x), the mean of squares of that, 1 / sqrt(v + eps), the
product of the first and the last, and weight and bias as a ``scale``.

float32 semantics: libraries work out mean and variance in one pass or two (Welford, or mean(x^2) - mean(x)^2), and normalize as
(x - m) r w + b or as x (r w) + (b - m r w). The rounding of x - m is therefore relative to |x| + mean|x|, and that of a variance of n
numbers is taken as gamma_(8 n + 64) mean(x^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, absolute_sum
from tiltproof.enclosures.rounding import gamma, widen
from tiltproof.network.graph import Operation, Reference
from tiltproof.network.ops.arithmetic import batch_norm, value_of_constant
from tiltproof.network.ops.base import (
    OVERFLOW,
    UNDERFLOW,
    BackwardResult,
    Built,
    Input,
    LinearRule,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    farthest,
    lengths,
    row_size,
    rule,
)
from tiltproof.network.ops.convex import Convex
from tiltproof.network.ops.products import narrower


def _mean(operation: Operation, x: Tensor) -> Tensor:
    return x.mean(operation.settings["dim"], keepdim=True)


def _count(operation: Operation, shape: torch.Size) -> int:
    return math.prod(shape[dim] for dim in operation.settings["dim"])


@rule("centered")
class Centered(LinearRule):
    """y_i = x_i - (x_1 + ... + x_n) / n, over some dimensions.

    Computed as a mean and a difference it is off by at most gamma_(n+2) (|x_i| + mean|x|), at most 3 times |L| |x| for n >= 2.
    """

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return x - _mean(operation, x)

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        """|L| has 1 - 1 / n on its diagonal and 1 / n elsewhere."""
        return x * (1 - 2 / _count(operation, x.shape)) + _mean(operation, x)

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        return self.signed(operation, a)

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        count = 4 * _count(operation, shape) + 32
        return count, count

    def divisor(self, operation: Operation, shape: torch.Size) -> int:
        return _count(operation, shape)


@rule("mean_square")
class MeanSquare(Rule):
    """y = mean(x_i^2) over some dimensions. A second input, if there is one, is what x is the centered part of (float32 semantics).

    x_i = c_i + D_i, so that y = mean(2 c_i x_i - c_i^2) + mean(D_i^2), and 0 <= mean(D_i^2) <= W. With D_i = sum_k G_ik e_k + rho_i and
    Q_jk = mean(G_ij G_ik), in which the entries' shares cancel, W = sum_k Q_kk + 2 sum_(j < k) |Q_jk| + mean(2 sum_k |G_ik| r_i + r_i^2).
    """

    def _second_order(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """W; and, to move Q_11 e^2 into the second symbol of quadratic forms, Q_11 and a bound of |mean(D_i^2) - Q_11 e^2|."""
        slopes, radius = form.slopes, form.radius
        along = absolute_sum(slopes) if form.symbols else torch.zeros_like(radius)
        rest = _mean(operation, (2 * along + radius) * radius)
        first = torch.zeros_like(rest)
        for k in range(form.symbols):
            own = _mean(operation, slopes[k] * slopes[k])
            first, rest = (own, rest) if k == 0 else (first, rest + own)
            for j in range(k):
                rest = rest + 2 * _mean(operation, slopes[j] * slopes[k]).abs()
        roundings = _count(operation, form.shape) + 2 * form.symbols * (form.symbols + 1) + 8
        # the sums Q_jk may cancel: they round relative to the squares of |G|
        size = _mean(operation, along * along)
        return widen(first + rest, size, roundings, form.unit), first, widen(rest, size, roundings, form.unit)

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """Or the mean of the intervals of squares, where that is narrower; or, so that an evaluation is no further below 0 than it rounds,
        where the form would be negative."""
        form = inputs[0]
        most, first, other = self._second_order(operation, form)
        center, half = form.center, most / 2
        planes = [_mean(operation, center * center), *(_mean(operation, 2 * center * slope) for slope in form.slopes)]
        quadratic = form.quadratic and form.symbols > 1
        if quadratic:
            shared = other < half
            planes[0] = planes[0] + torch.where(shared, first / 2, half)
            planes[2] = planes[2] + torch.where(shared, first / 2, 0.0)
            rest = torch.where(shared, other, half)
        else:
            planes[0], rest = planes[0] + half, half
        count = _count(operation, form.shape)
        magnitude = form.magnitude()
        size = _mean(operation, magnitude * magnitude)
        radius = widen(_mean(operation, 2 * center.abs() * form.radius) + rest, size, 2 * count + 16, form.unit)
        result = AffineForm(torch.stack(planes), radius, form.unit, quadratic)
        far = torch.maximum(form.upper.abs(), form.lower.abs())
        near = torch.maximum(form.lower, -form.upper).clamp(min=0)  # 0 inside
        slack = 1 + 2 * gamma(count + 8, form.unit)
        below = result.lower < 0 if operation.evaluation else None
        result = narrower(result, _mean(operation, near * near) / slack, _mean(operation, far * far) * slack, below)
        if operation.evaluation:
            largest = self._evaluated_size(operation, inputs)
            radius = widen(result.radius + largest * self._roundings(operation, form), 0.0, count + 8, form.unit)
            result.radius = torch.where(largest * count < OVERFLOW, radius, torch.inf)
        return result

    def _roundings(self, operation: Operation, form: AffineForm) -> float:
        return gamma(8 * _count(operation, form.shape) + 64, operation.evaluation)

    def _evaluated_size(self, operation: Operation, inputs: list[AffineForm]) -> Tensor:
        """mean(x^2) of what an evaluation reads, for every x."""
        far = farthest(inputs[-1])
        return _mean(operation, far * far) + UNDERFLOW

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a >= 0: y >= mean(2 c_i x_i - c_i^2); a < 0: y <= mean(2 c_i x_i - c_i^2) + W."""
        form = inputs[0]
        most, _, _ = self._second_order(operation, form)
        count, center = _count(operation, form.shape), form.center
        constant = dot(a, -_mean(operation, center.double() * center.double())) + dot(a.clamp(max=0), most)
        shares = [a * (2 * center / count), *(torch.zeros_like(a).expand(len(a), *x.shape[1:]) for x in inputs[1:])]
        result = BackwardResult(shares, constant=constant)
        if form.unit:
            far = farthest(form)
            size = lengths(_mean(operation, (2 * center.abs() + far) * far) + most)
            result.rounding_budget = size * backward_gamma(count + 16, row_size(a), form.unit)
            if operation.evaluation:
                theirs = lengths(self._evaluated_size(operation, inputs))
                result.rounding_budget = result.rounding_budget + theirs * (2 * self._roundings(operation, form))
        return result


@rule("inverse_root")
class InverseRoot(Convex):
    """f(v) = 1 / sqrt(v + epsilon) of a mean of squares v, which is at least 0; one that an evaluation rounds is as low as its form.

    f falls and is convex; f'(v) = -f(v)^3 / 2, so that f' = s at v + epsilon = (-2 s)^(-2/3).
    """

    def ends(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        lower, upper = form.lower.double(), form.upper.double()
        return (lower if operation.evaluation else lower.clamp(min=0)), upper.clamp(min=0)

    def inside(self, operation: Operation, low: Tensor, high: Tensor) -> Tensor:
        return (low + self._epsilon(operation) > 2.0**-60) & (high < 2.0**120)

    def _epsilon(self, operation: Operation) -> float:
        return float(operation.once("epsilon", lambda: float(operation.settings["epsilon"])))

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return (x + self._epsilon(operation)).rsqrt()

    def derivative(self, operation: Operation, x: Tensor) -> Tensor:
        root = self.value(operation, x)
        return root * root * root / -2

    def at_slope(self, operation: Operation, slope: Tensor) -> Tensor:
        return (-2 * slope).pow(-2 / 3) - self._epsilon(operation)

    def evaluation_error(self, operation: Operation, low: Tensor, high: Tensor) -> Tensor:
        """A rounded sum and a library's root: 32 units of the largest value."""
        return gamma(32, operation.evaluation) * self.value(operation, low)


def normalized(x: Input, dims: list[int], epsilon: Any, centered: bool = True) -> Built:
    """d / sqrt(mean(d^2) + epsilon), with d = x or x - mean(x), over these dimensions, counted with the batch."""
    if math.prod(x.shape[dim - 1] for dim in dims) < 2:
        raise Refused("a normalization of single numbers")
    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = {}
    if isinstance(epsilon, (int, float)):
        if not 2.0**-40 <= epsilon <= 2.0**40:
            raise Refused(f"a normalization with eps = {epsilon}")
    else:
        derived, epsilon = {"epsilon": epsilon}, None
    small = tuple(1 if place + 1 in dims else size for place, size in enumerate(x.shape))
    part: str | Built = Built("centered", (x.name,), {"dim": dims}, shape=x.shape) if centered else x.name
    read = (part, x.name) if centered else (part,)
    square = Built("mean_square", read, {"dim": dims}, shape=small)
    root = Built("inverse_root", (square,), {} if derived else {"epsilon": float(epsilon)}, derived, shape=small)
    return Built("product", (part, root), shape=x.shape)


def with_weights(normal: Built, weight: Any, bias: Any, view: tuple[int, ...], shape: tuple[int, ...]) -> Built:
    """weight * normal + bias, each seen as of shape ``view``."""
    if any(isinstance(constant, Input) for constant in (weight, bias)):
        raise Refused("the weights must not depend on the image")
    if weight is None and bias is None:
        return normal

    def scale(constants: dict[str, Any]) -> Tensor:
        return torch.ones_like(shift(constants)) if weight is None else value_of_constant(weight, constants).view(view)

    def shift(constants: dict[str, Any]) -> Tensor:
        return value_of_constant(bias, constants).view(view)

    def constants_used(constants: dict[str, Any]) -> Tensor:
        used = [value_of_constant(each, constants).flatten() for each in (weight, bias) if each is not None]
        return torch.cat(used)

    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = {"scale": scale, "constants": constants_used}
    derived |= {} if bias is None else {"shift": shift}
    normal.shape = shape
    return Built("scale", (normal,), {"shift": None} if bias is None else {}, derived)


@converter("layer_norm.default")
def layer_norm(
    shape: Any,
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    epsilon: float = 1e-5,
    cudnn: Any = None,
) -> Built:
    if not isinstance(x, Input):
        raise Refused("the weights must not depend on the image")
    dims = list(range(1 + len(shape) - len(normalized_shape), 1 + len(shape)))
    if dims[0] < 1:
        raise Refused("a normalization over the batch")
    return with_weights(normalized(x, dims, epsilon), weight, bias, tuple(normalized_shape), shape)


@converter("rms_norm.default")
def rms_norm(shape: Any, x: Any, normalized_shape: Any, weight: Any = None, epsilon: float | None = None) -> Built:
    if not isinstance(x, Input):
        raise Refused("the weights must not depend on the image")
    dims = list(range(1 + len(shape) - len(normalized_shape), 1 + len(shape)))
    if dims[0] < 1:
        raise Refused("a normalization over the batch")
    least: Any = epsilon
    if epsilon is None:  # the machine epsilon of the weights' type
        if not isinstance(weight, Reference):
            raise Refused("an RMS norm without weights and without eps; give eps")
        name = weight.name
        least = lambda constants: constants[name].new_full((), torch.finfo(constants[name].dtype).eps)  # noqa: E731
    return with_weights(normalized(x, dims, least, False), weight, None, tuple(normalized_shape), shape)


@converter("group_norm.default")
def group_norm(
    shape: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, epsilon: float = 1e-5, cudnn: Any = None
) -> Built:
    if not isinstance(x, Input):
        raise Refused("the weights must not depend on the image")
    apart = (groups, math.prod(shape) // groups)
    rows = Built("reshape", (x.name,), shape=apart)
    normal = _of_rows(rows, apart, epsilon)
    return with_weights(Built("reshape", (normal,), shape=shape), weight, bias, (-1, *[1] * (len(shape) - 1)), shape)


def _of_rows(rows: Built, shape: tuple[int, int], epsilon: float) -> Built:
    """`normalized` of an operation built here, over its last dimension."""
    inner = normalized(Input("", shape), [2], epsilon)
    _replace(inner, "", rows)
    return inner


def _replace(built: Built, name: str, other: Built) -> None:
    built.inputs = tuple(other if each == name else each for each in built.inputs)
    for each in built.inputs:
        if isinstance(each, Built) and each is not other:
            _replace(each, name, other)


@converter("instance_norm.default")
def instance_norm(
    shape: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input: bool,
    momentum: float,
    epsilon: float,
    cudnn: Any = None,
) -> Built:
    if not use_input:
        return batch_norm(shape, x, weight, bias, mean, variance, momentum, epsilon)
    return group_norm(shape, x, shape[0], weight, bias, epsilon)
