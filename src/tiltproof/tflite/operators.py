"""Operators on floats, and those that only move numbers, float or whole. Functions and layout are those of Keras files.

A whole number q is held as q - zero, so a padding with TFLite's zero point is a padding with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.keras.layers import (
    Window,
    average,
    average_inside,
    channels_first,
    channels_last,
    every_other,
    join,
    largest,
    linear,
    pad_zeros,
    reshaped,
    same,
)
from tiltproof.keras.settings import MOST, axis_here
from tiltproof.step_module import convolve
from tiltproof.tflite.module import Draft, Given, Value, as_whole, constant, image, value, whole_of
from tiltproof.tflite.registry import reads
from tiltproof.tflite.schema import Node

SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
CLIPPED = {RELU: (0.0, None), RELU_N1_TO_1: (-1.0, 1.0), RELU6: (0.0, 6.0)}
"""Fused activations, and the range they clip to."""
STATIC = (
    "convert it again: with a representative_dataset, so that scales are constants, or without optimizations, as floats"
)


def activated(draft: Draft, node: Node, found: Value, kind: int) -> Value:
    """The fused activation of floats."""
    if kind == NONE:
        return found
    if kind == RELU:
        return draft.step(node, F.relu, (found,))
    if kind == 4:
        return draft.step(node, torch.tanh, (found,))
    if kind not in CLIPPED:
        raise node.refusal(f"has the fused activation {kind}, which has no rule")
    low, high = CLIPPED[kind]
    return draft.step(node, F.hardtanh, (found,), min_val=low, max_val=high)


def pair(node: Node, first: int, second: int, default: int = 0) -> tuple[int, int]:
    """A size in both dimensions, from these option fields."""
    sizes = node.option(first, default=default), node.option(second, default=default)
    if not all(1 <= size <= MOST for size in sizes):
        raise node.refusal(f"has a stride, size or dilation of {sizes}")
    return sizes


def axis_of(node: Node, axis: int, shape: tuple[int, ...]) -> int:
    """The dimension here of the file's axis, which is not the batch."""
    if not -len(shape) <= axis <= len(shape) or axis == 0:
        raise node.refusal(f"works along the axis {axis} of {[1, *shape]}; the batch has to stay as it is")
    return axis_here(axis, shape)


def padding(node: Node) -> bool:
    """Whether it pads to the same size."""
    kind = node.byte(0)
    if kind not in (SAME, VALID):
        raise node.refusal(f"has padding {kind}")
    return kind == SAME


def around(shape: tuple[int, ...], window: Window, pads: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    return same(shape, window) if pads else ((0, 0), (0, 0))


class Product:
    """The weights of a convolution or a linear layer in torch's order, and what else its sum takes."""

    def __init__(self, node: Node, x: Value, given: list[Given]) -> None:
        self.node, self.x = node, x
        weight = constant(node, given[1])
        bias = given[2] if len(given) > 2 else None
        self.bias = None if bias is None else constant(node, bias).reshape(-1)
        self.settings: dict[str, Any] = {}
        if node.op == "FULLY_CONNECTED":
            self.weight, self.function = weight, linear
            if weight.ndim != 2:
                raise node.refusal(f"has weights of shape {list(weight.shape)}")
        else:
            self._convolution(weight)
        if self.bias is not None and len(self.bias) != len(self.weight):
            raise node.refusal(f"has {len(self.bias)} biases for {len(self.weight)} channels")

    function: Callable[..., Tensor]
    pad: tuple[int, ...] | None = None

    def _convolution(self, weight: Tensor) -> None:
        node, self.function = self.node, convolve
        depthwise = node.op == "DEPTHWISE_CONV_2D"
        pads, stride = padding(node), pair(node, 2, 1)
        dilation = pair(node, 6, 5, 1) if depthwise else pair(node, 5, 4, 1)
        channels = image(node, self.x).shape[0]
        if weight.ndim != 4 or 0 in weight.shape or (depthwise and (len(weight) != 1 or weight.shape[3] % channels)):
            raise node.refusal(f"has weights of shape {list(weight.shape)} for {channels} channels")
        groups = channels if depthwise else channels // weight.shape[3]
        if not depthwise and (groups * weight.shape[3] != channels or len(weight) % groups):
            raise node.refusal(f"has weights of shape {list(weight.shape)} for {channels} channels")
        if depthwise and node.option(3) not in (0, weight.shape[3] // channels):
            raise node.refusal(f"has depth_multiplier {node.option(3)} and weights of shape {list(weight.shape)}")
        self.weight = weight.permute((3, 0, 1, 2) if depthwise else (0, 3, 1, 2)).contiguous()
        window = ((int(weight.shape[1]), int(weight.shape[2])), stride, dilation)
        before, after = around(self.x.shape, window, pads)
        if before != after:
            self.pad = (before[1], after[1], before[0], after[0])
            before = (0, 0)
        self.settings = {"stride": stride, "padding": before, "dilation": dilation, "groups": groups}

    @property
    def activation(self) -> int:
        return self.node.byte({"FULLY_CONNECTED": 0, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 4}[self.node.op])

    def add(self, draft: Draft, weight: Tensor, bias: Tensor | None) -> Value:
        """The steps of the sum."""
        x = self.x
        if self.pad is not None:
            x = draft.step(self.node, pad_zeros, (x,), pad=self.pad)
        constants = {"weight": weight} | ({} if bias is None else {"bias": bias})
        return draft.step(self.node, self.function, (x,), constants, **self.settings)


def product_of(draft: Draft, node: Node, given: list[Given]) -> Product:
    x = value(node, given[0])
    if node.op == "FULLY_CONNECTED":
        if node.byte(1):
            raise node.refusal("has weights in a shuffled order")
        keep = node.option(2, "<b")
        node.option(3, "<b")  # of weights of whole numbers under float inputs, which are refused
        if len(x.shape) > 1 and keep:
            raise node.refusal("keeps dimensions before the last one")
        if len(x.shape) > 1:
            x = as_whole(in_order(draft, node, x, (math.prod(x.shape),)), x.whole)
    found = Product(node, x, given)
    node.knows({"FULLY_CONNECTED": 5, "CONV_2D": 7, "DEPTHWISE_CONV_2D": 7}[node.op])
    return found


def product(draft: Draft, node: Node, given: list[Given]) -> Value:
    """A convolution or a linear layer of floats."""
    found = product_of(draft, node, given)
    if not found.weight.dtype.is_floating_point:
        raise node.refusal(
            "rounds what it reads with a scale that depends on the image (dynamic range quantization)", STATIC
        )
    bias = None if found.bias is None else found.bias.float()
    return activated(draft, node, found.add(draft, found.weight.float(), bias), found.activation)


# Arithmetic


def plus_constant(x: Tensor, constant: Tensor) -> Tensor:
    return x + constant


def minus_constant(x: Tensor, constant: Tensor) -> Tensor:
    return x - constant


def minus_from_constant(x: Tensor, constant: Tensor) -> Tensor:
    return constant - x


def times_constant(x: Tensor, constant: Tensor) -> Tensor:
    return x * constant


BRANCHES: dict[str, Callable[..., Tensor]] = {"ADD": torch.add, "SUB": torch.sub, "MUL": torch.mul}
CONSTANT: dict[str, Callable[..., Tensor]] = {"ADD": plus_constant, "SUB": minus_constant, "MUL": times_constant}


def beside(node: Node, number: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A constant as the values [C, H, W] meet it: TFLite lines up last dimensions, which of an image are the channels."""
    rank = len(shape) + 1
    if number.ndim > rank:
        raise node.refusal(f"combines a constant of shape {list(number.shape)} with a value of {len(shape)} dimensions")
    number = number.reshape(*[1] * (rank - number.ndim), *number.shape)
    if number.shape[0] != 1:
        raise node.refusal("has a constant with an entry for each image")
    return (number.permute(0, 3, 1, 2) if rank == 4 else number).contiguous()


def branches(node: Node, given: list[Given]) -> tuple[Value, Value] | tuple[Value, Tensor, bool]:
    """Both values, or a value, a constant and whether the constant comes first."""
    if len(given) != 2:
        raise node.refusal(f"has {len(given)} inputs")
    first, second = given
    if isinstance(first, Tensor):
        x = value(node, second)
        return x, beside(node, first, x.shape), True
    x = value(node, first)
    if isinstance(second, Tensor):
        return x, beside(node, second, x.shape), False
    y = value(node, second)
    if len(x.shape) != len(y.shape):
        raise node.refusal(f"combines values of shapes {list(x.shape)} and {list(y.shape)}")
    return x, y


def arithmetic(draft: Draft, node: Node, given: list[Given]) -> Value:
    """ADD, SUB and MUL of floats."""
    found = branches(node, given)
    node.knows(2)
    if isinstance(found[1], Value):
        result = draft.step(node, BRANCHES[node.op], (found[0], found[1]))
    else:
        function = minus_from_constant if node.op == "SUB" and found[2] else CONSTANT[node.op]
        result = draft.step(node, function, (found[0],), {"constant": found[1].float()})
    return activated(draft, node, result, node.byte(0))


@reads("TANH", "LEAKY_RELU", "HARD_SWISH", "ELU", "ABS", "EXP")
def curve(draft: Draft, node: Node, given: list[Given]) -> Value:
    x = value(node, given[0])
    if x.whole is not None:
        raise node.refusal("is a table of whole numbers here; of floats it has a rule")
    if node.op == "LEAKY_RELU":
        return draft.step(node, F.leaky_relu, (x,), negative_slope=node.real(0))
    functions: dict[str, Any] = {
        "TANH": torch.tanh, "HARD_SWISH": F.hardswish, "ELU": F.elu, "ABS": torch.abs, "EXP": torch.exp
    }  # fmt: skip
    function: Callable[..., Tensor] = functions[node.op]
    return draft.step(node, function, (x,))


# Heads


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, 1)


@reads("SOFTMAX", "LOG_SOFTMAX", "LOGISTIC")
def head(draft: Draft, node: Node, given: list[Given]) -> Value:
    """Of floats as they are: a proof about classes takes them off. Of whole numbers, they are left out at the end."""
    x = value(node, given[0])
    if node.op == "SOFTMAX" and node.real(0) != 1.0:
        raise node.refusal(f"has beta = {node.real(0):g}; only 1 has a rule")
    if node.op != "LOGISTIC" and len(x.shape) not in (1, 3):
        raise node.refusal(f"goes along another axis of {list(x.shape)} than the channels")
    if x.whole is not None:
        return Value(x.place, x.shape, x.whole, (node.op,))
    heads: dict[str, Callable[..., Tensor]] = {
        "SOFTMAX": softmax, "LOG_SOFTMAX": log_softmax, "LOGISTIC": torch.sigmoid
    }  # fmt: skip
    return draft.step(node, heads[node.op], (x,))


# Pooling


def pooling(node: Node, given: list[Given]) -> tuple[Value, Window, tuple[tuple[int, int], tuple[int, int]]]:
    x, pads = image(node, given[0]), padding(node)
    window = (pair(node, 4, 3), pair(node, 2, 1), (1, 1))
    return x, window, around(x.shape, window, pads)


def averages(draft: Draft, node: Node, given: list[Given]) -> Value:
    """Averages over what lies inside of the image."""
    x, window, (before, after) = pooling(node, given)
    geometry: dict[str, Any] = {"kernel": window[0], "stride": window[1]}
    if before == after == (0, 0):
        return draft.step(node, average, (x,), **geometry)
    pad = (before[1], after[1], before[0], after[0])
    inside = F.pad(torch.ones(1, 1, *x.shape[1:], dtype=torch.float64), pad)
    count = (F.avg_pool2d(inside, *window[:2]) * math.prod(window[0])).round()[0].float()
    padded = draft.step(node, pad_zeros, (x,), pad=pad)
    return draft.step(node, average_inside, (padded,), {"count": count}, **geometry)


def largest_in_windows(draft: Draft, node: Node, given: list[Given]) -> Value:
    """With uneven padding: the windows at every position, of which those are kept that TFLite has. What pads never wins."""
    x, window, (before, after) = pooling(node, given)
    if any(2 * after[i] > window[0][i] for i in (0, 1)):
        raise node.refusal("pads by more than half of its window")
    if before == after:
        found = draft.step(node, largest, (x,), kernel=window[0], stride=window[1], padding=before)
    else:
        every = draft.step(node, largest, (x,), kernel=window[0], stride=(1, 1), padding=after)
        start = (after[0] - before[0], after[1] - before[1])
        found = draft.step(node, every_other, (every,), start=start, step=window[1])
    return found


def mean_over(x: Tensor, *, dims: tuple[int, ...], keep: bool) -> Tensor:
    return torch.mean(x, dims, keep)


def reduced_dims(node: Node, given: list[Given]) -> tuple[Value, tuple[int, ...], bool]:
    """Of a MEAN: its input, the dimensions here that it goes over, and whether they stay."""
    x, axes = value(node, given[0]), constant(node, given[1]).reshape(-1).tolist()
    rank = len(x.shape) + 1
    if not axes or any(not -rank <= axis < rank for axis in axes):
        raise node.refusal(f"goes over the axes {axes} of {rank}")
    keep = bool(node.option(0, "<b"))
    dims = tuple(sorted({axis_of(node, axis, x.shape) for axis in axes}))
    if rank == 4 and not keep and dims != (2, 3):
        raise node.refusal(f"goes over the axes {axes} of an image; over rows and columns it has a rule")
    return x, dims, keep


def mean(draft: Draft, node: Node, given: list[Given]) -> Value:
    """MEAN of floats."""
    x, dims, keep = reduced_dims(node, given)
    return draft.step(node, mean_over, (x,), dims=dims, keep=keep)


# Shapes


def moved(draft: Draft, node: Node, x: Value, found: Value) -> Value:
    """Whole numbers that only move must stand for the same real numbers afterwards."""
    if x.whole is None:
        return found
    if whole_of(draft.entry(node), node) != x.whole:
        raise node.refusal("moves whole numbers, and its result has another scale or zero point")
    return as_whole(found, x.whole)


def in_order(draft: Draft, node: Node, x: Value, shape: tuple[int, ...]) -> Value:
    """Another shape of the file's entries in their order: channels last before, and first again after if the result is an image."""
    if len(x.shape) == 3 and (len(shape) != 1 or x.shape[1:] != (1, 1)):
        x = draft.step(node, channels_last, (x,))
    found = draft.step(node, reshaped, (x,), shape=shape)
    return draft.step(node, channels_first, (found,)) if len(shape) == 3 else found


@reads("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(draft: Draft, node: Node, given: list[Given]) -> Value:
    """The result's shape is the file's; its entries keep their order."""
    x = given[0]
    if not isinstance(x, Value):
        raise node.refusal("reads a constant where only a value computed from the image is supported")
    node.knows(1)
    shape = draft.entry(node).shape
    if not 2 <= len(shape) <= 5 or shape[0] != 1 or math.prod(shape[1:]) != math.prod(x.shape):
        raise node.refusal(f"makes {list(shape)} of {[1, *x.shape]}; the batch has to stay first")
    if x.head:
        if len(x.shape) != 1 or len(shape) != 2:
            value(node, x)
        return x
    return moved(draft, node, x, in_order(draft, node, x, tuple(shape[1:])))


def permuted(x: Tensor, *, order: tuple[int, ...]) -> Tensor:
    return x.permute(order)


@reads("TRANSPOSE")
def transpose(draft: Draft, node: Node, given: list[Given]) -> Value:
    x, order = value(node, given[0]), constant(node, given[1]).reshape(-1).tolist()
    if sorted(order) != list(range(len(x.shape) + 1)) or order[0] != 0:
        raise node.refusal(f"orders the axes as {order}; the batch has to stay first")
    if len(order) == 4:
        held = (0, 2, 3, 1)  # the dimension here of the file's axis
        after = [held[order[axis]] for axis in range(4)]
        order = [after[0], after[3], after[1], after[2]]
    return moved(draft, node, x, draft.step(node, permuted, (x,), order=tuple(order)))


@reads("PAD")
def pad(draft: Draft, node: Node, given: list[Given]) -> Value:
    x, pads = value(node, given[0]), constant(node, given[1]).tolist()
    rank = len(x.shape) + 1
    if len(pads) != rank or any(len(two) != 2 or not all(0 <= n <= MOST for n in two) for two in pads) or any(pads[0]):
        raise node.refusal(f"pads by {pads}")
    ordered = [pads[0], pads[3], pads[1], pads[2]] if rank == 4 else pads
    flat = tuple(int(n) for two in reversed(ordered[1:]) for n in two)
    return moved(draft, node, x, draft.step(node, pad_zeros, (x,), pad=flat))


@reads("CONCATENATION")
def concatenate(draft: Draft, node: Node, given: list[Given]) -> Value:
    values = [value(node, each) for each in given]
    axis, kind = node.option(0), node.byte(1)
    if kind != NONE or len({len(each.shape) for each in values}) != 1:
        raise node.refusal(f"joins values of shapes {[list(each.shape) for each in values]}, activation {kind}")
    if len({each.whole for each in values}) != 1:
        raise node.refusal("joins whole numbers of several scales or zero points")
    found = draft.step(node, join, tuple(values), dim=axis_of(node, axis, values[0].shape))
    return moved(draft, node, values[0], found)


def nearest(x: Tensor, *, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size)


def bilinear(x: Tensor, *, size: tuple[int, int], corners: bool) -> Tensor:
    return F.interpolate(x, size, mode="bilinear", align_corners=corners)


@reads("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR")
def resize(draft: Draft, node: Node, given: list[Given]) -> Value:
    """TFLite's corner conventions that are torch's; for a whole multiple, every nearest one but that of corners is the same."""
    x, size = image(node, given[0]), constant(node, given[1]).reshape(-1).tolist()
    first = 2 if node.op == "RESIZE_BILINEAR" else 0
    corners, centers = bool(node.option(first, "<b")), bool(node.option(first + 1, "<b"))
    if len(size) != 2 or not all(1 <= n <= MOST for n in size) or (corners and centers):
        raise node.refusal(f"resizes to {size}")
    if node.op == "RESIZE_NEAREST_NEIGHBOR":
        multiple = all(n % old == 0 for n, old in zip(size, x.shape[1:], strict=True))
        if corners or not multiple:
            raise node.refusal(f"resizes {list(x.shape[1:])} to {size}, corners {corners}; whole multiples have a rule")
        return moved(draft, node, x, draft.step(node, nearest, (x,), size=tuple(size)))
    if x.whole is not None or not (corners or centers):
        raise node.refusal("resizes whole numbers, or without half pixel centers and aligned corners")
    return draft.step(node, bilinear, (x,), size=tuple(size), corners=corners)
