"""The module that a Keras file becomes, and the list of its steps while it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import UnsupportedOperation, shown
from tiltproof.step_module import Step, StepModule

TRY_BATCH = 2
MOST_NUMBERS = 2**26
"""In one step's output for one image."""
MOST_STEPS = 10_000


@dataclass(frozen=True)
class Value:
    """What a step gives (0: the input), and its shape without the batch: [C, H, W] for an image."""

    place: int
    shape: tuple[int, ...]


class KerasModule(StepModule):
    """The network of a Keras file.

    Attributes
    ----------
    notes : tuple of str
        What the network lacks of the file's, such as a softmax at its end.
    """

    def __init__(
        self, steps: Mapping[str, Step], result: int, shape: tuple[int, ...], content: bytes, notes: tuple[str, ...]
    ) -> None:
        super().__init__(steps, result, shape, content)
        self.notes = notes


class Draft:
    """The list while it is made; every step is tried at once, on tensors that have shapes and no numbers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.steps: dict[str, Step] = {}
        self.input = Value(0, shape)

    def add(
        self,
        name: str,
        function: Callable[..., Tensor],
        values: tuple[Value, ...],
        constants: Mapping[str, Tensor] | None = None,
        **settings: Any,
    ) -> Value:
        """A new step at the end of the list; ``name``: the layer of the file that it belongs to."""
        constants = constants or {}
        if len(self.steps) >= MOST_STEPS:
            raise UnsupportedOperation("the network has too many layers", got=f"more than {MOST_STEPS:,}")
        tried = [torch.empty(TRY_BATCH, *value.shape, device="meta") for value in values]
        try:
            result = function(*tried, **{key: tensor.to("meta") for key, tensor in constants.items()}, **settings)
        except Exception as error:
            raise UnsupportedOperation(
                f"layer {shown(name, 80)!r} does not fit what it reads, {[list(value.shape) for value in values]}",
                got=shown(" ".join(str(error).split()), 160),
            ) from None
        shape = tuple(result.shape[1:])
        if result.ndim < 2 or result.shape[0] != TRY_BATCH or not 0 < math.prod(shape) <= MOST_NUMBERS:
            raise UnsupportedOperation(
                f"layer {shown(name, 80)!r} gives a tensor of a shape that has no rule", got=list(result.shape)
            )
        label = re.sub(r"[^0-9A-Za-z]+", "_", f"{len(self.steps) + 1}_{name[:60]}").strip("_")
        self.steps[label] = Step(function, tuple(value.place for value in values), constants, settings)
        return Value(len(self.steps), shape)
