"""Nodes that add, subtract, multiply and divide: a branch and a constant, or two branches of a residual network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.onnx.layers import Converter, converter, linear
from tiltproof.onnx.module import Draft, Picture, Step, Value
from tiltproof.onnx.protobuf import Node

ARITHMETIC: dict[str, Converter] = {}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}


def with_constant(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(x, constant)


def constant_with(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(constant, x)


def merge_biases(draft: Draft, result: int) -> int:
    """Make a product with weights and the sum with a constant that follows it one linear layer: the same sum, with tighter bounds.

    Done when all steps are known, and counted by steps: a file may call one value by several names (Identity, Dropout), and whatever
    else reads the product must still find it without the bias. Returns the place of the step that was at ``result``.
    """
    readers = Counter(place for step in draft.steps for place in step.reads) + Counter([result])
    gone = set()
    for number, step in enumerate(draft.steps):
        place = step.reads[0]
        if not place or readers[place] != 1 or step.settings.get("operation") is not torch.add:
            continue
        product, bias = draft.steps[place - 1], step.constants["constant"]
        weight = (
            product.constants.get("weight") if product.function is linear and product.names == ("weight",) else None
        )
        if weight is not None and bias.numel() == len(weight) and bias.shape[-1:] == (len(weight),):
            draft.steps[number] = Step(linear, product.reads, {"weight": weight, "bias": bias.reshape(-1)}, {})
            draft.labels[number] = draft.labels[place - 1]
            gone.add(place)
    return draft.without(gone, result)


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
    made = with_constant if x is first else constant_with
    result = draft.add(node, made, (x,), {"constant": constant}, operation=function)
    if result.shape != x.shape:
        raise node.refusal(f"spreads {list(x.shape)} to {list(result.shape)}")
    return result
