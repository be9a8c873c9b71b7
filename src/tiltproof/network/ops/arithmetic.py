"""Arithmetic with constants, batch norm in eval mode, and sums of branches.

Arithmetic with constants becomes ``scale * x + shift``; both are computed in float64 from the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import gamma
from tiltproof.errors import UnsupportedOperation
from tiltproof.network.graph import Formula, Operation, Reference
from tiltproof.network.ops.base import (
    UNDERFLOW,
    BackwardResult,
    Built,
    Input,
    LinearRule,
    Refused,
    Rule,
    backward_gamma,
    converter,
    evaluated,
    farthest,
    form_lengths,
    lengths,
    ones_length,
    reduced,
    require_constants,
    row_size,
    rule,
)
from tiltproof.network.ops.products import product_of


@rule("scale")
class Scale(LinearRule):
    """y = scale * x + shift with constants: normalization, arithmetic with constants, batch norm in eval mode.

    The constants are float64; rounding them to the bounds' dtype is one of the roundings that ``terms`` counts.
    """

    def _scale(self, operation: Operation, like: Tensor) -> Tensor:
        return operation.once(f"scale {like.dtype}", lambda: operation.settings["scale"].to(like.dtype))

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return x * self._scale(operation, x)

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return x * operation.once(f"absolute {x.dtype}", lambda: self._scale(operation, x).abs())

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        return a * self._scale(operation, a)

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        more = 8 + operation.settings.get("roundings", 0)  # of folded constants
        return more, more

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        shift = operation.settings["shift"]
        if shift is None:
            return None
        return operation.once(f"shift {like.dtype}", lambda: shift.to(like.dtype).expand(operation.shape))

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """float32 semantics: constants are at most 2^40, so with |x| < 2^60 no order of the steps overflows."""
        result = super().forward(operation, inputs)
        if operation.evaluation:
            result.radius = torch.where(farthest(inputs[0]) < 2.0**60, result.radius, torch.inf)
        return result.with_ball(result.ball)

    def norm(self, operation: Operation, shape: torch.Size) -> float:
        """A diagonal matrix."""
        scale = operation.settings["scale"]
        roundings = operation.settings.get("roundings", 0) + 16
        slack = 1 + gamma(roundings, 2.0**-53)
        return operation.once("norm", lambda: float(scale.double().abs().max()) * slack)

    def shift_size(self, operation: Operation, shift: Tensor) -> Tensor:
        size = operation.settings.get("shift_size")
        return shift.abs() if size is None else size.to(shift.dtype).expand(operation.shape)


@converter("_native_batch_norm_legit_no_training.default")
def batch_norm(
    shape: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Built:
    require_constants(x, weight, bias, mean, variance)
    view = (-1, *[1] * (len(shape) - 1))

    def scale(constants: dict[str, Tensor]) -> Tensor:
        gain = (value_of_constant(variance, constants) + epsilon).rsqrt()
        return (gain if weight is None else gain * value_of_constant(weight, constants)).view(view)

    def parts(constants: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        product = value_of_constant(mean, constants).view(view) * scale(constants)
        return torch.zeros_like(product) if bias is None else value_of_constant(bias, constants).view(view), product

    def shift(constants: dict[str, Tensor]) -> Tensor:
        start, product = parts(constants)
        return start - product

    def size(constants: dict[str, Tensor]) -> Tensor:
        """The size that roundings of the shift are relative to: its two parts may nearly cancel."""
        start, product = parts(constants)
        return start.abs() + product.abs()

    def constants_used(constants: dict[str, Tensor]) -> Tensor:
        """Everything an evaluation may multiply, add or divide by; the factor limits 1 / sqrt(variance) to 2^20."""
        spread = value_of_constant(variance, constants) + epsilon
        used = [value_of_constant(mean, constants), spread, spread.rsqrt() * 2.0**20]
        return torch.cat(
            [
                tensor.flatten()
                for tensor in [*used, *(value_of_constant(c, constants) for c in (weight, bias) if c is not None)]
            ]
        )

    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = {
        "scale": scale,
        "shift": shift,
        "shift_size": size,
        "constants": constants_used,
    }
    formula = Formula("batch norm", (variance, epsilon, weight, mean, bias))
    return Built("scale", (x.name,), {"formula": formula}, derived)


@converter("batch_norm.default")
def batch_norm_module(
    shape: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
    cudnn: bool,
) -> Built:
    if training:
        raise Refused("batch norm that uses the batch's own statistics")
    return batch_norm(shape, x, weight, bias, mean, variance, momentum, epsilon)


EXACT = Formula("exact", ())
"""Of constants that are taken as they are, or with the other sign."""


def scaled_by(
    shape: tuple[int, ...],
    x: Any,
    other: Any,
    scale: Callable[[Tensor], Any],
    shift: Callable[[Tensor], Any] | None,
    formula: Formula | None = None,
) -> Built:
    """scale(c) x + shift(c) for a constant c. ``formula``: how they round."""
    if shape != x.shape:
        raise Refused(f"a constant that changes the shape from {x.shape} to {shape}")

    def fitted(constants: dict[str, Tensor]) -> Tensor:
        value = value_of_constant(other, constants)
        extra = max(0, value.ndim - len(shape))
        if any(size != 1 for size in value.shape[:extra]):
            raise UnsupportedOperation(
                "a constant has a row for each image of a batch",
                got=f"shape {list(value.shape)} while a batch of {value.shape[0]} images was traced",
                do="give it one row for all: torch.zeros(1, ...) instead of torch.zeros(len(x), ...)",
            )
        return value.flatten(0, extra) if value.ndim > len(shape) > 0 else value

    def make(function: Callable[[Tensor], Any]) -> Callable[[dict[str, Tensor]], Any]:
        def made(constants: dict[str, Tensor]) -> Tensor:
            value = function(fitted(constants))
            return value if isinstance(value, Tensor) else value_of_constant(value, constants)

        return made

    def constants_used(constants: dict[str, Tensor]) -> Tensor:
        made = [fitted(constants), *(make(function)(constants) for function in (scale, shift) if function is not None)]
        return torch.cat([value.flatten() for value in made])

    derived = {"scale": make(scale), "constants": constants_used} | ({"shift": make(shift)} if shift else {})
    return Built("scale", (x.name,), {"formula": formula} | ({} if shift else {"shift": None}), derived)


def value_of_constant(constant: Any, constants: dict[str, Tensor]) -> Tensor:
    """A constant in float64; a Python number, such as a parameter's item(), is exactly that float64 number."""
    if isinstance(constant, Reference):
        constant = constants[constant.name]
    if isinstance(constant, Tensor):
        return constant.double()
    return torch.full(
        (), constant, dtype=torch.float64, device=_device(constants)
    )  # filled on the device: no copy from the host


def _device(constants: dict[str, Tensor]) -> torch.device | None:
    return next((value.device for value in constants.values() if isinstance(value, Tensor)), None)


@converter("mul.Tensor", "mul.Scalar")
def mul(shape: Any, x: Any, other: Any) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        return product_of(x, other)
    x, other = (x, other) if isinstance(x, Input) else (other, x)
    return scaled_by(shape, x, other, lambda c: c, None, EXACT)


@converter("div.Tensor", "div.Scalar")
def div(shape: Any, x: Any, other: Any) -> Built:
    """By a branch: times its reciprocal."""
    if isinstance(other, Input):
        inverse = Built("reciprocal", (other.name,), shape=other.shape)
        if isinstance(x, Input):
            if len(x.shape) != len(other.shape):
                raise Refused(f"a quotient of branches of shapes {x.shape} and {other.shape}")
            return Built("product", (x.name, inverse))
        return _scaled_inner(shape, inverse, x)
    return scaled_by(shape, x, other, lambda c: c.reciprocal(), None, Formula("reciprocal", (other,)))


def _scaled_inner(shape: Any, inner: Built, factor: Any) -> Built:
    """A constant times an operation built here."""
    assert inner.shape is not None
    built = scaled_by(shape, Input("", inner.shape), factor, lambda c: c, None)
    built.inputs = (inner,)
    return built


@converter("neg.default")
def neg(shape: Any, x: Any) -> Built:
    return scaled_by(shape, x, -1.0, lambda c: c, None, EXACT)


@rule("add")
class Add(Rule):
    """Sum of two branches: the shared symbols add up or cancel as they should. A dimension of size 1 serves all entries of the other."""

    sign = 1

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        first, second = inputs
        return evaluated(first + second if self.sign > 0 else first - second, 2, operation.evaluation)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        first, second = inputs
        result = BackwardResult([reduced(a, first.shape), reduced(self.sign * a, second.shape)])
        served = max(row_size(a) // math.prod(form.shape[1:]) for form in inputs)
        if operation.evaluation or (first.unit and served > 1):
            count = gamma(4, operation.evaluation) + (backward_gamma(served + 4, 1, first.unit) if served > 1 else 0.0)
            sizes = [
                form_lengths(form) if form.shape == a.shape else lengths(form.extent().expand_as(a)) for form in inputs
            ]
            result.rounding_budget = (sizes[0] + sizes[1] + UNDERFLOW * ones_length(a)) * count
        return result


@rule("sub")
class Sub(Add):
    """Difference of two branches."""

    sign = -1


def _sum(shape: Any, x: Any, other: Any, kind: str, alpha: float) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        if alpha != 1 or len(x.shape) != len(other.shape):
            raise Refused(f"a sum of branches of shapes {x.shape} and {other.shape} with factor {alpha}")
        return Built(kind, (x.name, other.name))
    sign = alpha if kind == "add" else -alpha
    formula = EXACT if abs(alpha) == 1 else None
    if isinstance(x, Input):
        return scaled_by(shape, x, other, lambda c: 1.0, lambda c: sign * c, formula)
    return scaled_by(shape, other, x, lambda c: float(sign), lambda c: c, formula)


@converter("add.Tensor", "add.Scalar")
def add(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, x, other, "add", alpha)


@converter("sub.Tensor", "sub.Scalar")
def sub(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, x, other, "sub", alpha)


@converter("rsub.Scalar", "rsub.Tensor")
def rsub(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, other, x, "sub", alpha)
