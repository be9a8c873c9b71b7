"""True transformed images for many cases at once, in 64-bit numbers (`numpy.longdouble`), 2^11 times as fine as float64.

Written from the equations of `oracle.py`, which works in rational numbers; `test_mechanical.py` compares some pixels of the
two. Every value comes with a bound on its distance from the truth, usually a hundredth of float64's rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

Long = np.longdouble
FINE = bool(np.finfo(Long).eps < 2.0**-60)
"""False on machines whose longdouble is no longer than float64."""
EPS = float(np.finfo(Long).eps)
PI = Long("3.14159265358979323846264338327950288419716939937510")
SPATIAL = ("R", "Tu", "Tv", "Sc", "Sh", "Scu", "Scv", "Shv", "Roll", "Yaw", "Pitch", "Tx", "Ty", "Tz")
LEAST_DEPTH = 0.02
"""A pixel that looks further past a camera's side has no value here (NaN)."""
LUMA = np.array([Long(213), Long(715), Long(72)]) / 1000
TURN = np.array([[-213, -715, 928], [143, 140, -283], [-787, 715, 72]]).astype(Long) / 1000


def sine_cosine(degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    quarters = np.rint(degrees / 90)
    angle = (degrees - 90 * quarters) * PI / 180
    sine, cosine = np.sin(angle), np.cos(angle)
    turn = quarters.astype(np.int64) % 4
    return np.choose(turn, [sine, cosine, -sine, -cosine]), np.choose(turn, [cosine, -sine, -cosine, sine])


def inverse_matrix(letter: str, value: np.ndarray) -> np.ndarray:
    """Return matrices [K, 3, 3] for values [K]."""
    name, _, setting = letter.partition("@")
    matrix = np.zeros((len(value), 3, 3), Long)
    matrix[:, [0, 1, 2], [0, 1, 2]] = 1
    if name in ("R", "Roll"):
        sine, cosine = sine_cosine(value)
        matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 0], matrix[:, 1, 1] = cosine, sine, -sine, cosine
    elif name in ("Tu", "Tv"):
        matrix[:, 0 if name == "Tu" else 1, 2] = -value
    elif name == "Sh":
        matrix[:, 0, 1] = -value / 100
    elif name == "Shv":
        matrix[:, 1, 0] = -value / 100
    elif name in ("Sc", "Scu", "Scv"):
        for axis in {"Sc": (0, 1), "Scu": (0,), "Scv": (1,)}[name]:
            matrix[:, axis, axis] = 1 / (1 + value / 100)
    elif name in ("Tx", "Ty", "Tz"):  # I + t n^T / (1 - n_k t) on rays
        lens, _, text = setting.partition("@")
        f, n, k = Long(float(lens)), [Long(float(x)) for x in (text or "0:-1:0").split(":")], "xyz".index(name[1])
        rays = np.array([Long(1), Long(1), f])
        for j in range(3):
            matrix[:, k, j] += value / (1 - n[k] * value) * n[j] * rays[j] / rays[k]
    else:
        (sine, cosine), axis, f = sine_cosine(value), ("Yaw", "Pitch").index(name), Long(float(setting))
        matrix[:, axis, axis], matrix[:, axis, 2], matrix[:, 2, axis], matrix[:, 2, 2] = (
            cosine,
            f * sine,
            -sine / f,
            cosine,
        )
    return matrix


def positions(letters: Sequence[str], theta: np.ndarray, height: int, width: int) -> tuple[np.ndarray, ...]:
    """Return source columns, rows and depths [K, H, W] for parameters [K, d] of spatial transformations."""
    matrix = np.broadcast_to(np.eye(3).astype(Long), (len(theta), 3, 3))
    for k, letter in enumerate(letters):
        matrix = np.einsum("kij,kjl->kil", matrix, inverse_matrix(letter, theta[:, k]))
    u = np.arange(width).astype(Long) - Long(width - 1) / 2
    v = Long(height - 1) / 2 - np.arange(height).astype(Long)
    m = matrix[:, :, :, None, None]
    x, y, w = (m[:, i, 0] * u[None, None] + m[:, i, 1] * v[None, :, None] + m[:, i, 2] for i in range(3))
    w = np.broadcast_to(w, x.shape)
    if any("@" in letter for letter in letters):
        deep = np.where(w > LEAST_DEPTH, w, np.nan)
        x, y = x / deep, y / deep
    return x + Long(width - 1) / 2, Long(height - 1) / 2 - y, w


def source(index: np.ndarray, size: int, padding: str) -> tuple[np.ndarray, np.ndarray]:
    """Map an index of the padded image to a line of the image, and say whether it has one."""
    inside = (index >= 0) & (index < size)
    if padding == "zeros":
        return np.where(inside, index, 0), inside
    if padding == "border" or size == 1:
        return np.clip(index, 0, size - 1), np.ones_like(inside)
    folded = index % (2 * (size - 1))
    return np.minimum(folded, 2 * (size - 1) - folded), np.ones_like(inside)


def sampled(images: np.ndarray, column: np.ndarray, row: np.ndarray, padding: str) -> np.ndarray:
    """Interpolate images [K, C, H, W] at their own positions [K, H', W'] bilinearly; NaN where a position is NaN."""
    count, _, height, width = images.shape
    known = np.isfinite(column) & np.isfinite(row)
    column, row = np.where(known, column, 0), np.where(known, row, 0)
    j, i = np.floor(column), np.floor(row)
    t, s = (column - j)[:, None], (row - i)[:, None]
    which = np.arange(count)[:, None, None]

    def pixel(down: int, right: int) -> np.ndarray:
        (r, there), (c, here) = (
            source(line.astype(np.int64) + step, size, padding)
            for line, step, size in ((i, down, height), (j, right, width))
        )
        return np.where((there & here)[:, None], images[which, :, r, c].transpose(0, 3, 1, 2), 0)

    top = pixel(0, 0) * (1 - t) + pixel(0, 1) * t
    bottom = pixel(1, 0) * (1 - t) + pixel(1, 1) * t
    return np.where(known[:, None], top * (1 - s) + bottom * s, np.nan)


def transformed(
    images: np.ndarray, letters: Sequence[str], theta: np.ndarray, padding: str
) -> tuple[np.ndarray, np.ndarray]:
    """Transform each image [K, C, H, W] by its own parameters [K, d]; return the values and their error bounds."""
    x, doubt = images.astype(Long), np.zeros(images.shape, Long)
    names = [letter.partition("@")[0] for letter in letters]

    def kind(k: int) -> object:
        return "spatial" if names[k] in SPATIAL else "values" if names[k] in ("C", "B") else k

    for group, run_ in groupby(range(len(letters)), kind):
        run = list(run_)
        if group == "spatial":
            column, row, _ = positions([letters[k] for k in run], theta[:, run], *x.shape[-2:])
            size = (np.abs(column) + np.abs(row) + sum(x.shape[-2:]))[:, None] * (3 * EPS)
            largest = np.abs(x).max((1, 2, 3), keepdims=True)
            doubt = doubt.max((1, 2, 3), keepdims=True) + size * largest
            x = sampled(x, column, row, padding)
        elif group == "values":
            for k in run:
                value = theta[:, k].reshape(-1, 1, 1, 1)
                if names[k] == "C":
                    x, doubt = x * (1 + value / 100), doubt * np.abs(1 + value / 100)
                else:
                    x = x + value
                doubt = doubt + (np.abs(x) + np.abs(value)) * (4 * EPS)
            x = np.clip(x, 0, 1)
        else:
            x, doubt = _photometric(x, doubt, letters[run[0]], theta[:, run[0]], padding)
    return x, np.broadcast_to(doubt, x.shape)


def _photometric(
    x: np.ndarray, doubt: np.ndarray, letter: str, value: np.ndarray, padding: str
) -> tuple[np.ndarray, np.ndarray]:
    name, _, setting = letter.partition("@")
    value = value.reshape(-1, 1, 1, 1)
    if name == "G":
        power = 1 + value / 100
        return np.where(x > 0, x, 0) ** power, np.maximum(doubt, doubt ** np.minimum(power, 1)) * np.maximum(
            power, 1
        ) * 2 + 64 * EPS
    if name in ("S", "H"):
        rest = np.eye(3).astype(Long) - LUMA
        if name == "S":
            matrix = LUMA + (1 + value[..., 0] / 100) * rest
        else:
            sine, cosine = sine_cosine(value[..., 0])
            matrix = LUMA + cosine * rest + sine * TURN
        mixed = np.einsum("kij,kjhw->kihw", matrix, x)
        return np.clip(mixed, 0, 1), np.full(x.shape, doubt.max() * 4 * np.abs(matrix).sum() / len(matrix) + 64 * EPS)
    if name == "Bl":
        radius, result = int(setting), x
        k = np.arange(radius + 1).astype(Long)
        s = np.where(value == 0, 1, value)[..., 0]
        parts = np.where(value[..., 0] == 0, k == 0, np.exp(-k * k / (2 * s * s)))[:, 0]
        weights = parts / (parts[:, :1] + 2 * parts[:, 1:].sum(1, keepdims=True))
        for across in (True, False):
            result = _weighted(result, weights, [(j, 0) if across else (0, j) for j in range(radius + 1)], padding)
    else:
        assert name == "Mb"
        sine, cosine = sine_cosine(np.array([Long(float(setting))]))
        length = np.where(value == 0, 1, value)[:, 0, 0]
        taps = int(np.ceil(float(value.max()) / 2)) + 1

        # the integral of max(0, 1 - |t - k|) over [-h, h] without differences of nearly equal numbers
        h, k = length / 2, np.arange(taps + 1).astype(Long)
        rising, falling = np.clip(h - k + 1, 0, 1), np.clip(k + 1 - h, 0, 1)
        weights = np.where(h <= k, rising * rising, 2 - falling * falling) / (4 * h)
        weights[:, 0] = np.where(h <= 1, 1 - h / 2, 1 / (2 * h))[:, 0]
        weights = np.where(value[:, 0, 0] == 0, np.arange(taps + 1) == 0, weights)
        result = _weighted(x, weights, [(k * cosine[0], k * sine[0]) for k in range(taps + 1)], padding)
    return result, np.full(x.shape, doubt.max() + 256 * EPS)


def _weighted(x: np.ndarray, weights: np.ndarray, offsets: Sequence[tuple[object, object]], padding: str) -> np.ndarray:
    """Sum weights [K, n] times the image shifted by an offset (right, up) and by its opposite."""
    height, width = x.shape[-2:]
    column, row = np.meshgrid(np.arange(width).astype(Long), np.arange(height).astype(Long))
    result = x * weights[:, :1, None, None]
    for k, (right, up) in enumerate(offsets):
        if k and (weights[:, k] != 0).any():
            for sign in (1, -1):
                places = (
                    np.broadcast_to(each, (len(x), height, width)) for each in (column + sign * right, row - sign * up)
                )
                result = result + sampled(x, *places, padding) * weights[:, k, None, None, None]
    return result
