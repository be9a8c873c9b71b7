"""Fold a scale into the convolution or the scale before it: one pass over memory instead of two, and the same real-valued function.

s (W x + b) + t = (s W) x + (s b + t) for each channel: of a batch norm; of a normalization, which subtracts and then divides, W is a
scale too. Products are computed in float64 and rounded to the bounds' dtype, so each weight carries a few roundings, which the rule
adds to its own (``roundings``); those of the new shift are relative to |s b| plus the size for t (``shift_size``). Only bounds of
real-valued networks are folded: a floating-point evaluation performs both steps. A normalization is not folded into the convolution
after it: x - m would no longer cancel, and its roundings would be several times larger.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import torch
from torch import Tensor

from tiltproof.network.graph import Operation, tame, vanishes

ROUNDINGS = 8
"""Roundings of a folded weight in its dtype: 4 of the scale, the product, the dtype; the rest is margin."""
OF_SCALES = 6
"""Roundings of the product of two scales, beyond those that the rule allows for one scale: 4 of the other scale, the product, and, for the
shift, the sum."""


def folded(operations: list[Operation], output: str, dtype: torch.dtype) -> list[Operation]:
    """Fold each scale that follows a convolution or a scale with no other reader; the caller reads ``output``."""
    readers = Counter(name for operation in operations for name in operation.inputs)
    readers[output] += 1
    result: dict[str, Operation] = {}
    for operation in operations:
        before = result.get(operation.inputs[0]) if operation.kind == "scale" and len(operation.inputs) == 1 else None
        if before is not None and readers[before.name] == 1:
            if before.kind == "conv2d" and _by_channel(operation):
                operation = _fold(result.pop(before.name), operation, dtype)
            elif before.kind == "scale" and _ordinary(before, operation):
                operation = _of_two(result.pop(before.name), operation, dtype)
        result[operation.name] = operation
    return list(result.values())


def _by_channel(operation: Operation) -> bool:
    """Whether the constants of a scale depend on the channel alone."""
    constants = [operation.settings.get(key) for key in ("scale", "shift", "shift_size")]
    return all(x is None or x.ndim < 3 or tuple(x.shape[-2:]) == (1, 1) for x in constants) and all(
        x is None or x.ndim >= 3 or x.numel() == 1 for x in constants
    )


def _fold(convolution: Operation, scale: Operation, dtype: torch.dtype) -> Operation:
    settings = dict(convolution.settings)
    channels = len(settings["weight"])

    def by_channel(values: Tensor) -> Tensor:
        return values.double().reshape(-1).expand(channels)

    factor = by_channel(scale.settings["scale"])
    weight, each = settings["weight"].double(), factor.view(-1, 1, 1, 1)
    # a nonzero product that is subnormal or zero in the dtype
    vanished = (weight != 0) & (each != 0) & ((weight * each).abs() < torch.finfo(dtype).tiny)
    settings["weight"] = (weight * each).to(dtype)
    shift = size = torch.zeros_like(factor)
    if settings["bias"] is not None:
        shift = settings["bias"].double() * factor
        before = settings.get("shift_size")
        size = shift.abs() if before is None else by_channel(before) * factor.abs()
    if scale.settings["shift"] is not None:
        own = by_channel(scale.settings["shift"])
        given = scale.settings.get("shift_size")
        shift, size = shift + own, size + (own.abs() if given is None else by_channel(given))
    settings["bias"], settings["shift_size"] = shift.to(dtype), size.to(dtype)
    settings["roundings"] = settings.get("roundings", 0) + ROUNDINGS
    vanishing = (
        convolution.vanishing or scale.vanishing or bool(vanished.any()) or vanishes(settings["bias"], 0.0, dtype)
    )
    return dataclasses.replace(
        convolution, name=scale.name, settings=settings, shape=scale.shape, vanishing=vanishing, kept={}
    )


def _ordinary(first: Operation, second: Operation) -> bool:
    """Whether the factors of two scales and their products are tame: a product of tiny factors may underflow, and with huge ones the
    evaluation that the network is compared with may overflow."""
    weight, factor = first.settings["scale"].double(), second.settings["scale"].double()
    return all(tame(x) for x in (weight, factor, torch.where((weight != 0) & (factor != 0), weight * factor, 1.0)))


def _of_two(first: Operation, second: Operation, dtype: torch.dtype) -> Operation:
    """Multiply two scales, in float64, as a scale's constants always are."""
    weight, factor = first.settings["scale"].double(), second.settings["scale"].double()
    settings = {"scale": weight * factor, "shift": None}
    settings["roundings"] = OF_SCALES + sum(each.settings.get("roundings", 0) for each in (first, second))
    if first.settings["shift"] is not None or second.settings["shift"] is not None:
        (shift, size), (own, more) = _shift(first, weight), _shift(second, factor)
        settings |= {"shift": shift * factor + own, "shift_size": size * factor.abs() + more}
    vanishing = first.vanishing or second.vanishing or vanishes(settings["shift"], 0.0, dtype)
    return dataclasses.replace(second, inputs=first.inputs, settings=settings, vanishing=vanishing, kept={})


def _shift(scale: Operation, like: Tensor) -> tuple[Tensor, Tensor]:
    """A scale's shift and the size that its roundings are relative to."""
    shift, size = scale.settings["shift"], scale.settings.get("shift_size")
    shift = torch.zeros_like(like) if shift is None else shift.double()
    return shift, shift.abs() if size is None else size.double()
