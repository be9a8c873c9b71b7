"""Batch norm taken into the convolution before it: one pass over the numbers instead of two, and the same real-valued function.

s (W x + b) + t = (s W) x + (s b + t), channel by channel. The products are made in float64 and rounded to the bounds' dtype, so each
weight carries a few roundings of its own, which the convolution's rule is told of (``roundings``); those of the new shift are relative to
|s b| plus what those of t are relative to (``shift_size``). Only for bounds of real-valued networks: evaluations in floating point
take both steps.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import torch
from torch import Tensor

from tiltproof.network.graph import Operation, vanishes

ROUNDINGS = 8
"""Of a folded weight, in its dtype: 4 that scales have always been allowed for, of the product, of the dtype."""


def folded(operations: list[Operation], output: str, dtype: torch.dtype) -> list[Operation]:
    """The same network, in which scales that follow a convolution nobody else reads are gone; ``output`` is read by the caller."""
    readers = Counter(name for operation in operations for name in operation.inputs)
    readers[output] += 1
    found = {operation.name: operation for operation in operations}
    gone, result = set(), []
    for operation in operations:
        before = found.get(operation.inputs[0]) if operation.kind == "scale" and len(operation.inputs) == 1 else None
        if before is not None and before.kind == "conv2d" and readers[before.name] == 1 and _by_channel(operation):
            gone.add(before.name)
            operation = _fold(before, operation, dtype)
        result.append(operation)
    return [operation for operation in result if operation.name not in gone]


def _by_channel(operation: Operation) -> bool:
    """Whether the constants of a scale differ by channel only."""
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
    settings["weight"] = (settings["weight"].double() * factor.view(-1, 1, 1, 1)).to(dtype)
    shift = size = torch.zeros_like(factor)
    if settings["bias"] is not None:
        shift = settings["bias"].double() * factor
        size = shift.abs()
    if scale.settings["shift"] is not None:
        own = by_channel(scale.settings["shift"])
        given = scale.settings.get("shift_size")
        shift, size = shift + own, size + (own.abs() if given is None else by_channel(given))
    settings["bias"], settings["shift_size"] = shift.to(dtype), size.to(dtype)
    settings["roundings"] = ROUNDINGS
    vanishing = (
        convolution.vanishing
        or scale.vanishing
        or any(vanishes(settings[key], 0.0, dtype) for key in ("weight", "bias"))
    )
    return dataclasses.replace(
        convolution, name=scale.name, settings=settings, shape=scale.shape, vanishing=vanishing, kept={}
    )
