"""Compare many exact values with many bounds at once: float64 settles what is clear, rational arithmetic the rest.

A true value is given as an integer over a denominator. Its nearest float64 is off by at most u = 2^-53 of itself (and
2^-1074, and the oracle's own error where a sine was involved), so a comparison that holds by more than that is settled; the
rest is decided on the integers. This settles most bounds even if they are a few units in the last place wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tests.support.oracle import Exact
from tiltproof.enclosures.affine_form import AffineForm

UNIT, TINY = 2.0**-53, 2.0**-1000


def arrays(form: AffineForm) -> tuple[np.ndarray, ...]:
    """Return center, slopes, radius, lower and upper as float64, which holds every float32 exactly."""
    return tuple(
        tensor.detach().double().cpu().numpy()
        for tensor in (form.center, form.slopes, form.radius, form.lower, form.upper)
    )


def outside(
    truths: Sequence[Exact],
    rows: Sequence[int],
    symbols: Sequence[Sequence[Fraction]],
    bounds: tuple[np.ndarray, ...],
) -> list[str]:
    """Return where truth t, at symbols[t] of row rows[t] of the form, leaves [lower, upper] or the form at its own symbols."""
    center, slopes, radius, lower, upper = bounds
    if not all(np.isfinite(array).all() for array in bounds) or (radius < 0).any():
        return ["a bound is not a finite number, or a radius is negative"]
    where = np.asarray(rows)
    x = np.stack([truth.floats() for truth in truths])
    low, high, r = lower[where], upper[where], radius[where]
    e = np.array([[float(value) for value in each] for each in symbols])[:, : len(slopes)]
    g = slopes[:, where]
    middle = center[where] + np.einsum("td,dt...->t...", e, g)
    # |center| + sum |slopes| + radius + |x|: every intermediate result is below it, and there are d + 8 roundings
    size = np.abs(center[where]) + np.abs(g).sum(0) + r + np.abs(x)
    doubt = (len(slopes) + 16) * UNIT * size + TINY
    own = 4 * UNIT * np.abs(x) + TINY
    clear = (low < x - own) & (x + own < high) & (np.abs(x - middle) + doubt < r)
    found = []
    for t, *index in zip(*np.nonzero(~clear), strict=True):
        found += exactly_outside(truths[t], tuple(index), rows[t], symbols[t], bounds)
    return found


def exactly_outside(
    truth: Exact, index: tuple[int, ...], row: int, e: Sequence[Fraction], bounds: tuple[np.ndarray, ...]
) -> list[str]:
    center, slopes, radius, lower, upper = bounds
    here = (row, *index)
    value, found = truth.fraction(*index), []
    if value + truth.error < Fraction(lower[here]) or value - truth.error > Fraction(upper[here]):
        found.append(f"image {row} at {index}: {float(value)!r} outside [{lower[here]!r}, {upper[here]!r}]")
    at = Fraction(center[here]) + sum(
        (Fraction(g[here]) * each for g, each in zip(slopes, e, strict=False)), Fraction(0)
    )
    excess = abs(value - at) - Fraction(radius[here]) - truth.error
    if excess > 0:
        found.append(f"image {row} at {index}: outside the form at its symbols by {float(excess)!r}")
    return found
