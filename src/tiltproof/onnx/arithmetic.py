"""Sums, differences, products and quotients with constants and of branches; as in `ops`, each with its rounding, reader and writer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.onnx.constants import folded
from tiltproof.onnx.curves import gate
from tiltproof.onnx.module import Draft, Image, Masked, Value
from tiltproof.onnx.protobuf import Node
from tiltproof.onnx.registry import (
    GraphDraft,
    Operation,
    image,
    reads,
    rounds,
    writes,
    writes_one_node,
)
from tiltproof.step_module import Step


def scaled_or_shifted(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    operation, constant = step.settings["operation"], step.constants["constant"].abs()
    factor = (
        constant if operation is torch.mul else 1 / constant if operation is torch.div else torch.ones_like(constant)
    )
    error = factor * errors[0]
    return error + 2 * unit * (result.abs() + error)


@rounds(scaled_or_shifted)
def with_constant(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(x, constant)


@rounds(scaled_or_shifted)
def constant_with(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(constant, x)


def branches(_step: Step, _read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    error = errors[0] + errors[1]
    return error + 2 * unit * (result.abs() + error)


def quotient_of_branches(_step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """Infinite where the divisor may be 0."""
    least = read[1].abs() - errors[1]
    error = torch.where(least > 0, (errors[0] + result.abs() * errors[1]) / least, math.inf)
    return error + 2 * unit * (result.abs() + error)


@rounds(quotient_of_branches)
def quotient(x: Tensor, other: Tensor) -> Tensor:
    return x / other


def over_branch(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    ahead = step.constants["constant"].expand_as(result)
    return quotient_of_branches(step, [ahead, read[0]], [torch.zeros_like(result), errors[0]], result, unit)


@rounds(over_branch)
def constant_over(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return constant / x


def product_of_branches(_step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    error = read[0].abs() * errors[1] + read[1].abs() * errors[0] + errors[0] * errors[1]
    return error + 2 * unit * (result.abs() + error)


BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": rounds(branches)(torch.add),
    "Sub": rounds(branches)(torch.sub),
    "Mul": rounds(product_of_branches)(torch.mul),
    "Div": torch.div,
}


def infinite(value: Value | None) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())


def with_mask(draft: Draft, node: Node, values: list[Value | None]) -> Masked:
    """A value and a constant with minus infinity where it takes entries out of a softmax, and other numbers elsewhere."""
    x, added = values if isinstance(values[0], Image) else values[::-1]
    x = image(node, x)
    assert isinstance(added, Tensor)
    taking = fitted_constant(node, (added > -math.inf).to(draft.dtype), x.shape)
    more = added.masked_fill(added == -math.inf, 0.0)
    result = x if not bool(more.any()) else arithmetic(draft, node, [x, more])
    assert isinstance(result, Image)
    return Masked(result, taking)


def fitted_constant(node: Node, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A constant spread to [1, ...], the same for every image."""
    whole = (1, *shape)
    if value.ndim > len(whole) or any(a not in (1, b) for a, b in zip(value.shape[::-1], whole[::-1], strict=False)):
        raise node.refusal(f"has a constant of shape {list(value.shape)} for {list(shape)}")
    return value.expand(whole).clone()


@reads(*BINARY)
def arithmetic(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(2)
    function = BINARY[node.op]
    first, second = values
    if node.op == "Add" and any(infinite(value) for value in values):
        return with_mask(draft, node, values)
    if isinstance(first, Image) and isinstance(second, Image):
        joined = gate(draft, node, first, second) if node.op == "Mul" else None
        if joined is not None:
            return joined
        if len(first.shape) != len(second.shape):
            raise node.refusal(f"joins branches of shapes {list(first.shape)} and {list(second.shape)}")
        return draft.add(node, quotient if node.op == "Div" else function, (first, second))
    x, constant = (first, second) if isinstance(first, Image) else (second, first)
    if not isinstance(x, Image) or not isinstance(constant, Tensor):
        return folded(node, first, second, function)
    if node.op == "Div" and x is first and bool((constant == 0).any()):
        raise node.refusal("divides by zero")
    whole = len(x.shape) + 1
    if constant.ndim > whole or (constant.ndim == whole and constant.shape[0] != 1):
        raise node.refusal(
            f"has a constant of shape {list(constant.shape)}, which differs between the images of a batch"
        )
    made = with_constant if x is first else constant_over if node.op == "Div" else constant_with
    result = draft.add(node, made, (x,), {"constant": constant}, operation=function)
    if result.shape != x.shape:
        raise node.refusal(f"spreads {list(x.shape)} to {list(result.shape)}")
    return result


writes_one_node("add", "Add")
writes_one_node("sub", "Sub")
writes_one_node("product", "Mul")


@writes("square")
def write_square(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Mul", inputs * 2, output)
