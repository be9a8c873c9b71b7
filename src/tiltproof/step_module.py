"""A network read from a file, as a module: a flat list of steps, each one plain torch function with its constants.

Every function is one that ``network/`` traces and that the checker follows. Constants are parameters of their step; the file's sha256 is a
buffer, so that a run folder's digest of the weights is also one of the graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.errors import InputError

Reader = TypeVar("Reader", bound=Callable[..., Any])


class Step(nn.Module):
    """One function of earlier steps' outputs; ``reads``: the numbers of these steps, from 1, and 0 for the network's input."""

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

    @property
    def constants(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.names}

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values, **self.constants, **self.settings)


class StepModule(nn.Module):
    """The network of a file: images [N, C, H, W] in, for any N. Every output is dropped after the last step that reads it."""

    file_sha256: Tensor

    def __init__(self, steps: Mapping[str, Step], result: int, shape: tuple[int, ...], content: bytes) -> None:
        """``result``: the step whose output is the network's; ``content``: what identifies the file and how it was read."""
        super().__init__()
        self.steps, self.result, self.shape = nn.ModuleDict(steps), result, shape
        digest = torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8)
        self.register_buffer("file_sha256", digest)
        last = {place: number for number, step in enumerate(steps.values()) for place in step.reads}
        self.forgets = [
            tuple(place for place in {*step.reads} if last[place] == number and place != result)
            for number, step in enumerate(steps.values())
        ]

    def refuse(self, shape: tuple[int, ...]) -> Exception:
        """The error for images of another shape than the file's."""
        return InputError(
            f"the file's network takes images of shape {self.shape}, not {shape}",
            why="images of another size, or channels first and channels last mixed up",
            do="resize the images; they have shape [N, C, H, W]",
        )

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.shape:
            raise self.refuse(tuple(images.shape[1:]))
        values = {0: images}
        for number, step in enumerate(self.steps.values()):
            assert isinstance(step, Step)
            values[number + 1] = step(*(values[place] for place in step.reads))
            for place in self.forgets[number]:
                del values[place]
        return values[self.result]


def adds_to(readers: dict[str, Reader]) -> Callable[..., Callable[[Reader], Reader]]:
    """Return a decorator with the names of operations of a file: the function reads them."""

    def reads(*names: str) -> Callable[[Reader], Reader]:
        def register(function: Reader) -> Reader:
            readers.update(dict.fromkeys(names, function))
            return function

        return register

    return reads


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """A step of networks from files: a two-dimensional convolution."""
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
