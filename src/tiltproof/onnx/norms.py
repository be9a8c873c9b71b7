"""Normalization by an image's own statistics, read from ONNX files as one node and written step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.protobuf import Node
from tiltproof.onnx.registry import GraphDraft, Operation, constant, gamma, image, reads, rounds, writes
from tiltproof.step_module import Step

EPSILON = float(np.float32(1e-5))


def normalized(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """x - m and the variance v as any algorithm finds them; then the error of 1 / sqrt(v + eps) where v is least, and of the product."""
    x, e = read[0], errors[0]
    groups, epsilon = step.settings.get("groups"), step.settings["epsilon"]
    flat = [t.reshape(len(t), groups, -1) if groups else t.flatten(-len(step.settings["sizes"])) for t in (x, e)]
    n = flat[0].shape[-1]

    def mean(t: Tensor) -> Tensor:
        return t.mean(-1, keepdim=True)

    size = flat[0].abs() + flat[1]
    d = flat[0] - mean(flat[0])
    e_d = flat[1] + mean(flat[1]) + gamma(n + 16, unit) * (size + mean(size))
    v, e_v = mean(d * d), mean(2 * d.abs() * e_d + e_d * e_d) + gamma(8 * n + 64, unit) * mean(size * size)
    root = (v + epsilon).rsqrt()
    e_root = e_v / 2 * ((v - e_v).clamp(min=0) + epsilon) ** -1.5 + gamma(8, unit) * root
    error = ((d.abs() + e_d) * e_root + root * e_d).reshape(x.shape)
    bias = torch.zeros_like(result)
    if "weight" in step.names:
        weight, shift = step.constants["weight"], step.constants.get("bias")
        view = (-1, *[1] * (x.ndim - 2)) if groups else weight.shape
        error = error * weight.abs().view(view)
        bias = bias if shift is None else bias + shift.abs().view(view)
    return error + gamma(8, unit) * (result.abs() + error + bias)


@rounds(normalized)
def layer_normalize(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, sizes: tuple[int, ...], epsilon: float
) -> Tensor:
    return F.layer_norm(x, sizes, weight, bias, epsilon)


@rounds(normalized)
def group_normalize(x: Tensor, weight: Tensor, bias: Tensor, *, groups: int, epsilon: float) -> Tensor:
    return F.group_norm(x, groups, weight, bias, epsilon)


def _epsilon(node: Node) -> float:
    epsilon = node.number("epsilon", EPSILON)
    if not 2.0**-40 <= epsilon <= 2.0**40:
        raise node.refusal(f"has epsilon = {epsilon}")
    return epsilon


@reads("LayerNormalization")
def layer_normalization(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(2, 3)
    x, axis, epsilon = image(node, values[0]), node.integer("axis", -1), _epsilon(node)
    node.only(stash_type=1)
    sizes = x.shape[axis if axis < 0 else axis - 1 :]
    if axis == 0 or not -len(x.shape) <= axis <= len(x.shape) or math.prod(sizes) < 2:
        raise node.refusal(f"normalizes {list(x.shape)} from axis {axis} on")
    constants: dict[str, Tensor] = {}
    for name, value in zip(("weight", "bias"), values[1:], strict=False):
        if value is not None:
            given = constant(node, value)
            if given.numel() not in (1, math.prod(sizes)):
                raise node.refusal(f"has a {name} of shape {list(given.shape)} for {list(sizes)}")
            constants[name] = given.reshape(-1).expand(math.prod(sizes)).reshape(sizes).clone()
    return draft.add(node, layer_normalize, (x,), constants, sizes=tuple(sizes), epsilon=epsilon)


def _by_channel(
    draft: Draft, node: Node, values: list[Value | None], x: Image, groups: int, **attributes: Any
) -> Image:
    channels = x.shape[0]
    if groups < 1 or channels % groups or math.prod(x.shape) // groups < 2:
        raise node.refusal(f"normalizes {list(x.shape)} in {groups} groups")
    constants = {}
    for name, value in zip(("weight", "bias"), values[1:], strict=True):
        given = constant(node, value).reshape(-1)
        if given.numel() not in (channels, groups):
            raise node.refusal(f"has {given.numel()} numbers for {channels} channels")
        # one number for each group before opset 21
        constants[name] = given.repeat_interleave(channels // given.numel())
    return draft.add(node, group_normalize, (x,), constants, groups=groups, **attributes)


@reads("InstanceNormalization")
def instance_normalization(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(3)
    x = image(node, values[0])
    return _by_channel(draft, node, values, x, x.shape[0], epsilon=_epsilon(node))


@reads("GroupNormalization")
def group_normalization(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(3)
    node.only(stash_type=1)
    groups = node.integer("num_groups", 0)
    return _by_channel(draft, node, values, image(node, values[0]), groups, epsilon=_epsilon(node))


@writes("centered")
def write_centered(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("ReduceMean", inputs[:1], f"{output}.mean", axes=list(operation.settings["dim"]), keepdims=1)
    draft.add("Sub", [inputs[0], f"{output}.mean"], output)


@writes("mean_square")
def write_mean_square(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Mul", [inputs[0]] * 2, f"{output}.square")
    draft.add("ReduceMean", [f"{output}.square"], output, axes=list(operation.settings["dim"]), keepdims=1)


@writes("inverse_root")
def write_inverse_root(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    epsilon = draft.constant(f"{output}.epsilon", torch.as_tensor(operation.settings["epsilon"], dtype=torch.float64))
    draft.add("Add", [inputs[0], epsilon], f"{output}.sum")
    draft.add("Sqrt", [f"{output}.sum"], f"{output}.root")
    draft.add("Reciprocal", [f"{output}.root"], output)
