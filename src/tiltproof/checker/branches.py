"""Products of two forms: the second-order part of a product, from the symbols that both factors share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tiltproof.checker.form import Form


MANY = 64
"""Symbols of forms up to which the products of every two are kept apart."""


def second_order(a: Form, b: Form) -> tuple[Tensor, Tensor]:
    """Return (m, t) with |t_a t_b - m| <= t for the parts t_a, t_b that the forms leave beside their centers.

    With t_a = sum_j g_j e_j + rho and t_b = sum_k h_k e_k + sigma,
        t_a t_b = sum_k g_k h_k e_k^2 + sum_(j < k) (g_j h_k + g_k h_j) e_j e_k + (sum g e) sigma + rho (sum h e) + rho sigma,
    where e_k^2 is in [0, 1] and every e_j e_k in [-1, 1]. The square of one form's t_a is in [0, reach^2].
    """
    if a is b:
        half = a.reach * a.reach / 2
        return half, half
    g, h = a.slopes, b.slopes
    if len(g) > MANY:  # that many products of symbols take too long: |t_a t_b| <= |t_a| |t_b|
        return torch.zeros_like(a.center * b.center), a.reach * b.reach
    middle, rest = torch.zeros_like(a.center * b.center), a.radius * b.radius
    for k in range(len(g)):
        own = g[k] * h[k]
        middle, rest = middle + own / 2, rest + own.abs() / 2 + g[k].abs() * b.radius + a.radius * h[k].abs()
        for j in range(k):
            rest = rest + (g[j] * h[k] + g[k] * h[j]).abs()
    return middle, rest


def interval_product(a: Form, b: Form) -> tuple[Tensor, Tensor]:
    """Return the least and the largest product of the factors' ends."""
    low, high, other_low, other_high = a.lower(), a.upper(), b.lower(), b.upper()
    ends = torch.stack(torch.broadcast_tensors(low * other_low, low * other_high, high * other_low, high * other_high))
    least = ends.amin(0)
    return (least.clamp(min=0) if a is b else least), ends.amax(0)
