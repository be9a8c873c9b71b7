"""The table from this package's operations to ONNX nodes, in the small vocabulary that verifiers read (opset 13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import UnsupportedOperation
from tiltproof.network import Operation
from tiltproof.onnx.protobuf import package


@dataclass
class Draft:
    """Nodes and numbers of an ONNX graph in the making; ``shapes`` are those of the values so far, without the batch."""

    shapes: dict[str, tuple[int, ...]]
    nodes: list[Any] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        made = package("onnx").helper.make_node(op, inputs, [output], name=f"{output}/{op}", **attributes)
        self.nodes.append(made)

    def constant(self, name: str, value: Tensor | list[int]) -> str:
        """Floats as float32 (what is wider is rounded), whole numbers as int64."""
        tensor = torch.as_tensor(value)
        tensor = tensor.float() if tensor.is_floating_point() else tensor.long()
        array = tensor.detach().cpu().contiguous().numpy()
        self.numbers.append(package("onnx").numpy_helper.from_array(array, name))
        return name


Writer = Callable[[Draft, Operation, list[str], str], None]
"""Adds the nodes that make the value of this name from values of those names."""
WRITERS: dict[str, Writer] = {}


def writer(kind: str) -> Callable[[Writer], Writer]:
    def register(function: Writer) -> Writer:
        WRITERS[kind] = function
        return function

    return register


def _refused(operation: Operation, why: str) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"operation {operation.kind!r} at node {operation.name!r} cannot be written as ONNX", got=why
    )


@writer("conv2d")
def conv2d(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
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


@writer("linear")
def linear(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    """With a bias of zeros where there is none: not every tool reads a Gemm of two inputs."""
    weight, bias = operation.settings["weight"], operation.settings["bias"]
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    names = [draft.constant(f"{output}.weight", weight), draft.constant(f"{output}.bias", bias)]
    draft.add("Gemm", inputs + names, output, transB=1)


@writer("scale")
def scale(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    """scale * x + shift: as a batch norm of mean 0 and variance 1 where a channel has one number each, which more tools read than
    products, else as Mul and Add, each left out where it does nothing.
    """
    shift = operation.settings["shift"]
    factor = operation.settings["scale"].expand(operation.shape)
    shift = torch.zeros_like(factor) if shift is None else shift.expand(operation.shape)
    if len(operation.shape) in (1, 3) and _one_a_channel(factor) and _one_a_channel(shift):
        ones = torch.ones(len(factor))
        first = [number.reshape(len(number), -1)[:, 0] for number in (factor, shift)]
        numbers = {"scale": first[0], "shift": first[1], "mean": 0 * ones, "variance": ones}
        names = [draft.constant(f"{output}.{name}", number) for name, number in numbers.items()]
        draft.add("BatchNormalization", inputs + names, output, epsilon=0.0)
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


@writer("relu")
def relu(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    slope = operation.settings.get("negative_slope", 0.0)
    if slope:
        draft.add("LeakyRelu", inputs, output, alpha=slope)
    else:
        draft.add("Relu", inputs, output)


def _pooling(operation: Operation) -> dict[str, Any]:
    s = operation.settings
    return {"kernel_shape": list(s["kernel_size"]), "strides": list(s["stride"]), "pads": list(s["padding"]) * 2}


@writer("max_pool2d")
def max_pool2d(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    more = {"dilations": list(operation.settings["dilation"])} if operation.settings["dilation"] != (1, 1) else {}
    draft.add("MaxPool", inputs, output, **_pooling(operation), **more)


@writer("avg_pool2d")
def avg_pool2d(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    s = operation.settings
    if s["ceil_mode"]:
        raise _refused(operation, "average pooling with ceil_mode, which tools read in different ways")
    if s["divisor"] is None:
        draft.add("AveragePool", inputs, output, count_include_pad=int(s["count_include_pad"]), **_pooling(operation))
        return
    area = s["kernel_size"][0] * s["kernel_size"][1]  # with its padding every window has as many entries
    draft.add("AveragePool", inputs, f"{output}.mean", count_include_pad=1, **_pooling(operation))
    factor = draft.constant(f"{output}.factor", torch.tensor(area / s["divisor"], dtype=torch.float64))
    draft.add("Mul", [f"{output}.mean", factor], output)


@writer("adaptive_avg_pool2d")
def adaptive_avg_pool2d(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    size, result = draft.shapes[inputs[0]][-2:], operation.shape[-2:]
    if any(whole % part for whole, part in zip(size, result, strict=True)):
        raise _refused(operation, f"windows of unequal size: {tuple(size)} to {tuple(result)}")
    if tuple(result) == (1, 1):
        draft.add("GlobalAveragePool", inputs, output)
    else:
        window = [whole // part for whole, part in zip(size, result, strict=True)]
        draft.add("AveragePool", inputs, output, kernel_shape=window, strides=window)


@writer("mean")
def mean(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    keep = int(operation.settings["keepdim"])
    draft.add("ReduceMean", inputs, output, axes=list(operation.settings["dim"]), keepdims=keep)


@writer("reshape")
def reshape(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    if len(operation.shape) == 1:
        draft.add("Flatten", inputs, output, axis=1)
    else:
        draft.add("Reshape", [*inputs, draft.constant(f"{output}.shape", [-1, *operation.shape])], output)


@writer("permute")
def permute(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Transpose", inputs, output, perm=list(operation.settings["dims"]))


@writer("slice")
def slice_(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    s = operation.settings
    size = draft.shapes[inputs[0]][s["dim"] - 1]
    start, end, step = slice(s["start"], s["end"], s["step"]).indices(size)
    parts = {"starts": start, "ends": end, "axes": s["dim"], "steps": step}
    names = [draft.constant(f"{output}.{name}", [number]) for name, number in parts.items()]
    draft.add("Slice", inputs + names, output)


@writer("pad")
def pad(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    """torch lists (before, after) from the last dimension backwards, ONNX all befores and then all afters."""
    given = operation.settings["pad"]
    dimensions = len(operation.shape) + 1
    before, after = [0] * dimensions, [0] * dimensions
    for k in range(len(given) // 2):
        before[-1 - k], after[-1 - k] = given[2 * k], given[2 * k + 1]
    draft.add("Pad", [*inputs, draft.constant(f"{output}.pads", before + after)], output)


@writer("concat")
def concat(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Concat", inputs, output, axis=operation.settings["dim"])


def _one_node(op: str) -> Writer:
    """For an operation that is one node of ONNX, without attributes."""

    def write(draft: Draft, operation: Operation, inputs: list[str], output: str) -> None:
        draft.add(op, inputs, output)

    return write


for _kind, _op in (("sigmoid", "Sigmoid"), ("tanh", "Tanh"), ("identity", "Identity"), ("add", "Add"), ("sub", "Sub")):
    writer(_kind)(_one_node(_op))
