"""Comparisons, choices by them or by constant masks, and what else is done with constants alone, such as Range and OneHot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.onnx.arithmetic import BINARY, constant_with, fitted_constant, infinite, with_constant
from tiltproof.onnx.module import MOST_NUMBERS, Draft, Image, Masked, Sizes, Truth, Value
from tiltproof.onnx.piecewise import EXTREMES, jump
from tiltproof.onnx.protobuf import Node, package
from tiltproof.onnx.registry import STEPPED, constant, image, reads, rounds
from tiltproof.onnx.reshape import as_numbers
from tiltproof.step_module import Step


@rounds(jump)
def above(x: Tensor, *, bound: float) -> Tensor:
    """1 where x is above the bound, 0 elsewhere; what it is at the bound itself, bounds leave open."""
    return (x > bound) * torch.ones((), dtype=x.dtype, device=x.device)


@rounds(jump)
def below(x: Tensor, *, bound: float) -> Tensor:
    return (x < bound) * torch.ones((), dtype=x.dtype, device=x.device)


STEPPED.update((above, below))
COMPARISONS = {"Greater": above, "GreaterOrEqual": above, "Less": below, "LessOrEqual": below}
OTHER_WAY = {above: below, below: above}


@reads(*COMPARISONS)
def compare(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """Of two values: of their difference and 0."""
    node.count(2)
    first, second = values
    function = COMPARISONS[node.op]
    if isinstance(first, Image) and isinstance(second, Image):
        if first.shape != second.shape:
            raise node.refusal(f"compares {list(first.shape)} and {list(second.shape)}")
        return Truth(draft.add(node, function, (draft.add(node, BINARY["Sub"], (first, second)),), bound=0.0))
    if not isinstance(first, Image):
        first, second, function = second, first, OTHER_WAY[function]
    x, bound = image(node, first), constant(node, second)
    if bound.numel() == 1 and bound.ndim <= len(x.shape) + 1:
        return Truth(draft.add(node, function, (x,), bound=float(bound)))
    bound = fitted_constant(node, bound, x.shape)
    apart = draft.add(node, with_constant, (x,), {"constant": bound}, operation=torch.sub)
    return Truth(draft.add(node, function, (apart,), bound=0.0))


def truth(node: Node, value: Value | None) -> Image:
    if not isinstance(value, Truth):
        raise node.refusal("joins truth values of the image and constants")
    return value.image


@reads("And", "Or", "Not")
def logic(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """a and b = a b; a or b = max(a, b); not a = 1 - a."""
    node.count(1, 2)
    given = tuple(truth(node, value) for value in values)
    if node.op == "Not":
        one = {"constant": torch.ones((), dtype=draft.dtype)}
        return Truth(draft.add(node, constant_with, given, one, operation=torch.sub))
    if given[0].shape != given[1].shape:
        raise node.refusal(f"joins {list(given[0].shape)} and {list(given[1].shape)}")
    return Truth(draft.add(node, BINARY["Mul"] if node.op == "And" else EXTREMES["Max"][0], given))


def chosen_error(step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    """A constant is rounded once."""
    errors = [*errors, *(unit * c.abs() for name, c in step.constants.items() if name == "other")]
    return torch.maximum(errors[0], errors[-1])


@rounds(chosen_error)
def chosen(x: Tensor, *branch: Tensor, taking: Tensor, other: Tensor | None = None) -> Tensor:
    return torch.where(taking != 0, x, branch[0] if other is None else other)


@reads("Where")
def where(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """Sizes, or entries of two values, or of one and a constant, chosen by a constant or by a comparison."""
    node.count(3)
    condition, x, other = values
    if isinstance(condition, Tensor) and any(isinstance(value, Sizes) for value in (x, other)):
        return _sizes(node, condition, x, other)
    images = [value for value in (x, other) if isinstance(value, Image)]
    if not images or any(each.shape != images[0].shape for each in images):
        raise node.refusal("chooses between constants, or between branches of several shapes")
    shape = images[0].shape
    if isinstance(condition, Truth):
        return _by_comparison(draft, node, condition, x, other)
    taking = constant(node, condition)
    if taking.dtype != torch.bool:
        raise node.refusal("chooses by something else than truth values")
    if not isinstance(x, Image):
        x, other, taking = other, x, ~taking
    mask, first = fitted_constant(node, taking.to(draft.dtype), shape), image(node, x)
    if isinstance(other, Image):
        return draft.add(node, chosen, (first, other), {"taking": mask})
    if infinite(other) and isinstance(other, Tensor) and bool((other == -math.inf).all()):
        return Masked(first, mask)
    return draft.add(
        node, chosen, (first,), {"taking": mask, "other": fitted_constant(node, constant(node, other), shape)}
    )


def _sizes(node: Node, condition: Tensor, x: Value | None, other: Value | None) -> Sizes:
    rows = [
        value if isinstance(value, Sizes) else Sizes(tuple(constant(node, value).reshape(-1).tolist()))
        for value in (x, other)
    ]
    count = max(condition.numel(), *(len(row.numbers) for row in rows))
    spread = [row.numbers * (count // len(row.numbers)) for row in rows]
    takes = condition.reshape(-1).expand(count).tolist()
    if condition.ndim > 1 or any(len(numbers) != count for numbers in spread):
        raise node.refusal("chooses between sizes that do not fit each other")
    return Sizes(tuple(a if take else b for take, a, b in zip(takes, *spread, strict=True)))


def _by_comparison(draft: Draft, node: Node, condition: Truth, x: Value | None, other: Value | None) -> Image:
    """other + condition (x - other), which is one of the two."""
    shape, constants = condition.image.shape, []
    for value in (x, other):
        if not isinstance(value, Image):
            constants.append({"constant": fitted_constant(node, constant(node, value), shape)})
        elif value.shape != shape:
            raise node.refusal(f"chooses entries of {list(value.shape)} by {list(shape)}")
    if isinstance(x, Image) and isinstance(other, Image):
        apart = draft.add(node, BINARY["Sub"], (x, other))
    elif isinstance(x, Image):
        apart = draft.add(node, with_constant, (x,), constants[0], operation=torch.sub)
    else:
        apart = draft.add(node, constant_with, (image(node, other),), constants[0], operation=torch.sub)
    product = draft.add(node, BINARY["Mul"], (condition.image, apart))
    if isinstance(other, Image):
        return draft.add(node, BINARY["Add"], (other, product))
    return draft.add(node, with_constant, (product,), constants[0], operation=torch.add)


# Constants alone: computed while the file is read, by onnx's own reference implementation.


OF_CONSTANTS = (
    *("Range", "OneHot", "Trilu", "CumSum", "ScatterND", "ScatterElements", "GatherElements", "GatherND"),
    *("ReduceProd", "Floor", "Ceil"),
)
"""Operations that have no bound rule, but are done with constants."""
ALSO_OF_CONSTANTS = {
    *("And", "Or", "Not", "Where", "Cast", "Neg", "Abs", "Exp", "Log", "Pow", "Min", "Max", "Sin", "Cos", "Sign"),
    *("Slice", "Gather", "Concat", "MatMul", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", *COMPARISONS),
}
"""Operations that have readers, and are done with constants too."""
MOST_CONSTANTS = 2**22
"""Entries of what one such operation reads."""


@reads(*OF_CONSTANTS)
def of_constants(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    raise node.refusal("has no bound rule; of constants alone it is supported")


@reads("Equal")
def equal(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    """Of sizes: the batch is no number of the file, and positive."""
    node.count(2)
    first, second = (
        value.numbers if isinstance(value, Sizes) else tuple(constant(node, value).reshape(-1).tolist())
        for value in values
        if value is None or not isinstance(value, Image)
    )
    count = max(len(first), len(second))
    pairs = [(a, b) for a, b in zip(first * (count // len(first)), second * (count // len(second)), strict=True)]
    if any((a is None) != (b is None) and max(a or 0, b or 0) > 0 for a, b in pairs):
        raise node.refusal("compares the batch size with a number")
    return torch.tensor([a == b for a, b in pairs])


def constants_alone(node: Node, values: list[Value | None]) -> list[Tensor | None] | None:
    """The values as tensors, if all are constants and there is something to be done with them that no reader does."""
    known = [as_numbers(value) if isinstance(value, Sizes) else value for value in values]
    if not known or not all(value is None or isinstance(value, Tensor) for value in known):
        return None
    tensors = [value for value in known if isinstance(value, Tensor)]
    new = any(value.dtype != torch.int64 or value.ndim > 1 for value in tensors)
    if node.op in OF_CONSTANTS or node.op == "Equal" or (node.op in ALSO_OF_CONSTANTS and new):
        return known  # type: ignore[return-value]
    return None


def evaluated(node: Node, values: list[Tensor | None]) -> tuple[Tensor, ...]:
    """What the node gives of these constants."""
    tensors = [value for value in values if value is not None]
    if sum(value.numel() for value in tensors) > MOST_CONSTANTS or _entries(node, tensors) > MOST_NUMBERS:
        raise node.refusal("computes with too many constants")
    onnx = package("onnx")
    names = [f"value_{k}" if value is not None else "" for k, value in enumerate(values)]
    proto = onnx.helper.make_node(node.op, names, node.outputs)
    proto.attribute.extend(node.attributes.values())
    node.attributes.clear()
    given = {name: value.numpy() for name, value in zip(names, values, strict=True) if value is not None}
    try:
        with np.errstate(all="ignore"):
            found = package("onnx.reference").ReferenceEvaluator(proto, opsets={"": node.opset}).run(None, given)
        results = tuple(torch.from_numpy(_held(np.asarray(result))) for result in found)
    except Exception as error:  # whatever onnx's reference raises
        raise node.refusal(f"cannot be computed of its constants ({type(error).__name__})") from None
    if any(result.is_floating_point() and not bool((result < math.inf).all()) for result in results):
        raise node.refusal("gives constants that are NaN or infinite")
    return results


def _held(array: Any) -> Any:
    """Numbers in the types that the file's constants are held in."""
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype in (np.int32, np.int16, np.uint32) else np.ascontiguousarray(array)


def _entries(node: Node, tensors: list[Tensor]) -> float:
    """At least as many entries as the result has."""
    if node.op == "Range":
        start, limit, delta = (float(value) for value in tensors)
        return abs(limit - start) / abs(delta) if delta else math.inf
    if node.op == "OneHot":
        return tensors[0].numel() * abs(float(tensors[1].reshape(-1)[0]))
    if node.op in ("GatherND", "MatMul", "Gather", "GatherElements"):
        return 8 * math.prod(max(1, value.numel()) for value in tensors)
    try:
        return math.prod(torch.broadcast_shapes(*(value.shape for value in tensors)))
    except RuntimeError:
        return sum(value.numel() for value in tensors)
