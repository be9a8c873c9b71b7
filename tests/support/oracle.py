"""The true transformed image in exact arithmetic, written from the equations and from nothing else.

Every number is an integer over one common denominator, so nothing is rounded: translation, scaling, shearing, contrast,
brightness, saturation and rotations by multiples of 90 degrees are exact. Other angles use a sine and cosine, and powers
and Gaussians use numbers, accurate to 2^-400 (about 120 digits). Positions seen by a turned camera are accurate to 2^-400,
which moves no pixel by as much as `ROTATION_ERROR`.

Equations (u to the right, v upwards, origin at the center; pixel (i, j) is at u = j - (W-1)/2, v = (H-1)/2 - i):
    x'_ij = sum_nm x_nm max(0, 1 - |v' - v_n|) max(0, 1 - |u' - u_m|)   with (u', v') = T^-1(u, v)
    a lens's T^-1: (u', v') = (1 + k r^2) (u, v), r^2 = 4 (u^2 + v^2) / (W^2 + H^2), or (u^2 + v^2) / f^2 for "Ld@f"
    a camera's T^-1: (u', v') = (x / w, y / w) with (x, y, w) = matrix (u, v, 1), w > 0 asserted; "Yaw@9" has the focal length 9
    T = T_n o ... o T_1 for transformations 1 ... n in the order given, hence T^-1 = T_1^-1 o ... o T_n^-1
    contrast and brightness: min(1, max(0, (1 + a) x + b)), clamped once at the end of each group of them
    gamma, saturation, hue and blurs: in `photometric_oracle.py`, each a separate step
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

import mpmath
import numpy as np

from tests.support import photometric_oracle as photometric

BITS = 400
ROTATION_ERROR = Fraction(1, 2**300)
Matrix = list[list[Fraction]]


@dataclass
class Chain:
    """A map that is not one matrix: matrices and lenses (k, number after @), in the order in which they act on a pixel."""

    maps: list[Matrix | tuple[Fraction, str]]


PLANE = [Fraction(0), Fraction(0), Fraction(1)]


@dataclass
class Exact:
    """An image [C, H, W] of integers over one denominator, each within `error` of the true value."""

    numerator: np.ndarray
    denominator: int
    error: Fraction = Fraction(0)

    def fraction(self, *index: int) -> Fraction:
        return Fraction(int(self.numerator[index]), self.denominator)

    def floats(self) -> np.ndarray:
        """Return the nearest float64 of every entry, for quick inspection; decisions use the integers."""
        return np.vectorize(lambda n: n / self.denominator, otypes=[float])(self.numerator)

    def fractions(self) -> np.ndarray:
        return np.vectorize(lambda n: Fraction(int(n), self.denominator), otypes=[object])(self.numerator)


def exact_image(image: object) -> Exact:
    """Convert floats (or Fractions) [C, H, W] without rounding."""
    array = np.asarray(image)
    flat = [Fraction(value) for value in (array.ravel() if array.dtype == object else array.astype(np.float64).ravel())]
    denominator = math.lcm(*(value.denominator for value in flat))
    numerator = np.array([int(value * denominator) for value in flat] + [None], dtype=object)[:-1]
    return Exact(numerator.reshape(array.shape), denominator)


def sine_cosine(degrees: Fraction) -> tuple[Fraction, Fraction]:
    quarters = degrees / 90
    if quarters.denominator == 1:
        return [(0, 1), (1, 0), (0, -1), (-1, 0)][int(quarters) % 4]
    with mpmath.workprec(BITS + 100):
        angle = mpmath.mpf(degrees.numerator) / degrees.denominator * mpmath.pi / 180
        scale = mpmath.mpf(2) ** BITS
        sine, cosine = (int(mpmath.nint(f(angle) * scale)) for f in (mpmath.sin, mpmath.cos))
    return Fraction(sine, 2**BITS), Fraction(cosine, 2**BITS)


def inverse_matrix(letter: str, value: Fraction) -> Matrix:
    one, zero = Fraction(1), Fraction(0)
    if letter == "R":  # counter-clockwise by `value` degrees
        sine, cosine = map(Fraction, sine_cosine(value))
        return [[cosine, sine, zero], [-sine, cosine, zero]]
    if letter == "Tu":
        return [[one, zero, -value], [zero, one, zero]]
    if letter == "Tv":
        return [[one, zero, zero], [zero, one, -value]]
    if letter == "Sc":
        factor = 1 / (1 + value / 100)
        return [[factor, zero, zero], [zero, factor, zero]]
    if letter == "Sh":
        return [[one, -value / 100, zero], [zero, one, zero]]
    if letter == "Scu":
        return [[1 / (1 + value / 100), zero, zero], [zero, one, zero]]
    if letter == "Scv":
        return [[one, zero, zero], [zero, 1 / (1 + value / 100), zero]]
    if letter == "Shv":
        return [[one, zero, zero], [-value / 100, one, zero]]
    if letter == "Roll":
        return inverse_matrix("R", value)
    axis, _, focal = letter.partition("@")
    if axis in ("Yaw", "Pitch"):  # pixel (u, v) of the turned camera looks along u right + v up + f forward
        sine, cosine = map(Fraction, sine_cosine(value))
        f = Fraction(float(focal))
        if axis == "Yaw":  # to the right
            right, up, forward = (cosine, zero, -sine), (zero, one, zero), (sine, zero, cosine)
        else:  # upwards
            right, up, forward = (one, zero, zero), (zero, cosine, -sine), (zero, sine, cosine)
        rows = [[right[k], up[k], f * forward[k]] for k in range(3)]  # X, Y, Z of that ray
        return [rows[0], rows[1], [entry / f for entry in rows[2]]]  # u' = f X / Z
    if axis in ("Tx", "Ty", "Tz"):
        # From t along its own ray q the moved camera sees the point t + s q of the plane n . P = 1, s = (1 - n . t) / (n . q).
        # The source image shows it in the direction of (n . q) t + (1 - n . t) q. "Tz@9@0:-1:0" has f = 9 and n = (0, -1, 0).
        lens, _, text = focal.partition("@")
        f, n = Fraction(float(lens)), [Fraction(float(x)) for x in (text or "0:-1:0").split(":")]
        k = "xyz".index(axis[1])
        q = [
            [one / f, zero, zero],
            [zero, one / f, zero],
            [zero, zero, one],
        ]  # right, up, forward of the ray of (u, v, 1)
        meets = [sum((n[i] * q[i][j] for i in range(3)), zero) for j in range(3)]
        rows = [
            [(1 - n[k] * value) * q[i][j] + (value if i == k else 0) * meets[j] for j in range(3)] for i in range(3)
        ]
        return [[f * x for x in rows[0]], [f * x for x in rows[1]], rows[2]]
    raise ValueError(letter)


def after(outer: Matrix, inner: Matrix) -> Matrix:
    """Compose the maps: (u, v) -> outer(inner(u, v))."""
    a, b = ([*matrix, PLANE] if len(matrix) == 2 else matrix for matrix in (outer, inner))
    return [[sum((a[i][k] * b[k][j] for k in range(3)), Fraction(0)) for j in range(3)] for i in range(3)]


def composed_inverse(letters: Sequence[str], theta: Sequence[Fraction]) -> Matrix | Chain:
    """Return T_1^-1 o T_2^-1 o ... o T_n^-1."""
    if any(letter.partition("@")[0] == "Ld" for letter in letters):
        steps: list[Matrix | tuple[Fraction, str]] = []
        for letter, value in zip(reversed(letters), reversed(theta), strict=True):
            name, _, focal = letter.partition("@")
            steps.append((value / 100, focal) if name == "Ld" else inverse_matrix(letter, value))
        return Chain(steps)
    matrix: Matrix = [[Fraction(1), Fraction(0), Fraction(0)], [Fraction(0), Fraction(1), Fraction(0)]]
    for letter, value in zip(letters, theta, strict=True):
        matrix = after(matrix, inverse_matrix(letter, value))
    return matrix


def source_positions(matrix: Matrix | Chain, height: int, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return source column and row (0-based, row downwards) of each output pixel, as integers over one denominator."""
    if isinstance(matrix, Chain):
        return chain_positions(matrix, height, width)
    common = math.lcm(*(entry.denominator for row in matrix for entry in row))
    (a, b, c), (d, e, f) = [[int(entry * common) for entry in row] for row in matrix[:2]]
    u2 = np.array([[2 * j - (width - 1) for j in range(width)]] * height, dtype=object)
    v2 = np.array([[(height - 1) - 2 * i for _ in range(width)] for i in range(height)], dtype=object)
    if matrix[2:] and matrix[2] != PLANE:
        g, h, k = (int(entry * common) for entry in matrix[2])
        depth = g * u2 + h * v2 + 2 * k
        assert (depth > 0).all(), "a pixel has a camera depth of zero or less"
        x, y = ((scale * 2**BITS) // depth for scale in (a * u2 + b * v2 + 2 * c, d * u2 + e * v2 + 2 * f))
        return 2 * x + (width - 1) * 2**BITS, (height - 1) * 2**BITS - 2 * y, 2 * 2**BITS
    column = a * u2 + b * v2 + 2 * c + (width - 1) * common
    row = (height - 1) * common - (d * u2 + e * v2 + 2 * f)
    return column, row, 2 * common


def chain_positions(chain: Chain, height: int, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The same for a chain of maps, cut off at 2^-BITS."""
    column, row = (np.zeros((height, width), dtype=object) for _ in range(2))
    for i in range(height):
        for j in range(width):
            u, v = j - Fraction(width - 1, 2), Fraction(height - 1, 2) - i
            for step in chain.maps:
                if isinstance(step, tuple):
                    k, focal = step
                    square = Fraction(float(focal)) ** 2 if focal else Fraction(width**2 + height**2, 4)
                    stretch = 1 + k * (u * u + v * v) / square
                    u, v = u * stretch, v * stretch
                else:
                    x, y, *depth = (line[0] * u + line[1] * v + line[2] for line in step)
                    assert not depth or depth[0] > 0, "a pixel has a camera depth of zero or less"
                    u, v = (x / depth[0], y / depth[0]) if depth else (x, y)
                u, v = (Fraction(math.floor(place * 2 ** (2 * BITS)), 2 ** (2 * BITS)) for place in (u, v))
            column[i, j] = math.floor((u + Fraction(width - 1, 2)) * 2**BITS)
            row[i, j] = math.floor((Fraction(height - 1, 2) - v) * 2**BITS)
    return column, row, 2**BITS


def source_index(index: int, size: int, padding: str) -> int | None:
    """Map an index of the padded image to an index of the image; None stands for a zero."""
    if 0 <= index < size:
        return index
    if padding == "zeros":
        return None
    if padding == "border" or size == 1:
        return 0 if index < 0 else size - 1
    assert padding == "reflect"  # ... 2 1 [0 1 2 ... n-1] n-2 ...
    folded = index % (2 * (size - 1))
    return min(folded, 2 * (size - 1) - folded)


def resample(image: Exact, matrix: Matrix | Chain, padding: str, interpolation: str = "bilinear") -> Exact:
    if interpolation != "bilinear":
        return resample_otherwise(image, matrix, padding, interpolation)
    channels, height, width = image.numerator.shape
    column, row, unit = source_positions(matrix, height, width)
    result = np.zeros(image.numerator.shape, dtype=object)
    for i in range(height):
        for j in range(width):
            (column0, x), (row0, y) = divmod(column[i, j], unit), divmod(row[i, j], unit)
            for di, weight_y in ((0, unit - y), (1, y)):
                for dj, weight_x in ((0, unit - x), (1, x)):
                    n, m = source_index(row0 + di, height, padding), source_index(column0 + dj, width, padding)
                    if n is not None and m is not None and weight_x and weight_y:
                        for channel in range(channels):
                            result[channel, i, j] += image.numerator[channel, n, m] * weight_x * weight_y
    return Exact(result, image.denominator * unit * unit)


def resample_otherwise(image: Exact, matrix: Matrix | Chain, padding: str, interpolation: str) -> Exact:
    """Look up the nearest pixel ("nearest": of two the right or lower one, "nearest, first": the other one), or "bicubic": the
    sum of pixels times k(distance) along both axes, with Keys' kernel k for a = -3/4, clamped to [0, 1]."""
    channels, height, width = image.numerator.shape
    column, row, unit = source_positions(matrix, height, width)
    result = np.zeros(image.numerator.shape, dtype=object)

    def kernel(d: int) -> int:  # of the distance d / unit, times 4 unit^3
        d = abs(d)
        if d <= unit:
            return 5 * d**3 - 9 * d * d * unit + 4 * unit**3
        return -3 * (d**3 - 5 * d * d * unit + 8 * d * unit**2 - 4 * unit**3) if d < 2 * unit else 0

    def pixels(position: int) -> list[tuple[int, int]]:  # those with a weight, and their weights
        if interpolation == "bicubic":
            first = position // unit
            return [(n, kernel(position - n * unit)) for n in range(first - 1, first + 3)]
        half = unit // 2 if interpolation == "nearest" else -(-unit // 2) - 1
        assert unit % 2 == 0
        return [((position + half) // unit, 1)]

    for i in range(height):
        for j in range(width):
            for line, weight_y in pixels(row[i, j]):
                for place, weight_x in pixels(column[i, j]):
                    n, m = source_index(line, height, padding), source_index(place, width, padding)
                    if n is not None and m is not None:
                        for channel in range(channels):
                            result[channel, i, j] += image.numerator[channel, n, m] * weight_x * weight_y
    if interpolation != "bicubic":
        return Exact(result, image.denominator)
    denominator = image.denominator * 16 * unit**6
    return Exact(np.minimum(np.maximum(result, 0), denominator), denominator)


def change_values(image: Exact, letters: Sequence[str], theta: Sequence[Fraction]) -> Exact:
    factor, shift = Fraction(1), Fraction(0)
    for letter, value in zip(letters, theta, strict=True):
        if letter == "C":
            factor, shift = factor * (1 + value / 100), shift * (1 + value / 100)
        else:
            assert letter == "B"
            shift += value
    common = math.lcm(factor.denominator, shift.denominator)
    denominator = image.denominator * common
    raw = image.numerator * int(factor * common) + int(shift * common) * image.denominator
    return Exact(np.minimum(np.maximum(raw, 0), denominator), denominator)


def transformed(
    image: object,
    letters: Sequence[str],
    theta: Sequence[object],
    padding: str = "zeros",
    interpolation: str = "bilinear",
) -> Exact:
    """Apply the transformations with these letters, at exactly these parameters, to an image [C, H, W]."""
    values = [Fraction(value) for value in theta]
    assert len(values) == len(letters)
    current = image if isinstance(image, Exact) else exact_image(image)
    error = Fraction(0)
    for kind, run in groupby(range(len(letters)), lambda k: kind_of(letters[k]) or k):
        run = list(run)
        names, numbers = [letters[k] for k in run], [values[k] for k in run]
        if kind == "spatial":
            current = resample(current, composed_inverse(names, numbers), padding, interpolation)
            turned = zip(names, numbers, strict=True)
            inexact = any(
                (name in ("R", "Roll") and (value / 90).denominator != 1) or (("@" in name or name == "Ld") and value)
                for name, value in turned
            )
            error += ROTATION_ERROR if inexact else 0
        elif kind == "values":
            current = change_values(current, names, numbers)
            for name, value in zip(names, numbers, strict=True):
                error *= max(1, abs(1 + value / 100)) if name == "C" else 1
        else:
            current, error = photometric.changed(current, error, names[0], numbers[0], padding)
    current.error = error
    return current


def kind_of(letter: str) -> str:
    """Return the kind of a transformation: adjacent ones of one kind form one step, others are steps of one."""
    return {"C": "values", "B": "values"}.get(
        letter, "spatial" if letter.partition("@")[0] not in photometric.LETTERS else ""
    )


def kernel_sum(image: np.ndarray, u: Fraction, v: Fraction) -> Fraction:
    """Evaluate the paper's interpolation formula literally on one channel [H, W] of Fractions (zeros outside)."""
    height, width = image.shape
    hat: Callable[[Fraction], Fraction] = lambda t: max(Fraction(0), 1 - abs(t))  # noqa: E731
    return sum(
        (
            image[n, m] * hat(v - (Fraction(height - 1, 2) - n)) * hat(u - (m - Fraction(width - 1, 2)))
            for n in range(height)
            for m in range(width)
        ),
        Fraction(0),
    )


def algorithm_1(
    image: np.ndarray, u: tuple[Fraction, Fraction], v: tuple[Fraction, Fraction]
) -> tuple[Fraction, Fraction]:
    """Run the paper's Algorithm 1 on one pixel whose source lies in u x v, on one channel of Fractions >= 0."""

    def weight(box: tuple[Fraction, Fraction], grid: Fraction) -> tuple[Fraction, Fraction]:
        low, high = box[0] - grid, box[1] - grid
        nearest = Fraction(0) if low <= 0 <= high else min(abs(low), abs(high))
        return max(Fraction(0), 1 - max(abs(low), abs(high))), max(Fraction(0), 1 - nearest)

    height, width = image.shape
    total = [Fraction(0), Fraction(0)]
    for n in range(height):
        for m in range(width):
            row, column = weight(v, Fraction(height - 1, 2) - n), weight(u, m - Fraction(width - 1, 2))
            for side in (0, 1):
                total[side] += image[n, m] * row[side] * column[side]
    return total[0], total[1]
