"""Operations that compute: layers, normalization, activations, pooling and arithmetic.

Each stands with the torch function that a node becomes, the rounding of that function, its reader and its writer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.errors import shown
from tiltproof.onnx.constants import folded
from tiltproof.onnx.curves import gate
from tiltproof.onnx.module import Draft, Image, Masked, Value
from tiltproof.onnx.protobuf import INTEGERS, NUMBER, TEXT, Node
from tiltproof.onnx.registry import (
    ErrorRule,
    GraphDraft,
    Operation,
    constant,
    exact,
    gamma,
    image,
    reads,
    rearranged,
    rounds,
    writes,
    writes_one_node,
)
from tiltproof.onnx.reshape import MOST, axes_of, cut, pad_zeros, spread
from tiltproof.onnx.uneven import entries_inside, windows_kept, zeros_of
from tiltproof.step_module import Step, convolve

MOST_PRODUCTS = 2**36
"""Limit for one layer and one image."""


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
        raise node.refusal(f"slides a kernel {list(kernel)} over {list(shape)}; images [C, H, W] alone have rules")
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


def sum_of_products(step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    x, e, sizes = read[0], errors[0], {name: c.abs() for name, c in step.constants.items() if name != "bias"}

    def absolute(values: Tensor) -> Tensor:
        taken: Tensor = step.function(values, **sizes, **step.settings)
        return taken

    size = absolute(x.abs() + e)
    if "bias" in step.names:
        bias = step.constants["bias"].abs()
        size = size + (bias if step.function is linear else bias.view(-1, 1, 1))
    return absolute(e) + gamma(_terms(step, x) + 4, unit) * size


def _terms(step: Step, x: Tensor) -> int:
    """How many products an output sums up, at most."""
    if "weight" in step.names:
        return step.constants["weight"][0].numel()
    if step.function is average:
        return math.prod(step.settings["kernel"])
    axes = step.settings.get("axes", (2, 3))
    return math.prod(x.shape[axis] for axis in axes)


rounds(sum_of_products)(convolve)


@reads("Conv")
def conv(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(2, 3)
    x, weight = image(node, values[0]), constant(node, values[1])
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
    if not window.even:  # zeros around the image first, then a convolution without padding
        around = (window.begin[1], window.end[1], window.begin[0], window.end[0])
        x, padding = draft.add(node, pad_zeros, (x,), pad=around), (0, 0)
    geometry: dict[str, Any] = {"stride": window.stride, "padding": padding, "dilation": window.dilation}
    result = draft.add(node, convolve, (x,), constants, **geometry, groups=groups)
    if result.shape[1] * result.shape[2] * weight.numel() > MOST_PRODUCTS:
        raise node.refusal("takes more products than any network here does")
    return result


@writes("conv2d")
def write_conv2d(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    weight, bias, window = (operation.settings[name] for name in ("weight", "bias", "window"))
    names = [draft.constant(f"{output}.weight", weight)]
    names += [] if bias is None else [draft.constant(f"{output}.bias", bias)]
    draft.add(
        "Conv",
        inputs + names,
        output,
        kernel_shape=list(weight.shape[2:]),
        strides=list(window.stride),
        pads=list(window.padding) * 2,
        dilations=list(window.dilation),
        group=window.groups,
    )


@rounds(sum_of_products)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@reads("Gemm")
def gemm(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """alpha A' B' + beta C; with alpha = beta = 1 and A as it stands, a linear layer."""
    node.count(2, 3)
    x, weight = image(node, values[0]), constant(node, values[1])
    node.only(alpha=1.0, beta=1.0, transA=0)
    turned = node.flag("transB")
    if weight.ndim != 2 or len(x.shape) != 1:
        raise node.refusal(
            f"multiplies {list(x.shape)} with {list(weight.shape)}; only flat inputs and a matrix are supported"
        )
    constants = {"weight": weight if turned else weight.t()}
    if len(values) == 3 and values[2] is not None:
        bias, outputs = constant(node, values[2]), len(constants["weight"])
        if bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1) or bias.shape[-1:] not in ((), (1,), (outputs,)):
            raise node.refusal(f"adds a constant of shape {list(bias.shape)} to {outputs} outputs")
        constants["bias"] = bias.reshape(-1).expand(outputs).clone()
    return draft.add(node, linear, (x,), constants)


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


@writes("linear")
def write_linear(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """Write a Gemm with a bias, of zeros if there is none: not every tool reads a Gemm with two inputs."""
    weight, bias = operation.settings["weight"], operation.settings["bias"]
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    names = [draft.constant(f"{output}.weight", weight), draft.constant(f"{output}.bias", bias)]
    draft.add("Gemm", inputs + names, output, transB=1)


def normalized(step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    view = (-1, *[1] * (read[0].ndim - 2))
    mean, variance, weight, bias = (step.constants[name].view(view) for name in ("mean", "variance", "weight", "bias"))
    scale = (weight / (variance + step.settings["epsilon"]).sqrt()).abs()
    size = scale * (read[0].abs() + errors[0] + mean.abs()) + bias.abs()
    return scale * errors[0] + gamma(12, unit) * size


@rounds(normalized)
def normalize(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon)


@reads("BatchNormalization")
def batch_norm(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(5)
    node.only(training_mode=0, spatial=1)
    node.number("momentum", 0.9)  # of training alone
    epsilon = node.number("epsilon", float(np.float32(1e-5)))
    weight, bias, mean, variance = (constant(node, value) for value in values[1:])
    if not epsilon >= 0 or bool((variance < 0).any()) or bool((variance + epsilon <= 0).any()):
        raise node.refusal("divides by a variance that is not positive")
    constants = {"mean": mean, "variance": variance, "weight": weight, "bias": bias}
    return draft.add(node, normalize, (image(node, values[0]),), constants, epsilon=epsilon)


EPSILON = 2.0**-16
"""Such that 1 - EPSILON is a float32 number."""


@writes("scale")
def write_scale(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """scale * x + shift: as a batch norm of mean 0 and variance 1 where a channel has one number each, which more tools read than
    products, else as Mul and Add, each left out where it does nothing.
    """
    shift = operation.settings["shift"]
    factor = operation.settings["scale"].expand(operation.shape)
    shift = torch.zeros_like(factor) if shift is None else shift.expand(operation.shape)
    if len(operation.shape) in (1, 3) and _one_a_channel(factor) and _one_a_channel(shift):
        ones = torch.ones(len(factor))
        first = [number.reshape(len(number), -1)[:, 0] for number in (factor, shift)]
        # variance + epsilon is exactly 1; some tools refuse an epsilon of 0
        numbers = {"scale": first[0], "shift": first[1], "mean": 0 * ones, "variance": (1 - EPSILON) * ones}
        names = [draft.constant(f"{output}.{name}", number) for name, number in numbers.items()]
        draft.add("BatchNormalization", inputs + names, output, epsilon=EPSILON)
        return
    value = inputs[0]
    steps = [("Mul", factor, 1.0), ("Add", shift, 0.0)]
    steps = [(op, number, nothing) for op, number, nothing in steps if bool((number != nothing).any())]
    for k, (op, number, _) in enumerate(steps):
        result = output if k == len(steps) - 1 else f"{output}.scaled"
        draft.add(op, [value, draft.constant(f"{output}.{op.lower()}", number[None])], result)
        value = result
    if not steps:
        draft.add("Identity", inputs, output)


def _one_a_channel(number: Tensor) -> bool:
    rows = number.reshape(len(number), -1)
    return bool((rows == rows[:, :1]).all())


def slightly_rounded(_step: Step, _read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    return errors[0] + 4 * unit * (result.abs() + errors[0])  # slopes lie in [0, 1]


@rounds(slightly_rounded)
def leaky(x: Tensor, *, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


@reads("LeakyRelu")
def leaky_relu(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    slope = node.number("alpha", float(np.float32(0.01)))
    if not 0 <= slope <= 1:
        raise node.refusal(f"has alpha = {slope}; only 0 to 1 is supported")
    return draft.add(node, leaky, (image(node, values[0]),), slope=slope)


@writes("relu")
def write_relu(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    slope = operation.settings.get("negative_slope", 0.0)
    if slope == -1:
        draft.add("Abs", inputs, output)
    elif slope:
        draft.add("LeakyRelu", inputs, output, alpha=slope)
    else:
        draft.add("Relu", inputs, output)


@rounds(exact)
def clip(x: Tensor, *, low: float, high: float) -> Tensor:
    return torch.clamp(x, low, high)


@rounds(exact)
def clip_below(x: Tensor, *, low: float) -> Tensor:
    return torch.clamp(x, min=low)


@rounds(exact)
def clip_above(x: Tensor, *, high: float) -> Tensor:
    return torch.clamp(x, max=high)


@reads("Clip")
def read_clip(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1, 3)
    if node.opset < 11:  # as attributes, whose defaults are the ends of float32
        ends = [node.take(name, NUMBER) for name in ("min", "max")]
        largest = float(np.finfo(np.float32).max)
        found = [
            torch.tensor(bound, dtype=draft.dtype) if bound is not None and abs(bound) < largest else None
            for bound in ends
        ]
    else:
        found = [None if value is None else constant(node, value) for value in [*values[1:], None, None][:2]]
    bounds = {name: bound for name, bound in zip(("low", "high"), found, strict=True) if bound is not None}
    if any(bound.numel() != 1 or bound.dtype != draft.dtype for bound in bounds.values()):
        raise node.refusal("has bounds that are no single numbers of the network's type")
    x, given = image(node, values[0]), {name: float(bound) for name, bound in bounds.items()}
    if not given:
        return x
    if "high" not in given:
        return draft.add(node, clip_below, (x,), low=given["low"])
    if "low" not in given:
        return draft.add(node, clip_above, (x,), high=given["high"])
    low, high = given["low"], given["high"]
    if not low < high:
        raise node.refusal(f"clips to [{low}, {high}]; only a lower bound below the upper one is supported")
    return draft.add(node, clip, (x,), low=low, high=high)


@writes("clamp")
def write_clamp(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    bounds = {name: torch.tensor(operation.settings[name]) for name in ("low", "high")}
    draft.add("Clip", inputs + [draft.constant(f"{output}.{name}", bound) for name, bound in bounds.items()], output)


LIBRARY = 64
"""Units of 1 by which a library's sigmoid or tanh may be off."""


def approximated(lipschitz: float) -> ErrorRule:
    def rule(_step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
        return lipschitz * errors[0] + LIBRARY * unit

    return rule


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": rounds(exact)(torch.relu),
    "Sigmoid": rounds(approximated(0.25))(torch.sigmoid),
    "Tanh": rounds(approximated(1.0))(torch.tanh),
    "Neg": rounds(exact)(torch.neg),
}


@reads(*FUNCTIONS)
def plain(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    return draft.add(node, FUNCTIONS[node.op], (image(node, values[0]),))


writes_one_node("sigmoid", "Sigmoid")
writes_one_node("tanh", "Tanh")


def _pooling(node: Node, x: Image) -> Sliding:
    window = sliding(node, kernel_shape(node), x.shape)
    if any(2 * p > k for p, k in zip(window.begin + window.end, window.kernel * 2, strict=True)):
        raise node.refusal(
            f"pads by {list(window.begin + window.end)}; only padding of at most half the kernel is supported"
        )
    return window


def _attributes(operation: Operation) -> dict[str, Any]:
    s = operation.settings
    return {"kernel_shape": list(s["kernel_size"]), "strides": list(s["stride"]), "pads": list(s["padding"]) * 2}


@rounds(rearranged)
def largest(
    x: Tensor,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    ceil: bool = False,
) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding, dilation, ceil)


@reads("MaxPool")
def max_pool(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x = image(node, values[0])
    node.only(storage_order=0)
    w, ceil = _pooling(node, x), node.flag("ceil_mode")
    if not w.even:
        sides, parts = windows_kept(node, x.shape, w, ceil)
        every = draft.add(node, largest, (x,), kernel=w.kernel, stride=(1, 1), padding=sides, dilation=w.dilation)
        return draft.add(node, cut, (every,), parts=parts)
    return draft.add(
        node, largest, (x,), kernel=w.kernel, stride=w.stride, padding=w.begin, dilation=w.dilation, ceil=ceil
    )


@writes("max_pool2d")
def write_max_pool2d(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    more = {"dilations": list(operation.settings["dilation"])} if operation.settings["dilation"] != (1, 1) else {}
    draft.add("MaxPool", inputs, output, **_attributes(operation), **more)


@rounds(sum_of_products)
def average(
    x: Tensor,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    include: bool,
    ceil: bool = False,
) -> Tensor:
    return F.avg_pool2d(x, kernel, stride, padding, ceil, include)


@reads("AveragePool")
def average_pool(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x = image(node, values[0])
    w, include = _pooling(node, x), node.flag("count_include_pad")
    ceil = node.flag("ceil_mode")
    if w.dilation != (1, 1):
        raise node.refusal("has dilations")
    if not w.even:
        if ceil:
            raise node.refusal(f"pads by {list(w.begin + w.end)} in ceil_mode")
        wide = draft.add(node, pad_zeros, (x,), pad=zeros_of(w))
        found = draft.add(node, average, (wide,), kernel=w.kernel, stride=w.stride, padding=(0, 0), include=True)
        factor = (1 / entries_inside(x.shape, w)).to(draft.dtype)
        return (
            found
            if include
            else draft.add(node, with_constant, (found,), {"constant": factor}, operation=BINARY["Mul"])
        )
    include = include or w.begin == (0, 0)
    return draft.add(node, average, (x,), kernel=w.kernel, stride=w.stride, padding=w.begin, include=include, ceil=ceil)


@writes("avg_pool2d")
def write_avg_pool2d(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    s = operation.settings
    if s["ceil_mode"]:  # which tools read in different ways
        _write_averages(draft, inputs, output, lambda x, axis: _averaged(x, axis, s))
        return
    if s["divisor"] is None:
        draft.add(
            "AveragePool", inputs, output, count_include_pad=int(s["count_include_pad"]), **_attributes(operation)
        )
        return
    area = s["kernel_size"][0] * s["kernel_size"][1]  # with its padding every window has as many entries
    draft.add("AveragePool", inputs, f"{output}.mean", count_include_pad=1, **_attributes(operation))
    factor = draft.constant(f"{output}.factor", torch.tensor(area / s["divisor"], dtype=torch.float64))
    draft.add("Mul", [f"{output}.mean", factor], output)


def _averaged(x: Tensor, axis: int, settings: dict[str, Any]) -> Tensor:
    """Average over windows along one axis alone. What the windows are, and what a sum is divided by, are products over both axes."""
    alone = [[settings[name][k] if k == axis else n for k in (0, 1)] for name, n in LENGTHS.items()]
    divisor = settings["divisor"] if axis or settings["divisor"] is None else 1
    kernel, stride, padding = alone
    return F.avg_pool2d(x, kernel, stride, padding, settings["ceil_mode"], settings["count_include_pad"], divisor)


LENGTHS = {"kernel_size": 1, "stride": 1, "padding": 0}
"""Settings of a window along each axis, and what they are of one that leaves an axis as it is."""


def _write_averages(
    draft: GraphDraft, inputs: list[str], output: str, averaged: Callable[[Tensor, int], Tensor]
) -> None:
    """Both products with the matrices of averages along one axis each."""
    height, width = draft.shapes[inputs[0]][-2:]
    rows = averaged(torch.eye(height, dtype=torch.float64).view(height, 1, height, 1), 0).flatten(1).t()
    columns = averaged(torch.eye(width, dtype=torch.float64).view(width, 1, 1, width), 1).flatten(1)
    write_products(draft, inputs, output, rows, columns)


def write_products(draft: GraphDraft, inputs: list[str], output: str, rows: Tensor, columns: Tensor) -> None:
    """rows @ x @ columns."""
    draft.add("MatMul", [*inputs, draft.constant(f"{output}.columns", columns)], f"{output}.wide")
    draft.add("MatMul", [draft.constant(f"{output}.rows", rows), f"{output}.wide"], output)


@rounds(sum_of_products)
def average_all(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, (1, 1))


@reads("GlobalAveragePool")
def global_average_pool(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x = image(node, values[0])
    if len(x.shape) != 3:
        raise node.refusal(f"averages {list(x.shape)}; only images [C, H, W] are supported")
    return draft.add(node, average_all, (x,))


@writes("adaptive_avg_pool2d")
def write_adaptive_avg_pool2d(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    size, result = draft.shapes[inputs[0]][-2:], operation.shape[-2:]
    if any(whole % part for whole, part in zip(size, result, strict=True)):  # windows of unequal size
        lengths = [(result[0], 1), (1, result[1])]
        _write_averages(draft, inputs, output, lambda x, axis: F.adaptive_avg_pool2d(x, lengths[axis]))
    elif tuple(result) == (1, 1):
        draft.add("GlobalAveragePool", inputs, output)
    else:
        window = [whole // part for whole, part in zip(size, result, strict=True)]
        draft.add("AveragePool", inputs, output, kernel_shape=window, strides=window)


@rounds(sum_of_products)
def mean(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.mean(x, axes, keep)


@reads("ReduceMean")
def reduce_mean(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1, 2)
    x, keep = image(node, values[0]), node.flag("keepdims", True)
    node.only(noop_with_empty_axes=0)
    axes = axes_of(node, values, 1)
    if not axes:
        raise node.refusal("averages over the batch too")
    return draft.add(node, mean, (x,), axes=tuple(spread(node, axes, len(x.shape) + 1)), keep=keep)


@writes("mean")
def write_mean(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    keep = int(operation.settings["keepdim"])
    draft.add("ReduceMean", inputs, output, axes=list(operation.settings["dim"]), keepdims=keep)


def scaled_or_shifted(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    operation, constant = step.settings["operation"], step.constants["constant"].abs()
    factor = (
        constant if operation is torch.mul else 1 / constant if operation is torch.div else torch.ones_like(constant)
    )
    error = factor * errors[0]
    return error + 2 * unit * (result.abs() + error)


@rounds(scaled_or_shifted)
def with_constant(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(x, constant)


@rounds(scaled_or_shifted)
def constant_with(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return operation(constant, x)


def branches(_step: Step, _read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    error = errors[0] + errors[1]
    return error + 2 * unit * (result.abs() + error)


def quotient_of_branches(_step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """Infinite where the divisor may be 0."""
    least = read[1].abs() - errors[1]
    error = torch.where(least > 0, (errors[0] + result.abs() * errors[1]) / least, math.inf)
    return error + 2 * unit * (result.abs() + error)


@rounds(quotient_of_branches)
def quotient(x: Tensor, other: Tensor) -> Tensor:
    return x / other


def over_branch(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    ahead = step.constants["constant"].expand_as(result)
    return quotient_of_branches(step, [ahead, read[0]], [torch.zeros_like(result), errors[0]], result, unit)


@rounds(over_branch)
def constant_over(x: Tensor, constant: Tensor, *, operation: Any) -> Tensor:
    return constant / x


def product_of_branches(_step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    error = read[0].abs() * errors[1] + read[1].abs() * errors[0] + errors[0] * errors[1]
    return error + 2 * unit * (result.abs() + error)


BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": rounds(branches)(torch.add),
    "Sub": rounds(branches)(torch.sub),
    "Mul": rounds(product_of_branches)(torch.mul),
    "Div": torch.div,
}


def infinite(value: Value | None) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())


def with_mask(draft: Draft, node: Node, values: list[Value | None]) -> Masked:
    """A value and a constant with minus infinity where it takes entries out of a softmax, and other numbers elsewhere."""
    x, added = values if isinstance(values[0], Image) else values[::-1]
    x = image(node, x)
    assert isinstance(added, Tensor)
    taking = fitted_constant(node, (added > -math.inf).to(draft.dtype), x.shape)
    more = added.masked_fill(added == -math.inf, 0.0)
    result = x if not bool(more.any()) else arithmetic(draft, node, [x, more])
    assert isinstance(result, Image)
    return Masked(result, taking)


def fitted_constant(node: Node, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A constant spread to [1, ...], the same for every image."""
    whole = (1, *shape)
    if value.ndim > len(whole) or any(a not in (1, b) for a, b in zip(value.shape[::-1], whole[::-1], strict=False)):
        raise node.refusal(f"has a constant of shape {list(value.shape)} for {list(shape)}")
    return value.expand(whole).clone()


@reads(*BINARY)
def arithmetic(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(2)
    function = BINARY[node.op]
    first, second = values
    if node.op == "Add" and any(infinite(value) for value in values):
        return with_mask(draft, node, values)
    if isinstance(first, Image) and isinstance(second, Image):
        joined = gate(draft, node, first, second) if node.op == "Mul" else None
        if joined is not None:
            return joined
        if len(first.shape) != len(second.shape):
            raise node.refusal(f"joins branches of shapes {list(first.shape)} and {list(second.shape)}")
        return draft.add(node, quotient if node.op == "Div" else function, (first, second))
    x, constant = (first, second) if isinstance(first, Image) else (second, first)
    if not isinstance(x, Image) or not isinstance(constant, Tensor):
        return folded(node, first, second, function)
    if node.op == "Div" and x is first and bool((constant == 0).any()):
        raise node.refusal("divides by zero")
    whole = len(x.shape) + 1
    if constant.ndim > whole or (constant.ndim == whole and constant.shape[0] != 1):
        raise node.refusal(f"has a constant of shape {list(constant.shape)}, which would tell images of a batch apart")
    made = with_constant if x is first else constant_over if node.op == "Div" else constant_with
    result = draft.add(node, made, (x,), {"constant": constant}, operation=function)
    if result.shape != x.shape:
        raise node.refusal(f"spreads {list(x.shape)} to {list(result.shape)}")
    return result


writes_one_node("add", "Add")
writes_one_node("sub", "Sub")
writes_one_node("product", "Mul")


@writes("square")
def write_square(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Mul", inputs * 2, output)
