"""Pixels over a box of one parameter in digits, for networks that multiply float64's roundings beyond their margins.

As in `polynomials`, a source position is u a + v b + c with polynomials a, b, c of e in whole numbers, and a pixel is a bilinear function
of it. Here both are evaluated in these whole numbers, for every pixel. What paths gain beyond grid lines is small, and computed in floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.checker import digits
from tiltproof.checker.form import UNIT, Form
from tiltproof.checker.long_forms import LongForm
from tiltproof.checker.polynomials import (
    BITS,
    DEGREE,
    MOST_PARTS,
    SUPPORTED,
    UP,
    WHOLE,
    Path,
    Pixels,
    assembled,
    corners,
    crossings,
    path,
    source_lines,
)
from tiltproof.checker.tiling import Transform

PLACES = 20 * (digits.COUNT - 1)


def long_images(images: Tensor, transform: Transform, low: Tensor, high: Tensor, symbols: int) -> LongForm | None:
    """Enclose one image [1, C, H, W] over its box of one parameter; None where this is not supported."""
    if transform.noise or any(letter not in SUPPORTED for letter in transform.letters) or len(low) != 1:
        return None
    if transform.interpolation != "bilinear" or not 0 < len(transform.letters) <= MOST_PARTS:
        return None
    lines = source_lines(transform, low[0].tolist(), high[0].tolist())
    if lines is None or int((low < high).sum()) > 1:
        return None
    height, width = images.shape[-2:]
    across = path([lines[0]], 1, height, width, (width - 1) / 2, images)
    down = path([lines[1]], -1, height, width, (height - 1) / 2, images)
    if across is None or down is None:
        return None
    x = positions(lines[0], 1, height, width, width, across.line)
    y = positions(lines[1], -1, height, width, height, down.line)
    across, down = (each._replace(outside=outside(each, *place)) for each, place in ((across, x), (down, y)))
    powers, units = values(Pixels(images, transform.padding), across, down, x, y)
    # c_k e^k as Chebyshev polynomials: e^2 = (1 + T_2) / 2, e^3 = (3 T_1 + T_3) / 4, e^4 = (3 + 4 T_2 + T_4) / 8
    p = powers
    columns = [
        8 * p[0] + 4 * p[2] + 3 * p[4],
        8 * p[1] + 6 * p[3],
        4 * p[2] + 4 * p[4],
        2 * p[3],
        p[4],
    ]
    head = torch.stack([split(column >> 3, images) for column in columns], 1)
    error = as_floats(units + 8 * (DEGREE + 1) * (1 << (BITS - PLACES)), images)
    error = error + ((across.outside + down.outside).flatten().unsqueeze(1) * 5 * images.abs().amax()) * UP
    # what crossings add, in floats
    more = torch.zeros(DEGREE + 1, *error.shape, dtype=torch.float64, device=images.device)
    pixel = Pixels(images, transform.padding)
    found = crossings(pixel, across, down, more, error) + corners(pixel, across, down, more, error)
    shape = (1, height * width, images.shape[1])
    form = assembled(more.view(DEGREE + 1, *shape), error.view(shape), found, images, symbols)
    size = (DEGREE + 1, 1, images.shape[1], height, width)
    added = digits.of_floats(form.rows[: DEGREE + 1])
    head = digits.carried(head.transpose(2, 3).reshape(digits.COUNT, *size) + added)
    radius = (form.radius + (DEGREE + 1) * digits.LAST) * UP
    zero = torch.zeros_like(form.rows[:1])
    rest = Form(torch.cat([zero, form.rows[1 + DEGREE : -1], radius[None]]))
    return LongForm.of_pixels(rest, head)


def positions(line: Any, sign: int, height: int, width: int, size: int, first: Tensor) -> tuple[list[Any], Any]:
    """Powers of e of sign (a u + b v + c) + (size - 1) / 2, less a grid line, for each pixel; how far they may be off together."""
    u = np.array([2 * j - width + 1 for _ in range(height) for j in range(width)], dtype=object)
    v = np.array([height - 1 - 2 * i for i in range(height) for _ in range(width)], dtype=object)
    a, b, c = line
    powers = [sign * (a.terms[k] * u + b.terms[k] * v + 2 * c.terms[k]) >> 1 for k in range(DEGREE + 1)]
    start = np.array([int(n) for n in first.flatten().tolist()], dtype=object)
    powers[0] = powers[0] + ((size - 1) * WHOLE >> 1) - start * WHOLE
    return powers, ((a.error * abs(u) + b.error * abs(v)) >> 1) + c.error + DEGREE + 2


def outside(way: Path, powers: list[Any], error: Any) -> Tensor:
    """How far a path may leave the cells that are looked at: in whole numbers, because boxes begin and end where paths touch lines."""
    middle, *others = powers
    every = sum(abs(term) for term in others)
    ahead, back = sum(others), sum(term if k % 2 else -term for k, term in enumerate(others))
    slopes = sum((k + 2) * abs(term) for k, term in enumerate(others[1:]))
    steady = abs(others[0]) > slopes
    most = middle + np.where(steady, np.maximum(ahead, back), every) + error
    least = middle + np.where(steady, np.minimum(ahead, back), -every) - error
    below, above = np.maximum(-least, 0), np.maximum(most - WHOLE, 0)
    side = way.side.flatten().tolist()
    numbers = [(0 if s < 0 else p) + (0 if s > 0 else q) for s, p, q in zip(side, below, above, strict=True)]
    return way.outside.new_tensor([number / WHOLE for number in numbers]).view(way.outside.shape) * UP


def values(
    pixel: Pixels, across: Path, down: Path, x: tuple[list[Any], Any], y: tuple[list[Any], Any]
) -> tuple[list[Any], Any]:
    """Powers of e of q + a x + b y + d x y for each pixel and channel [pixels, C], and how far the sum may be off.

    Colors are rounded down to units, so a, b and d are off by 2, 2 and 4 at most.
    """
    everywhere = torch.arange(across.line.numel(), device=across.line.device)
    i, j = down.line.flatten(), across.line.flatten()
    q, right, below, both = (whole(pixel.at(everywhere, i + di, j + dj)) for di in (0, 1) for dj in (0, 1))
    a, b = right - q, below - q
    d = both - below - a
    (xs, x_error), (ys, y_error) = (([term[:, None] for term in powers], error[:, None]) for powers, error in (x, y))
    xy, beyond = [0 * xs[0] for _ in range(DEGREE + 1)], 0
    for m, p in enumerate(xs):
        for n, r in enumerate(ys):
            if m + n <= DEGREE:
                xy[m + n] = xy[m + n] + p * r
            else:
                beyond = beyond + abs(p * r)
    x_size, y_size = (sum(abs(term) for term in terms) for terms in (xs, ys))
    # (x + s)(y + t) - x y for errors s and t, powers beyond the fourth, and five products rounded down
    both_error = ((beyond + (x_size + x_error) * y_error + (y_size + y_error) * x_error) >> BITS) + DEGREE + 2
    powers = [a * p + b * r + d * (z >> BITS) >> BITS for p, r, z in zip(xs, ys, xy, strict=True)]
    powers[0] = powers[0] + q
    unknown = (abs(a) + 2) * x_error + (abs(b) + 2) * y_error + (abs(d) + 4) * both_error
    unknown = unknown + 2 * x_size + 2 * y_size + 4 * (x_size * y_size >> BITS)
    return powers, (unknown >> BITS) + DEGREE + 3


def split(numbers: Any, like: Tensor) -> Tensor:
    """Digits [6, pixels, C] of whole numbers in units of 2^-160, rounded down to the last digit."""
    rest, found = numbers >> (BITS - PLACES), []
    for _ in range(digits.COUNT - 1):
        found.append(rest & (2**20 - 1))
        rest = rest >> 20
    found.append(rest)
    planes = [like.new_tensor(np.array(part, dtype=np.float64).tolist()) for part in reversed(found)]
    return digits.carried(torch.stack(planes))


def as_floats(numbers: Any, like: Tensor) -> Tensor:
    """At least these whole numbers, in units of 2^-160."""
    found = like.new_tensor([[each / WHOLE for each in row] for row in numbers.tolist()])
    return found * (1 + 4 * UNIT)


def whole(colors: Tensor) -> Any:
    """Colors in units of 2^-160, rounded down."""
    numbers = np.array([int(color * 2.0**BITS) for color in colors.flatten().tolist()], dtype=object)
    return numbers.reshape(colors.shape)
