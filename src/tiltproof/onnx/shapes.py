"""Whole numbers that say how a tensor is reshaped, cut or averaged, worked out while the file is read.

Exporters write arithmetic with shapes into the graph: x.view(x.size(0), -1) becomes Shape, Gather, Unsqueeze, Concat and
Reshape. None stands for the batch size in it, which no step may depend on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tiltproof.onnx.layers import Converter, converter, picture
from tiltproof.onnx.module import Draft, Picture, Sizes, Value
from tiltproof.onnx.protobuf import FLOATING, INTEGER, INTEGERS, NUMBER, TENSOR, Node, numbers

SHAPES: dict[str, Converter] = {}
DYNAMIC = "export with a batch of 1, or with a dynamic batch: dynamic_axes={'images': {0: 'batch'}}"
MOST_AXES = 64


def sizes(node: Node, value: Value | None) -> Sizes:
    if isinstance(value, Sizes):
        return value
    if isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim <= 1 and value.numel() <= MOST_AXES:
        return Sizes(tuple(value.reshape(-1).tolist()), scalar=value.ndim == 0)
    raise node.refusal("needs whole numbers that are known when the file is read")


def integers(node: Node, value: Value | None) -> list[int]:
    found = sizes(node, value).numbers
    if None in found:
        raise node.refusal("depends on the batch size", do=DYNAMIC)
    return [number for number in found if number is not None]


def axes_of(node: Node, values: Sequence[Value | None], place: int) -> list[int] | None:
    """The attribute ``axes`` of older opsets, or the input that has taken its place."""
    attribute = node.take("axes", INTEGERS)
    given = values[place] if len(values) > place else None
    if attribute is not None and given is not None:
        raise node.refusal("says its axes twice")
    return integers(node, given) if given is not None else attribute


def spread(node: Node, axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front: each there, none twice, and never the batch."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    if any(not 0 <= axis < rank for axis in found) or len({*found}) != len(found):
        raise node.refusal(f"names axes {list(axes)[:8]} of {rank}")
    if 0 in found:
        raise node.refusal("works along the batch dimension, whose pictures must not mix")
    return found


Dims = tuple[int | None, ...]


def reshaped(
    node: Node, target: Sizes, dims: Dims, allow_zero: bool, *, any_batch: bool, batch_first: bool = True
) -> tuple[int, ...]:
    """The shape that a reshape gives, of a picture without the batch."""
    if target.scalar or (allow_zero and 0 in target.numbers):
        raise node.refusal("reshapes to a scalar or to no numbers at all")
    if any(size == 0 and k >= len(dims) for k, size in enumerate(target.numbers)):
        raise node.refusal("copies a dimension that is not there")
    wanted = [dims[k] if size == 0 else size for k, size in enumerate(target.numbers)]
    known = [size for size in dims if size is not None]
    if batch_first:
        first = wanted.pop(0) if wanted else 0
        if first == 1 and not any_batch:
            first = None  # the file is about one picture, and so is this literal batch of one
        if first == -1 and -1 not in wanted:
            first = None  # whatever the rest leaves over: it leaves one for each picture if the rest is a whole picture
        elif first == -1 or first is not None:
            text = "mixes pictures of a batch" if first == -1 else f"is made for a batch of {first}"
            raise node.refusal(f"reshapes to {_text(target)}, which {text}", do=DYNAMIC)
    rest = [-2 if size is None else size for size in wanted]
    if -1 in rest:
        others = -math.prod(rest)
        rest[rest.index(-1)] = math.prod(known) // others if others > 0 else -2
    if any(size < 1 for size in rest) or math.prod(rest) != math.prod(known):
        raise node.refusal(
            f"reshapes [{'N, ' if batch_first else ''}{_text(Sizes(tuple(known)))[1:]} to {_text(target)}"
        )
    return tuple(rest)


def _text(target: Sizes) -> str:
    return "[" + ", ".join("N" if size is None else str(size) for size in target.numbers[:9]) + "]"


def squeezed(node: Node, dims: Dims, axes: Sequence[int]) -> Dims:
    gone = {axis + len(dims) if axis < 0 else axis for axis in axes}
    if len(gone) != len(axes) or any(not 0 <= axis < len(dims) or dims[axis] != 1 for axis in gone):
        raise node.refusal(f"takes away axes {list(axes)[:8]}, not all of size 1 in each picture")
    return tuple(size for axis, size in enumerate(dims) if axis not in gone)


def unsqueezed(node: Node, dims: Dims, axes: Sequence[int]) -> Dims:
    rank = len(dims) + len(axes)
    new = {axis + rank if axis < 0 else axis for axis in axes}
    if len(new) != len(axes) or rank > 8 or any(not 0 <= axis < rank for axis in new):
        raise node.refusal(f"adds axes {list(axes)[:8]}")
    old = iter(dims)
    return tuple(1 if axis in new else next(old) for axis in range(rank))


def join(node: Node, values: Sequence[Value | None], axis: int) -> Sizes:
    parts = [sizes(node, value) for value in values]
    if axis not in (0, -1) or any(part.scalar for part in parts) or sum(len(p.numbers) for p in parts) > MOST_AXES:
        raise node.refusal("joins constants; branches and shapes have rules")
    return Sizes(tuple(number for part in parts for number in part.numbers))


@converter(SHAPES, "Shape")
def shape(draft: Draft, node: Node, values: list[Value | None]) -> Sizes:
    node.count(1)
    start, end = node.integer("start", 0), node.take("end", INTEGER)
    value = values[0]
    dims: Dims = (None, *value.shape) if isinstance(value, Picture) else (None, *picture(node, value).shape)
    return Sizes(dims[start:end])


@converter(SHAPES, "Gather")
def gather(draft: Draft, node: Node, values: list[Value | None]) -> Sizes:
    """Entries of a shape."""
    node.count(2)
    node.only(axis=0)
    if isinstance(values[0], Picture):
        raise node.refusal("picks out numbers of a picture")
    source, index = sizes(node, values[0]), sizes(node, values[1])
    chosen = integers(node, values[1])
    if source.scalar or any(not -len(source.numbers) <= k < len(source.numbers) for k in chosen):
        raise node.refusal(f"takes entries {chosen[:8]} of {len(source.numbers)}")
    return Sizes(tuple(source.numbers[k] for k in chosen), index.scalar)


@converter(SHAPES, "Constant")
def constant(draft: Draft, node: Node, values: list[Value | None]) -> Tensor:
    node.count(0)
    tensor, number, count = (
        node.take("value", TENSOR),
        node.take("value_float", NUMBER),
        node.take("value_int", INTEGER),
    )
    row, counts = node.take("value_floats", FLOATING), node.take("value_ints", INTEGERS)
    given = [value for value in (tensor, number, count, row, counts) if value is not None]
    if len(given) != 1:
        raise node.refusal("must hold one tensor of numbers")
    if tensor is not None:
        return numbers(tensor)
    result = torch.tensor(given[0], dtype=torch.float32 if number is not None or row is not None else torch.int64)
    if not bool(torch.isfinite(result).all()):
        raise node.refusal("holds NaN or infinity")
    return result
