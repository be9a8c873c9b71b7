"""How much a floating-point result can be off, and how bounds absorb it.

Model: IEEE round to nearest with unit roundoff u, so fl(a op b) = (a op b)(1 + e), |e| <= u, plus an absolute
error below the smallest normal number when a product underflows (this also covers devices that flush to zero).
For a sum of n products in any order, with or without fused multiply-add,
|fl - exact| <= gamma_n * sum |terms| with gamma_n = n u / (1 - n u).
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
"""Unit roundoff of each dtype that proofs are made in."""
SMALLEST = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}
"""Stands for the underflow error, at most the smallest normal number (2^-126, 2^-1022): larger, so that it and its
products with weights stay clear of denormal numbers, on which processors are slow."""


def gamma(terms: int, unit: float) -> float:
    """gamma_n, itself rounded up; infinite where the model no longer holds (nothing is then certified)."""
    product = terms * unit
    return product / (1 - product) * (1 + 2.0**-50) if product < 0.5 else float("inf")


def widen(radius: Tensor, magnitude: Tensor | float, operations: int, unit: float) -> Tensor:
    """A radius that also covers ``operations`` roundings of values no larger than ``magnitude``.

    The factor (1 + (operations + 8) u) covers the roundings of this very sum and of the few operations that
    produced ``radius`` and ``magnitude`` (all of them sums of non-negative terms, so errors are relative).
    """
    if unit == 0.0:
        return radius
    total = (
        radius + magnitude * (operations * unit)
        if isinstance(magnitude, float)
        else torch.add(radius, magnitude, alpha=operations * unit)
    )
    return total.mul_(1 + (operations + 8) * unit).add_(SMALLEST[radius.dtype] * (operations + 8))
