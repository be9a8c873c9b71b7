"""Heads of classifiers: softmax over classes, and the number of the largest of them.

They are read so that the file is compared with onnxruntime as it is. At the end of a network they are then taken off for a proof about
classes (`network.agreement`). Elsewhere a softmax has a bound rule; the others are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.onnx.module import Draft, Image, Masked, Value
from tiltproof.onnx.ops import LIBRARY
from tiltproof.onnx.protobuf import Node
from tiltproof.onnx.registry import image, reads, rounds
from tiltproof.onnx.reshape import in_shape, spread
from tiltproof.step_module import Step


def _largest(error: Tensor, axis: int) -> Tensor:
    return error.amax(axis, keepdim=True)


def softmax_error(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """Scores that are off by E at most change p = exp(s_k) / sum exp(s_j) by a factor between exp(-2 E) and exp(2 E)."""
    axis = step.settings["axis"]
    size = _largest(read[0].abs(), axis)
    return result * (torch.expm1(2 * _largest(errors[0], axis)) + (LIBRARY + 4 * size) * unit) + unit


def log_softmax_error(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """s_k - log sum exp(s_j) has a gradient whose entries add up to 2 in absolute value."""
    axis = step.settings["axis"]
    size = _largest(read[0].abs(), axis) + result.abs() + 1
    return 2 * _largest(errors[0], axis) + LIBRARY * unit * size


def argmax_error(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, _unit: float) -> Tensor:
    """None where the largest score is ahead by more than both may be off, else whatever the others' numbers are."""
    axis = step.settings["axis"]
    best = read[0].topk(2, axis).values if read[0].shape[axis] > 1 else read[0].expand(-1, 2)
    ahead = (best.select(axis, 0) - best.select(axis, 1)).reshape(result.shape)
    sure = ahead > 2 * _largest(errors[0], axis).reshape(result.shape)
    return torch.where(sure, 0.0, float(read[0].shape[axis]))


@rounds(softmax_error)
def softmax(x: Tensor, *, axis: int) -> Tensor:
    return torch.softmax(x, axis)


@rounds(log_softmax_error)
def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    return torch.log_softmax(x, axis)


@rounds(argmax_error)
def argmax(x: Tensor, *, axis: int, keep: bool) -> Tensor:
    return torch.argmax(x, axis, keep)


@rounds(softmax_error)
def masked_softmax(x: Tensor, taking: Tensor, *, axis: int) -> Tensor:
    return torch.softmax(x.masked_fill(taking == 0, -torch.inf), axis)


ONLY_LAST = {argmax}
"""Functions without a bound: they may only be the last ones of a network, but for reshapes."""
AFTER = {*ONLY_LAST, softmax, log_softmax, in_shape, torch.sigmoid}


@reads("Softmax", "LogSoftmax")
def read_softmax(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """Before opset 13 the axis begins a block of all later ones, over which the softmax goes as a whole."""
    node.count(1)
    masked = values[0] if isinstance(values[0], Masked) else None
    x = image(node, masked.image if masked else values[0])
    function = softmax if node.op == "Softmax" else log_softmax
    axis = spread(node, [node.integer("axis", -1 if node.opset >= 13 else 1)], len(x.shape) + 1)[0]
    later = [size for size in x.shape[axis - 1 :] if size > 1]
    if node.opset >= 13 or len(later) < 2:
        if node.opset < 13 and later:
            axis += [size > 1 for size in x.shape[axis - 1 :]].index(True)
        if masked:
            if function is log_softmax or not bool(masked.taking.any(axis).all()):
                raise node.refusal("takes the logarithm of zeros, or has a mask that takes out every entry")
            return draft.add(node, masked_softmax, (x,), {"taking": masked.taking}, axis=axis)
        return draft.add(node, function, (x,), axis=axis)
    if masked:
        raise node.refusal("has a mask over several dimensions")
    block = draft.add(node, in_shape, (x,), shape=(*x.shape[: axis - 1], -1))
    return draft.add(node, in_shape, (draft.add(node, function, (block,), axis=axis),), shape=x.shape)


@reads("ArgMax")
def read_argmax(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    node.only(select_last_index=0)
    x = image(node, values[0])
    axis = spread(node, [node.integer("axis", 0)], len(x.shape) + 1)[0]
    return draft.add(node, argmax, (x,), axis=axis, keep=node.flag("keepdims", True))


def refuse_inner_heads(draft: Draft, result: int) -> None:
    """Refuse an argmax that something else than a head reads."""
    tail, place = set(), result
    while place and draft.steps[place - 1].function in AFTER:
        tail.add(place)
        place = draft.steps[place - 1].reads[0]
    for place, (step, node) in enumerate(zip(draft.steps, draft.nodes, strict=True), 1):
        if step.function in ONLY_LAST and place not in tail:
            raise node.refusal("has a bound rule as a classifier's last operation only")
