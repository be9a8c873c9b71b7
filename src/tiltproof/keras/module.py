"""The module that a Keras or TFLite file becomes: a flat list of steps, each one plain torch function with its constants.

Every function is one that ``network/`` traces and that the checker follows. Constants are parameters of their step; the file's sha256 is a
buffer, so that a run folder's digest of the weights is also one of the graph.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import UnsupportedOperation, shown

TRY_BATCH = 2
MOST_NUMBERS = 2**26
"""In one step's output for one image."""
MOST_STEPS = 10_000


@dataclass(frozen=True)
class Value:
    """What a step gives (0: the input), and its shape without the batch: [C, H, W] for an image."""

    place: int
    shape: tuple[int, ...]


class Step(nn.Module):
    """One function of earlier steps' outputs."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        reads: tuple[int, ...],
        constants: Mapping[str, Tensor],
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.function, self.reads, self.settings = function, reads, dict(settings)
        self.names = tuple(constants)
        for name, tensor in constants.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values, **{name: getattr(self, name) for name in self.names}, **self.settings)


class Steps(nn.Module):
    """The network of a file: images [N, C, H, W] in, for any N.

    Attributes
    ----------
    notes : tuple of str
        What the network lacks of the file's, such as a softmax at its end.
    """

    file_sha256: Tensor

    def __init__(
        self, steps: Mapping[str, Step], result: int, shape: tuple[int, ...], content: bytes, notes: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.steps, self.result, self.shape, self.notes = nn.ModuleDict(steps), result, shape, notes
        digest = torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8)
        self.register_buffer("file_sha256", digest)
        last = {place: number for number, step in enumerate(steps.values()) for place in step.reads}
        self.forgets = [
            tuple(place for place in {*step.reads} if last[place] == number and place != result)
            for number, step in enumerate(steps.values())
        ]

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.shape:
            raise ValueError(f"the file's network takes images of shape {self.shape}, not {tuple(images.shape[1:])}")
        values = {0: images}
        for number, step in enumerate(self.steps.values()):
            assert isinstance(step, Step)
            values[number + 1] = step(*(values[place] for place in step.reads))
            for place in self.forgets[number]:
                del values[place]
        return values[self.result]


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
