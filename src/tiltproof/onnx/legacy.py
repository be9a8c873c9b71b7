"""What converters of old frameworks wrote: operations that ONNX has dropped, and paddings by the lowest number."""

from __future__ import annotations

import torch

from tiltproof.onnx.arithmetic import BINARY, with_constant
from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.ops import FUNCTIONS, clip
from tiltproof.onnx.pooling import largest
from tiltproof.onnx.protobuf import FLOATING, Node
from tiltproof.onnx.registry import image, reads
from tiltproof.onnx.reshape import cut, in_shape, pad_lowest, pad_zeros, side_by_side, turned


@reads("ImageScaler")
def image_scaler(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """scale * x + bias, one bias for each channel; experimental until opset 10."""
    node.count(1)
    x, scale, bias = image(node, values[0]), node.number("scale", 1.0), node.take("bias", FLOATING) or []
    if len(x.shape) != 3 or len(bias) != x.shape[0]:
        raise node.refusal(f"adds {len(bias)} numbers to {list(x.shape)}")
    if scale != 1.0:
        x = draft.add(
            node, with_constant, (x,), {"constant": torch.tensor(scale, dtype=draft.dtype)}, operation=BINARY["Mul"]
        )
    if any(bias):
        shift = torch.tensor(bias, dtype=draft.dtype).view(-1, 1, 1)
        x = draft.add(node, with_constant, (x,), {"constant": shift}, operation=BINARY["Add"])
    return x


NOT_NEGATIVE = {FUNCTIONS["Relu"], FUNCTIONS["Sigmoid"]}
SAME_NUMBERS = {side_by_side, largest, in_shape, turned, cut, pad_zeros}


def not_negative(draft: Draft, place: int) -> bool:
    """Whether every number at this place of the list is at least 0, by what computed it."""
    waiting, seen = [place], set()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        step = draft.steps[place - 1] if place else None
        if step is None:
            return False
        if step.function in NOT_NEGATIVE or (step.function is clip and step.settings["low"] >= 0):
            continue
        if step.function not in SAME_NUMBERS:
            return False
        waiting += step.reads
    return True


def fill_paddings(draft: Draft, result: int) -> None:
    """Pad with zeros where the lowest number was meant to lose against every other one.

    If all numbers are at least 0 and every window of a max pooling holds one of them, a 0 beside them changes no largest number: the
    largest one is at least 0, and it is one of them or equal to the padding.
    """
    for place, (step, node) in enumerate(zip(draft.steps, draft.nodes, strict=True), 1):
        if step.function is not pad_lowest:
            continue
        readers = [other for other in draft.steps if place in other.reads]
        pads = step.settings["pad"]
        whole = (
            not any(pads[4:])
            and all(
                other.function is largest
                and other.settings["dilation"] == (1, 1)
                and other.settings["padding"] == (0, 0)
                and not other.settings.get("ceil")  # whose last window may hold padding only
                and max(pads[:2]) < other.settings["kernel"][1]
                and max(pads[2:4]) < other.settings["kernel"][0]
                for other in readers
            )
        )
        if place == result or not readers or not whole or not not_negative(draft, step.reads[0]):
            raise node.refusal("pads with something else than zeros")
        step.function = pad_zeros
