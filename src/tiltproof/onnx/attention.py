"""Softmax inside the network, and products of two matrices that both depend on the image."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.onnx.module import Draft, Image
from tiltproof.onnx.protobuf import Node
from tiltproof.onnx.registry import (
    GraphDraft,
    Operation,
    gamma,
    rounds,
    writes,
    writes_one_node,
)
from tiltproof.step_module import Step


def product_of_matrices(_step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    (x, z), (e_x, e_z) = (each.abs() for each in read), errors
    error = x @ e_z + e_x @ (z + e_z)
    return error + gamma(x.shape[-1] + 4, unit) * ((x + e_x) @ (z + e_z))


multiply = rounds(product_of_matrices)(torch.matmul)


def product(draft: Draft, node: Node, first: Image, second: Image) -> Image:
    """MatMul of two branches."""
    if len(first.shape) < 2 or len(first.shape) != len(second.shape) or first.shape[:-2] != second.shape[:-2]:
        raise node.refusal(f"multiplies branches of shapes {list(first.shape)} and {list(second.shape)}")
    return draft.add(node, multiply, (first, second))


writes_one_node("matmul", "MatMul")


@writes("softmax")
def write_softmax(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """What takes no part is set to minus infinity before."""
    mask = operation.settings.get("mask")
    if mask is not None and not bool(mask.all()):
        taking = draft.constant(f"{output}.taking", mask.unsqueeze(0).to(torch.int64))
        draft.add("Cast", [taking], f"{output}.mask", to=9)
        out = draft.constant(f"{output}.out", torch.tensor(-torch.inf))
        draft.add("Where", [f"{output}.mask", *inputs, out], f"{output}.masked")
        inputs = [f"{output}.masked"]
    draft.add("Softmax", inputs, output, axis=operation.settings["dim"])
