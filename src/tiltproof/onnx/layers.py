"""Kernels that slide over a picture: their strides and padding, as ONNX writes them and as torch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.errors import shown
from tiltproof.onnx.module import Draft, Picture, Value
from tiltproof.onnx.protobuf import INTEGERS, TEXT, Node

MOST = 2**15
"""Size of a kernel, a stride, a padding or a dilation."""


@dataclass(frozen=True)
class Sliding:
    """A window's geometry in two dimensions; ``begin`` and ``end`` are the padding before and after each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    begin: tuple[int, int]
    end: tuple[int, int]

    @property
    def even(self) -> bool:
        """Whether the padding is the same on both sides, as torch's layers have it."""
        return self.begin == self.end


def sliding(node: Node, kernel: tuple[int, ...], shape: tuple[int, ...]) -> Sliding:
    """Take strides, dilations, pads and auto_pad off the node; ``shape`` [C, H, W] is that of what it reads."""
    if len(kernel) != 2 or len(shape) != 3:
        raise node.refusal(f"slides a kernel {list(kernel)} over {list(shape)}; pictures [C, H, W] alone have rules")
    stride, dilation = _pair(node, "strides", 1), _pair(node, "dilations", 1)
    how = node.take("auto_pad", TEXT) or "NOTSET"
    pads = node.take("pads", INTEGERS)
    size = (kernel[0], kernel[1])
    if how in ("SAME_UPPER", "SAME_LOWER") and pads is None:
        total = [
            max((-(-length // s) - 1) * s + (k - 1) * d + 1 - length, 0)
            for length, k, s, d in zip(shape[1:], size, stride, dilation, strict=True)
        ]
        less, more = (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)
        begin, end = (less, more) if how == "SAME_UPPER" else (more, less)
    elif how == "NOTSET" or (how == "VALID" and pads is None):
        pads = [0, 0, 0, 0] if pads is None else pads
        if len(pads) != 4:
            raise node.refusal(f"has {len(pads)} pads instead of 4")
        begin, end = (pads[0], pads[1]), (pads[2], pads[3])
    else:
        raise node.refusal(
            f"has auto_pad = {shown(how, 20)} together with pads" if pads else f"has auto_pad {shown(how, 20)}"
        )
    if any(not 1 <= n <= MOST for n in (*size, *stride, *dilation)) or any(not 0 <= n <= MOST for n in (*begin, *end)):
        raise node.refusal("has a kernel, stride, dilation or padding of no possible size")
    return Sliding(size, stride, dilation, begin, end)


def kernel_shape(node: Node) -> tuple[int, ...]:
    return tuple(node.take("kernel_shape", INTEGERS) or ())


def _pair(node: Node, name: str, default: int) -> tuple[int, int]:
    values = node.take(name, INTEGERS)
    if values is None:
        return default, default
    if len(values) != 2:
        raise node.refusal(f"has {len(values)} {name} instead of 2")
    return values[0], values[1]


# Nodes that compute: layers, activations, pooling and arithmetic. Each converter says which use of its node has a rule.


Converter = Callable[[Draft, Node, list[Value | None]], Value]
LAYERS: dict[str, Converter] = {}
MOST_PRODUCTS = 2**36
"""Of one layer, for one picture."""


def converter(table: dict[str, Converter], *ops: str) -> Callable[[Converter], Converter]:
    def register(function: Converter) -> Converter:
        table.update(dict.fromkeys(ops, function))
        return function

    return register


def picture(node: Node, value: Value | None) -> Picture:
    if not isinstance(value, Picture):
        raise node.refusal("reads a constant where only something computed from the picture has a rule")
    return value


def constant(node: Node, value: Value | None) -> Tensor:
    if not isinstance(value, Tensor):
        raise node.refusal("has weights that are not constants of the file")
    return value


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def pad_zeros(x: Tensor, *, pad: tuple[int, ...]) -> Tensor:
    return F.pad(x, pad)


@converter(LAYERS, "Conv")
def conv(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(2, 3)
    x, weight = picture(node, values[0]), constant(node, values[1])
    given = kernel_shape(node)
    if weight.ndim != 4 or (given and given != tuple(weight.shape[2:])):
        raise node.refusal(f"has weights of shape {list(weight.shape)} for a kernel {list(given)}")
    window, groups = sliding(node, tuple(weight.shape[2:]), x.shape), node.integer("group", 1)
    if groups < 1 or weight.shape[0] % groups:
        raise node.refusal(f"has {groups} groups for {weight.shape[0]} outputs")
    constants = {"weight": weight}
    if len(values) == 3 and values[2] is not None:
        constants["bias"] = constant(node, values[2])
    padding = window.begin
    if not window.even:  # zeros around the picture first, then a convolution without padding
        around = (window.begin[1], window.end[1], window.begin[0], window.end[0])
        x, padding = draft.add(node, pad_zeros, (x,), pad=around), (0, 0)
    geometry: dict[str, Any] = {"stride": window.stride, "padding": padding, "dilation": window.dilation}
    result = draft.add(node, convolve, (x,), constants, **geometry, groups=groups)
    if result.shape[1] * result.shape[2] * weight.numel() > MOST_PRODUCTS:
        raise node.refusal("takes more products than any network here does")
    return result


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@converter(LAYERS, "Gemm")
def gemm(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    """alpha A' B' + beta C; with alpha = beta = 1 and A as it stands, a linear layer."""
    node.count(2, 3)
    x, weight = picture(node, values[0]), constant(node, values[1])
    node.only(alpha=1.0, beta=1.0, transA=0)
    turned = node.flag("transB")
    if weight.ndim != 2 or len(x.shape) != 1:
        raise node.refusal(
            f"multiplies {list(x.shape)} with {list(weight.shape)}; flat inputs and a matrix have a rule"
        )
    constants = {"weight": weight if turned else weight.t()}
    if len(values) == 3 and values[2] is not None:
        bias, outputs = constant(node, values[2]), len(constants["weight"])
        if bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1) or bias.shape[-1:] not in ((), (1,), (outputs,)):
            raise node.refusal(f"adds a constant of shape {list(bias.shape)} to {outputs} outputs")
        constants["bias"] = bias.reshape(-1).expand(outputs).clone()
    return draft.add(node, linear, (x,), constants)


@converter(LAYERS, "MatMul")
def matmul(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(2)
    x, weight = picture(node, values[0]), constant(node, values[1])
    if weight.ndim != 2 or len(x.shape) != 1:
        raise node.refusal(
            f"multiplies {list(x.shape)} with {list(weight.shape)}; flat inputs and a matrix have a rule"
        )
    return draft.add(node, linear, (x,), {"weight": weight.t()})


def normalise(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon)


@converter(LAYERS, "BatchNormalization")
def batch_norm(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(5)
    node.only(training_mode=0)
    node.number("momentum", 0.9)  # of training alone
    epsilon = node.number("epsilon", float(np.float32(1e-5)))
    weight, bias, mean, variance = (constant(node, value) for value in values[1:])
    if not epsilon >= 0 or bool((variance < 0).any()) or bool((variance + epsilon <= 0).any()):
        raise node.refusal("divides by a variance that is not positive")
    constants = {"mean": mean, "variance": variance, "weight": weight, "bias": bias}
    return draft.add(node, normalise, (picture(node, values[0]),), constants, epsilon=epsilon)


def leaky(x: Tensor, *, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


@converter(LAYERS, "LeakyRelu")
def leaky_relu(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1)
    slope = node.number("alpha", float(np.float32(0.01)))
    if not 0 <= slope <= 1:
        raise node.refusal(f"has alpha = {slope}; 0 to 1 has a rule")
    return draft.add(node, leaky, (picture(node, values[0]),), slope=slope)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Neg": torch.neg,
}


@converter(LAYERS, *FUNCTIONS)
def plain(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1)
    return draft.add(node, FUNCTIONS[node.op], (picture(node, values[0]),))


def _pooling(node: Node, x: Picture) -> Sliding:
    window = sliding(node, kernel_shape(node), x.shape)
    if not window.even or any(2 * p > k for p, k in zip(window.begin, window.kernel, strict=True)):
        raise node.refusal(
            f"pads by {list(window.begin + window.end)}; equal padding, at most half the kernel, has a rule"
        )
    return window


def largest(
    x: Tensor, *, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding, dilation)


@converter(LAYERS, "MaxPool")
def max_pool(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1)
    x = picture(node, values[0])
    node.only(ceil_mode=0, storage_order=0)
    w = _pooling(node, x)
    return draft.add(node, largest, (x,), kernel=w.kernel, stride=w.stride, padding=w.begin, dilation=w.dilation)


def average(
    x: Tensor, *, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], include: bool
) -> Tensor:
    return F.avg_pool2d(x, kernel, stride, padding, False, include)


@converter(LAYERS, "AveragePool")
def average_pool(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1)
    x = picture(node, values[0])
    node.only(ceil_mode=0)
    w, include = _pooling(node, x), node.flag("count_include_pad")
    if w.dilation != (1, 1):
        raise node.refusal("has dilations")
    include = include or w.begin == (0, 0)
    return draft.add(node, average, (x,), kernel=w.kernel, stride=w.stride, padding=w.begin, include=include)


def average_all(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, (1, 1))


@converter(LAYERS, "GlobalAveragePool")
def global_average_pool(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1)
    x = picture(node, values[0])
    if len(x.shape) != 3:
        raise node.refusal(f"averages {list(x.shape)}; pictures [C, H, W] have a rule")
    return draft.add(node, average_all, (x,))
