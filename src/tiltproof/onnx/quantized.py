"""QuantizeLinear and DequantizeLinear, as quantized files have them: on weights, and around every layer; and operations on whole numbers.

A constant that is dequantized becomes the float32 numbers that onnxruntime makes of it. A value that is quantized and dequantized again,
by the same numbers, becomes one step: y = (min(max(round(x / scale) + zero, low), high) - zero) scale.

QLinearConv and its like are read as DequantizeLinear of what they read, the operation, and QuantizeLinear. A kernel that adds up whole
numbers and multiplies by one rounded factor differs from that by less than a float32 evaluation may.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from tiltproof.onnx.module import Draft, Quantized, Value
from tiltproof.onnx.protobuf import Node, package
from tiltproof.onnx.registry import (
    READERS,
    STEPPED,
    GraphDraft,
    Operation,
    constant,
    image,
    reads,
    refused,
    rounds,
    writes,
)
from tiltproof.step_module import Step

KINDS = {torch.int8: (-128, 127), torch.uint8: (0, 255)}
"""Integers that values are rounded to, and their range."""


def _moved(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """What is off by e may be rounded to any whole number between those of x - e and x + e; torch divides in float32."""
    s = step.settings
    scale, zero = s["scale"], s["zero"]
    units = read[0].double() / scale
    room = 0.5 + errors[0] / scale + 16 * max(unit, 2.0**-24) * (units.abs() + abs(zero) + 1)
    least, most = (units - room).ceil(), (units + room).floor()
    ends = [(whole + zero).clamp(s["low"], s["high"]).sub(zero) * scale for whole in (least, most)]
    away = torch.maximum(result - ends[0], ends[1] - result)
    return away + 4 * unit * (result.abs() + away)


@rounds(_moved)
def fake_quantize(x: Tensor, *, scale: float, zero: int, low: int, high: int) -> Tensor:
    if isinstance(x, Tensor) and x.device.type == "meta":  # on which torch does not have it
        return torch.empty_like(x)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, high)


STEPPED.add(fake_quantize)


def _parameters(node: Node, values: list[Value | None]) -> tuple[Tensor, Tensor | None]:
    """The scale, positive, and the zero point."""
    scale, zero = constant(node, values[1]), values[2] if len(values) == 3 else None
    if zero is not None and not isinstance(zero, Tensor):
        raise node.refusal("has a zero point that is no constant of the file")
    if not scale.dtype.is_floating_point or not bool(((scale > 2.0**-60) & (scale < 2.0**60)).all()):
        raise node.refusal("has a scale that is not a positive number")
    if zero is not None and zero.numel() not in (1, scale.numel()):
        raise node.refusal(f"has scales of shape {list(scale.shape)} and zero points of shape {list(zero.shape)}")
    if zero is not None and zero.numel() == 1:
        zero = zero.reshape(()).expand(scale.shape)
    return scale, zero


@reads("QuantizeLinear")
def quantize(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(2, 3)
    node.only(saturate=1, output_dtype=0, block_size=0, precision=0)
    node.integer("axis", 1)
    return rounded(draft, node, values)


def rounded(draft: Draft, node: Node, values: list[Value | None]) -> Quantized:
    """A value as whole numbers, given with its scale and its zero point."""
    x, (scale, zero) = image(node, values[0]), _parameters(node, values)
    kind = torch.uint8 if zero is None else zero.dtype
    if scale.numel() != 1 or kind not in KINDS:
        raise node.refusal(f"rounds to {kind} with {scale.numel()} scales; int8 and uint8 with one scale have a rule")
    number, offset, (low, high) = float(scale), 0 if zero is None else int(zero), KINDS[kind]
    result = draft.add(node, fake_quantize, (x,), scale=number, zero=offset, low=low, high=high)
    return Quantized(result, number, offset, kind)


@reads("DequantizeLinear")
def dequantize(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """A constant: (x - zero) scale, rounded once to float32. A quantized value: itself, if both agree on scale and zero."""
    node.count(2, 3)
    node.only(block_size=0, output_dtype=0)
    return real(node, values, node.integer("axis", 1))


def real(node: Node, values: list[Value | None], axis: int) -> Value:
    """What a value, its scale and its zero point stand for."""
    x, (scale, zero) = values[0], _parameters(node, values)
    if isinstance(x, Quantized):
        same = scale.numel() == 1 and float(scale) == x.scale and (0 if zero is None else int(zero)) == x.zero
        if not same or (zero is not None and zero.dtype != x.kind):
            raise node.refusal("reads a value that was quantized with another scale or zero point")
        return x.image
    if not isinstance(x, Tensor) or x.dtype.is_floating_point or x.dtype == torch.bool:
        raise node.refusal("reads neither a constant of whole numbers nor what a QuantizeLinear gives")
    if zero is not None and zero.dtype != x.dtype:
        raise node.refusal(f"has numbers of {x.dtype} and a zero point of {zero.dtype}")
    if scale.numel() != 1:
        axis = axis + x.ndim if axis < 0 else axis
        if scale.ndim != 1 or not 0 <= axis < x.ndim or len(scale) != x.shape[axis]:
            raise node.refusal(f"has {list(scale.shape)} scales along axis {axis} of {list(x.shape)}")
        view = [-1 if k == axis else 1 for k in range(x.ndim)]
        scale, zero = scale.view(view), None if zero is None else zero.view(view)
    else:
        scale, zero = scale.reshape(()), None if zero is None else zero.reshape(())
    whole = x.long() - (0 if zero is None else zero.long())
    return whole.to(scale.dtype) * scale


def _as(node: Node, op: str, inputs: int) -> Node:
    """The node as one of this op, with its attributes and as many inputs."""
    other = copy.copy(node)
    other.op, other.domain, other.inputs = op, "", ["given"] * inputs
    return other


def _read(draft: Draft, node: Node, op: str, given: list[Value | None]) -> Value:
    """The node read as one of this op, which has one output."""
    result = READERS[op](draft, _as(node, op, len(given)), given)
    assert not isinstance(result, tuple)
    return result


def _inner(draft: Draft, node: Node, op: str, given: list[Value | None], scales: list[Value | None]) -> Quantized:
    """The operation between dequantized values, and its result as whole numbers again."""
    return rounded(draft, node, [_read(draft, node, op, given), *scales])


def _bias(node: Node, bias: Value | None, scale: Value | None, other: Value | None) -> list[Value | None]:
    """A bias of whole numbers, whose scale is the product of both factors' scales."""
    if bias is None:
        return []
    first, second = (constant(node, each).reshape(-1) for each in (scale, other))
    whole = constant(node, bias)
    if whole.dtype.is_floating_point or bool((whole.abs() >= 2**31).any()):
        raise node.refusal("has a bias that is not of int32")
    return [whole.to(first.dtype) * (first * second)]


@reads("QLinearConv")
def quantized_conv(draft: Draft, node: Node, values: list[Value | None]) -> Quantized:
    node.count(8, 9)
    x, weight = real(node, values[:3], 1), real(node, values[3:6], 0)
    bias = _bias(node, values[8] if len(values) == 9 else None, values[1], values[4])
    return _inner(draft, node, "Conv", [x, weight, *bias], values[6:8])


@reads("QLinearMatMul")
def quantized_matmul(draft: Draft, node: Node, values: list[Value | None]) -> Quantized:
    node.count(8)
    first, second = real(node, values[:3], 0), real(node, values[3:6], 1)
    return _inner(draft, node, "MatMul", [first, second], values[6:8])


@reads("QGemm")
def quantized_gemm(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """onnxruntime's own; without an output scale it gives real numbers."""
    node.count(6, 9)
    turned = node.attributes.get("transB")
    rows = 0 if turned is not None and turned.i else 1
    x, weight = real(node, values[:3], 0), real(node, values[3:6], rows)
    bias = _bias(node, values[6] if len(values) > 6 else None, values[1], values[4])
    if len(values) > 7:
        return _inner(draft, node, "Gemm", [x, weight, *bias], values[7:9])
    return _read(draft, node, "Gemm", [x, weight, *bias])


@reads("QLinearAdd", "QLinearMul")
def quantized_sum(draft: Draft, node: Node, values: list[Value | None]) -> Quantized:
    """onnxruntime's own."""
    node.count(7, 8)
    first, second = real(node, values[:3], 1), real(node, values[3:6], 1)
    return _inner(draft, node, node.op.removeprefix("QLinear"), [first, second], values[6:8])


@reads("QLinearGlobalAveragePool")
def quantized_average(draft: Draft, node: Node, values: list[Value | None]) -> Quantized:
    """onnxruntime's own."""
    node.count(5)
    node.only(channels_last=0)
    return _inner(draft, node, "GlobalAveragePool", [real(node, values[:3], 1)], values[3:5])


@reads("QLinearSigmoid")
def quantized_sigmoid(draft: Draft, node: Node, values: list[Value | None]) -> Quantized:
    """onnxruntime's own."""
    node.count(4, 5)
    return _inner(draft, node, "Sigmoid", [real(node, values[:3], 1)], values[3:5])


OF_RUNTIME = {"QGemm", "QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool", "QLinearSigmoid"}
"""Operations of onnxruntime's own domain, com.microsoft."""
MOVES = {"MaxPool", "Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice"}
"""Operations that move whole numbers or choose the largest, and so the real numbers for which these stand."""


@writes("requantize")
def write_requantize(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    raise refused(operation, "a product in fixed point, which ONNX does not have")


@writes("rounded")
def write_rounded(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    raise refused(operation, "a rounding with ties away from zero, which ONNX does not have")


@writes("quantize")
def write_quantize(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    s = operation.settings
    zero = s.get("zero")
    kinds = [kind for kind, ends in KINDS.items() if zero is not None and (s["low"] + zero, s["high"] + zero) == ends]
    if not kinds:
        raise refused(operation, "whole numbers of another range than int8 or uint8 have")
    names = [draft.constant(f"{output}.scale", torch.tensor(s["step"], dtype=torch.float64)), f"{output}.zero"]
    point = torch.tensor(zero, dtype=kinds[0]).numpy()
    draft.numbers.append(package("onnx").numpy_helper.from_array(point, names[1]))
    draft.add("QuantizeLinear", [*inputs, *names], f"{output}.whole")
    draft.add("DequantizeLinear", [f"{output}.whole", *names], output)
