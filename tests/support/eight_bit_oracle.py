"""The 8-bit picture of a transformed image, from the equations and from nothing else, for both rules for ties.

Many angles at once are transformed in float64 by the kernel sum, literally; where one of their numbers comes near a threshold,
that angle is done again in exact arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tests.support import oracle

NEAR = 1e-9


def both_roundings(truth: oracle.Exact) -> list[np.ndarray]:
    """Return the picture with ties up, and with ties to even; a number within its error of a threshold would be undecided."""
    values = truth.fractions()
    for value in values.ravel():
        doubt = abs((255 * value - Fraction(1, 2)) % 1)
        assert truth.error == 0 or min(doubt, 1 - doubt) > 1000 * truth.error, "too near to a threshold to decide"
    up = np.vectorize(lambda x: math.floor(255 * x + Fraction(1, 2)), otypes=[np.uint8])
    even = np.vectorize(lambda x: round(255 * x), otypes=[np.uint8])
    return [up(values), even(values)]


def pictures_at(image: np.ndarray, letter: str, value: float, padding: str = "zeros") -> list[np.ndarray]:
    return both_roundings(oracle.transformed(image, [letter], [value], padding))


def rotated(image: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Rotate one image [C, H, W] by many angles: [T, C, H, W], up to the roundings of float64."""
    _, height, width = image.shape
    angle = np.radians(degrees)[:, None, None]
    u, v = np.arange(width)[None, None, :] - (width - 1) / 2, (height - 1) / 2 - np.arange(height)[None, :, None]
    column = u * np.cos(angle) + v * np.sin(angle) + (width - 1) / 2
    row = (height - 1) / 2 - (v * np.cos(angle) - u * np.sin(angle))
    across = np.maximum(0, 1 - np.abs(column[..., None] - np.arange(width)))
    down = np.maximum(0, 1 - np.abs(row[..., None] - np.arange(height)))
    return np.einsum("cnm,tijn,tijm->tcij", image, down, across, optimize=True)


def missing(image: np.ndarray, degrees: Sequence[float], pictures: set[bytes]) -> list[float]:
    """Return the angles whose picture, in one of its roundings, is not among these."""
    found = []
    for some in np.array_split(np.asarray(degrees), max(1, len(degrees) // 2000)):
        scaled = 255 * rotated(image, some)
        close = (np.abs((scaled - 0.5) - np.round(scaled - 0.5)) < 255 * NEAR).any((1, 2, 3))
        for angle, numbers, doubtful in zip(some.tolist(), np.round(scaled).astype(np.uint8), close, strict=True):
            candidates = pictures_at(image, "R", angle) if doubtful else [numbers]
            if not all(picture.tobytes() in pictures for picture in candidates):
                found.append(angle)
    return found
