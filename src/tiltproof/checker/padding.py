"""What lies outside the picture."""

from __future__ import annotations

import torch
from torch import Tensor


def endless(index: Tensor, size: int, padding: str) -> tuple[Tensor, Tensor]:
    """Which row (or column) of the picture an index of the endless picture shows, and whether it shows any."""
    if padding == "zeros":
        return index.clamp(0, size - 1), (index >= 0) & (index < size)
    if padding == "border" or size == 1:
        return index.clamp(0, size - 1), torch.ones_like(index, dtype=torch.bool)
    period = 2 * (size - 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index), torch.ones_like(index, dtype=torch.bool)
