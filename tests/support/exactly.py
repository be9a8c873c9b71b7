"""Decide on exact numbers, without tolerance, whether a true value is inside a bound.

A float64 comparison with a wide safety margin settles the clear cases; rational arithmetic decides everything near the
edge. The only allowance is the oracle's own `error`: zero, or 2^-300 if a sine was involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch

from tests.support.oracle import Exact


def symbols(theta: Sequence[Fraction], low: Sequence[float], high: Sequence[float]) -> list[Fraction]:
    """Return e_k = (theta_k - box center_k) / (box half width_k), exactly; 0 where the box has no width."""
    result = []
    for value, a, b in zip(theta, low, high, strict=True):
        a, b = Fraction(float(a)), Fraction(float(b))
        assert a <= value <= b
        result.append((2 * value - a - b) / (b - a) if b > a else Fraction(0))
    return result


def violations(
    truth: Exact,
    center: torch.Tensor,
    slopes: torch.Tensor,
    radius: torch.Tensor,
    lower: torch.Tensor,
    upper: torch.Tensor,
    e: Sequence[Fraction] = (),
) -> list[str]:
    """Return every entry of the truth that lies outside [lower, upper] or outside center + slopes e +- radius."""
    tensors = [tensor.detach().double().cpu().numpy() for tensor in (center, slopes, radius, lower, upper)]
    c, g, r, low, high = tensors
    assert all(np.isfinite(array).all() for array in tensors), "a bound is not a finite number"
    assert (r >= 0).all()
    x = truth.floats()
    if len(g) == 0:
        e = ()
    ef = np.array([float(value) for value in e])
    middle, spread = c + np.tensordot(ef, g, 1), np.abs(g).sum(0) + np.abs(c) + r + np.abs(x) + 1
    clear = (low + 1e-12 * spread < x) & (x < high - 1e-12 * spread) & (np.abs(x - middle) < r - 1e-12 * spread)
    found = []
    for index in zip(*np.nonzero(~clear), strict=True):
        value = truth.fraction(*index)
        if value + truth.error < Fraction(low[index]) or value - truth.error > Fraction(high[index]):
            found.append(f"{index}: {float(value)!r} outside [{low[index]!r}, {high[index]!r}]")
        at = Fraction(c[index]) + sum((Fraction(g[k][index]) * e[k] for k in range(len(e))), Fraction(0))
        excess = abs(value - at) - Fraction(r[index]) - truth.error
        if excess > 0:
            found.append(f"{index}: outside the form at e by {float(excess)!r} (radius {r[index]!r})")
    return found
