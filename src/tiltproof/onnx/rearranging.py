"""Operations that pick, repeat, turn or pad the entries of an image, and that put constants between them. None of them rounds."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from tiltproof.onnx.module import MOST_NUMBERS, Draft, Image, Value
from tiltproof.onnx.protobuf import FLOATING, INTEGERS, NUMBER, TEXT, Node
from tiltproof.onnx.registry import ErrorRule, GraphDraft, Operation, image, reads, rearranged, rounds, writes
from tiltproof.onnx.reshape import (
    MOST,
    cut,
    entries_of_sizes,
    in_shape,
    integers,
    joined_sizes,
    picked,
    side_by_side,
    sizes,
    spread,
    turned,
)


@rounds(rearranged)
def repeated(x: Tensor, *, times: tuple[int, ...]) -> Tensor:
    return x.repeat(1, *times)


def exactly_joined(step: Any, read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    values = {name: torch.zeros_like(c) for name, c in step.constants.items()}
    moved: Tensor = step.function(*errors, **values, **step.settings)
    return moved


@rounds(exactly_joined)
def joined(*parts: Tensor, axis: int, order: tuple[str, ...], **constants: Tensor) -> Tensor:
    """``order``: the name of a constant [1, ...], or nothing for the next branch."""
    branches = iter(parts)
    every = [
        constants[name].expand(len(parts[0]), *constants[name].shape[1:]) if name else next(branches) for name in order
    ]
    return torch.cat(every, axis)


def single(node: Node, value: Tensor, batch: int | None, rank: int) -> Tensor:
    """A constant as one row that serves every image."""
    if value.ndim != rank or (
        len(value) > 1 and not (len(value) == batch and torch.equal(value, value[:1].expand_as(value)))
    ):
        raise node.refusal(f"has a constant of shape {list(value.shape)}, which differs between the images of a batch")
    return value[:1].clone()


@reads("Concat")
def concat(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """Branches and constants side by side, or sizes."""
    node.count(1, 64)
    axis = node.integer("axis", 0)
    if not any(isinstance(value, Image) for value in values):
        return joined_sizes(node, values, axis)
    first = next(value for value in values if isinstance(value, Image))
    axis = spread(node, [axis], len(first.shape) + 1)[0]
    images = tuple(value for value in values if isinstance(value, Image))
    if len(images) == len(values):
        return draft.add(node, side_by_side, images, axis=axis)
    constants, order = {}, []
    for number, value in enumerate(values):
        name = "" if isinstance(value, Image) else f"constant_{number}"
        order.append(name)
        if name:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                raise node.refusal("joins branches with something that is no tensor of numbers")
            constants[name] = single(node, value, draft.batch, len(first.shape) + 1)
    return draft.add(node, joined, images, constants, axis=axis, order=tuple(order))


@reads("Gather")
def gather(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """Entries along an axis by constant numbers, whose shape takes the axis' place; or entries of a shape."""
    node.count(2)
    x, given = values
    if not isinstance(x, Image):
        return entries_of_sizes(node, values)
    axis = spread(node, [node.integer("axis", 0)], len(x.shape) + 1)[0]
    if isinstance(given, Tensor) and given.dtype == torch.int64 and given.numel() <= MOST_NUMBERS:
        shape, chosen = tuple(given.shape), given.reshape(-1).tolist()
    else:
        chosen = integers(node, given)
        shape = () if sizes(node, given).scalar else (len(chosen),)
    size = x.shape[axis - 1]
    if not chosen or any(not -size <= k < size for k in chosen):
        raise node.refusal(f"takes entries {chosen[:8]} of {size}")
    result = draft.add(node, picked, (x,), axis=axis, index=tuple(k % size for k in chosen))
    if len(shape) != 1:
        result = draft.add(node, in_shape, (result,), shape=(*x.shape[: axis - 1], *shape, *x.shape[axis:]))
    return result


@reads("Split")
def split(draft: Draft, node: Node, values: list[Value | None]) -> tuple[Value, ...]:
    count = len(node.outputs)
    node.count(1, 2, count)
    x, given = image(node, values[0]), node.take("split", INTEGERS)
    if len(values) > 1 and values[1] is not None:
        given = integers(node, values[1])
    axis = spread(node, [node.integer("axis", 0)], len(x.shape) + 1)[0]
    parts, size = node.integer("num_outputs", count), x.shape[axis - 1]
    if given is None:
        each = -(-size // parts)
        given = [each] * (parts - 1) + [size - each * (parts - 1)]
    if len(given) != count or any(n < 1 for n in given) or sum(given) != size:
        raise node.refusal(f"splits {size} into {given[:8]}")
    results, start = [], 0
    for n in given:
        whole = [(0, length, 1) for length in x.shape]
        whole[axis - 1] = (start, start + n, 1)
        results.append(draft.add(node, cut, (x,), parts=tuple(whole)))
        start += n
    return tuple(results)


@reads("Tile")
def tile(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(2)
    times = integers(node, values[1])
    if isinstance(values[0], Tensor):
        return values[0].repeat(times)
    x = image(node, values[0])
    if len(times) != len(x.shape) + 1 or times[0] != 1 or any(not 1 <= n <= MOST for n in times):
        raise node.refusal(f"repeats {[None, *x.shape]} {times[:8]} times")
    return draft.add(node, repeated, (x,), times=tuple(times[1:]))


@reads("Expand")
def expand(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """To a shape that broadcasts; a constant for every image of a batch is held once."""
    node.count(2)
    wanted = list(sizes(node, values[1]).numbers)
    value = values[0]
    if isinstance(value, Tensor):
        if wanted and wanted[0] is None:
            if value.ndim == len(wanted) and value.shape[0] != 1:
                raise node.refusal("expands a constant that differs by image")
            wanted[0] = 1
        shape = torch.broadcast_shapes(value.shape, [size or 1 for size in wanted])
        if math.prod(shape) > MOST_NUMBERS:
            raise node.refusal(f"gives a tensor of shape {list(shape)}")
        return value.expand(shape).clone()
    x = image(node, value)
    rank = len(x.shape) + 1
    wanted = [*([1] * (rank - len(wanted))), *wanted]
    if len(wanted) != rank or wanted[0] not in (None, 1, draft.batch) or any(size is None for size in wanted[1:]):
        raise node.refusal(f"expands {list(x.shape)} to {wanted[:8]}")
    times = []
    for size, target in zip(x.shape, wanted[1:], strict=True):
        if target not in (1, size) and size != 1:
            raise node.refusal(f"expands {list(x.shape)} to {wanted[:8]}")
        times.append(target if size == 1 and target is not None else 1)
    return draft.add(node, repeated, (x,), times=tuple(times)) if any(n != 1 for n in times) else x


@reads("DepthToSpace")
def depth_to_space(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x, block, mode = image(node, values[0]), node.integer("blocksize", 0), node.take("mode", TEXT) or "DCR"
    if len(x.shape) != 3 or not 1 <= block <= MOST or x.shape[0] % block**2 or mode not in ("DCR", "CRD"):
        raise node.refusal(f"spreads {list(x.shape)} in blocks of {block}")
    channels, (height, width) = x.shape[0] // block**2, x.shape[1:]
    first = (block, block, channels) if mode == "DCR" else (channels, block, block)
    x = draft.add(node, in_shape, (x,), shape=(*first, height, width))
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    x = draft.add(node, turned, (x,), order=order)
    return draft.add(node, in_shape, (x,), shape=(channels, height * block, width * block))


@reads("SpaceToDepth")
def space_to_depth(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    x, block = image(node, values[0]), node.integer("blocksize", 0)
    if len(x.shape) != 3 or block < 1 or x.shape[1] % block or x.shape[2] % block:
        raise node.refusal(f"gathers {list(x.shape)} in blocks of {block}")
    channels, height, width = x.shape[0], x.shape[1] // block, x.shape[2] // block
    x = draft.add(node, in_shape, (x,), shape=(channels, height, block, width, block))
    x = draft.add(node, turned, (x,), order=(0, 3, 5, 1, 2, 4))
    return draft.add(node, in_shape, (x,), shape=(channels * block**2, height, width))


def moved_place(mode: str) -> ErrorRule:
    def rule(step: Any, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
        """A place is a float32 number up to the size n, so its weights are off by 8 n u, of all entries in the line."""
        axis = -1 if mode == "columns" else -2
        weight, n = step.constants["weight"], read[0].shape[axis] + len(step.constants["weight"])
        e: Tensor = step.function(errors[0], weight=weight.abs())
        return e + 16 * (n + 8) * unit * (read[0].abs() + errors[0]).amax(axis, keepdim=True)

    return rule


@rounds(moved_place("columns"))
def columns_between(x: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(x, weight.t())


@rounds(moved_place("rows"))
def rows_between(x: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(weight, x)


def place_of(mode: str, p: int, size: int, result: int, scale: Fraction) -> Fraction | None:
    """The place in the input of entry ``p`` of the result, as ONNX defines it."""
    half = Fraction(1, 2)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and result > 1):
        return (p + half) / scale - half
    if mode == "pytorch_half_pixel":
        return Fraction(0)
    if mode == "asymmetric":
        return p / scale
    if mode == "align_corners":
        return Fraction(p * (size - 1), result - 1) if result > 1 else Fraction(0)
    return None


ROUNDED = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda place: math.ceil(place - Fraction(1, 2)),
    "round_prefer_ceil": lambda place: math.floor(place + Fraction(1, 2)),
}


@reads("Resize", "Upsample")
def resize(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """By the nearest neighbor or by linear interpolation, with every convention that says where an entry comes from."""
    x = image(node, values[0])
    if node.op == "Upsample" or node.opset < 11:
        node.count(1, 2)
        numbers = node.take("scales", FLOATING)  # as an attribute before opset 9
        scales_given = values[1] if len(values) > 1 else None if numbers is None else torch.tensor(numbers)
        lengths, where, nearest = None, "asymmetric", "floor"
    else:
        node.count(1, 4)
        scales_given, lengths = (values[k] if len(values) > k else None for k in (2, 3))
        where = node.take("coordinate_transformation_mode", TEXT) or "half_pixel"
        nearest = node.take("nearest_mode", TEXT) or "round_prefer_floor"
    mode = node.take("mode", TEXT) or "nearest"
    node.only(antialias=0, exclude_outside=0)
    for name in ("cubic_coeff_a", "extrapolation_value"):
        node.take(name, NUMBER)
    policy = node.take("keep_aspect_ratio_policy", TEXT) or "stretch"
    rank = len(x.shape) + 1
    axes = node.take("axes", INTEGERS)
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    scales = [Fraction(1)] * rank
    result: list[int] = [0, *x.shape]
    if isinstance(scales_given, Tensor) and scales_given.numel():
        if scales_given.numel() != len(axes):
            raise node.refusal(f"has {scales_given.numel()} scales for {len(axes)} axes")
        for axis, scale in zip(axes, scales_given.reshape(-1).tolist(), strict=True):
            if not 0 < scale < MOST:
                raise node.refusal(f"has scale {scale}")
            scales[axis] = Fraction(scale)
            result[axis] = math.floor(result[axis] * Fraction(scale)) if axis else 0
    elif lengths is not None:
        given = sizes(node, lengths).numbers
        if len(given) != len(axes):
            raise node.refusal(f"has {len(given)} sizes for {len(axes)} axes")
        for axis, length in zip(axes, given, strict=True):
            if axis and (length is None or not 0 < length <= MOST):
                raise node.refusal(f"has size {length}")
            if axis:
                result[axis], scales[axis] = int(length or 0), Fraction(int(length or 0), x.shape[axis - 1])
    else:
        raise node.refusal("does not say to which size")
    touched = [axis for axis in range(1, rank) if result[axis] != x.shape[axis - 1] or scales[axis] != 1]
    if mode not in ("nearest", "linear") or policy != "stretch" or scales[0] != 1 or nearest not in ROUNDED:
        raise node.refusal(f"resizes with mode {mode!r} and policy {policy!r}")
    if any(place_of(where, 0, 2, 2, Fraction(1)) is None or not result[axis] for axis in touched):
        raise node.refusal(f"resizes with coordinate_transformation_mode {where!r}")
    if mode == "linear" and any(axis < rank - 2 for axis in touched):
        raise node.refusal("interpolates along other axes than the last two")
    for axis in touched:
        size = x.shape[axis - 1]
        places = [place_of(where, p, size, result[axis], scales[axis]) or Fraction(0) for p in range(result[axis])]
        if mode == "nearest":
            index = tuple(min(max(int(ROUNDED[nearest](place)), 0), size - 1) for place in places)
            x = draft.add(node, picked, (x,), axis=axis, index=index)
            continue
        weight = torch.zeros(result[axis], size, dtype=torch.float64)
        for p, place in enumerate(places):
            place = min(max(place, Fraction(0)), Fraction(size - 1))
            for k in (math.floor(place), min(math.floor(place) + 1, size - 1)):
                weight[p, k] = float(1 - abs(place - k))
        function = columns_between if axis == rank - 1 else rows_between
        x = draft.add(node, function, (x,), {"weight": weight.to(draft.dtype)})
    return x


@writes("gather")
def write_gather(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """The flat image, with the constants behind it, and the number of each entry."""
    s, size = operation.settings, math.prod(draft.shapes[inputs[0]])
    index, flat = s["index"].cpu().clone(), f"{output}.flat"
    draft.add("Flatten", inputs, flat, axis=1)
    holes = index < 0
    if bool(holes.any()):
        fill = s.get("fill")
        numbers = torch.zeros(1) if fill is None else fill.cpu()[holes]
        index[holes] = size + (torch.zeros(int(holes.sum())) if fill is None else torch.arange(int(holes.sum()))).long()
        draft.add("Concat", [flat, draft.constant(f"{output}.fill", numbers[None])], f"{output}.all", axis=1)
        flat = f"{output}.all"
    draft.add("Gather", [flat, draft.constant(f"{output}.index", index)], f"{output}.row", axis=1)
    shape = draft.constant(f"{output}.shape", [-1, *operation.shape])
    draft.add("Reshape", [f"{output}.row", shape], output)


@writes("largest")
def write_largest(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    index = operation.settings["index"]
    draft.add("Flatten", inputs, f"{output}.flat", axis=1)
    draft.add("Gather", [f"{output}.flat", draft.constant(f"{output}.index", index)], f"{output}.windows", axis=1)
    draft.add("ReduceMax", [f"{output}.windows"], f"{output}.row", axes=[2], keepdims=0)
    shape = draft.constant(f"{output}.shape", [-1, *operation.shape])
    draft.add("Reshape", [f"{output}.row", shape], output)
