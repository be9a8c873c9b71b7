"""Bounds of a blurred picture: x' = x + sum_k w_k d_k with d_k = x shifted by k + x shifted by -k - 2 x (`transforms/filters.py`).

The weights depend on the parameter alone, the d_k on the picture alone and linearly. For a picture c + sum_j G_j e_j + [-r, r] and weights
w_k = a_k + sum_j b_kj e_j + [-q_k, q_k]:
    center  c + sum_k a_k d_k(c)                 slopes  G_j + sum_k (a_k d_k(G_j) + b_kj d_k(c))
    remainder  sum_k q_k |d_k(c)| + sum_k (sum_j |b_kj| + q_k) sum_j |d_k(G_j)|, of second order,
               and what the picture's own remainder becomes: it is averaged with weights that are not negative
"""

from __future__ import annotations

import torch

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.interval import Interval
from tiltproof.bounds.kernels import Weights, enclose
from tiltproof.bounds.rounding import UNIT, widen
from tiltproof.transforms.filters import Filter, Offset, both_sides, differences


def filtered_form(part: Filter, picture: AffineForm, value: AffineForm, padding: str) -> AffineForm:
    weights = enclose(part, value.center, value.lower, value.upper)
    forms = weights.forms(value)
    for offsets in part.passes():
        picture = _pass(picture, forms, weights, offsets, padding)
    return picture


def _pass(picture: AffineForm, forms: AffineForm, weights: Weights, offsets: list[Offset], padding: str) -> AffineForm:
    """``forms`` holds the weights as [P, taps, 1, 1]."""
    stack, spread = picture.stack.clone(), forms.deviation()
    radius = picture.radius * weights.middle
    for k, offset in enumerate(offsets):
        one = slice(k, k + 1)
        apart = differences(picture.stack, offset, padding)
        stack = stack + forms.center[:, one] * apart
        stack[1:] += forms.slopes[:, :, one] * apart[0]
        radius = radius + forms.radius[:, one] * apart[0].abs() + spread[:, one] * apart[1:].abs().sum(0)
        radius = radius + weights.upper[:, one] * both_sides(picture.radius, offset, padding)
    # |x'| and every intermediate result is below the largest |x| times this
    share = 1 + 4 * (forms.center.abs() + spread).sum(1, keepdim=True)
    largest = (picture.magnitude() + picture.radius).flatten(1).amax(1).view(-1, 1, 1, 1)
    unit = UNIT[stack.dtype]
    return AffineForm(stack, widen(radius, (largest * share).expand_as(radius), _roundings(offsets), unit))


def filtered_interval(part: Filter, picture: Interval, value: Interval, padding: str) -> Interval:
    """Weights are not negative, so the least picture gives the least result; there, each weight's worse end counts."""
    weights = enclose(part, (value.lower + value.upper) / 2, value.lower, value.upper)
    for offsets in part.passes():
        lower, upper = picture.lower, picture.upper
        for k, offset in enumerate(offsets):
            ends = weights.lower[:, k : k + 1], weights.upper[:, k : k + 1]
            below, above = (differences(end, offset, padding) for end in (picture.lower, picture.upper))
            lower = lower + torch.minimum(ends[0] * below, ends[1] * below)
            upper = upper + torch.maximum(ends[0] * above, ends[1] * above)
        slack = 8 * _roundings(offsets) * UNIT[lower.dtype]  # pixels are at most 1, and so are the weights together
        picture = Interval(lower - slack, upper + slack).clamp01()
    return picture


def _roundings(offsets: list[Offset]) -> int:
    """Sums over all taps; and taps at fractional places, which are off by some 16 u each, hence the picture there by twice that."""
    whole = all(distance == int(distance) for offset in offsets for distance in offset)
    return 8 * len(offsets) + 32 + (0 if whole else 128 * len(offsets))
