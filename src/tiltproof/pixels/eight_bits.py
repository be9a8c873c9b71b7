"""Pixels rounded to 8 bits: the whole numbers that a bounded pixel may become, and bounds of what the rounded picture shows."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import widen
from tiltproof.pixels.noise import noisy_form

SLACK = 2.0**-40
"""More than 255 p - 1/2 and 255 p + 1/2 round in float64: three roundings of numbers up to 256, at most 2^-45 each."""
HALF_STEP = 1 / 510
"""How far a pixel moves when it is rounded; `noisy_form` takes one unit in the last place more."""


def levels(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last whole number that a pixel in [lower, upper] may round to, whichever way ties go; 0 and 255 for bounds
    that are not known. True pixels are in [0, 1]."""
    low, high = lower.nan_to_num(nan=0.0).clamp(0, 1), upper.nan_to_num(nan=1.0).clamp(0, 1)
    first = (low * 255 - (0.5 + SLACK)).ceil().clamp(0, 255)
    last = (high * 255 + (0.5 + SLACK)).floor().clamp(0, 255)
    return first, last


def rounded_form(form: AffineForm) -> AffineForm:
    """Return bounds of k / 255 over all whole numbers k that the pixels of a float64 ``form`` may be rounded to, ties either way.

    Both of these hold for every pixel p in [l, h] and every k with |255 p - k| <= 1/2:

        |k / 255 - p| <= 1 / 510 and 0 <= k / 255 <= 1,  so k / 255 = clamp(p + d) for some |d| <= 1 / 510 (`noisy_form`)
        k1 / 255 <= k / 255 <= k2 / 255,                 with k1, k2 = levels(l, h)

    The second one is an interval without slopes. It is used for k2 <= k1 + 1, where it is exact, zero wide for a pixel that is known
    (most of a picture, over a small box), and never wider than the first one's own remainder of 1 / 510.
    """
    first, last = levels(form.lower, form.upper)
    moved, narrow = noisy_form(form, HALF_STEP), last - first <= 1
    stack = torch.where(narrow, 0.0, moved.stack)
    stack[0] = torch.where(narrow, (first + last) / 510, moved.stack[0])
    # the center, half the width and their quotients: four roundings of numbers up to 1
    inside = widen((last - first) / 510, torch.ones_like(first), 4, form.unit)
    return AffineForm(stack, torch.where(narrow, inside, moved.radius), form.unit, form.quadratic)
