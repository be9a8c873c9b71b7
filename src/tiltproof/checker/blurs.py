"""Blurs as forms: weights by f(x) = f(c) + [f'](x - c) with the range of f' over the box, and the weighted mean of shifted pictures."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.padding import endless

ROUNDED = 1 + 2.0**-30  # more than the relative error of the few roundings that it is multiplied with
Weights = tuple[list[Form], list[Tensor]]
"""w_0, w_1, ... as forms [P, 1, 1, 1], and an upper bound of each."""


def with_derivative(value: Form, at: Tensor, error: float, least: Tensor, most: Tensor) -> Form:
    """f where f(c) = at, up to error, and f' is between least and most over the whole box."""
    slope = (least + most) / 2
    data = value.rows * slope
    data[0] = at
    data[-1] = slope.abs() * value.radius + (most - least) / 2 * value.reach * ROUNDED + error
    return enclose(data, at.abs() + (least.abs() + most.abs()) * value.reach, 16, 0.0, 0)


def gaussian_weights(value: Form, radius: int) -> Weights:
    """w_k = n_k / Z with n_k = exp(-k^2 / (2 s^2)), Z = n_0 + 2 (n_1 + ...): w_k' = n_k / s^3 (k^2 - E) / Z, E the mean of k^2.

    Z and E rise with s. n_k / s^3 rises until s = k / sqrt(3) and falls afterwards. For s below 0.02 all n_k but n_0 = 1 and all their
    derivatives are less than 1e-500. The middle weight is 1 - 2 (w_1 + ...).
    """
    ends = [end.clamp(min=0.02) for end in (value.lower(), value.upper())]
    here = value.centre.clamp(min=0.02)

    def sums(s: Tensor) -> tuple[Tensor, Tensor]:
        n = [torch.exp(-0.5 * (k / s) ** 2) for k in range(radius + 1)]
        whole = 1 + 2 * sum(n[1:], torch.zeros_like(s))
        return whole, 2 * sum((k * k * n[k] for k in range(1, radius + 1)), torch.zeros_like(s)) / whole

    (z_least, e_least), (z_most, e_most), (z_here, _) = sums(ends[0]), sums(ends[1]), sums(here)
    forms: list[Form] = []
    tops: list[Tensor] = []
    for k in range(1, radius + 1):
        turning = torch.minimum(torch.maximum(torch.full_like(here, k / 3**0.5), ends[0]), ends[1])
        parts = [torch.exp(-0.5 * (k / s) ** 2) / s**3 for s in (ends[0], ends[1], turning)]
        least, most = torch.minimum(parts[0], parts[1]) / ROUNDED, parts[2] * ROUNDED
        doubt = 1e-12 * (k * k + e_most + 1)
        far, near = k * k - e_least + doubt, k * k - e_most - doubt
        products = torch.stack([p * q / z for p in (least, most) for q in (near, far) for z in (z_least, z_most)])
        at = torch.exp(-0.5 * (k / here) ** 2) / z_here
        size = 2.0**-30 * products.abs().amax(0)
        error = 64 * (radius + 2) * UNIT
        forms.append(with_derivative(value, at, error, products.amin(0) - size, products.amax(0) + size))
        tops.append(torch.exp(-0.5 * (k / ends[1]) ** 2) / z_least * ROUNDED + error)
    return complete(forms, tops)


def motion_weights(value: Form) -> Weights:
    """w_k = (I(h - k) - I(-h - k)) / (2 h), h half the length, I the integral of max(0, 1 - |t|): for k >= 1 it is 0 up to h = k - 1, then
    (h - k + 1)^2 / (4 h), from k on (2 - (k + 1 - h)^2) / (4 h), from k + 1 on 1 / (2 h).

    Its derivative in h is continuous; it does not turn within a piece (it rises, falls, and rises again), so over a box it is extreme at
    the ends or where pieces meet. w_k rises until h^2 = (k + 1)^2 - 2 and falls afterwards.
    """
    half = value / 2
    ends = [end.clamp(min=0) for end in (half.lower(), half.upper())]
    taps = max(1, math.ceil(float(ends[1].nan_to_num(0.0).max())))
    forms: list[Form] = []
    tops: list[Tensor] = []
    for k in range(1, taps + 1):

        def weight(h: Tensor, k: int = k) -> Tensor:
            safe = h.clamp(min=1e-100)
            middle = torch.where(h < k, (h - k + 1) ** 2, 2 - (k + 1 - h) ** 2) / (4 * safe)
            return torch.where(h <= k - 1, 0.0, torch.where(h < k + 1, middle, 1 / (2 * safe)))

        def slope(h: Tensor, k: int = k) -> Tensor:
            safe = h.clamp(min=1e-100)
            first = (1 - ((k - 1) / safe) ** 2) / 4 if k > 1 else torch.full_like(h, 0.25)
            second = (((k + 1) ** 2 - 2) / safe**2 - 1) / 4
            middle = torch.where(h < k, first, torch.where(h < k + 1, second, -1 / (2 * safe**2)))
            return torch.where(h < k - 1, 0.0, middle)

        places = [*ends, *(torch.full_like(ends[0], float(m)).clamp(ends[0], ends[1]) for m in (k - 1, k, k + 1))]
        slopes = torch.stack([slope(place) for place in places])
        error = 64 * UNIT
        here = half.centre.clamp(min=0)
        forms.append(with_derivative(half, weight(here), error, slopes.amin(0) - error, slopes.amax(0) + error))
        turning = torch.full_like(here, math.sqrt((k + 1) ** 2 - 2)).clamp(ends[0], ends[1])
        tops.append(weight(turning) + error)
    return complete(forms, tops)


def complete(forms: list[Form], tops: list[Tensor]) -> Weights:
    """With the middle weight in front: 1 less all the others, at most 1."""
    rest = forms[0]
    for form in forms[1:]:
        rest = rest + form
    middle = 1 - 2 * rest
    return [middle, *forms], [middle.upper().clamp(0, 1), *tops]


def direction(degrees: float) -> tuple[float, float]:
    """One pixel along the motion: rows down, columns to the right."""
    if degrees % 90 == 0:
        return ((0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0))[int(degrees // 90) % 4]
    angle = math.radians(degrees)
    return -math.sin(angle), math.cos(angle)


def blurred(picture: Form, weights: Weights, places: list[tuple[float, float]], padding: str) -> Form:
    """sum_k w_k (x at k + x at -k), w_0 x in the middle.

    x = known + rest with |rest| <= r. The known part is a form without remainder, and because the weights add up to 1 it may be counted
    from the middle: x_0 + sum_k w_k (x_k + x_-k - 2 x_0). The rest is averaged by weights that are not negative.
    """
    forms, tops = weights
    known = Form(torch.cat([picture.rows[:-1], torch.zeros_like(picture.rows[-1:])]))
    total, radius = known, picture.radius * tops[0]
    largest = picture.magnitude.flatten(1).amax(1).view(-1, 1, 1, 1)
    for weight, top, place in zip(forms[1:], tops[1:], places[1:], strict=True):
        pair = [shifted(picture.rows, sign * place[0], sign * place[1], padding) for sign in (1, -1)]
        apart = pair[0] + pair[1] - 2 * picture.rows
        # a place is off by 32 u of its distance, a value there by twice that on each axis; and six roundings of at most 4 numbers
        error = (128 * (1 + max(map(abs, place))) + 64) * UNIT * largest
        apart[-1] = error.expand_as(apart[-1])
        total = total + Form(apart) * weight
        radius = radius + (pair[0][-1] + pair[1][-1] + error) * top
    data = total.rows.clone()
    data[-1] += radius * (1 + 64 * (len(forms) + 2) * UNIT)
    return enclose(data, total.magnitude + radius, 4, 0.0, 0)


def shifted(rows: Tensor, down: float, right: float, padding: str) -> Tensor:
    """Each picture [..., H, W] at a fixed distance, interpolated between the four pixels there."""
    height, width = rows.shape[-2:]
    flat = torch.nn.functional.pad(rows.flatten(-2), (0, 1))  # the last one is a zero
    result = torch.zeros_like(rows)
    (i0, y), (j0, x) = ((math.floor(distance), distance - math.floor(distance)) for distance in (down, right))
    lines = torch.arange(height, device=rows.device), torch.arange(width, device=rows.device)
    for di, dj in itertools.product((0, 1), repeat=2):
        share = (y if di else 1 - y) * (x if dj else 1 - x)
        if share:
            (i, inside_i), (j, inside_j) = (
                endless(line + start, size, padding)
                for line, start, size in ((lines[0], i0 + di, height), (lines[1], j0 + dj, width))
            )
            index = torch.where(inside_i[:, None] & inside_j, i[:, None] * width + j, height * width)
            result = result + share * flat[..., index]
    return result
