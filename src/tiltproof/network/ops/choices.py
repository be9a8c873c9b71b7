"""Comparisons with a number, and choices between values by a comparison or by a constant mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import UnsupportedOperation
from tiltproof.network.graph import Reference
from tiltproof.network.ops.base import Built, Input, Masked, Refused, converter, shape_of
from tiltproof.network.ops.piecewise import distance, fitted, number, scaled, step_of

Taking = Callable[[dict[str, Tensor]], Tensor]


@converter("gt.Scalar", "ge.Scalar")
def above(shape: Any, x: Any, bound: Any) -> Built:
    """1 where x is above the bound, 0 below it, and either at the bound."""
    return step_of(distance(x, number("bound", bound)), shape, 0.0, 1.0)


@converter("lt.Scalar", "le.Scalar")
def below(shape: Any, x: Any, bound: Any) -> Built:
    return step_of(distance(x, -number("bound", bound), -1.0), shape, 0.0, 1.0)


@converter("where.self", "where.ScalarOther", "where.ScalarSelf")
def where(shape: Any, condition: Any, x: Any, other: Any) -> Built | Masked:
    branches = [each for each in (x, other) if isinstance(each, Input)]
    if any(each.shape != shape for each in branches) or not branches:
        raise Refused(f"a choice that spreads {[each.shape for each in branches]} to {shape}, or between constants")
    if isinstance(condition, Input):
        return _by_comparison(shape, condition, x, other)
    return _by_mask(shape, condition, x, other)


@converter("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(shape: Any, x: Any, mask: Any, value: Any) -> Built | Masked:
    return where(shape, mask, value, x)


def _by_comparison(shape: tuple[int, ...], condition: Input, x: Any, other: Any) -> Built:
    """other + condition (x - other)."""
    if condition.shape != shape:
        raise Refused(f"a choice by {condition.shape} between branches of shape {shape}")
    if isinstance(x, Input) and isinstance(other, Input):
        apart = Built("sub", (x.name, other.name), shape=shape)
        return Built("add", (other.name, _product(condition, apart)))
    if isinstance(x, Input):
        apart = scaled(x.name, shape, 1.0, _finite(other, shape, -1.0))
        return scaled(_product(condition, apart), shape, 1.0, _finite(other, shape, 1.0))
    apart = scaled(other.name, shape, -1.0, _finite(x, shape, 1.0))
    return Built("add", (other.name, _product(condition, apart)))


def _product(condition: Input, apart: Built) -> Built:
    return Built("product", (condition.name, apart), shape=apart.shape)


def _by_mask(shape: tuple[int, ...], mask: Any, x: Any, other: Any) -> Built | Masked:
    """m x + (1 - m) other, whose products with 0 and 1 are exact."""
    if not isinstance(mask, Reference) or torch.broadcast_shapes(shape_of(mask), (1, *shape)) != (1, *shape):
        raise Refused(f"a choice by a constant of shape {shape_of(mask)} for branches of shape {shape}")
    chosen, rest = _taking(mask, shape, True), _taking(mask, shape, False)
    for branch, value, taking in ((x, other, chosen), (other, x, rest)):
        if isinstance(value, (int, float)) and value == -math.inf:
            return Masked(branch.name, shape, taking)
    if not isinstance(x, Input):
        x, other, chosen, rest = other, x, rest, chosen
    kept = scaled(x.name, shape, _share(chosen))
    if isinstance(other, Input):
        return Built("add", (kept, scaled(other.name, shape, _share(rest))))
    value, share = _finite(other, shape, 1.0), _share(rest)
    return scaled(x.name, shape, _share(chosen), lambda constants: share(constants) * value(constants))


def _taking(mask: Reference, shape: tuple[int, ...], wanted: bool) -> Taking:
    """Which entries the mask chooses, or which it does not, for one image."""

    def made(constants: dict[str, Tensor]) -> Tensor:
        value = constants[mask.name]
        value = value.flatten(0, value.ndim - len(shape)) if value.ndim > len(shape) else value
        return (value.expand(shape) != 0) == wanted

    return made


def _share(taking: Taking) -> Taking:
    return lambda constants: taking(constants).double()


def _finite(value: Any, shape: tuple[int, ...], factor: float) -> Taking:
    made = fitted(value, shape, factor)

    def checked(constants: dict[str, Tensor]) -> Tensor:
        result = made(constants)
        if not bool(result.isfinite().all()):
            raise UnsupportedOperation(
                "a choice of NaN or infinity",
                do="take scores out of a softmax with scores.masked_fill(mask, float('-inf')), mask a constant",
            )
        return result

    return checked
