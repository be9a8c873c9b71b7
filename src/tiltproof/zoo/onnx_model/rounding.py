"""How far rounding can take each output of an ONNX network, whatever order its sums are made in.

A running error analysis of the steps: beside each value x it carries e with |computed x - real x| <= e. With the unit roundoff u and
gamma_n = n u / (1 - n u), of which n counts a sum's products:

    y = W x + b       e_y = |W| e + gamma_{n+4} (|W| (|x| + e) + |b|)
    x + c, c x, x / c each as the real function changes e, and 2 u of the result
    x + z             e_x + e_z, and 2 u of the result
    activations       their Lipschitz constant times e, and `LIBRARY` units of 1 for those that libraries approximate
    what rearranges   e, rearranged; of the largest of several numbers, the largest e

It is worked out in float64, whose own roundings are far smaller than the factor by which results may exceed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.zoo.onnx_model import arithmetic, layers, moves
from tiltproof.zoo.onnx_model.steps import OnnxModule, Step

LIBRARY = 64
"""Units of 1 by which a library's sigmoid or tanh may be off."""

Rule = Callable[[Step, list[Tensor], list[Tensor], Tensor, float], Tensor]
"""From a step, the values it reads, their errors, its result and u to the error of its result."""


def gamma(count: int, unit: float) -> float:
    return count * unit / (1 - count * unit) if count * unit < 0.5 else math.inf


def evaluated(model: OnnxModule, pictures: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """The outputs of a float64 copy of the network, and how far an evaluation with this unit roundoff may be from them."""
    values, errors = {0: pictures}, {0: torch.zeros_like(pictures)}
    for number, step in enumerate(model.steps.values(), 1):
        assert isinstance(step, Step)
        read = [values[place] for place in step.reads]
        values[number] = step(*read)
        rule = RULES.get(step.function)
        errors[number] = (
            torch.full_like(values[number], math.inf)
            if rule is None
            else rule(step, read, [errors[place] for place in step.reads], values[number], unit)
        )
    return values[model.result], errors[model.result]


def _rearranged(step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    moved: Tensor = step.function(*errors, **step.settings)
    return moved


def _as_it_is(_step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    return errors[0]


def _sum_of_products(step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    x, e, sizes = read[0], errors[0], {name: c.abs() for name, c in step.constants.items() if name != "bias"}

    def absolute(values: Tensor) -> Tensor:
        taken: Tensor = step.function(values, **sizes, **step.settings)
        return taken

    size = absolute(x.abs() + e)
    if "bias" in step.names:
        bias = step.constants["bias"].abs()
        size = size + (bias if step.function is layers.linear else bias.view(-1, 1, 1))
    return absolute(e) + gamma(_terms(step, x) + 4, unit) * size


def _terms(step: Step, x: Tensor) -> int:
    """How many products an output sums up, at most."""
    if "weight" in step.names:
        return step.constants["weight"][0].numel()
    if step.function is layers.average:
        return math.prod(step.settings["kernel"])
    axes = step.settings.get("axes", (2, 3))
    return math.prod(x.shape[axis] for axis in axes)


def _normalised(step: Step, read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
    view = (-1, *[1] * (read[0].ndim - 2))
    mean, variance, weight, bias = (step.constants[name].view(view) for name in ("mean", "variance", "weight", "bias"))
    scale = (weight / (variance + step.settings["epsilon"]).sqrt()).abs()
    size = scale * (read[0].abs() + errors[0] + mean.abs()) + bias.abs()
    return scale * errors[0] + gamma(12, unit) * size


def _with_constant(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    operation, constant = step.settings["operation"], step.constants["constant"].abs()
    factor = (
        constant if operation is torch.mul else 1 / constant if operation is torch.div else torch.ones_like(constant)
    )
    error = factor * errors[0]
    return error + 2 * unit * (result.abs() + error)


def _joined(_step: Step, _read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    error = errors[0] + errors[1]
    return error + 2 * unit * (result.abs() + error)


def _approximated(lipschitz: float) -> Rule:
    def rule(_step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, unit: float) -> Tensor:
        return lipschitz * errors[0] + LIBRARY * unit

    return rule


def _leaky(_step: Step, _read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    return errors[0] + 4 * unit * (result.abs() + errors[0])  # slopes lie in [0, 1]


RULES: dict[Any, Rule] = {
    layers.linear: _sum_of_products,
    layers.convolve: _sum_of_products,
    layers.average: _sum_of_products,
    layers.average_all: _sum_of_products,
    moves.mean: _sum_of_products,
    layers.normalise: _normalised,
    layers.leaky: _leaky,
    layers.FUNCTIONS["Relu"]: _as_it_is,
    layers.FUNCTIONS["Neg"]: _as_it_is,
    layers.FUNCTIONS["Sigmoid"]: _approximated(0.25),
    layers.FUNCTIONS["Tanh"]: _approximated(1.0),
    arithmetic.with_constant: _with_constant,
    arithmetic.constant_with: _with_constant,
    torch.add: _joined,
    torch.sub: _joined,
} | dict.fromkeys(
    (layers.largest, layers.pad_zeros, moves.in_shape, moves.turned, moves.side_by_side, moves.cut), _rearranged
)
