"""Operations that compute: layers, normalization and activations; see also `pooling` and `arithmetic`.

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
from tiltproof.onnx.module import Draft, Image, Value
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
    rounds,
    writes,
    writes_one_node,
)
from tiltproof.onnx.reshape import MOST, pad_zeros
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
    if "kernel" in step.settings:  # of a pooled window
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
