"""Arithmetic with the file's own numbers and with sizes, worked out while the file is read.

Numbers of the file are combined in their own precision, as torch does with what a module computes from its parameters alone. Sizes are
whole numbers; None, which stands for the batch, is combined with nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.onnx.module import MOST_NUMBERS, Draft, Image, Sizes, Value
from tiltproof.onnx.protobuf import TENSOR, Node, numbers
from tiltproof.onnx.registry import reads
from tiltproof.onnx.reshape import DYNAMIC, sizes


@reads("ConstantOfShape")
def constant_of_shape(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """One number, repeated; for each image of a batch the same tensor, held once."""
    node.count(1)
    shape, value = sizes(node, values[0]), node.take("value", TENSOR)
    number = torch.zeros(1) if value is None else numbers(value)
    batch, *rest = shape.numbers or (1,)
    if shape.scalar or number.numel() != 1 or any(size is None or size < 1 for size in rest) or batch == 0:
        raise node.refusal("gives a tensor of no fixed size")
    if number.dtype != draft.dtype:
        if batch is None or rest:
            raise node.refusal("gives whole numbers of several dimensions, or for each image")
        return number.expand(batch).clone()
    full = [1 if batch is None else batch, *(size or 0 for size in rest)]
    if math.prod(full) > MOST_NUMBERS:
        raise node.refusal(f"gives a tensor of shape {full}")
    return number.expand(full).clone()


@reads("Mod")
def remainder(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """Of sizes, with the sign of the divisor."""
    node.count(2)
    node.only(fmod=0)
    if any(isinstance(value, Tensor) and value.is_floating_point() for value in values):
        raise node.refusal("takes the remainder of fractions")
    return folded(node, values[0], values[1], torch.remainder)


def folded(node: Node, first: Value | None, second: Value | None, function: Callable[..., Tensor]) -> Value:
    """The sum, difference, product or quotient of two constants, or of two lists of sizes."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.is_floating_point():
        if first.dtype != second.dtype:
            raise node.refusal("combines constants of different types")
        try:
            result = function(first, second)
        except RuntimeError:
            raise node.refusal(f"combines constants of shapes {list(first.shape)} and {list(second.shape)}") from None
        if not bool(result.isfinite().all()) or result.numel() > MOST_NUMBERS:
            raise node.refusal("gives constants that are not finite, or too many")
        return result
    if isinstance(first, Image) or isinstance(second, Image):
        raise node.refusal("computes with an image and sizes")
    one, other = sizes(node, first), sizes(node, second)
    if not one.numbers or not other.numbers:
        raise node.refusal("combines no sizes")
    if None in one.numbers or None in other.numbers:
        raise node.refusal("computes with the batch size", do=DYNAMIC)
    left, right = ([number or 0 for number in each.numbers] for each in (one, other))
    count = max(len(left), len(right))
    if {len(left), len(right)} - {1, count} or (node.op in ("Div", "Mod") and 0 in right):
        raise node.refusal("combines sizes that do not fit each other")
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    results = tuple(WHOLE[node.op](a, b) for a, b in pairs)
    if any(abs(number) >= 2**63 for number in results):
        raise node.refusal("gives sizes of no tensor")
    return Sizes(results, scalar=one.scalar and other.scalar)


def _quotient(a: int, b: int) -> int:
    """ONNX divides whole numbers towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


WHOLE: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _quotient,
    "Mod": operator.mod,
}
