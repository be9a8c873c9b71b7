"""Piecewise linear functions: PRelu, Abs, HardSigmoid, Max, Min, Sign, ThresholdedRelu, Shrink; and Softsign."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.protobuf import Node
from tiltproof.onnx.registry import (
    STEPPED,
    GraphDraft,
    Operation,
    constant,
    exact,
    image,
    reads,
    rounds,
    writes,
    writes_one_node,
)
from tiltproof.step_module import Step


def _steepest(step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    """The largest slope times the error, and a few roundings of the numbers involved."""
    slope = torch.ones(())
    if "weight" in step.names:
        slope = step.constants["weight"].abs().max().clamp(min=1)
    slope = slope.clamp(min=abs(step.settings.get("alpha", 0.0)))
    size = slope * (read[0].abs() + errors[0]) + sum(abs(number) for number in step.settings.values())
    return slope * errors[0] + 8 * unit * (size + 1)


@rounds(_steepest)
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return F.prelu(x, weight)


@reads("PRelu")
def read_prelu(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """One slope for all, or one for each channel."""
    node.count(2)
    x, slope = image(node, values[0]), constant(node, values[1])
    wanted = (x.shape[0], *[1] * (len(x.shape) - 1))
    plain = slope.reshape(slope.shape[1:]) if slope.ndim == len(x.shape) + 1 and slope.shape[0] == 1 else slope
    if slope.numel() != 1 and tuple(plain.shape) != wanted:
        raise node.refusal(
            f"has slopes of shape {list(slope.shape)} for {list(x.shape)}; one for each channel has a rule"
        )
    return draft.add(node, prelu, (x,), {"weight": slope.reshape(-1).clone()})


@rounds(_steepest)
def hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


@reads("HardSigmoid")
def read_hard_sigmoid(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    alpha, beta = node.number("alpha", float(np.float32(0.2))), node.number("beta", 0.5)
    if not 2.0**-20 <= abs(alpha) <= 2.0**20 or not abs(beta) <= 2.0**20:
        raise node.refusal(f"has alpha = {alpha} and beta = {beta}; numbers up to 2^20 have a rule")
    return draft.add(node, hard_sigmoid, (image(node, values[0]),), alpha=alpha, beta=beta)


rounds(exact)(torch.abs)
writes_one_node("maximum", "Max")


@reads("Abs")
def absolute(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    return draft.add(node, torch.abs, (image(node, values[0]),))


def jump(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """What the function does to the error of x, seen at both ends: the functions rise, but for jumps up."""
    (x,), (error,) = read, errors
    room = error + 4 * unit * (x.abs() + sum(abs(number) for number in step.settings.values()))
    ends = [(step.function(end, **step.settings) - result).abs() for end in (x - room, x + room)]
    return torch.maximum(*ends) + 4 * unit * result.abs()


@rounds(jump)
def sign(x: Tensor) -> Tensor:
    return torch.sign(x)


@rounds(jump)
def thresholded(x: Tensor, *, bound: float) -> Tensor:
    return F.threshold(x, bound, 0.0)


@rounds(jump)
def hard_shrink(x: Tensor, *, bound: float) -> Tensor:
    return F.hardshrink(x, bound)


@rounds(_steepest)
def soft_shrink(x: Tensor, *, bound: float) -> Tensor:
    return F.softshrink(x, bound)


STEPPED.update((sign, thresholded, hard_shrink))


@reads("Sign")
def read_sign(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    return draft.add(node, sign, (image(node, values[0]),))


@reads("ThresholdedRelu")
def thresholded_relu(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """x where x > alpha, else 0; for alpha = 0 a ReLU."""
    node.count(1)
    alpha = node.number("alpha", 1.0)
    if not 0 <= alpha <= 2.0**20:
        raise node.refusal(f"has alpha = {alpha}; numbers from 0 to 2^20 have a rule")
    x = image(node, values[0])
    return draft.add(node, thresholded, (x,), bound=alpha) if alpha else draft.add(node, torch.relu, (x,))


@reads("Shrink")
def shrink(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    node.count(1)
    bound, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    if not 2.0**-20 <= bound <= 2.0**20 or bias not in (0.0, bound):
        raise node.refusal(f"has lambd = {bound} and bias = {bias}; a bias of 0 or of lambd has a rule")
    return draft.add(node, soft_shrink if bias else hard_shrink, (image(node, values[0]),), bound=bound)


def _ratio(_step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    return errors[0] + 8 * unit


@reads("Softsign")
def softsign(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    return draft.add(node, F.softsign, (image(node, values[0]),))


rounds(_ratio)(F.softsign)


def _either(_step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    """The larger (smaller) of two numbers is off by at most the larger of their errors."""
    return torch.maximum(errors[0], errors[-1])


@rounds(_either)
def larger(x: Tensor, constant: Tensor) -> Tensor:
    return torch.maximum(x, constant)


@rounds(_either)
def smaller(x: Tensor, constant: Tensor) -> Tensor:
    return torch.minimum(x, constant)


EXTREMES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "Max": (rounds(_either)(torch.maximum), larger),
    "Min": (rounds(_either)(torch.minimum), smaller),
}
"""Of two branches, and with a constant."""


@reads(*EXTREMES)
def extreme(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    """The largest (smallest) of several values, two by two; constants count as well."""
    node.count(1, 64)
    of_branches, with_constant = EXTREMES[node.op]
    images = [value for value in values if isinstance(value, Image)]
    if not images:
        raise node.refusal("reads constants alone")
    result = images[0]
    for other in images[1:]:
        if other.shape != result.shape:
            raise node.refusal(f"joins branches of shapes {list(result.shape)} and {list(other.shape)}")
        if other.place != result.place:
            result = draft.add(node, of_branches, (result, other))
    for number in (constant(node, value) for value in values if not isinstance(value, Image)):
        whole = len(result.shape) + 1
        if number.ndim > whole or (number.ndim == whole and number.shape[0] != 1):
            raise node.refusal(
                f"has a constant of shape {list(number.shape)}, which differs between the images of a batch"
            )
        shape = result.shape
        result = draft.add(node, with_constant, (result,), {"constant": number})
        if result.shape != shape:
            raise node.refusal(f"spreads {list(shape)} to {list(result.shape)}")
    return result


@writes("step")
def write_step(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """A sign, or a comparison with 0 that is false at 0."""
    low, high = operation.settings["low"], operation.settings["high"]
    if (low, high) == (-1.0, 1.0):
        draft.add("Sign", inputs, output)
        return
    draft.add("Greater", [*inputs, draft.constant(f"{output}.zero", torch.tensor(0.0))], f"{output}.above")
    draft.add("Cast", [f"{output}.above"], f"{output}.one", to=1)
    draft.add("Mul", [f"{output}.one", draft.constant(f"{output}.rise", torch.tensor(high - low))], f"{output}.rising")
    draft.add("Add", [f"{output}.rising", draft.constant(f"{output}.low", torch.tensor(low))], output)
