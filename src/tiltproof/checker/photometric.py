"""Smooth functions of forms, which coordinates and hues need: sine, cosine, 1 / t and the quotient of two forms."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.operations import bend


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
    s, c = x.center.sin(), x.center.cos()
    bend_s, bend_c = ((value.abs() + x.reach + 8 * UNIT).clamp(max=1) / 2 for value in (s, c))
    return taylor(x, s, c, bend_s), taylor(x, c, -s, bend_c)


def reciprocal(x: Form) -> Form:
    """1 / t has the second derivative 2 / t^3, at most 2 / lower^3 where lower > 0; elsewhere nothing is known."""
    lower = x.lower()
    bend = torch.where(lower > 0, (1 + 64 * UNIT) / lower**3, math.inf)
    return taylor(x, 1 / x.center, -1 / x.center**2, bend)


def quotient(x: Form, w: Form) -> Form:
    """x / w where w > 0; elsewhere nothing is known.

    Let q be any number, z = x - q w and w = c + t. Then x / w = q + z / w, and 1 / w = 1 / c - t / (c w), hence
        x / w = q + z / c - z t / (c w),  |z t / (c w)| <= |z| reach(w) / (c lower(w)).
    With q near the quotient of the centers both z and t are small, and so is their product.
    """
    lower, c = w.lower(), w.center
    q = x.center / c
    data = x.rows - q * w.rows  # the center's cancellation leaves at most 3 roundings of |x| + |q w|
    data[-1] = x.radius + q.abs() * w.radius
    z = enclose(data, x.magnitude + q.abs() * w.magnitude, 4, 0.0, 0)
    data = z.rows / c
    data[0] += q
    data[-1] = (z.radius + z.magnitude * (w.reach / lower)) / c
    data[-1] = torch.where(lower > 0, data[-1], math.inf)
    return enclose(data, q.abs() + z.magnitude / c.abs(), 8, 0.0, 0)


# What lies outside the picture.


def endless(index: Tensor, size: int, padding: str) -> tuple[Tensor, Tensor]:
    """Which row (or column) of the picture an index of the endless picture shows, and whether it shows any."""
    if padding == "zeros":
        return index.clamp(0, size - 1), (index >= 0) & (index < size)
    if padding == "border" or size == 1:
        return index.clamp(0, size - 1), torch.ones_like(index, dtype=torch.bool)
    period = 2 * (size - 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index), torch.ones_like(index, dtype=torch.bool)


# Blurs as forms: weights by f(x) = f(c) + [f'](x - c) with the range of f' over the box, and the weighted mean of shifted pictures.


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
    here = value.center.clamp(min=0.02)

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
        here = half.center.clamp(min=0)
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


# Changes of values as forms: contrast and brightness, gamma, saturation and hue; blurs are in `blurs.py`.
#
# Contrast and brightness are clamped to [0, 1] where their run ends; the others are steps of their own on pictures whose true values are in
# [0, 1].


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

    For fixed x it is convex in g. With slopes s, t and c the center of g, over x in [l, h] and g in [a, b]:
      above   x^g - s x - t g is largest for g = a or g = b; there, as a function of x, at an end (g >= 1) or under a tangent (g <= 1)
      below   x^g >= x^c + (g - c) x^c ln x; x^c - s x is least over a tangent (c >= 1) or at an end (c <= 1), and x^c ln x, which falls
              until ln x = -1 / c and rises afterwards, is known between two numbers.
    """
    low, high = x.lower().clamp(0, 1), x.upper().clamp(0, 1)
    a, b, c = g.lower(), g.upper(), g.center
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
