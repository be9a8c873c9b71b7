"""Operations that rearrange numbers, and the arithmetic with shapes that says how. None of them rounds.

Exporters write arithmetic with shapes into the graph: x.view(x.size(0), -1) becomes Shape, Gather, Unsqueeze, Concat and
Reshape. It is computed while the file is read; None stands for the batch size in it, which no step may depend on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.onnx.module import Draft, Image, Quantized, Sizes, Truth, Value
from tiltproof.onnx.protobuf import (
    BOOL,
    FLOAT16,
    FLOATING,
    FLOATS,
    INT8,
    INT32,
    INT64,
    INTEGER,
    INTEGERS,
    NUMBER,
    TENSOR,
    TEXT,
    UINT8,
    Node,
    numbers,
)
from tiltproof.onnx.registry import GraphDraft, Operation, image, reads, rearranged, rounds, writes, writes_one_node

MOST = 2**15
"""Size of a kernel, a stride, a padding or a dilation."""
DYNAMIC = "export with a batch of 1, or with a dynamic batch: dynamic_axes={'images': {0: 'batch'}}"
"""Advice for a file whose shapes contain the batch size."""
MOST_AXES = 64
"""Entries of a shape."""
Dims = tuple[int | None, ...]
"""A shape; None for the batch."""


def sizes(node: Node, value: Value | None) -> Sizes:
    if isinstance(value, Sizes):
        return value
    if isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim <= 1 and value.numel() <= MOST_AXES:
        return Sizes(tuple(value.reshape(-1).tolist()), scalar=value.ndim == 0)
    raise node.refusal("needs whole numbers that are known when the file is read")


def as_numbers(value: Value | None) -> Value | None:
    """Sizes that are all known as the tensor of whole numbers that they are in the file."""
    if isinstance(value, Sizes) and None not in value.numbers and not value.scalar:
        return torch.tensor([number or 0 for number in value.numbers], dtype=torch.int64)
    return value


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
        raise node.refusal("works along the batch dimension, whose images must not mix")
    return found


@reads("Shape")
def shape(draft: Draft, node: Node, values: list[Value | None]) -> Sizes:
    node.count(1)
    start, end = node.integer("start", 0), node.take("end", INTEGER)
    value = as_numbers(values[0])
    if isinstance(value, Tensor):
        return Sizes(tuple(value.shape)[start:end])
    if isinstance(value, Sizes) and not value.scalar:
        return Sizes((len(value.numbers),)[start:end])
    dims: Dims = (None, *image(node, value).shape)
    return Sizes(dims[start:end])


def entries_of_sizes(node: Node, values: list[Value | None]) -> Sizes:
    """Entries of a shape, by a Gather."""
    node.only(axis=0)
    source, index = sizes(node, values[0]), sizes(node, values[1])
    chosen = integers(node, values[1])
    if source.scalar or any(not -len(source.numbers) <= k < len(source.numbers) for k in chosen):
        raise node.refusal(f"takes entries {chosen[:8]} of {len(source.numbers)}")
    return Sizes(tuple(source.numbers[k] for k in chosen), index.scalar)


@reads("Constant")
def constant_node(draft: Draft, node: Node, values: list[Value | None]) -> Tensor:
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
    if not bool((result < math.inf).all()):
        raise node.refusal("holds NaN or infinity")
    return result


@reads("Identity")
def identity(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1)
    assert values[0] is not None
    return values[0]


@reads("Dropout")
def dropout(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """Outside training it is the identity, whatever its ratio."""
    node.count(1, 3, len(node.outputs) if len(node.outputs) == 2 else 1)  # the mask is for training
    node.number("ratio", 0.5)
    node.integer("seed", 0)
    training = values[2] if len(values) == 3 else None
    if training is not None and not (isinstance(training, Tensor) and not bool(training.any())):
        raise node.refusal("is in training mode")
    return image(node, values[0])


@reads("Cast")
def cast(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """To a type that holds the same numbers. Between float16 and float32 the real-valued network stays as it is."""
    node.count(1)
    node.integer("saturate", 1)  # of 8-bit types alone
    node.take("round_mode", TEXT)  # the same
    value, to = values[0], node.integer("to", 0)
    if isinstance(value, Image):
        same = FLOATS.get(to) == draft.dtype
        draft.half |= to == FLOAT16
    elif isinstance(value, Truth):
        if FLOATS.get(to) == draft.dtype:
            return value.image
        same = to == BOOL
    elif isinstance(value, Quantized):
        same = to == {torch.uint8: UINT8, torch.int8: INT8}.get(value.kind)
    elif isinstance(value, Sizes) and FLOATS.get(to) == draft.dtype and None not in value.numbers:
        found = torch.tensor([float(size or 0) for size in value.numbers], dtype=draft.dtype)
        return found.reshape(()) if value.scalar and len(found) == 1 else found
    elif isinstance(value, Sizes):
        same = to == INT64 or (to == INT32 and all(size is None or abs(size) < 2**31 for size in value.numbers))
    elif isinstance(value, Tensor) and value.dtype == torch.int64:
        same = to == INT64 or (to == INT32 and not bool((value.abs() >= 2**31).any()))
    else:
        same = isinstance(value, Tensor) and FLOATS.get(to) == value.dtype
        if same and isinstance(value, Tensor) and to == FLOAT16:
            same = torch.equal(value.half().to(value.dtype), value)
    if not same or value is None:
        raise node.refusal(f"changes the type of its numbers (to ONNX's type {to})")
    return value


writes_one_node("identity", "Identity")


@rounds(rearranged)
def in_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(x.shape[0], *shape)


def reshaped(
    node: Node, target: Sizes, dims: Dims, allow_zero: bool, *, batch: int | None, batch_first: bool = True
) -> tuple[int, ...]:
    """The shape that a reshape gives, of an image without the batch. ``batch``: the file's only batch size, if it has one."""
    if target.scalar or (allow_zero and 0 in target.numbers):
        raise node.refusal("reshapes to a scalar or to no numbers at all")
    if any(size == 0 and k >= len(dims) for k, size in enumerate(target.numbers)):
        raise node.refusal("copies a dimension that is not there")
    wanted = [dims[k] if size == 0 else size for k, size in enumerate(target.numbers)]
    known = [size for size in dims if size is not None]
    if batch_first:
        first = wanted.pop(0) if wanted else 0
        if first is not None and first == batch:
            first = None  # the file is about batches of this size: the rest is one image's, or is refused below
        if first == -1 and -1 not in wanted:
            first = None  # the rest is a whole image, so -1 stands for the batch size
        elif first == -1 or first is not None:
            text = "mixes images of a batch" if first == -1 else f"is made for a batch of {first}"
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


@reads("Reshape")
def reshape(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(2)
    value, target, allow_zero = as_numbers(values[0]), sizes(node, values[1]), node.flag("allowzero")
    if isinstance(value, Tensor):
        wanted = reshaped(node, target, tuple(value.shape), allow_zero, batch=None, batch_first=False)
        return value.reshape(wanted)
    x = image(node, value)
    wanted = reshaped(node, target, (None, *x.shape), allow_zero, batch=draft.batch)
    return draft.add(node, in_shape, (x,), shape=wanted)


@reads("Flatten")
def flatten(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x, axis = image(node, values[0]), node.integer("axis", 1)
    if axis not in (1, -len(x.shape)):
        raise node.refusal(f"flattens from axis {axis} on; axis 1 keeps the images of a batch separate")
    return draft.add(node, in_shape, (x,), shape=(math.prod(x.shape),))


def squeezed(node: Node, dims: Dims, axes: Sequence[int]) -> Dims:
    gone = {axis + len(dims) if axis < 0 else axis for axis in axes}
    if len(gone) != len(axes) or any(not 0 <= axis < len(dims) or dims[axis] != 1 for axis in gone):
        raise node.refusal(f"takes away axes {list(axes)[:8]}, not all of size 1 in each image")
    return tuple(size for axis, size in enumerate(dims) if axis not in gone)


def unsqueezed(node: Node, dims: Dims, axes: Sequence[int]) -> Dims:
    rank = len(dims) + len(axes)
    new = {axis + rank if axis < 0 else axis for axis in axes}
    if len(new) != len(axes) or rank > 8 or any(not 0 <= axis < rank for axis in new):
        raise node.refusal(f"adds axes {list(axes)[:8]}")
    old = iter(dims)
    return tuple(1 if axis in new else next(old) for axis in range(rank))


@reads("Squeeze", "Unsqueeze")
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
    x = image(node, value)
    batch, *rest = change(node, (None, *x.shape), axes)
    if batch is not None:
        raise node.refusal("does not keep the batch dimension first")
    return draft.add(node, in_shape, (x,), shape=tuple(size or 0 for size in rest))


@writes("reshape")
def write_reshape(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    if len(operation.shape) == 1:
        draft.add("Flatten", inputs, output, axis=1)
    else:
        draft.add("Reshape", [*inputs, draft.constant(f"{output}.shape", [-1, *operation.shape])], output)


@rounds(rearranged)
def turned(x: Tensor, *, order: tuple[int, ...]) -> Tensor:
    return x.permute(order)


@reads("Transpose")
def transpose(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1)
    value, order = values[0], node.take("perm", INTEGERS)
    count = value.ndim if isinstance(value, Tensor) else len(image(node, value).shape) + 1
    order = list(reversed(range(count))) if order is None else order
    if sorted(order) != list(range(count)):
        raise node.refusal(f"permutes {count} axes by {order[:8]}")
    if isinstance(value, Tensor):
        return value.permute(order)
    if order[0] != 0:
        raise node.refusal("moves the batch dimension")
    return draft.add(node, turned, (image(node, value),), order=tuple(order))


@writes("permute")
def write_permute(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Transpose", inputs, output, perm=list(operation.settings["dims"]))


@rounds(rearranged)
def side_by_side(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


def joined_sizes(node: Node, values: Sequence[Value | None], axis: int) -> Sizes:
    parts = [sizes(node, value) for value in values]
    if axis not in (0, -1) or any(part.scalar for part in parts) or sum(len(p.numbers) for p in parts) > MOST_AXES:
        raise node.refusal("joins constants; branches and shapes have rules")
    return Sizes(tuple(number for part in parts for number in part.numbers))


@writes("concat")
def write_concat(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Concat", inputs, output, axis=operation.settings["dim"])


@rounds(rearranged)
def cut(x: Tensor, *, parts: tuple[tuple[int, int, int], ...]) -> Tensor:
    return x[(slice(None), *(slice(*part) for part in parts))]


@rounds(rearranged)
def picked(x: Tensor, *, axis: int, index: tuple[int, ...]) -> Tensor:
    return x.index_select(axis, torch.tensor(index, device=x.device))


@reads("Slice")
def slice_(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    value, given = values[0], values[1:]
    if node.opset < 10:  # as attributes
        node.count(1)
        named = [node.take(name, INTEGERS) for name in ("starts", "ends", "axes")]
        given = [None if part is None else Sizes(tuple(part)) for part in named]
    else:
        node.count(3, 5)
    starts, ends = integers(node, given[0]), integers(node, given[1])
    axes = integers(node, given[2]) if len(given) > 2 and given[2] is not None else list(range(len(starts)))
    steps = integers(node, given[3]) if len(given) > 3 and given[3] is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise node.refusal(f"cuts with steps {steps[:8]}")
    if isinstance(value, Sizes) and axes in ([0], [-1]) and not value.scalar:
        return Sizes(value.numbers[slice(starts[0], ends[0], steps[0])])
    if isinstance(value, Tensor) and not value.is_floating_point():
        return _sliced(node, value, list(zip(axes, starts, ends, steps, strict=True)))
    x = image(node, value)
    parts = [(0, size, 1) for size in x.shape]
    for axis, *bounds in zip(spread(node, axes, len(parts) + 1), starts, ends, steps, strict=True):
        if bounds[2] > 0:
            parts[axis - 1] = slice(*bounds).indices(x.shape[axis - 1])
        else:  # backwards
            index = tuple(range(x.shape[axis - 1]))[slice(*bounds)]
            x = draft.add(node, picked, (x,), axis=axis, index=index)
            parts[axis - 1] = (0, len(index), 1)
    return draft.add(node, cut, (x,), parts=tuple(parts))


def _sliced(node: Node, value: Tensor, parts: list[tuple[int, int, int, int]]) -> Tensor:
    """Of whole numbers; torch does not step backwards."""
    for axis, *bounds in parts:
        if not -value.ndim <= axis < value.ndim:
            raise node.refusal(f"cuts axis {axis} of {value.ndim}")
        value = value.index_select(axis, torch.arange(value.shape[axis])[[*range(value.shape[axis])][slice(*bounds)]])
    return value


@writes("slice")
def write_slice(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    s = operation.settings
    size = draft.shapes[inputs[0]][s["dim"] - 1]
    start, end, step = slice(s["start"], s["end"], s["step"]).indices(size)
    parts = {"starts": start, "ends": end, "axes": s["dim"], "steps": step}
    names = [draft.constant(f"{output}.{name}", [number]) for name, number in parts.items()]
    draft.add("Slice", inputs + names, output)


@rounds(rearranged)
def pad_zeros(x: Tensor, *, pad: tuple[int, ...]) -> Tensor:
    return F.pad(x, pad)


@rounds(rearranged)
def pad_lowest(x: Tensor, *, pad: tuple[int, ...]) -> Tensor:
    """Stands until `legacy.fill_paddings`, past which no such padding gets."""
    return F.pad(x, pad, value=torch.finfo(torch.float32).min)


@rounds(rearranged)
def padded(x: Tensor, *, pad: tuple[int, ...], mode: str) -> Tensor:
    return F.pad(x, pad, mode)


def surrounded(step: Any, _read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    """What stands around is rounded once."""
    return F.pad(errors[0], step.settings["pad"], value=abs(step.settings["value"]) * unit)


@rounds(surrounded)
def padded_with(x: Tensor, *, pad: tuple[int, ...], value: float) -> Tensor:
    return F.pad(x, pad, value=value)


MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
"""ONNX's words for padding, and torch's."""


@reads("Pad")
def pad(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    mode = node.take("mode", TEXT) or "constant"
    if mode not in MODES:
        raise node.refusal(f"pads with mode {mode[:20]!r}")
    x = image(node, values[0])
    value: Value | None
    if node.opset < 11:  # as attributes
        node.count(1)
        pads, value = node.take("pads", INTEGERS) or [], torch.tensor(node.number("value", 0.0))
    else:
        node.count(2, 4)
        pads, value = integers(node, values[1]), values[2] if len(values) > 2 else None
    rank = len(x.shape) + 1
    axes = integers(node, values[3]) if len(values) > 3 and values[3] is not None else list(range(rank))
    if len(pads) == 2 * len(axes) and not any(pads):
        return x  # whatever it would pad with
    single = value is None or (isinstance(value, Tensor) and value.numel() == 1)
    lowest = single and isinstance(value, Tensor) and float(value) <= float(torch.finfo(torch.float32).min)
    if not single or (isinstance(value, Tensor) and not lowest and not abs(float(value)) < 2.0**60):
        raise node.refusal("pads with something else than a number")
    half = len(axes)
    if len(pads) != 2 * half or any(not -MOST <= amount <= MOST for amount in pads):
        raise node.refusal(f"pads {half} axes by {pads[:16]}")
    amounts = [(0, 0)] * rank
    touched = [k for k in range(half) if pads[k] or pads[k + half]]
    for k, axis in zip(touched, spread(node, [axes[k] for k in touched], rank), strict=True):
        amounts[axis] = (pads[k], pads[k + half])
    amount = tuple(n for pair in reversed(amounts[1:]) for n in pair)
    if mode != "constant":
        return draft.add(node, padded, (x,), pad=amount[:4], mode=MODES[mode])
    number = 0.0 if value is None or not isinstance(value, Tensor) else float(value)
    if number and not lowest:
        return draft.add(node, padded_with, (x,), pad=amount, value=number)
    if min(amount) < 0:
        return draft.add(node, padded, (x,), pad=amount, mode="constant")
    return draft.add(node, pad_lowest if lowest else pad_zeros, (x,), pad=amount)


@writes("pad")
def write_pad(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """torch lists (before, after) from the last dimension backwards, ONNX all befores and then all afters."""
    given = operation.settings["pad"]
    dimensions = len(operation.shape) + 1
    before, after = [0] * dimensions, [0] * dimensions
    for k in range(len(given) // 2):
        before[-1 - k], after[-1 - k] = given[2 * k], given[2 * k + 1]
    draft.add("Pad", [*inputs, draft.constant(f"{output}.pads", before + after)], output)
