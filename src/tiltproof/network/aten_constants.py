"""The part of the ATen table that is arithmetic with constants: batch norm in eval mode, sums, products, quotients.

All of it becomes ``scale * x + shift``; both are worked out in float64 from whatever the parameters are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import UnsupportedOperation
from tiltproof.network.aten import Built, Input, Refused, converter, one_input
from tiltproof.network.graph import Reference


@converter("_native_batch_norm_legit_no_training.default")
def batch_norm(
    shape: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Built:
    one_input(x, weight, bias, mean, variance)
    view = (-1, *[1] * (len(shape) - 1))

    def scale(constants: dict[str, Tensor]) -> Tensor:
        gain = (_value(variance, constants) + epsilon).rsqrt()
        return (gain if weight is None else gain * _value(weight, constants)).view(view)

    def parts(constants: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        product = _value(mean, constants).view(view) * scale(constants)
        return torch.zeros_like(product) if bias is None else _value(bias, constants).view(view), product

    def shift(constants: dict[str, Tensor]) -> Tensor:
        start, product = parts(constants)
        return start - product

    def size(constants: dict[str, Tensor]) -> Tensor:
        """What the shift's own rounding is relative to: its two parts may nearly cancel."""
        start, product = parts(constants)
        return start.abs() + product.abs()

    def constants_used(constants: dict[str, Tensor]) -> Tensor:
        """All that an evaluation may multiply, add or divide by; the factor makes the limit for 1 / sqrt(variance) 2^20."""
        spread = _value(variance, constants) + epsilon
        used = [_value(mean, constants), spread, spread.rsqrt() * 2.0**20]
        return torch.cat(
            [tensor.flatten() for tensor in [*used, *(_value(c, constants) for c in (weight, bias) if c is not None)]]
        )

    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = {
        "scale": scale,
        "shift": shift,
        "shift_size": size,
        "constants": constants_used,
    }
    return Built("scale", (x.name,), derived=derived)


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


def _value(constant: Any, constants: dict[str, Tensor]) -> Tensor:
    """A live constant in float64; a Python number, such as a parameter's item(), stands for exactly the float64 number it is."""
    if isinstance(constant, Reference):
        constant = constants[constant.name]
    if isinstance(constant, Tensor):
        return constant.double()
    return torch.full(
        (), constant, dtype=torch.float64, device=_device(constants)
    )  # filled there: no copy from the host


def _scaled(
    shape: tuple[int, ...], x: Any, other: Any, scale: Callable[[Tensor], Any], shift: Callable[[Tensor], Any] | None
) -> Built:
    if shape != x.shape:
        raise Refused(f"a constant that changes the shape from {x.shape} to {shape}")

    def fitted(constants: dict[str, Tensor]) -> Tensor:
        value = _value(other, constants)
        extra = max(0, value.ndim - len(shape))
        if any(size != 1 for size in value.shape[:extra]):
            raise UnsupportedOperation(
                "a constant has a row for each picture of a batch",
                got=f"shape {list(value.shape)} while a batch of {value.shape[0]} pictures was traced",
                do="give it one row for all: torch.zeros(1, ...) instead of torch.zeros(len(x), ...)",
            )
        return value.flatten(0, extra) if value.ndim > len(shape) > 0 else value

    def make(function: Callable[[Tensor], Any]) -> Callable[[dict[str, Tensor]], Any]:
        def made(constants: dict[str, Tensor]) -> Tensor:
            value = function(fitted(constants))
            return value if isinstance(value, Tensor) else _value(value, constants)

        return made

    def constants_used(constants: dict[str, Tensor]) -> Tensor:
        made = [fitted(constants), *(make(function)(constants) for function in (scale, shift) if function is not None)]
        return torch.cat([value.flatten() for value in made])

    derived = {"scale": make(scale), "constants": constants_used} | ({"shift": make(shift)} if shift else {})
    return Built("scale", (x.name,), {} if shift else {"shift": None}, derived)


def _device(constants: dict[str, Tensor]) -> torch.device | None:
    return next((value.device for value in constants.values() if isinstance(value, Tensor)), None)


def _sum(shape: Any, x: Any, other: Any, kind: str, alpha: float) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        if alpha != 1 or x.shape != other.shape:
            raise Refused(f"a sum of branches of shapes {x.shape} and {other.shape} with factor {alpha}")
        return Built(kind, (x.name, other.name))
    sign = alpha if kind == "add" else -alpha
    if isinstance(x, Input):
        return _scaled(shape, x, other, lambda c: 1.0, lambda c: sign * c)
    return _scaled(shape, other, x, lambda c: float(sign), lambda c: c)


@converter("add.Tensor", "add.Scalar")
def add(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, x, other, "add", alpha)


@converter("sub.Tensor", "sub.Scalar")
def sub(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, x, other, "sub", alpha)


@converter("rsub.Scalar", "rsub.Tensor")
def rsub(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, other, x, "sub", alpha)


@converter("mul.Tensor", "mul.Scalar")
def mul(shape: Any, x: Any, other: Any) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        raise Refused("a product of two branches")
    x, other = (x, other) if isinstance(x, Input) else (other, x)
    return _scaled(shape, x, other, lambda c: c, None)


@converter("div.Tensor", "div.Scalar")
def div(shape: Any, x: Any, other: Any) -> Built:
    if isinstance(other, Input):
        raise Refused("a division by something that depends on the picture")
    return _scaled(shape, x, other, lambda c: c.reciprocal(), None)


@converter("neg.default")
def neg(shape: Any, x: Any) -> Built:
    return _scaled(shape, x, -1.0, lambda c: c, None)
