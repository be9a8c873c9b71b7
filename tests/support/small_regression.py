"""A small network with smooth outputs, and images for it, for tests of output ranges in the package and in the checker."""

from __future__ import annotations

import torch
from torch import nn


def network(outputs: int = 1, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, outputs)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def some_images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(7))
