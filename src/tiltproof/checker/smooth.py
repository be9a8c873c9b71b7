"""Smooth functions of forms, which coordinates and hues need: sine, cosine, 1 / t and the quotient of two forms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose


def taylor(x: Form, value: Tensor, derivative: Tensor, half_second: Tensor | float) -> Form:
    """f(x) = f(c) + f'(c) t + R, |R| <= max|f''| / 2 t^2, for x = c + t and |t| <= reach."""
    data = x.rows * derivative
    data[0] = value
    data[-1] = x.radius * derivative.abs() + half_second * x.reach * x.reach
    return enclose(data, 1 + value.abs() + derivative.abs() * x.reach, 32, 0.0, 0)


def radians(degrees: Form) -> Form:
    """An angle in radians."""
    pi = Form(torch.zeros_like(degrees.rows[:, :, :1]))
    pi.rows[0], pi.rows[-1] = math.pi, 4 * UNIT
    return degrees * pi / 180


def sine_and_cosine(x: Form) -> tuple[Form, Form]:
    """|sin''| = |sin x| <= |sin c| + |x - c|, and at most 1; the same for cosine. 8 u are for sin c as computed."""
    s, c = x.centre.sin(), x.centre.cos()
    bend_s, bend_c = ((value.abs() + x.reach + 8 * UNIT).clamp(max=1) / 2 for value in (s, c))
    return taylor(x, s, c, bend_s), taylor(x, c, -s, bend_c)


def reciprocal(x: Form) -> Form:
    """1 / t has the second derivative 2 / t^3, at most 2 / lower^3 where lower > 0; elsewhere nothing is known."""
    lower = x.lower()
    bend = torch.where(lower > 0, (1 + 64 * UNIT) / lower**3, math.inf)
    return taylor(x, 1 / x.centre, -1 / x.centre**2, bend)


def quotient(x: Form, w: Form) -> Form:
    """x / w where w > 0; elsewhere nothing is known.

    Let q be any number, z = x - q w and w = c + t. Then x / w = q + z / w, and 1 / w = 1 / c - t / (c w), hence
        x / w = q + z / c - z t / (c w),  |z t / (c w)| <= |z| reach(w) / (c lower(w)).
    With q near the quotient of the centres both z and t are small, and so is their product.
    """
    lower, c = w.lower(), w.centre
    q = x.centre / c
    data = x.rows - q * w.rows  # the centre's cancellation leaves at most 3 roundings of |x| + |q w|
    data[-1] = x.radius + q.abs() * w.radius
    z = enclose(data, x.magnitude + q.abs() * w.magnitude, 4, 0.0, 0)
    data = z.rows / c
    data[0] += q
    data[-1] = (z.radius + z.magnitude * (w.reach / lower)) / c
    data[-1] = torch.where(lower > 0, data[-1], math.inf)
    return enclose(data, q.abs() + z.magnitude / c.abs(), 8, 0.0, 0)
