"""The two operations of networks of whole numbers: a product with a fixed-point factor, and a rounding, both clipped.

With a multiplier m of 31 bits and a shift s, the first rounds x to a whole number of 32 bits, then x 2^max(s, 0) m / 2^31 to the nearest
one (ties up), then that over 2^r, r = max(-s, 0), again (ties away from zero). Each step is off by at most a half: the first one before M =
m 2^(s - 31) multiplies that, the second one before 2^r divides it. So |n - M x| <= M / 2 + 2^-(r + 1) + 1/2, and M / 2 + 1/2 without a
shift to the right. No step falls where what it reads rises, so over [l, h] the result lies between those at l and at h.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tiltproof.checker.form import Form, no_rule, plus, rule, times
from tiltproof.checker.operations import whole_numbers

MOST_WHOLE = 2**30


def clipping(name: str, low: Any, high: Any) -> float:
    """Return the size of what is clipped to this range."""
    if type(low) is not int or type(high) is not int or not -MOST_WHOLE <= low < high <= MOST_WHOLE:
        raise no_rule(name, f"to {low!r} ... {high!r}")
    return float(abs(low) + abs(high))


def product(x: Tensor, m: Tensor, left: Tensor, right: Tensor, low: int, high: int) -> Tensor:
    """Return the first operation's result at x [...], in whole numbers of 64 bits: floor((x m + 2^30) / 2^31), and so on."""
    bound = (2**31 - 1) // 2**left
    whole = torch.minimum(torch.maximum(torch.round(x), -bound.double()), bound.double()).long()
    first = torch.div(whole * 2**left * m + 2**30, 2**31, rounding_mode="floor")
    second = torch.sign(first) * torch.div(first.abs() * 2 + 2**right, 2 * 2**right, rounding_mode="floor")
    return torch.where(right > 0, second, first).clamp(low, high).double()


@rule("tiltproof.requantize")
def requantize(x: Form, multipliers: Any, shifts: Any, low: int, high: int) -> Form:
    """Relax it around M x, or by its values at both ends, which agree where a single accumulator is left."""
    size = clipping("requantize", low, high)
    m, s = list(multipliers), list(shifts)
    if len(m) != len(s) or len(m) not in (1, x.shape[1]) or not all(type(n) is int for n in (*m, *s)):
        raise no_rule("requantize", f"with {len(m)} factors for {x.shape[1]} channels")
    if not all(0 < n < 2**31 for n in m) or not all(-62 <= n <= 30 for n in s):
        raise no_rule("requantize", f"with factors {m[:4]} and shifts {s[:4]}")
    view = (-1, *[1] * (x.ndim - 2)) if len(m) > 1 else ()
    whole, moved = (torch.tensor(n, device=x.device).reshape(view) for n in (m, s))
    left, right = moved.clamp(min=0), (-moved).clamp(min=0)
    factor = whole.double() * 2.0 ** (moved.double() - 31)
    slack = factor / 2 + torch.where(right > 0, 0.5 * 2.0 ** -right.double(), 0.0)
    # beyond 32 bits the accumulator no longer follows x
    slack = torch.where(x.magnitude * 2.0 ** left.double() < 2.0**30, slack, math.inf)
    ends = tuple(product(end, whole, left, right, low, high) for end in (x.lower(), x.upper()))
    return whole_numbers(x, factor, 1.0, low, high, slack, size, known_ends(x, ends, low, high))


@rule("tiltproof.rescaled_sum")
def rescaled_sum(x: Form, y: Form, multipliers: Any, shifts: Any, minus: bool, low: int, high: int) -> Form:
    """Follow its definition: both numbers times 2^20 and scaled, then their sum or difference."""
    m, s = list(multipliers), list(shifts)
    if len(m) != 3 or len(s) != 3 or type(minus) is not bool or not isinstance(x, Form) or not isinstance(y, Form):
        raise no_rule("rescaled_sum", f"with {len(m)} factors, or with a constant")
    far = MOST_WHOLE
    first, second = (
        requantize(times(each, 2.0**20), m[k : k + 1], s[k : k + 1], -far, far) for k, each in enumerate((x, y))
    )
    return requantize(plus(first, -second if minus else second), m[2:], s[2:], low, high)


def known_ends(x: Form, ends: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return both ends, or the whole range where nothing is known of x."""
    known = torch.isfinite(x.reach)
    return torch.where(known, ends[0], float(low)), torch.where(known, ends[1], float(high))


def nearest(units: Tensor, offset: int, low: int, high: int, snap: float) -> Tensor:
    """Return units + offset, rounded with ties away from zero, without the offset; ``snap``: how close to a tie is one."""
    t = units + offset
    down = torch.floor(t)
    up = torch.where(down >= 0, t - down >= 0.5 - snap, t - down > 0.5 + snap)
    return (down + up.double() - offset).clamp(low, high)


@rule("tiltproof.rounded")
def rounded(x: Form, factor: float, offset: int, low: int, high: int, snap: float) -> Form:
    """Relax n with |n - factor x| <= 1/2 + snap; the offset is whole and changes no distance."""
    size = clipping("rounded", low, high)
    if type(factor) is not float or type(snap) is not float or type(offset) is not int or abs(offset) > 2**20:
        raise no_rule("rounded", f"with {factor!r}, {offset!r} and {snap!r}")
    if not 2.0**-60 < factor < 2.0**60 or not 0 <= snap <= 2.0**-4:
        raise no_rule("rounded", f"with {factor!r} and {snap!r}")
    size += abs(offset)
    beside = (x.magnitude * factor + size + 1) * (2.0**-45 + (2.0**-19 if x.unit else 0.0))
    low_end = nearest(x.lower() * factor - beside, offset, low, high, snap)
    high_end = nearest(x.upper() * factor + beside, offset, low, high, snap)
    return whole_numbers(x, factor, 1.0, low, high, snap, size, known_ends(x, (low_end, high_end), low, high))
