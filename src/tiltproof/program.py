"""Programs: any function from images [N, C, H, W] to scores [N, K], of which nothing but its answers is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError


class Program(nn.Module):
    """A Python function as a module; its source, if it has one, is among the buffers, so that a run folder knows it."""

    source: Tensor
    opaque = True
    """Nothing but its answers is known: no bounds of its evaluation are looked for."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError):
            text = getattr(function, "__qualname__", type(function).__qualname__)
        self.register_buffer("source", torch.tensor(list(text.encode()), dtype=torch.uint8))

    def forward(self, images: Tensor) -> Tensor:
        answers = self.function(images)
        return answers if isinstance(answers, Tensor) else torch.as_tensor(answers, device=images.device)


def as_program(model: object) -> nn.Module:
    """Return a module as it is, and any other function as one."""
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise InputError(
            "the model must be a torch.nn.Module, or a function from images [N, C, H, W] to scores [N, K]",
            got=type(model).__name__,
        )
    return Program(model).eval()
