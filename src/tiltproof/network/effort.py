"""What backward passes cost: how far they went, and how much of a network the first part of one has to do with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiltproof.network.graph import Network

DEAR = ("conv2d", "linear")
"""Operations behind which it is worth a look whether a bound is good enough already."""


@dataclass
class Effort:
    """How far each margin was taken, by multiplications: 1 is through the whole network; [Q]."""

    passes: Tensor = field(default_factory=lambda: torch.zeros(0))


def shallow_share(network: Network) -> float:
    """Share of all entries of the network's operations that a margin meets up to the first look (`refine`, ``shallow``)."""
    entries = {network.input: math.prod(network.shape)}
    entries |= {operation.name: math.prod(operation.shape) for operation in network.operations}
    operations, left = network.operations, {network.output}
    if network.last_linear is not None:
        operations, left = operations[:-1], {network.last.inputs[0]}
    dear, met = [operation.name for operation in operations if operation.kind in DEAR], set(left)
    for operation in reversed(operations):
        if operation.name in left:
            left = (left - {operation.name}) | set(operation.inputs)
            met |= left
            if len(left) == 1 and operation.name in dear[1:]:
                break
    return sum(entries[name] for name in met) / sum(entries.values())
