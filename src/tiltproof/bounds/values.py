"""Bounds after one change of values: contrast and brightness before their clamp, gamma, a mix of colours, a blur."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.filters import filtered_form, filtered_interval
from tiltproof.bounds.interval import Interval
from tiltproof.bounds.power import power_form, power_interval
from tiltproof.bounds.relax import clamp01
from tiltproof.transforms.base import Part
from tiltproof.transforms.colour import ColourMatrix, mixed
from tiltproof.transforms.filters import Filter
from tiltproof.transforms.gamma import Gamma


def changed_form(part: Part, picture: Any, value: AffineForm, padding: str) -> AffineForm:
    """``picture`` [P, C, H, W] with true values in [0, 1]; ``value`` is the part's parameter, [P, 1, 1, 1]."""
    if isinstance(part, Filter):
        return _no_worse_than_unit(filtered_form(part, picture, value, padding))
    if isinstance(part, Gamma):
        return power_form(picture, part.exponent(value))
    changed: AffineForm = part.pixels(picture, value)
    return _no_worse_than_unit(clamp01(changed)) if isinstance(part, ColourMatrix) else changed


def _no_worse_than_unit(form: AffineForm) -> AffineForm:
    """The values are in [0, 1]; a remainder of more than 1/2, also one that is no number, says less than that."""
    better = form.radius < 0.5
    plain = torch.zeros_like(form.stack)
    plain[0] = 0.5
    return AffineForm(torch.where(better, form.stack, plain), torch.where(better, form.radius, 0.5), form.unit)


def changed_interval(part: Part, picture: Interval, value: Interval, padding: str) -> Interval:
    if isinstance(part, Filter):
        return filtered_interval(part, picture, value, padding)
    if isinstance(part, Gamma):
        return power_interval(picture, part.exponent(value))
    if not isinstance(part, ColourMatrix):
        return part.pixels(picture, value)
    # For any one picture the result is linear in each number of the matrix, so it is least and greatest where these are at their ends.
    numbers, matrices = zip(*part.terms(value), strict=True)
    results = [
        mixed(picture, [(Interval(end, end), matrix) for end, matrix in zip(ends, matrices, strict=True)])
        for ends in itertools.product(*((number.lower, number.upper) for number in numbers))
    ]
    lower, upper = (torch.stack([getattr(result, side) for result in results]) for side in ("lower", "upper"))
    return Interval(lower.amin(0), upper.amax(0))
