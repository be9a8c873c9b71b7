"""Small networks written as one function, with random weights and statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

PICTURE = (2, 6, 5)


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


def settle(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights, biases and batch-norm statistics, in eval mode."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.05, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.uniform_(module.bias, -1, 1)
        elif isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=1.2 / module.weight[0].numel() ** 0.5)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()


def head(features: int) -> nn.Module:
    return nn.Linear(features, 3)
