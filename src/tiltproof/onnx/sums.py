"""Sums, means, lengths and largest entries along any axes, products with constants, and transposed convolutions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.onnx.arithmetic import BINARY
from tiltproof.onnx.attention import product
from tiltproof.onnx.curves import length, log_sum_exp
from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.ops import MOST_PRODUCTS, kernel_shape, linear, sum_of_products
from tiltproof.onnx.pooling import write_products
from tiltproof.onnx.protobuf import INTEGERS, TEXT, Node
from tiltproof.onnx.registry import (
    GraphDraft,
    Operation,
    constant,
    gamma,
    image,
    reads,
    refused,
    rounds,
    writes,
)
from tiltproof.onnx.reshape import MOST, axes_of, cut, spread


def summed_products(step: Any, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    """|W| e, and gamma of the number of products that an output sums up."""
    weight = step.constants["weight"].abs()
    size = step.function(read[0].abs() + errors[0], weight=weight, **step.settings)
    moved: Tensor = step.function(errors[0], weight=weight, **step.settings)
    return moved + gamma(math.prod(read[0].shape[1:]) + weight.numel() + 4, unit) * size


@rounds(summed_products)
def times_matrix(x: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(x, weight)


@rounds(summed_products)
def matrix_times(x: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(weight, x)


@reads("MatMul")
def matmul(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """Of two branches, or with a constant on one side."""
    node.count(2)
    first, second = values
    if isinstance(first, Image) and isinstance(second, Image):
        return product(draft, node, first, second)
    after = isinstance(first, Image)
    x, weight = (image(node, first), constant(node, second)) if after else (image(node, second), constant(node, first))
    if weight.ndim == len(x.shape) + 1 and weight.shape[0] == 1:
        weight = weight[0]
    if after and weight.ndim == 2:
        return draft.add(node, linear, (x,), {"weight": weight.t()})
    if weight.ndim > len(x.shape) or weight.ndim < 2 or len(x.shape) < 2:
        raise node.refusal(f"multiplies {list(x.shape)} with a constant of shape {list(weight.shape)}")
    return draft.add(node, times_matrix if after else matrix_times, (x,), {"weight": weight})


@rounds(summed_products)
def contracted(x: Tensor, weight: Tensor, *, equation: str) -> Tensor:
    return torch.einsum(equation, x, weight)


@reads("Einsum")
def einsum(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(2)
    equation = (node.take("equation", TEXT) or "").replace(" ", "")
    left, arrow, out = equation.partition("->")
    names = left.split(",")
    if not arrow or len(names) != 2 or not equation.replace("->", "").replace(",", "").isalpha():
        raise node.refusal(f"has the equation {equation[:60]!r}; letters alone are supported, with the result's")
    if not isinstance(values[0], Image):
        values, names = values[::-1], names[::-1]
    x, weight = image(node, values[0]), constant(node, values[1])
    if (
        names[0][0] != out[0]
        or names[0][0] in names[1]
        or len(names[0]) != len(x.shape) + 1
        or len(names[1]) != weight.ndim
    ):
        raise node.refusal(f"has the equation {equation[:60]!r}, which mixes the images of a batch or does not fit")
    return draft.add(node, contracted, (x,), {"weight": weight}, equation=f"{names[0]},{names[1]}->{out}")


@writes("contraction")
def write_contraction(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """A fully connected layer over the last axis as MatMul, which more tools read than Einsum."""
    s = operation.settings
    given, inner, out = s["equation"].replace("->", ",").split(",")
    bias = s["bias"]
    result = output if bias is None else f"{output}.product"
    if given[:-1] == out[:-1] and inner == out[-1] + given[-1]:
        draft.add("MatMul", [*inputs, draft.constant(f"{output}.weight", s["weight"].t())], result)
    else:
        weight = draft.constant(f"{output}.weight", s["weight"])
        draft.add("Einsum", [*inputs, weight], result, equation=s["equation"])
    if bias is not None:
        draft.add("Add", [result, draft.constant(f"{output}.bias", bias)], output)


@writes("resize")
def write_resize(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """Both products with the weights, which tools compute alike."""
    write_products(draft, inputs, output, operation.settings["rows"], operation.settings["columns"].t())


def summed(_step: Any, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    axes, keep = _step.settings["axes"], _step.settings["keep"]
    n = math.prod(read[0].shape[axis] for axis in axes)
    size = (read[0].abs() + errors[0]).sum(axes, keep)
    total: Tensor = errors[0].sum(axes, keep) + gamma(n + 4, unit) * size
    return total


@rounds(summed)
def total(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep)


def widest(step: Any, _read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    """The largest error of all."""
    found: Tensor = errors[0].amax(step.settings["axes"], step.settings["keep"])
    return found


@rounds(widest)
def highest(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.amax(x, axes, keep)


@rounds(widest)
def lowest(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.amin(x, axes, keep)


@rounds(sum_of_products)
def mean(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.mean(x, axes, keep)


REDUCTIONS = {
    "ReduceSum": total,
    "ReduceMean": mean,
    "ReduceMax": highest,
    "ReduceMin": lowest,
    "ReduceL2": length,
    "ReduceLogSumExp": log_sum_exp,
}


@reads(*REDUCTIONS)
def reduce(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1, 2)
    x, keep = image(node, values[0]), node.flag("keepdims", True)
    node.only(noop_with_empty_axes=0)
    axes = axes_of(node, values, 1)
    if not axes:
        raise node.refusal("works over the batch too")
    return draft.add(node, REDUCTIONS[node.op], (x,), axes=tuple(spread(node, axes, len(x.shape) + 1)), keep=keep)


@writes("mean")
def write_mean(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    keep = int(operation.settings["keepdim"])
    draft.add("ReduceMean", inputs, output, axes=list(operation.settings["dim"]), keepdims=keep)


@reads("GlobalMaxPool")
def global_max_pool(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x = image(node, values[0])
    if len(x.shape) != 3:
        raise node.refusal(f"pools {list(x.shape)}; only images [C, H, W] are supported")
    return draft.add(node, highest, (x,), axes=(2, 3), keep=True)


@writes("sum")
def write_sum(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    axes = draft.constant(f"{output}.axes", list(operation.settings["dim"]))
    draft.add("ReduceSum", [*inputs, axes], output, keepdims=int(operation.settings["keepdim"]))


@rounds(sum_of_products)
def spread_out(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    more: tuple[int, int],
    groups: int,
    dilation: tuple[int, int],
) -> Tensor:
    return F.conv_transpose2d(x, weight, bias, stride, padding, more, groups, dilation)


def _pair(node: Node, name: str, default: int) -> tuple[int, int]:
    values = node.take(name, INTEGERS)
    values = [default] * 2 if values is None else values
    if len(values) != 2 or any(not 0 <= n <= MOST for n in values):
        raise node.refusal(f"has {name} {values[:8]}")
    return values[0], values[1]


@reads("ConvTranspose")
def conv_transpose(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(2, 3)
    x, weight, given = image(node, values[0]), constant(node, values[1]), kernel_shape(node)
    if weight.ndim != 4 or len(x.shape) != 3 or (given and given != tuple(weight.shape[2:])):
        raise node.refusal(f"has weights of shape {list(weight.shape)} for {list(x.shape)} and a kernel {list(given)}")
    stride, dilation, more = _pair(node, "strides", 1), _pair(node, "dilations", 1), _pair(node, "output_padding", 0)
    groups, how = node.integer("group", 1), node.take("auto_pad", TEXT) or "NOTSET"
    pads, wanted = node.take("pads", INTEGERS), node.take("output_shape", INTEGERS)
    kernel, products = tuple(weight.shape[2:]), weight.numel() * x.shape[1] * x.shape[2]
    if (
        groups < 1
        or min(*stride, *dilation) < 1
        or weight.shape[0] != x.shape[0]
        or weight.shape[0] % groups
        or products > MOST_PRODUCTS
    ):
        raise node.refusal(f"has {groups} groups, or strides or dilations of no possible size")
    full = [(x.shape[k + 1] - 1) * stride[k] + dilation[k] * (kernel[k] - 1) + 1 + more[k] for k in (0, 1)]
    if how in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [x.shape[k + 1] * stride[k] for k in (0, 1)]
    if wanted is not None:
        whole = [full[k] - n for k, n in enumerate(wanted[-2:])]
        if len(wanted) < 2 or min(whole) < 0:
            raise node.refusal(f"has an output of shape {wanted[:8]}")
        less = [n // 2 for n in whole]
        rest = [n - k for n, k in zip(whole, less, strict=True)]
        begin, end = (less, rest) if how == "SAME_UPPER" else (rest, less)  # as ONNX says it
    elif how in ("NOTSET", "VALID"):
        pads = [0] * 4 if pads is None else pads
        if len(pads) != 4 or any(not 0 <= n <= MOST for n in pads):
            raise node.refusal(f"has pads {pads[:8]}")
        begin, end = pads[:2], pads[2:]
    else:
        raise node.refusal(f"has auto_pad {how[:20]}")
    constants = {"weight": weight}
    if len(values) == 3 and values[2] is not None:
        constants["bias"] = constant(node, values[2])
    geometry: dict[str, Any] = {"stride": stride, "more": more, "groups": groups, "dilation": dilation}
    even = begin == end
    padding = (begin[0], begin[1]) if even else (0, 0)
    result = draft.add(node, spread_out, (x,), constants, padding=padding, **geometry)
    if even:
        return result
    parts = [(begin[k], result.shape[k + 1] - end[k], 1) for k in (0, 1)]
    return draft.add(node, cut, (result,), parts=((0, result.shape[0], 1), *parts))


@writes("conv_transpose2d")
def write_conv_transpose2d(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    weight, bias, window = (operation.settings[name] for name in ("weight", "bias", "window"))
    names = [draft.constant(f"{output}.weight", weight)]
    names += [] if bias is None else [draft.constant(f"{output}.bias", bias)]
    size, kernel = draft.shapes[inputs[0]], weight.shape[2:]
    extra = [
        operation.shape[k + 1]
        - ((size[k + 1] - 1) * window.stride[k] - 2 * window.padding[k] + window.dilation[k] * (kernel[k] - 1) + 1)
        for k in (0, 1)
    ]
    if any(n >= stride for n, stride in zip(extra, window.stride, strict=True)):
        raise refused(operation, f"output padding {extra} of a stride or more, which tools refuse")
    draft.add(
        "ConvTranspose",
        inputs + names,
        output,
        kernel_shape=list(kernel),
        strides=list(window.stride),
        pads=list(window.padding) * 2,
        dilations=list(window.dilation),
        output_padding=extra,
        group=window.groups,
    )


@reads("Sum")
def sum_of_several(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """Branches of one shape, two by two."""
    node.count(1, 64)
    result, *others = (image(node, value) for value in values)
    for other in others:
        if other.shape != result.shape:
            raise node.refusal(f"joins branches of shapes {list(result.shape)} and {list(other.shape)}")
        result = draft.add(node, BINARY["Add"], (result, other))
    return result
