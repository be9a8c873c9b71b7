"""Interval arithmetic as in the paper: for Algorithm 1 and for cutting coordinate boxes down.

Every operation widens its result outwards by more than its own rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.enclosures.rounding import SMALLEST, UNIT


class Interval:
    """[lower, upper], entry by entry."""

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        self.lower, self.upper = lower, upper

    @classmethod
    def outward(cls, lower: Tensor, upper: Tensor, roundings: int = 2) -> Interval:
        """[lower, upper] widened by ``roundings`` relative rounding errors of each end."""
        unit, tiny = roundings * UNIT[lower.dtype], SMALLEST[lower.dtype]
        return cls(lower - (lower.abs() * unit + tiny), upper + (upper.abs() * unit + tiny))

    @property
    def like(self) -> Tensor:
        """A tensor of the interval's dtype, on its device."""
        return self.lower

    def exactly(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """Apply a function that only moves entries about."""
        return Interval(function(self.lower), function(self.upper))

    def __neg__(self) -> Interval:
        return Interval(-self.upper, -self.lower)

    def __add__(self, other: Interval | Tensor | float) -> Interval:
        low, high = (other.lower, other.upper) if isinstance(other, Interval) else (other, other)
        return Interval.outward(self.lower + low, self.upper + high)

    __radd__ = __add__

    def __sub__(self, other: Interval | Tensor | float) -> Interval:
        return self + (-other)

    def __rsub__(self, other: Tensor | float) -> Interval:
        return (-self) + other

    def __mul__(self, other: Interval | Tensor | float) -> Interval:
        low, high = (other.lower, other.upper) if isinstance(other, Interval) else (other, other)
        products = torch.stack(
            torch.broadcast_tensors(self.lower * low, self.lower * high, self.upper * low, self.upper * high)
        )
        unknown = products.isnan().any(0)  # 0 times infinity: anything
        lower, upper = products.amin(0), products.amax(0)
        return Interval.outward(torch.where(unknown, -torch.inf, lower), torch.where(unknown, torch.inf, upper))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Interval:
        ends = torch.stack([self.lower / other, self.upper / other])
        return Interval.outward(ends.amin(0), ends.amax(0))

    def deg2rad(self) -> Interval:
        return Interval.outward(self.lower.deg2rad(), self.upper.deg2rad(), roundings=4)

    def reciprocal(self) -> Interval:
        """1 / t for t > 0; anything that reaches zero is unbounded above."""
        upper = torch.where(self.lower > 0, self.lower.reciprocal(), torch.inf)
        return Interval.outward(self.upper.reciprocal(), upper)

    def cos(self) -> Interval:
        """Extremes at the ends, or +1 / -1 where the interval may hold an even / odd multiple of pi.

        The test for a multiple is made with slack, so a doubtful multiple counts as inside.
        """
        ends = torch.stack([self.lower.cos(), self.upper.cos()])
        return self._with_turns(ends, phase=0.0)

    def sin(self) -> Interval:
        ends = torch.stack([self.lower.sin(), self.upper.sin()])
        return self._with_turns(ends, phase=math.pi / 2)

    def _with_turns(self, ends: Tensor, phase: float) -> Interval:
        slack = 64 * UNIT[ends.dtype]
        low = (self.lower - phase) / math.pi - slack * (1 + self.lower.abs())
        high = (self.upper - phase) / math.pi + slack * (1 + self.upper.abs())
        holds_even = (low / 2).ceil() * 2 <= high
        holds_odd = ((low - 1) / 2).ceil() * 2 + 1 <= high
        lower, upper = ends.amin(0) - 16 * UNIT[ends.dtype], ends.amax(0) + 16 * UNIT[ends.dtype]
        lower = torch.where(holds_odd, -1.0, lower.clamp(min=-1.0))
        return Interval(lower, torch.where(holds_even, 1.0, upper.clamp(max=1.0)))

    def clamp01(self) -> Interval:
        return Interval(self.lower.clamp(0, 1), self.upper.clamp(0, 1))
