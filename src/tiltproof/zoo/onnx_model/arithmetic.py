"""Nodes that add, subtract, multiply and divide: a branch and a constant, or two branches of a residual network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.zoo.onnx_model.layers import Converter, converter, linear
from tiltproof.zoo.onnx_model.node import Node
from tiltproof.zoo.onnx_model.steps import Draft, Picture, Value

ARITHMETIC: dict[str, Converter] = {}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}


def with_constant(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(x, constant)


def constant_with(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(constant, x)


def _takes_bias(draft: Draft, x: Picture, name: str, constant: Tensor) -> bool:
    """MatMul and then Add, read by nothing between them, is a linear layer with a bias: the same sum, and a layer has tighter bounds."""
    step = draft.steps[x.place - 1] if x.place else None
    if step is None or step.function is not linear or "bias" in step.names or draft.uses[name] != 1:
        return False
    if constant.shape[-1:] != x.shape or constant.numel() != x.shape[0] or constant.dtype != draft.dtype:
        return False
    step.hold("bias", constant.reshape(-1))
    return True


@converter(ARITHMETIC, *FUNCTIONS)
def arithmetic(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(2)
    function = FUNCTIONS[node.op]
    first, second = values
    if isinstance(first, Picture) and isinstance(second, Picture):
        if node.op not in ("Add", "Sub"):
            raise node.refusal("joins two branches; sums and differences of branches have rules")
        if first.shape != second.shape:
            raise node.refusal(f"joins branches of shapes {list(first.shape)} and {list(second.shape)}")
        return draft.add(node, function, (first, second))
    x, constant = (first, second) if isinstance(first, Picture) else (second, first)
    if not isinstance(x, Picture) or not isinstance(constant, Tensor):
        raise node.refusal("computes with constants or shapes alone", do="export with constants folded")
    if node.op == "Div" and x is second:
        raise node.refusal("divides by something that depends on the picture")
    if node.op == "Div" and bool((constant == 0).any()):
        raise node.refusal("divides by zero")
    whole = len(x.shape) + 1
    if constant.ndim > whole or (constant.ndim == whole and constant.shape[0] != 1):
        raise node.refusal(
            f"has a constant of shape {list(constant.shape)}, which would tell pictures of a batch apart"
        )
    if node.op == "Add" and _takes_bias(draft, x, node.inputs[0 if x is first else 1], constant):
        return x
    made = with_constant if x is first else constant_with
    result = draft.add(node, made, (x,), {"constant": constant}, operation=function)
    if result.shape != x.shape:
        raise node.refusal(f"spreads {list(x.shape)} to {list(result.shape)}")
    return result
