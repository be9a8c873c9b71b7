"""Smooth functions of one variable: the torch function that a node becomes, its rounding, its reader and its writer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.protobuf import TEXT, Node
from tiltproof.onnx.registry import (
    GraphDraft,
    Operation,
    constant,
    image,
    reads,
    refused,
    rounds,
    writes,
    writes_one_node,
)
from tiltproof.step_module import Step

LIBRARY = 256
"""Units of the numbers involved by which libraries, which take several steps, may be off."""
SELU = (1.67326319217681884765625, 1.05070102214813232421875)
"""ONNX's defaults, float32 numbers."""
LARGEST = 2.0**20
LEAST_THRESHOLD = 16
"""From here on log(1 + e^x) is x in float32."""


def approximated(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """What the function does to the error of x, seen at both ends, and its own rounding."""
    (x,), (error,) = read, errors
    ends = [(step.function(end, **step.settings) - result).abs() for end in (x - error, x + error)]
    own = LIBRARY * unit * (1 + x.abs() + result.abs())
    return (torch.maximum(*ends) + own).nan_to_num(nan=math.inf)


def exponential_unit(x: Tensor, *, alpha: float, scale: float) -> Tensor:
    """Selu with any constants."""
    return F.elu(x, alpha) * scale


rounds(approximated)(exponential_unit)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Mish": F.mish,
    "HardSwish": F.hardswish,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal,
    "Erf": torch.erf,
    "Atan": torch.atan,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Softplus": F.softplus,
}
"""Ops without attributes, and the function that each becomes."""

OTHERS: tuple[Callable[..., Tensor], ...] = (F.gelu, F.silu, F.elu, F.celu, torch.pow)
for _function in (*FUNCTIONS.values(), *OTHERS):
    rounds(approximated)(_function)


@reads(*FUNCTIONS)
def plain(draft: Draft, node: Node, values: list[Value | None]) -> Value:
    node.count(1)
    x = values[0]
    if (
        isinstance(x, Tensor) and node.op in ("Sqrt", "Reciprocal") and x.is_floating_point()
    ):  # of the file's own numbers
        result = FUNCTIONS[node.op](x)
        if not bool(result.isfinite().all()):
            raise node.refusal("gives constants that are not finite")
        return result
    settings: dict[str, Any] = {"threshold": LARGEST} if node.op == "Softplus" else {}  # the logarithm everywhere
    return draft.add(node, FUNCTIONS[node.op], (image(node, values[0]),), **settings)


@reads("Gelu")
def gelu(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    how = node.take("approximate", TEXT) or "none"
    if how not in ("none", "tanh"):
        raise node.refusal(f"has approximate = {how!r}; none and tanh have rules")
    return draft.add(node, F.gelu, (image(node, values[0]),), approximate=how)


@reads("Elu", "Celu")
def elu(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    alpha = _positive(node, "alpha", 1.0)
    return draft.add(node, F.elu if node.op == "Elu" else F.celu, (image(node, values[0]),), alpha=alpha)


@reads("Selu")
def selu(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(1)
    alpha, scale = (_positive(node, name, number) for name, number in zip(("alpha", "gamma"), SELU, strict=True))
    return draft.add(node, exponential_unit, (image(node, values[0]),), alpha=alpha, scale=scale)


def _positive(node: Node, name: str, default: float) -> float:
    value = node.number(name, default)
    if not 1 / LARGEST <= value <= LARGEST:
        raise node.refusal(f"has {name} = {value}; a number from 2^-20 to 2^20 has a rule")
    return value


def raised(x: Tensor, *, base: float) -> Tensor:
    return base**x


rounds(approximated)(raised)


@reads("Pow")
def power(draft: Draft, node: Node, values: list[Value | None]) -> Image:
    node.count(2)
    if isinstance(values[0], Tensor) and isinstance(values[1], Image):
        base = float(values[0]) if values[0].numel() == 1 else 0.0
        if values[0].ndim > len(values[1].shape) + 1 or not 2.0**-20 <= base <= 2.0**20 or 2 / 3 < base < 3 / 2:
            raise node.refusal(f"has the base {base}; one number for all, up to 2/3 or from 3/2, has a rule")
        return draft.add(node, raised, (values[1],), base=base)
    x, given = image(node, values[0]), constant(node, values[1])
    if given.numel() != 1 or given.ndim > len(x.shape) + 1:
        raise node.refusal(f"has an exponent of shape {list(given.shape)}; one number for all has a rule")
    exponent = float(given)
    if exponent == 1 or not 2.0**-6 <= abs(exponent) <= 2.0**6:
        raise node.refusal(f"has the exponent {exponent}; 1/64 to 64 and -64 to -1/64, but for 1, have a rule")
    return draft.add(node, torch.pow, (x,), exponent=exponent)


def _of_several(step: Step, read: list[Tensor], errors: list[Tensor], result: Tensor, unit: float) -> Tensor:
    """A norm moves by at most the norm of the errors, a log-sum-exp by at most the largest."""
    axes = step.settings["axes"]
    error, size = errors[0].square().sum(axes, True).sqrt(), read[0].abs().amax(axes, True)
    count = math.prod(read[0].shape[axis] for axis in axes)
    return error.reshape(result.shape) + (LIBRARY + 4 * count) * unit * (1 + result.abs() + size.reshape(result.shape))


@rounds(_of_several)
def length(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.linalg.vector_norm(x, 2, axes, keep)


@rounds(_of_several)
def log_sum_exp(x: Tensor, *, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.logsumexp(x, axes, keep)


def gate(draft: Draft, node: Node, first: Image, second: Image) -> Image | None:
    """x sigmoid(x) or x tanh(softplus(x)), a product that exporters write for SiLU or Mish; None if it is neither."""
    for x, factor in ((first, second), (second, first)):
        step = draft.steps[factor.place - 1] if factor.place else None
        if step is None:
            continue
        before = draft.steps[step.reads[0] - 1] if step.reads[0] else None
        if step.function is torch.sigmoid and step.reads == (x.place,):
            return draft.add(node, F.silu, (x,))
        if (
            step.function is torch.tanh
            and before is not None
            and before.function is F.softplus
            and before.reads == (x.place,)
        ):
            return draft.add(node, F.mish, (x,))
    return None


for _kind, _op in (("exp", "Exp"), ("log", "Log"), ("sqrt", "Sqrt"), ("reciprocal", "Reciprocal"), ("erf", "Erf"), ("atan", "Atan"),
                   ("sin", "Sin"), ("cos", "Cos")):  # fmt: skip
    writes_one_node(_kind, _op)


@writes("silu")
def write_silu(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Sigmoid", inputs, f"{output}.sigmoid")
    draft.add("Mul", [*inputs, f"{output}.sigmoid"], output)


@writes("mish")
def write_mish(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Softplus", inputs, f"{output}.softplus")
    draft.add("Tanh", [f"{output}.softplus"], f"{output}.tanh")
    draft.add("Mul", [*inputs, f"{output}.tanh"], output)


@writes("hardswish")
def write_hardswish(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("HardSigmoid", inputs, f"{output}.gate", alpha=float(np.float32(1 / 6)), beta=0.5)
    draft.add("Mul", [*inputs, f"{output}.gate"], output)


def _times(draft: GraphDraft, output: str, name: str, value: str, factor: float, op: str = "Mul") -> str:
    """A node that multiplies by (or adds) a number; returns the name of its value."""
    draft.add(op, [value, draft.constant(f"{output}.{name}.number", torch.tensor(factor))], f"{output}.{name}")
    return f"{output}.{name}"


@writes("gelu")
def write_gelu(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    scaled = _times(draft, output, "scaled", inputs[0], math.sqrt(0.5))
    draft.add("Erf", [scaled], f"{output}.erf")
    _gate(draft, inputs[0], f"{output}.erf", output)


@writes("gelu_tanh")
def write_gelu_tanh(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    cube = draft.constant(f"{output}.three", torch.tensor(3.0))
    draft.add("Pow", [inputs[0], cube], f"{output}.cube")
    small = _times(draft, output, "small", f"{output}.cube", 0.044715)
    draft.add("Add", [inputs[0], small], f"{output}.sum")
    scaled = _times(draft, output, "scaled", f"{output}.sum", math.sqrt(2 / math.pi))
    draft.add("Tanh", [scaled], f"{output}.tanh")
    _gate(draft, inputs[0], f"{output}.tanh", output)


def _gate(draft: GraphDraft, x: str, value: str, output: str) -> None:
    """x (1 + value) / 2."""
    half = _times(draft, output, "half", x, 0.5)
    draft.add("Mul", [half, _times(draft, output, "one", value, 1.0, "Add")], output)


@writes("rsqrt")
def write_rsqrt(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    draft.add("Sqrt", inputs, f"{output}.sqrt")
    draft.add("Reciprocal", [f"{output}.sqrt"], output)


@writes("pow")
def write_pow(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    number = draft.constant(f"{output}.exponent", torch.tensor(operation.settings["power"]))
    draft.add("Pow", [*inputs, number], output)


@writes("elu")
def write_elu(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    s: dict[str, Any] = operation.settings
    if s["width"] != 1:
        draft.add("Celu", inputs, output, alpha=s["width"])
    elif s["scale"] != 1:
        draft.add("Selu", inputs, output, alpha=s["alpha"], gamma=s["scale"])
    else:
        draft.add("Elu", inputs, output, alpha=s["alpha"])


@writes("softplus")
def write_softplus(draft: GraphDraft, operation: Operation, inputs: list[str], output: str) -> None:
    """Without torch's threshold, which makes no difference that float32 has."""
    beta = operation.settings["beta"]
    if operation.settings["threshold"] < LEAST_THRESHOLD:
        raise refused(operation, f"a threshold of {operation.settings['threshold']}, which ONNX does not have")
    if beta == 1:
        draft.add("Softplus", inputs, output)
        return
    draft.add("Softplus", [_times(draft, output, "scaled", inputs[0], beta)], f"{output}.softplus")
    draft.add("Mul", [f"{output}.softplus", draft.constant(f"{output}.inverse", torch.tensor(1 / beta))], output)
