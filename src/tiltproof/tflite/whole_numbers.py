"""Operators that exist for floats and for whole numbers: read as one or the other, by what they read.

Whole numbers are added up as they are, exactly, and scaled by `tiltproof.fixed_point`. The factors and ranges are those that TFLite's
kernels compute from the file's scales.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.fixed_point import SUM_SHIFT, multiplier_of
from tiltproof.tflite.module import Draft, Given, Value, Whole, as_whole, value, whole_of
from tiltproof.tflite.operators import (
    CLIPPED,
    NONE,
    RELU,
    RELU6,
    RELU_N1_TO_1,
    activated,
    arithmetic,
    averages,
    branches,
    largest_in_windows,
    mean,
    product,
    product_of,
    reduced_dims,
)
from tiltproof.tflite.registry import reads
from tiltproof.tflite.schema import FLOAT32, INT8, INT32, UINT8, Node

LARGEST = 2**31
"""Kernels add up in whole numbers of 32 bits."""
EXACT = 2**24
"""Sums of whole numbers up to this are exact in float32."""


def requantize(x: Tensor, *, multipliers: tuple[int, ...], shifts: tuple[int, ...], low: int, high: int) -> Tensor:
    found: Tensor = torch.ops.tiltproof.requantize(x, multipliers, shifts, low, high)
    return found


def rescaled_sum(
    x: Tensor, y: Tensor, *, multipliers: tuple[int, ...], shifts: tuple[int, ...], minus: bool, low: int, high: int
) -> Tensor:
    found: Tensor = torch.ops.tiltproof.rescaled_sum(x, y, multipliers, shifts, minus, low, high)
    return found


def constant_beside(x: Tensor, constant: Tensor) -> Tensor:
    return 0.0 * x + constant


def rounded(x: Tensor, *, factor: float, offset: int, low: int, high: int, snap: float) -> Tensor:
    found: Tensor = torch.ops.tiltproof.rounded(x, factor, offset, low, high, snap)
    return found


STEPPED = (requantize, rescaled_sum, rounded)
"""Functions that give whole numbers."""


def in_units(x: Tensor, *, scale: float) -> Tensor:
    return x * scale


def sum_over(x: Tensor, *, dims: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, dims, keep)


def activation_range(node: Node, whole: Whole, kind: int) -> tuple[int, int]:
    """The range of q - zero that a fused activation leaves, its ends rounded as the kernels round them: in float32, ties away from
    zero."""
    low, high = whole.ends
    if kind == NONE:
        return low, high
    if kind not in CLIPPED:
        raise node.refusal(f"has the fused activation {kind}, which has no rule")

    def units(end: float) -> int:
        ratio = float(np.float32(end) / np.float32(whole.scale))
        return int(math.copysign(math.floor(abs(ratio) + 0.5), ratio))

    least, most = CLIPPED[kind]
    low = max(low, units(least or 0.0))
    high = high if most is None else min(high, units(most))
    if low >= high:
        raise node.refusal("clips its whole numbers to a single one")
    return low, high


def same_scale(draft: Draft, node: Node, x: Value) -> Whole:
    whole = whole_of(draft.entry(node), node)
    if whole != x.whole:
        raise node.refusal("gives whole numbers of another scale or zero point than it reads")
    return whole


def scaled(draft: Draft, node: Node, x: Value, factors: list[float], farthest: float, kind: int) -> Value:
    """An accumulator, of at most this size, times these factors of its channels."""
    pairs = [multiplier_of(factor) for factor in factors]
    pairs = pairs[:1] if len(set(pairs)) == 1 else pairs
    return fixed(draft, node, x, pairs, farthest, kind)


def fixed(draft: Draft, node: Node, x: Value, pairs: list[tuple[int, int]], farthest: float, kind: int) -> Value:
    whole = whole_of(draft.entry(node), node)
    low, high = activation_range(node, whole, kind)
    multipliers, shifts = (tuple(pair[k] for pair in pairs) for k in (0, 1))
    if farthest * 2.0 ** max(0, *shifts) >= LARGEST:
        raise node.refusal("may add up to more than whole numbers of 32 bits hold")
    draft.largest = max(draft.largest, farthest)
    return draft.step(node, requantize, (x,), whole=whole, multipliers=multipliers, shifts=shifts, low=low, high=high)


@reads("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
def weighted(draft: Draft, node: Node, given: list[Given]) -> Value:
    """sum w (q - z) + b, then times (input's scale) (weights' scale of the channel) / (output's scale)."""
    x = value(node, given[0])
    if x.whole is None:
        return product(draft, node, given)
    found = product_of(draft, node, given)
    entry, whole = draft.file.tensors[node.inputs[1]], whole_of(draft.entry(node), node)
    scales, channels = entry.scales, len(found.weight)
    if entry.type not in (INT8, UINT8) or scales is None or len(scales.scale) not in (1, channels):
        raise node.refusal("has weights of another type than int8 or uint8 with a scale for each channel")
    axis = 3 if node.op == "DEPTHWISE_CONV_2D" else 0
    if len(scales.scale) > 1 and scales.axis != axis:
        raise node.refusal(f"has scales along the axis {scales.axis} of its weights")
    several = len(scales.scale) > 1 or (entry.type == INT8 and node.op != "FULLY_CONNECTED")
    if several and scales.zero.any():
        raise node.refusal("has weights with a zero point for each channel")
    bias = found.bias
    if bias is not None and draft.file.tensors[node.inputs[2]].type != INT32:
        raise node.refusal("has a bias that is not of int32")
    weight = found.weight.double() - float(scales.zero[0])
    added = torch.zeros(channels, dtype=torch.float64) if bias is None else bias.double()
    most = weight.abs().flatten(1).sum(1) * x.whole.farthest + added.abs()
    result = found.add(draft, weight, None if bias is None else added)
    factors = [_factor(node, entry.type, x.whole.scale, each, whole.scale) for each in scales.scale.tolist()]
    return scaled(draft, node, result, factors, float(most.amax()), found.activation)


def _factor(node: Node, kind: int, first: float, second: float, third: float) -> float:
    """The kernels multiply both scales in float32 where all channels share one, in float64 for convolutions of int8."""
    if node.op == "FULLY_CONNECTED" or kind == UINT8:
        return float(np.float32(first) * np.float32(second)) / third
    return first * second / third


@reads("ADD", "SUB")
def added(draft: Draft, node: Node, given: list[Given]) -> Value:
    """Both numbers are shifted to the left and scaled to half of the larger scale, added, and scaled again."""
    if not any(isinstance(each, Value) and each.whole is not None for each in given):
        return arithmetic(draft, node, given)
    wholes, found = _wholes(draft, node, given)
    whole = whole_of(draft.entry(node), node)
    twice = 2 * max(each.scale for each in wholes)
    both = twice / (2.0**SUM_SHIFT * whole.scale)
    pairs = [multiplier_of(each.scale / twice) for each in wholes] + [multiplier_of(both)]
    if pairs[2][1] > 0:
        raise node.refusal(f"has scales {wholes[0].scale:g}, {wholes[1].scale:g} and {whole.scale:g}, too far apart")
    node.knows(2)
    first, second = found[:2] if isinstance(found[1], Value) else _filled(draft, node, found)
    multipliers, shifts = (tuple(pair[k] for pair in pairs) for k in (0, 1))
    low, high = activation_range(node, whole, node.byte(0))
    return draft.step(
        node, rescaled_sum, (first, second), whole=whole, multipliers=multipliers, shifts=shifts,
        minus=node.op == "SUB", low=low, high=high,
    )  # fmt: skip


def _filled(draft: Draft, node: Node, found: tuple[Value, Tensor, bool]) -> tuple[Value, Value]:
    """A constant as a value of its own: nothing of the other one, and itself."""
    other = draft.step(node, constant_beside, (found[0],), {"constant": found[1]})
    return (other, found[0]) if found[2] else (found[0], other)


@reads("MUL")
def multiplied(draft: Draft, node: Node, given: list[Given]) -> Value:
    if not any(isinstance(each, Value) and each.whole is not None for each in given):
        return arithmetic(draft, node, given)
    wholes, found = _wholes(draft, node, given)
    whole, kind = whole_of(draft.entry(node), node), node.byte(0)
    if isinstance(found[1], Value):
        made = draft.step(node, torch.mul, (found[0], found[1]))
    else:
        made = draft.step(node, times_whole, (found[0],), {"constant": found[1]})
    ratio = np.float32(wholes[0].scale) * np.float32(wholes[1].scale) / np.float32(whole.scale)
    return scaled(draft, node, made, [float(ratio)], wholes[0].farthest * wholes[1].farthest, kind)


def times_whole(x: Tensor, constant: Tensor) -> Tensor:
    return x * constant


Found = tuple[Value, Value] | tuple[Value, Tensor, bool]


def _wholes(draft: Draft, node: Node, given: list[Given]) -> tuple[list[Whole], Found]:
    """What both numbers stand for, in their order, and both values, or a value and the constant's q - zero."""
    found = branches(node, given)
    wholes = [whole_of(draft.file.tensors[number], node) for number in node.inputs]
    if isinstance(found[1], Value):
        if found[0].whole is None or found[1].whole is None:
            raise node.refusal("combines whole numbers with floats")
        return wholes, found
    zero = wholes[0 if found[2] else 1].zero
    return wholes, (found[0], found[1].double() - zero, bool(found[2]))


@reads("RELU", "RELU6", "RELU_N1_TO_1")
def relu(draft: Draft, node: Node, given: list[Given]) -> Value:
    x, kind = value(node, given[0]), {"RELU": RELU, "RELU6": RELU6, "RELU_N1_TO_1": RELU_N1_TO_1}[node.op]
    return activated(draft, node, x, kind) if x.whole is None else _rescaled(draft, node, x, x.whole, kind)


def _rescaled(draft: Draft, node: Node, x: Value, whole: Whole, kind: int) -> Value:
    """The same real numbers in other units; the kernels of activations divide in float32, that of QUANTIZE in float64."""
    factor, other = whole.scale, whole_of(draft.entry(node), node).scale
    factor = factor / other if kind == NONE else float(np.float32(factor) / np.float32(other))
    return scaled(draft, node, x, [factor], whole.farthest, kind)


@reads("MAX_POOL_2D")
def max_pool(draft: Draft, node: Node, given: list[Given]) -> Value:
    x, kind = value(node, given[0]), node.byte(5)
    found = largest_in_windows(draft, node, given)
    if x.whole is None:
        return activated(draft, node, found, kind)
    whole = same_scale(draft, node, x)
    if kind == NONE:
        return as_whole(found, whole)
    low, high = activation_range(node, whole, kind)
    return draft.step(node, F.hardtanh, (found,), whole=whole, min_val=float(low), max_val=float(high))


@reads("AVERAGE_POOL_2D")
def average_pool(draft: Draft, node: Node, given: list[Given]) -> Value:
    """The mean of q, rounded to a nearest whole number, ties away from zero: that of q - zero, moved by the zero point."""
    x, kind = value(node, given[0]), node.byte(5)
    found = averages(draft, node, given)
    if x.whole is None:
        return activated(draft, node, found, kind)
    whole = same_scale(draft, node, x)
    low, high = activation_range(node, whole, kind)
    entries = node.option(3) * node.option(4)
    return draft.step(
        node, rounded, (found,), whole=whole, factor=1.0, offset=whole.zero, low=low, high=high,
        snap=min(2.0**-13, 1 / (4 * entries)),
    )  # fmt: skip


@reads("MEAN")
def whole_mean(draft: Draft, node: Node, given: list[Given]) -> Value:
    """The sum of q - zero times (input's scale) / (output's scale) / n, of which n is divided into the multiplier beforehand: as TFLite
    computes it since 2.5."""
    x = value(node, given[0])
    if x.whole is None:
        return mean(draft, node, given)
    _, dims, keep = reduced_dims(node, given)
    whole, count = whole_of(draft.entry(node), node), math.prod(x.shape[dim - 1] for dim in dims)
    ratio = x.whole.scale / whole.scale
    multiplier, shift = multiplier_of(ratio)
    more = min(count.bit_length() - 1, 32, 31 + shift)
    pair = ((multiplier << max(more, 0)) // count, shift - max(more, 0))
    total = draft.step(node, sum_over, (x,), dims=dims, keep=keep)
    return fixed(draft, node, total, [pair], count * x.whole.farthest, NONE)


@reads("QUANTIZE")
def quantize(draft: Draft, node: Node, given: list[Given]) -> Value:
    x = given[0]
    if isinstance(x, Value) and x.head:
        return x
    x = value(node, x)
    if x.whole is not None:
        return _rescaled(draft, node, x, x.whole, NONE)
    return to_whole(draft, node, x, whole_of(draft.entry(node), node))


def to_whole(draft: Draft, node: Node, x: Value, whole: Whole) -> Value:
    low, high = whole.ends
    return draft.step(
        node, rounded, (x,), whole=whole, factor=1 / whole.scale, offset=0, low=low, high=high, snap=0.0
    )  # fmt: skip


@reads("DEQUANTIZE")
def dequantize(draft: Draft, node: Node, given: list[Given]) -> Value | Tensor:
    x = given[0]
    if isinstance(x, Tensor):
        return _stored(draft, node, x)
    if isinstance(x, Value) and x.head:
        return x
    x = value(node, x)
    return x if x.whole is None else to_real(draft, node, x, x.whole)


def to_real(draft: Draft, node: Node, x: Value, whole: Whole) -> Value:
    return draft.step(node, in_units, (x,), scale=whole.scale)


def _stored(draft: Draft, node: Node, number: Tensor) -> Tensor:
    """Weights that are kept in fewer bits, as the float32 numbers that the kernel makes of them."""
    if draft.entry(node).type != FLOAT32:
        raise node.refusal("makes other numbers than float32 of its weights")
    if number.dtype.is_floating_point:
        return number.float()
    scales = draft.file.tensors[node.inputs[0]].scales
    if scales is None or (len(scales.scale) > 1 and not 0 <= scales.axis < number.ndim):
        raise node.refusal("has weights without scales")
    view = [1] * number.ndim
    if len(scales.scale) > 1:
        view[scales.axis] = -1
        if len(scales.scale) != number.shape[scales.axis]:
            raise node.refusal(f"has {len(scales.scale)} scales for weights of shape {list(number.shape)}")
    scale, zero = torch.from_numpy(scales.scale).float(), torch.from_numpy(scales.zero.copy())
    if len(scales.scale) == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
        return (number.long() - zero).float() * scale
    return (number.long() - zero.view(view)).float() * scale.view(view)
