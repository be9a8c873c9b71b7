"""Smooth functions of forms, padding, blurs and value changes: everything `pixels` needs besides interpolation."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.operations import relax_leaky_relu
from tiltproof.errors import UnsupportedOperation


def taylor(x: Form, value: Tensor, derivative: Tensor, half_second: Tensor | float) -> Form:
    """Expand f(x) = f(c) + f'(c) t + R, |R| <= max|f''| / 2 t^2, for x = c + t and |t| <= reach."""
    data = x.rows * derivative
    data[0] = value
    data[-1] = x.radius * derivative.abs() + half_second * x.reach * x.reach
    return enclose(data, 1 + value.abs() + derivative.abs() * x.reach, 32, 0.0, 0)


def radians(degrees: Form) -> Form:
    """Convert an angle to radians."""
    pi = Form(torch.zeros_like(degrees.rows[:, :, :1]))
    pi.rows[0], pi.rows[-1] = math.pi, 4 * UNIT
    return degrees * pi / 180


def sine_and_cosine(x: Form) -> tuple[Form, Form]:
    """Enclose both: |sin''| = |sin x| <= min(1, |sin c| + |x - c|), the same for cosine; 8 u cover sin c as computed."""
    s, c = x.center.sin(), x.center.cos()
    curvature_s, curvature_c = ((value.abs() + x.reach + 8 * UNIT).clamp(max=1) / 2 for value in (s, c))
    return taylor(x, s, c, curvature_s), taylor(x, c, -s, curvature_c)


def reciprocal(x: Form) -> Form:
    """Enclose 1 / t, whose second derivative 2 / t^3 is at most 2 / lower^3 if lower > 0; otherwise the result is unbounded."""
    lower = x.lower()
    curvature = torch.where(lower > 0, (1 + 64 * UNIT) / lower**3, math.inf)
    return taylor(x, 1 / x.center, -1 / x.center**2, curvature)


def quotient(x: Form, w: Form) -> Form:
    """Enclose x / w if w > 0; otherwise the result is unbounded.

    Let q be any number, z = x - q w and w = c + t. Then x / w = q + z / w, and 1 / w = 1 / c - t / (c w), hence
        x / w = q + z / c - z t / (c w),  |z t / (c w)| <= |z| reach(w) / (c lower(w)).
    With q close to the quotient of the centers both z and t are small, and so is their product.
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


# Padding.


def endless(index: Tensor, size: int, padding: str) -> tuple[Tensor, Tensor]:
    """Map an index of the padded image to a row (or column) of the image, and say whether it has one."""
    if padding == "zeros":
        return index.clamp(0, size - 1), (index >= 0) & (index < size)
    if padding not in ("border", "reflect"):
        raise UnsupportedOperation(f"the checker has no rule for padding {padding!r}")
    if padding == "border" or size == 1:
        return index.clamp(0, size - 1), torch.ones_like(index, dtype=torch.bool)
    period = 2 * (size - 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index), torch.ones_like(index, dtype=torch.bool)


# Blurs: weights as f(x) = f(c) + [f'](x - c) with the range of f' over the box, then the weighted mean of shifted images.


ROUNDED = 1 + 2.0**-30  # covers the relative error of the few roundings before it
Weights = tuple[list[Form], list[Tensor]]
"""w_0, w_1, ... as forms [P, 1, 1, 1], and an upper bound of each."""


def with_derivative(value: Form, at: Tensor, error: float, least: Tensor, most: Tensor) -> Form:
    """Enclose f from f(c) = at, up to ``error``, and least <= f' <= most over the whole box."""
    slope = (least + most) / 2
    data = value.rows * slope
    data[0] = at
    data[-1] = slope.abs() * value.radius + (most - least) / 2 * value.reach * ROUNDED + error
    return enclose(data, at.abs() + (least.abs() + most.abs()) * value.reach, 16, 0.0, 0)


def gaussian_weights(value: Form, radius: int) -> Weights:
    """Enclose a Gaussian's weights w_k = n_k / Z with n_k = exp(-k^2 / (2 s^2)) and Z = n_0 + 2 (n_1 + ...).

    w_k' = n_k / s^3 (k^2 - E) / Z, where E is the mean of k^2. Z and E rise with s. n_k / s^3 rises until s = k / sqrt(3) and
    falls afterwards. For s below 0.02 all n_k but n_0 = 1, and all their derivatives, are less than 1e-500. The middle weight
    is 1 - 2 (w_1 + ...).
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
    """Enclose a motion's weights w_k = (I(h - k) - I(-h - k)) / (2 h), h half the length, I the integral of max(0, 1 - |t|).

    For k >= 1, w_k is 0 up to h = k - 1, then (h - k + 1)^2 / (4 h), from h = k on (2 - (k + 1 - h)^2) / (4 h), and from
    h = k + 1 on 1 / (2 h). Its derivative in h is continuous and monotone within each piece (it rises, falls, and rises again),
    so over a box its extrema are at the ends or where pieces meet. w_k rises until h^2 = (k + 1)^2 - 2 and falls afterwards.
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

        points = [*ends, *(torch.full_like(ends[0], float(m)).clamp(ends[0], ends[1]) for m in (k - 1, k, k + 1))]
        slopes = torch.stack([slope(point) for point in points])
        error = 64 * UNIT
        here = half.center.clamp(min=0)
        forms.append(with_derivative(half, weight(here), error, slopes.amin(0) - error, slopes.amax(0) + error))
        turning = torch.full_like(here, math.sqrt((k + 1) ** 2 - 2)).clamp(ends[0], ends[1])
        tops.append(weight(turning) + error)
    return complete(forms, tops)


def complete(forms: list[Form], tops: list[Tensor]) -> Weights:
    """Prepend the middle weight: 1 minus all the others, at most 1."""
    rest = forms[0]
    for form in forms[1:]:
        rest = rest + form
    middle = 1 - 2 * rest
    return [middle, *forms], [middle.upper().clamp(0, 1), *tops]


def direction(degrees: float) -> tuple[float, float]:
    """Return one pixel along the motion: rows down, columns to the right."""
    if degrees % 90 == 0:
        return ((0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0))[int(degrees // 90) % 4]
    angle = math.radians(degrees)
    return -math.sin(angle), math.cos(angle)


def blurred(image: Form, weights: Weights, offsets: list[tuple[float, float]], padding: str) -> Form:
    """Enclose sum_k w_k (x at k + x at -k), with w_0 x in the middle.

    x = known + rest with |rest| <= r. The known part is a form without remainder; because the weights add up to 1 it may be
    written relative to the middle: x_0 + sum_k w_k (x_k + x_-k - 2 x_0). The rest is averaged with nonnegative weights.
    """
    forms, tops = weights
    known = Form(torch.cat([image.rows[:-1], torch.zeros_like(image.rows[-1:])]))
    total, radius = known, image.radius * tops[0]
    largest = image.magnitude.flatten(1).amax(1).view(-1, 1, 1, 1)
    for weight, top, offset in zip(forms[1:], tops[1:], offsets[1:], strict=True):
        pair = [shifted(image.rows, sign * offset[0], sign * offset[1], padding) for sign in (1, -1)]
        second_difference = pair[0] + pair[1] - 2 * image.rows
        # an offset is off by 32 u of its length, a value there by twice that on each axis; plus six roundings of at most 4 numbers
        error = (128 * (1 + max(map(abs, offset))) + 64) * UNIT * largest
        second_difference[-1] = error.expand_as(second_difference[-1])
        total = total + Form(second_difference) * weight
        radius = radius + (pair[0][-1] + pair[1][-1] + error) * top
    data = total.rows.clone()
    data[-1] += radius * (1 + 64 * (len(forms) + 2) * UNIT)
    return enclose(data, total.magnitude + radius, 4, 0.0, 0)


def shifted(rows: Tensor, down: float, right: float, padding: str) -> Tensor:
    """Shift each image [..., H, W] by a fixed offset, interpolating between the four pixels there."""
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


# Value changes: contrast and brightness, gamma, saturation and hue.
#
# A group of contrasts and brightnesses is clamped to [0, 1] at its end; every other change is a separate step on images
# whose true values are in [0, 1].


LUMA = (213.0, 715.0, 72.0)
TURN = ((-213.0, -715.0, 928.0), (143.0, 140.0, -283.0), (-787.0, 715.0, 72.0))


def clamped(x: Form) -> Form:
    """Enclose min(1, max(0, x)) = 1 - relu(1 - relu(x))."""
    return 1 - relax_leaky_relu(1 - relax_leaky_relu(x, 0.0), 0.0)


def changed(image: Form, letter: str, value: Form, fixed: float, padding: str) -> Form:
    """Return the image [P, C, H, W] after one transformation; ``value`` is its parameter, [P, 1, 1, 1]."""
    if letter == "C":
        return image * (value / 100 + 1)
    if letter == "B":
        return image + value
    if letter == "G":
        return unit(power(image, value / 100 + 1))
    if letter == "Bl":
        weights = gaussian_weights(value, int(fixed))
        for step in ((0, 1), (1, 0)):
            image = blurred(image, weights, [(k * step[0], k * step[1]) for k in range(len(weights[0]))], padding)
        return unit(image)
    if letter == "Mb":
        weights = motion_weights(value)
        down, right = direction(fixed)
        return unit(blurred(image, weights, [(k * down, k * right) for k in range(len(weights[0]))], padding))
    assert letter in ("S", "H")
    return unit(clamped(colored(image, letter, value)))


def unit(x: Form) -> Form:
    """Intersect with x in [0, 1], by replacing a form whose radius is 1/2 or more."""
    plain = torch.zeros_like(x.rows)
    plain[0], plain[-1] = 0.5, 0.5
    return Form(torch.where(x.radius < 0.5, x.rows, plain), x.unit)


def colored(image: Form, letter: str, value: Form) -> Form:
    """Mix red, green and blue. Constants count thousandths, so they are exact."""
    rest = torch.eye(3, dtype=torch.float64) * 1000 - torch.tensor([LUMA] * 3, dtype=torch.float64)

    def column(matrix: Tensor, k: int) -> Tensor:
        return matrix[:, k].to(image.device).view(1, 3, 1, 1)

    luma, turn = torch.tensor([LUMA] * 3, dtype=torch.float64), torch.tensor(TURN, dtype=torch.float64)
    sine, cosine = sine_and_cosine(radians(value)) if letter == "H" else (value, value / 100 + 1)
    parts = []
    for k in range(3):
        weight = cosine * column(rest, k) + column(luma, k)
        weight = weight + sine * column(turn, k) if letter == "H" else weight
        parts.append(Form(image.rows[:, :, k : k + 1]) * weight)
    return (parts[0] + parts[1] + parts[2]) / 1000


def power(x: Form, g: Form) -> Form:
    """Enclose x^g for x in [0, 1], g > 0.

    For fixed x it is convex in g. With slopes s, t and c the center of g, over x in [l, h] and g in [a, b]:
      above   x^g - s x - t g is largest at g = a or g = b; there, as a function of x, at an end (g >= 1) or under a tangent (g <= 1)
      below   x^g >= x^c + (g - c) x^c ln x; x^c - s x is least over a tangent (c >= 1) or at an end (c <= 1), and x^c ln x, which
              falls until ln x = -1 / c and rises afterwards, lies between two known numbers.
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
        """Return the tangent of x^p at the middle, minus s x, at both ends."""
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
    )  # sums all rounded magnitudes: powers and tangents are at most 1 + p
    slack = 64 * UNIT * size
    low_value, high_value = bottom - slack, torch.maximum(*tops) + slack
    data = s * x.rows + torch.zeros_like(low)
    data[1:-1] += t * g.slopes
    data[0] += (low_value + high_value) / 2
    data[-1] = s * x.radius + t.abs() * g.radius + (high_value - low_value) / 2
    form = enclose(data, s * x.magnitude + size, 16, 0.0, 0)
    # the plain range: x^g rises with x and falls with g
    plain = torch.zeros_like(data)
    floor, roof = low**b * (1 - 64 * UNIT), high**a * (1 + 64 * UNIT) + 1e-300
    plain[0], plain[-1] = (floor + roof) / 2, (roof - floor) / 2 * (1 + 8 * UNIT) + 4 * UNIT
    rows = torch.where(form.radius < plain[-1], form.rows, plain)
    rows[-1] = torch.where(a > 0, rows[-1], math.inf)
    return Form(rows)
