"""Changes of values as forms: contrast and brightness, gamma, saturation and hue; blurs are in `blurs.py`.

Contrast and brightness are clamped to [0, 1] where their run ends; the others are steps of their own on pictures whose true values are in
[0, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.checker.activations import bend
from tiltproof.checker.blurs import blurred, direction, gaussian_weights, motion_weights
from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.smooth import radians, sine_and_cosine

LUMA = (213.0, 715.0, 72.0)
TURN = ((-213.0, -715.0, 928.0), (143.0, 140.0, -283.0), (-787.0, 715.0, 72.0))


def clamped(x: Form) -> Form:
    """min(1, max(0, x)) = 1 - relu(1 - relu(x))."""
    return 1 - bend(1 - bend(x, 0.0), 0.0)


def changed(picture: Form, letter: str, value: Form, fixed: float, padding: str) -> Form:
    """The picture [P, C, H, W] after one part; ``value`` is its parameter, [P, 1, 1, 1]."""
    if letter == "C":
        return picture * (value / 100 + 1)
    if letter == "B":
        return picture + value
    if letter == "G":
        return unit(power(picture, value / 100 + 1))
    if letter == "Bl":
        weights = gaussian_weights(value, int(fixed))
        for step in ((0, 1), (1, 0)):
            picture = blurred(picture, weights, [(k * step[0], k * step[1]) for k in range(len(weights[0]))], padding)
        return unit(picture)
    if letter == "Mb":
        weights = motion_weights(value)
        down, right = direction(fixed)
        return unit(blurred(picture, weights, [(k * down, k * right) for k in range(len(weights[0]))], padding))
    assert letter in ("S", "H")
    return unit(clamped(coloured(picture, letter, value)))


def unit(x: Form) -> Form:
    """x is in [0, 1]; where its form says less than that, that is what it says."""
    plain = torch.zeros_like(x.rows)
    plain[0], plain[-1] = 0.5, 0.5
    return Form(torch.where(x.radius < 0.5, x.rows, plain), x.unit)


def coloured(picture: Form, letter: str, value: Form) -> Form:
    """Red, green and blue mixed. Constants count thousandths, so they are exact."""
    rest = torch.eye(3, dtype=torch.float64) * 1000 - torch.tensor([LUMA] * 3, dtype=torch.float64)

    def column(matrix: Tensor, k: int) -> Tensor:
        return matrix[:, k].to(picture.device).view(1, 3, 1, 1)

    luma, turn = torch.tensor([LUMA] * 3, dtype=torch.float64), torch.tensor(TURN, dtype=torch.float64)
    sine, cosine = sine_and_cosine(radians(value)) if letter == "H" else (value, value / 100 + 1)
    parts = []
    for k in range(3):
        weight = cosine * column(rest, k) + column(luma, k)
        weight = weight + sine * column(turn, k) if letter == "H" else weight
        parts.append(Form(picture.rows[:, :, k : k + 1]) * weight)
    return (parts[0] + parts[1] + parts[2]) / 1000


def power(x: Form, g: Form) -> Form:
    """x^g for x in [0, 1], g > 0.

    For fixed x it is convex in g. With slopes s, t and c the centre of g, over x in [l, h] and g in [a, b]:
      above   x^g - s x - t g is largest for g = a or g = b; there, as a function of x, at an end (g >= 1) or under a tangent (g <= 1)
      below   x^g >= x^c + (g - c) x^c ln x; x^c - s x is least over a tangent (c >= 1) or at an end (c <= 1), and x^c ln x, which falls
              until ln x = -1 / c and rises afterwards, is known between two numbers.
    """
    low, high = x.lower().clamp(0, 1), x.upper().clamp(0, 1)
    a, b, c = g.lower(), g.upper(), g.centre
    wide = high - low
    s = torch.where(wide > 1e-9, (high**c - low**c) / wide, 0.0).clamp(min=0)

    def log_term(ln: Tensor) -> Tensor:
        return torch.where(ln > -math.inf, ln * (c * ln).exp(), 0.0)

    ends = low.log(), high.log()
    least_log = log_term(torch.minimum(torch.maximum(-1 / c, ends[0]), ends[1]))
    most_log = torch.maximum(log_term(ends[0]), log_term(ends[1]))
    t = (least_log + most_log) / 2

    def line(p: Tensor) -> tuple[Tensor, Tensor]:
        """The tangent of x^p at the middle, less s x, at both ends."""
        m = (low + high) / 2
        slope = torch.where(m > 0, p * m**p / m, 0.0)
        return m**p + slope * (low - m) - s * low, m**p + slope * (high - m) - s * high

    def chord(p: Tensor) -> tuple[Tensor, Tensor]:
        return low**p - s * low, high**p - s * high

    tops = [torch.where(p >= 1, torch.maximum(*chord(p)), torch.maximum(*line(p))) - t * (p - c) for p in (a, b)]
    reach = torch.maximum(b - c, c - a)
    bottom = torch.where(c >= 1, torch.minimum(*line(c)), torch.minimum(*chord(c)))
    bottom = bottom - reach * torch.maximum(t - least_log, most_log - t)
    size = (
        4 + 2 * b + s * high + (t.abs() + 1 + 1 / c) * reach
    )  # of all that was rounded: powers and tangents are at most 1 + p
    slack = 64 * UNIT * size
    low_value, high_value = bottom - slack, torch.maximum(*tops) + slack
    data = s * x.rows + torch.zeros_like(low)
    data[1:-1] += t * g.slopes
    data[0] += (low_value + high_value) / 2
    data[-1] = s * x.radius + t.abs() * g.radius + (high_value - low_value) / 2
    form = enclose(data, s * x.magnitude + size, 16, 0.0, 0)
    # what it can be at all: x^g rises with x and falls with g
    plain = torch.zeros_like(data)
    floor, roof = low**b * (1 - 64 * UNIT), high**a * (1 + 64 * UNIT) + 1e-300
    plain[0], plain[-1] = (floor + roof) / 2, (roof - floor) / 2 * (1 + 8 * UNIT) + 4 * UNIT
    rows = torch.where(form.radius < plain[-1], form.rows, plain)
    rows[-1] = torch.where(a > 0, rows[-1], math.inf)
    return Form(rows)
