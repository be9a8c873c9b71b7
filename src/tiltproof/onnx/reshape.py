"""Nodes that move the numbers of a picture or of a constant about; none of them rounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.onnx.layers import MOST, Converter, converter, pad_zeros, picture
from tiltproof.onnx.module import Draft, Picture, Sizes, Value
from tiltproof.onnx.protobuf import FLOATS, INT64, INTEGERS, TEXT, Node
from tiltproof.onnx.shapes import axes_of, integers, join, reshaped, sizes, spread, squeezed, unsqueezed

MOVES: dict[str, Converter] = {}


@converter(MOVES, "Identity")
def identity(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1)
    assert values[0] is not None
    return values[0]


@converter(MOVES, "Dropout")
def dropout(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    """Outside training it is the identity, whatever its ratio."""
    node.count(1, 3)
    node.number("ratio", 0.5)
    node.integer("seed", 0)
    training = values[2] if len(values) == 3 else None
    if training is not None and not (isinstance(training, Tensor) and not bool(training.any())):
        raise node.refusal("is in training mode")
    return picture(node, values[0])


@converter(MOVES, "Cast")
def cast(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """To the type it has already."""
    node.count(1)
    node.integer("saturate", 1)  # of 8-bit types alone
    value, to = values[0], node.integer("to", 0)
    if isinstance(value, Picture):
        same = FLOATS.get(to) == draft.dtype
    else:
        whole = isinstance(value, Sizes) or (isinstance(value, Tensor) and value.dtype == torch.int64)
        same = to == INT64 if whole else isinstance(value, Tensor) and FLOATS.get(to) == value.dtype
    if not same or value is None:
        raise node.refusal(f"changes the type of its numbers (to ONNX's type {to})")
    return value


def in_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(x.shape[0], *shape)


@converter(MOVES, "Reshape")
def reshape(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(2)
    value, target, allow_zero = values[0], sizes(node, values[1]), node.flag("allowzero")
    if isinstance(value, Tensor):
        wanted = reshaped(node, target, tuple(value.shape), allow_zero, any_batch=True, batch_first=False)
        return value.reshape(wanted)
    x = picture(node, value)
    wanted = reshaped(node, target, (None, *x.shape), allow_zero, any_batch=draft.any_batch)
    return draft.add(node, in_shape, (x,), shape=wanted)


@converter(MOVES, "Flatten")
def flatten(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1)
    x, axis = picture(node, values[0]), node.integer("axis", 1)
    if axis not in (1, -len(x.shape)):
        raise node.refusal(f"flattens from axis {axis} on; axis 1 keeps the pictures of a batch apart")
    return draft.add(node, in_shape, (x,), shape=(math.prod(x.shape),))


@converter(MOVES, "Squeeze", "Unsqueeze")
def squeeze(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1, 2)
    change = squeezed if node.op == "Squeeze" else unsqueezed
    value, axes = values[0], axes_of(node, values, 1)
    if axes is None:
        raise node.refusal("does not say which axes")
    if isinstance(value, Sizes):
        scalar = len(value.numbers) == 1 and axes == [0] and value.scalar == (node.op == "Unsqueeze")
        if not scalar:
            raise node.refusal("changes the axes of a shape")
        return Sizes(value.numbers, scalar=node.op == "Squeeze")
    if isinstance(value, Tensor):
        return value.reshape([size or 0 for size in change(node, tuple(value.shape), axes)])
    x = picture(node, value)
    batch, *rest = change(node, (None, *x.shape), axes)
    if batch is not None:
        raise node.refusal("does not keep the batch dimension first")
    return draft.add(node, in_shape, (x,), shape=tuple(size or 0 for size in rest))


def turned(x: Tensor, *, order: tuple[int, ...]) -> Tensor:
    return x.permute(order)


@converter(MOVES, "Transpose")
def transpose(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1)
    value, order = values[0], node.take("perm", INTEGERS)
    count = value.ndim if isinstance(value, Tensor) else len(picture(node, value).shape) + 1
    order = list(reversed(range(count))) if order is None else order
    if sorted(order) != list(range(count)):
        raise node.refusal(f"permutes {count} axes by {order[:8]}")
    if isinstance(value, Tensor):
        return value.permute(order)
    if order[0] != 0:
        raise node.refusal("moves the batch dimension")
    return draft.add(node, turned, (picture(node, value),), order=tuple(order))


def side_by_side(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


@converter(MOVES, "Concat")
def concat(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1, 64)
    axis = node.integer("axis", 0)
    if not any(isinstance(value, Picture) for value in values):
        return join(node, values, axis)
    parts = tuple(picture(node, value) for value in values)
    axis = spread(node, [axis], len(parts[0].shape) + 1)[0]
    return draft.add(node, side_by_side, parts, axis=axis)


def cut(x: Tensor, *, parts: tuple[tuple[int, int, int], ...]) -> Tensor:
    return x[(slice(None), *(slice(*part) for part in parts))]


@converter(MOVES, "Slice")
def slice_(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(3, 5)
    value, starts, ends = values[0], integers(node, values[1]), integers(node, values[2])
    axes = integers(node, values[3]) if len(values) > 3 and values[3] is not None else list(range(len(starts)))
    steps = integers(node, values[4]) if len(values) > 4 and values[4] is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(step < 1 for step in steps):
        raise node.refusal(f"cuts with steps {steps[:8]}")
    if isinstance(value, Sizes) and axes in ([0], [-1]) and not value.scalar:
        return Sizes(value.numbers[slice(starts[0], ends[0], steps[0])])
    x = picture(node, value)
    parts = [(0, size, 1) for size in x.shape]
    for axis, *bounds in zip(spread(node, axes, len(parts) + 1), starts, ends, steps, strict=True):
        parts[axis - 1] = slice(*bounds).indices(x.shape[axis - 1])
    return draft.add(node, cut, (x,), parts=tuple(parts))


def mean(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.mean(x, axes, keep)


@converter(MOVES, "ReduceMean")
def reduce_mean(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(1, 2)
    x, keep = picture(node, values[0]), node.flag("keepdims", True)
    node.only(noop_with_empty_axes=0)
    axes = axes_of(node, values, 1)
    if not axes:
        raise node.refusal("averages over the batch too")
    return draft.add(node, mean, (x,), axes=tuple(spread(node, axes, len(x.shape) + 1)), keep=keep)


@converter(MOVES, "Pad")
def pad(draft: Draft, node: Node, values: list[Value | None]) -> Picture:
    node.count(2, 4)
    if node.take("mode", TEXT) not in (None, "constant"):
        raise node.refusal("pads otherwise than with a constant")
    x, pads = picture(node, values[0]), integers(node, values[1])
    value = values[2] if len(values) > 2 else None
    if value is not None and not (isinstance(value, Tensor) and value.numel() == 1 and not bool(value.any())):
        raise node.refusal("pads with something else than zeros")
    rank = len(x.shape) + 1
    axes = integers(node, values[3]) if len(values) > 3 and values[3] is not None else list(range(rank))
    half = len(axes)
    if len(pads) != 2 * half or any(not 0 <= amount <= MOST for amount in pads):
        raise node.refusal(f"pads {half} axes by {pads[:16]}")
    amounts = [(0, 0)] * rank
    touched = [k for k in range(half) if pads[k] or pads[k + half]]
    for k, axis in zip(touched, spread(node, [axes[k] for k in touched], rank), strict=True):
        amounts[axis] = (pads[k], pads[k + half])
    if not touched:
        return x
    return draft.add(node, pad_zeros, (x,), pad=tuple(n for pair in reversed(amounts[1:]) for n in pair))
