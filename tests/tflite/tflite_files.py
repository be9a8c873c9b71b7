"""Small TFLite files, written with flatbuffers alone, and TFLite's integer kernels in whole numbers, written from their definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CODES = {
    "ADD": 0, "AVERAGE_POOL_2D": 1, "CONCATENATION": 2, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 4, "DEQUANTIZE": 6, "FULLY_CONNECTED": 9,
    "LOGISTIC": 14, "MAX_POOL_2D": 17, "MUL": 18, "RELU": 19, "RELU6": 21, "RESHAPE": 22, "RESIZE_BILINEAR": 23, "SOFTMAX": 25, "TANH": 28,
    "CUSTOM": 32, "PAD": 34, "TRANSPOSE": 39, "MEAN": 40, "SUB": 41, "SQUEEZE": 43, "TOPK_V2": 48, "RESIZE_NEAREST_NEIGHBOR": 97,
    "LEAKY_RELU": 98, "QUANTIZE": 114,
}  # fmt: skip
OPTIONS = {
    "ADD": 11, "AVERAGE_POOL_2D": 5, "CONCATENATION": 10, "CONV_2D": 1, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 8, "MAX_POOL_2D": 5,
    "MUL": 21, "RESHAPE": 17, "SOFTMAX": 9, "MEAN": 27, "SUB": 28, "SQUEEZE": 30, "RESIZE_BILINEAR": 15, "RESIZE_NEAREST_NEIGHBOR": 74,
    "LEAKY_RELU": 75,
}  # fmt: skip
"""The schema's numbers of operators, and of the tables of their options."""
TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int8": 9, "float16": 1}
Options = dict[int, tuple[str, Any]]
"""Field -> kind (b: byte, i: whole number, f: float) and value."""


@dataclass
class T:
    """A tensor; ``scale`` and ``zero`` are numbers, or lists along ``axis``."""

    shape: list[int]
    kind: str = "float32"
    data: np.ndarray | None = None
    scale: Any = None
    zero: Any = 0
    axis: int = 0
    signature: list[int] | None = None


@dataclass
class Op:
    name: str
    inputs: list[int]
    output: int
    options: Options = field(default_factory=dict)


def write(
    path: Path, tensors: list[T], operators: list[Op], first: int = 0, last: int | list[int] | None = None
) -> Path:
    """The file whose network reads tensor ``first`` and gives tensor ``last``, or several, by default the last operator's."""
    path.write_bytes(built(tensors, operators, first, operators[-1].output if last is None else last))
    return path


def built(tensors: list[T], operators: list[Op], first: int, last: int | list[int]) -> bytes:
    import flatbuffers

    b = flatbuffers.Builder(1024)

    def vector(values: Any, kind: str) -> int:
        return b.CreateNumpyVector(np.asarray(values, dtype=kind))

    def tables(offsets: list[int]) -> int:
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return b.EndVector()

    def table(fields: dict[int, tuple[str, Any]]) -> int:
        b.StartObject(max(fields, default=-1) + 1)
        slots = {
            "b": b.PrependInt8Slot, "i": b.PrependInt32Slot, "u": b.PrependUint32Slot, "f": b.PrependFloat32Slot,
            "o": b.PrependUOffsetTRelativeSlot,
        }  # fmt: skip
        for slot, (kind, value) in fields.items():
            slots[kind](slot, value, 0 if kind != "i" else -(2**31))
        return b.EndObject()

    buffers, entries = [table({})], []
    for number, tensor in enumerate(tensors):
        buffer = 0
        if tensor.data is not None:
            data = vector(np.frombuffer(np.ascontiguousarray(tensor.data).tobytes(), np.uint8), "u1")
            buffers.append(table({0: ("o", data)}))
            buffer = len(buffers) - 1
        fields: dict[int, tuple[str, Any]] = {1: ("b", TYPES[tensor.kind]), 2: ("u", buffer)}
        if tensor.scale is not None:
            scales, zeros = np.atleast_1d(tensor.scale), np.atleast_1d(tensor.zero)
            pair = vector(scales, "<f4"), vector(zeros, "<i8")
            fields[4] = ("o", table({2: ("o", pair[0]), 3: ("o", pair[1]), 6: ("i", tensor.axis)}))
        if tensor.signature is not None:
            fields[7] = ("o", vector(tensor.signature, "<i4"))
        fields[0], fields[3] = ("o", vector(tensor.shape, "<i4")), ("o", b.CreateString(f"tensor_{number}"))
        entries.append(table(fields))
    names = list(dict.fromkeys(operator.name for operator in operators))
    codes = []
    for name in names:
        custom = {1: ("o", b.CreateString("Own"))} if name == "CUSTOM" else {}
        codes.append(table({0: ("b", CODES[name]), 3: ("i", CODES[name]), **custom}))
    nodes = []
    for operator in operators:
        made: dict[int, tuple[str, Any]] = {0: ("u", names.index(operator.name))}
        if operator.name in OPTIONS:
            made |= {3: ("b", OPTIONS[operator.name]), 4: ("o", table(operator.options))}
        made |= {1: ("o", vector(operator.inputs, "<i4")), 2: ("o", vector([operator.output], "<i4"))}
        nodes.append(table(made))
    ends = vector([first], "<i4"), vector(np.atleast_1d(last), "<i4")
    graph = table({0: ("o", tables(entries)), 1: ("o", ends[0]), 2: ("o", ends[1]), 3: ("o", tables(nodes))})
    root = table({0: ("u", 3), 1: ("o", tables(codes)), 2: ("o", tables([graph])), 4: ("o", tables(buffers))})
    b.Finish(root, b"TFL3")
    return bytes(b.Output())


# The reference kernels, on whole numbers of any size.


def quantized_multiplier(factor: float) -> tuple[int, int]:
    """QuantizeMultiplier."""
    if factor == 0:
        return 0, 0
    fraction, shift = math.frexp(factor)
    whole = math.floor(fraction * 2**31 + 0.5)
    if whole == 2**31:
        whole, shift = whole // 2, shift + 1
    return (0, 0) if shift < -31 else (whole, shift)


def saturating_rounding_doubling_high_mul(a: int, b: int) -> int:
    if a == b == -(2**31):
        return 2**31 - 1
    product = a * b
    moved = product + (2**30 if product >= 0 else 1 - 2**30)
    return moved // 2**31 if moved >= 0 else -(-moved // 2**31)


def rounding_divide_by_power_of_two(x: int, exponent: int) -> int:
    mask = 2**exponent - 1
    remainder, threshold = x & mask, (mask >> 1) + (1 if x < 0 else 0)
    return (x >> exponent) + (1 if remainder > threshold else 0)


def by_multiplier(x: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier."""
    left, right = max(shift, 0), max(-shift, 0)
    assert abs(x << left) < 2**31
    return rounding_divide_by_power_of_two(saturating_rounding_doubling_high_mul(x << left, multiplier), right)


def away(x: float) -> int:
    """TfLiteRound."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def clipping(kind: int, scale: float, zero: int, low: int = -128, high: int = 127) -> tuple[int, int]:
    """CalculateActivationRangeQuantized, for no activation, RELU, RELU_N1_TO_1, RELU6."""

    def units(real: float) -> int:
        return zero + away(float(np.float32(real) / np.float32(scale)))

    least = {1: 0.0, 2: -1.0, 3: 0.0}.get(kind)
    most = {2: 1.0, 3: 6.0}.get(kind)
    return (low if least is None else max(low, units(least))), (high if most is None else min(high, units(most)))


def sides(size: int, kernel: int, stride: int, dilation: int, same: bool) -> tuple[int, int]:
    """How many outputs there are, and how much is padded before."""
    reach = (kernel - 1) * dilation + 1
    count = -(-size // stride) if same else -(-(size - reach + 1) // stride)
    return count, max((count - 1) * stride + reach - size, 0) // 2 if same else 0


def windows(x: np.ndarray, kernel: tuple, stride: tuple, dilation: tuple, same: bool) -> Any:
    """Of an image [H, W, C]: for each output position, the places of the image (or None) under the kernel's entries."""
    axes = [sides(x.shape[k], kernel[k], stride[k], dilation[k], same) for k in (0, 1)]
    for i in range(axes[0][0]):
        for j in range(axes[1][0]):
            places = {}
            for a in range(kernel[0]):
                for b in range(kernel[1]):
                    p = i * stride[0] - axes[0][1] + a * dilation[0]
                    q = j * stride[1] - axes[1][1] + b * dilation[1]
                    if 0 <= p < x.shape[0] and 0 <= q < x.shape[1]:
                        places[a, b] = (p, q)
            yield i, j, places, (axes[0][0], axes[1][0])


def convolution(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, zero_in: int, factors: list[float], zero_out: int, ends: tuple[int, int],
    stride: tuple, dilation: tuple, same: bool, depthwise: bool,
) -> np.ndarray:  # fmt: skip
    """ConvPerChannel and DepthwiseConvPerChannel: weight [O, h, w, I], or [1, h, w, O]."""
    outputs = weight.shape[3] if depthwise else weight.shape[0]
    pairs = [quantized_multiplier(factor) for factor in factors] * (1 if len(factors) > 1 else outputs)
    result = None
    for i, j, places, shape in windows(x, weight.shape[1:3], stride, dilation, same):
        result = np.zeros((*shape, outputs), np.int64) if result is None else result
        for o in range(outputs):
            total = int(bias[o])
            for (a, b), place in places.items():
                if depthwise:
                    channel = o // (outputs // x.shape[2])
                    total += int(weight[0, a, b, o]) * (int(x[place][channel]) - zero_in)
                else:
                    total += int((weight[o, a, b].astype(np.int64) * (x[place].astype(np.int64) - zero_in)).sum())
            n = by_multiplier(total, *pairs[o]) + zero_out
            result[i, j, o] = min(max(n, ends[0]), ends[1])
    return result


def average(x: np.ndarray, kernel: tuple, stride: tuple, same: bool, ends: tuple[int, int]) -> np.ndarray:
    """AveragePool: whole division, half of the divisor added away from zero before."""
    result = None
    for i, j, places, shape in windows(x, kernel, stride, (1, 1), same):
        result = np.zeros((*shape, x.shape[2]), np.int64) if result is None else result
        for c in range(x.shape[2]):
            total, count = sum(int(x[place][c]) for place in places.values()), len(places)
            half = total + count // 2 if total > 0 else total - count // 2
            n = half // count if half >= 0 else -(-half // count)
            result[i, j, c] = min(max(n, ends[0]), ends[1])
    return result


def largest(x: np.ndarray, kernel: tuple, stride: tuple, same: bool, ends: tuple[int, int]) -> np.ndarray:
    result = None
    for i, j, places, shape in windows(x, kernel, stride, (1, 1), same):
        result = np.zeros((*shape, x.shape[2]), np.int64) if result is None else result
        result[i, j] = np.clip(np.max([x[place] for place in places.values()], 0), *ends)
    return result


def added(
    x: np.ndarray, y: np.ndarray, first: T, second: T, out: T, ends: tuple[int, int], minus: bool = False
) -> np.ndarray:
    """Add and Sub with general rescalings."""
    scales = [float(np.float32(t.scale)) for t in (first, second, out)]
    twice = 2 * max(scales[:2])
    pairs = [quantized_multiplier(s / twice) for s in scales[:2]] + [quantized_multiplier(twice / (2**20 * scales[2]))]
    both = np.broadcast_arrays(x, y)
    result = np.zeros(both[0].shape, np.int64)
    for place in np.ndindex(*result.shape):
        one, other = (
            by_multiplier((int(v[place]) - t.zero) << 20, *p)
            for v, t, p in zip(both, (first, second), pairs[:2], strict=True)
        )
        n = by_multiplier(one - other if minus else one + other, *pairs[2]) + out.zero
        result[place] = min(max(n, ends[0]), ends[1])
    return result


def multiplied(x: np.ndarray, y: np.ndarray, first: T, second: T, out: T, ends: tuple[int, int]) -> np.ndarray:
    scales = [np.float32(t.scale) for t in (first, second, out)]
    pair = quantized_multiplier(float(scales[0] * scales[1] / scales[2]))
    both = np.broadcast_arrays(x, y)
    result = np.zeros(both[0].shape, np.int64)
    for place in np.ndindex(*result.shape):
        n = by_multiplier((int(both[0][place]) - first.zero) * (int(both[1][place]) - second.zero), *pair) + out.zero
        result[place] = min(max(n, ends[0]), ends[1])
    return result


def mean(x: np.ndarray, given: T, out: T) -> np.ndarray:
    """Over rows and columns: the number of entries is divided into the multiplier."""
    multiplier, shift = quantized_multiplier(float(np.float32(given.scale)) / float(np.float32(out.scale)))
    count = x.shape[0] * x.shape[1]
    more = min(count.bit_length() - 1, 32, 31 + shift)
    multiplier, shift = (multiplier << more) // count, shift - more
    totals = (x.astype(np.int64) - given.zero).sum((0, 1))
    return np.array([min(max(by_multiplier(int(t), multiplier, shift) + out.zero, -128), 127) for t in totals])


def dense(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, given: T, weights: T, out: T, ends: tuple[int, int]
) -> np.ndarray:
    product = float(np.float32(given.scale) * np.float32(weights.scale))
    pair = quantized_multiplier(product / float(np.float32(out.scale)))
    totals = weight.astype(np.int64) @ (x.astype(np.int64).reshape(-1) - given.zero) + bias
    return np.array([min(max(by_multiplier(int(t), *pair) + out.zero, ends[0]), ends[1]) for t in totals])


def rescaled(x: np.ndarray, given: T, out: T, ends: tuple[int, int], activation: bool = False) -> np.ndarray:
    """Requantize, and the activations that are operators, which divide in float32."""
    scales = np.float32(given.scale), np.float32(out.scale)
    pair = quantized_multiplier(float(scales[0] / scales[1]) if activation else float(scales[0]) / float(scales[1]))
    made = [min(max(by_multiplier(int(q) - given.zero, *pair) + out.zero, ends[0]), ends[1]) for q in x.flat]
    return np.array(made).reshape(x.shape)
