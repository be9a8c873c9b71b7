"""Largest values and averages of windows or of whole images; as in `ops`, each with its rounding, reader and writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.onnx.arithmetic import BINARY, with_constant
from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.ops import Sliding, kernel_shape, sliding, sum_of_products
from tiltproof.onnx.protobuf import Node
from tiltproof.onnx.registry import (
    GraphDraft,
    Operation,
    image,
    reads,
    rearranged,
    rounds,
    writes,
)
from tiltproof.onnx.reshape import cut, pad_zeros
from tiltproof.onnx.uneven import entries_inside, windows_kept, zeros_of


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
