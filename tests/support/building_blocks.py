"""What the small networks of the tests are built of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

SHAPE = (2, 6, 5)
"""Of the images that small networks take."""


class Function(nn.Module):
    """A network written as a function of (its modules and constants, x)."""

    def __init__(self, function: Callable, **members: object) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            if isinstance(member, Tensor):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def head(features: int) -> nn.Module:
    return nn.Linear(features, 3)


def slopes(*numbers: float) -> nn.Module:
    """PReLU with these slopes."""
    module = nn.PReLU(len(numbers))
    module.weight.data = torch.tensor(numbers)
    return module


def chain(*modules: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*modules, nn.Flatten(), head(features))


def numbered(function: Callable, features: int) -> nn.Module:
    """A function between a convolution and a linear layer."""
    return Function(lambda m, x: m.head(function(m.a(x)).flatten(1)), a=nn.Conv2d(2, 2, 1), head=head(features))


def between_layers(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 9), activation(), head(9))
