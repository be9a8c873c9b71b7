"""Adversarial images, parameter boxes and parameters, shared by the soundness tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch

from tiltproof import InputError
from tiltproof.pixels.coordinates import check_limits
from tiltproof.transforms import LETTERS, Compose, Part, Transform
from tiltproof.transforms.base import number_text

PLANE = "0.3:-0.75:0.4"
MOVES = (f"Tx@9.5@{PLANE}", "Ty@8", f"Tz@9.5@{PLANE}")
SPATIAL = ("R", "Tu", "Tv", "Sc", "Sh", "Scu", "Scv", "Shv", "Yaw@9", "Pitch@7.5", *MOVES)
"""A camera's letter carries its focal length in pixels, and the normal of a plane. (Roll is another name for R.)"""
LENSES = ("Ld", "Ld@5")
"""The one move of pixels that is no matrix; its number is the distance where r is 1."""
PIXELWISE = ("C", "B")
PHOTOMETRIC = ("G", "S", "H", "Bl@4", "Mb@0", "Mb@30")
"""The number after @ is fixed: the Gaussian's radius, the motion's angle."""
COLORED = ("S", "H")
PADDINGS = ("zeros", "border", "reflect")
IMAGE_KINDS = (
    "random",
    "checkerboard",
    "constant",
    "bright pixel",
    "bright border",
    "gradient",
    "white",
    "black",
    "faint",
    "smooth",
)

# Letter -> (lowest, highest) parameter that the tests use; the transformation's own range only has to contain a box.
LIMITS = {
    "R": (-360, 360),
    "Tu": (-64, 64),
    "Tv": (-64, 64),
    "Sc": (-90, 400),
    "Sh": (-300, 300),
    "C": (-300, 300),
    "B": (-3, 3),
    "Scu": (-90, 400),
    "Scv": (-90, 400),
    "Shv": (-300, 300),
    "Yaw@9": (-40, 40),
    "Pitch@7.5": (-40, 40),
    "Tx@8": (-1, 1),
    "Ty@8": (-0.9, 2),
    "Tz@8": (-0.8, 0.8),
    "Ld": (-31, 200),
    "Ld@5": (-20, 80),
    "Roll": (-360, 360),
    "G": (-80, 300),
    "S": (-200, 300),
    "H": (-360, 360),
    "Bl@4": (0, 2),
    "Mb@0": (0, 7),
    "Mb@30": (0, 7),
}
# Letter -> half widths of a medium and a huge box.
WIDTHS = {
    "R": (3, 100),
    "Tu": (0.4, 4),
    "Tv": (0.4, 4),
    "Sc": (4, 35),
    "Sh": (5, 150),
    "C": (6, 90),
    "B": (0.05, 0.9),
    "Scu": (4, 35),
    "Scv": (4, 35),
    "Shv": (5, 150),
    "Yaw@9": (2, 15),
    "Pitch@7.5": (2, 15),
    "Tx@8": (0.05, 0.7),
    "Ty@8": (0.05, 0.6),
    "Tz@8": (0.05, 0.4),
    "Ld": (3, 40),
    "Ld@5": (2, 15),
    "Roll": (3, 100),
    "G": (6, 90),
    "S": (6, 90),
    "H": (4, 100),
    "Bl@4": (0.05, 0.8),
    "Mb@0": (0.2, 3),
    "Mb@30": (0.2, 3),
}
# Letter -> how far boxes lie from 0, spacing of parameters that hit grid lines or flip the image, start of "outside".
PLACES = {
    "R": (180, 90.0, 300.0),
    "Tu": (5, 1.0, 50.0),
    "Tv": (5, 1.0, -50.0),
    "Sc": (40, 100.0, -89.0),
    "Sh": (120, 100.0, 250.0),
    "C": (60, 100.0, -250.0),
    "B": (0.6, 1.0, 2.0),
    "Scu": (40, 100.0, -89.0),
    "Scv": (40, 100.0, -89.0),
    "Shv": (120, 100.0, 250.0),
    "Roll": (180, 90.0, 300.0),
    "Yaw@9": (20, 12.0, 35.0),
    "Pitch@7.5": (20, 12.0, -36.0),
    "Tx@8": (0.5, 0.5, 0.9),
    "Ty@8": (0.5, 0.5, -0.85),
    "Tz@8": (0.4, 0.5, 0.7),
    "Ld": (25, 30.0, 150.0),
    "Ld@5": (15, 20.0, 60.0),
    "G": (60, 50.0, 200.0),
    "S": (100, 100.0, -180.0),
    "H": (180, 90.0, 300.0),
    "Bl@4": (1.5, 0.5, 1.9),
    "Mb@0": (5, 2.0, 6.5),
    "Mb@30": (5, 2.0, 6.5),
}
# The paper's running example (scaling by +-2 %), as printed.
PAPER_IMAGE = [[0.55, 0.50, 0.42], [0.53, 0.49, 0.51], [0.56, 0.62, 0.45]]
PAPER_BOUNDS = [
    [(0.53, 0.57), (0.49, 0.51), (0.40, 0.44)],
    [(0.52, 0.54), (0.49, 0.49), (0.50, 0.52)],
    [(0.54, 0.58), (0.61, 0.63), (0.43, 0.47)],
]
for table in (LIMITS, WIDTHS, PLACES):
    table |= {"Mb@90": table["Mb@0"], "Mb@-135": table["Mb@0"], "Bl@1": table["Bl@4"]}
    table |= {f"T{axis}@9.5@{PLANE}": table[f"T{axis}@8"] for axis in "xyz"}
KINDS = ("tiny", "medium", "huge", "degenerate", "straddling", "on grid lines", "from a grid line", "outside")


def make_transform(
    letters: Sequence[str],
    padding: str = "zeros",
    box: Sequence[tuple[float, float]] | None = None,
    interpolation: str = "bilinear",
) -> Transform:
    ranges = box or [
        LIMITS.get(letter, (-0.5, 0.5) if letter[:2] in ("Tx", "Ty", "Tz") else (-80, 80)) for letter in letters
    ]
    return Compose(
        *(make_part(letter, *limits) for letter, limits in zip(letters, ranges, strict=True)),
        padding=padding,
        interpolation=interpolation,
    )


def make_part(letter: str, low: float, high: float) -> Part:
    name, _, settings = letter.partition("@")
    setting, _, normal = settings.partition("@")
    constants = [float(setting)] if setting else []
    return LETTERS[name](low, high, *constants, *([[float(x) for x in normal.split(":")]] if normal else []))


def in_view(letters: Sequence[str], low: Sequence[float], high: Sequence[float], height: int, width: int) -> bool:
    """Return whether the camera depth is positive for every pixel in the box."""
    ends = [torch.tensor([[float(x) for x in end]], dtype=torch.float64) for end in (low, high)]
    try:
        check_limits(make_transform(letters), height, width, *ends)
    except InputError:
        return False
    return True


def letters_of(transform: Transform) -> list[str]:
    return [
        part.letter
        if part.fixed is None
        else f"{part.letter}@{number_text(part.fixed)}"
        + part.constants_text().removeprefix(f"@{number_text(part.fixed)}")
        for part in transform.parts
    ]


def make_image(kind: str, channels: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    shape = (channels, height, width)
    i, j = np.indices((height, width))
    if kind == "random":
        return rng.random(shape)
    if kind == "checkerboard":
        return np.broadcast_to((i + j) % 2, shape).astype(float)
    if kind == "constant":
        return np.full(shape, rng.random())
    if kind == "bright pixel":
        image = np.zeros(shape)
        image[:, rng.integers(height), rng.integers(width)] = 1
        return image
    if kind == "bright border":
        border = (i == 0) | (j == 0) | (i == height - 1) | (j == width - 1)
        return np.broadcast_to(border, shape).astype(float)
    if kind == "gradient":
        slope = rng.random((channels, 2, 1, 1))
        return (slope[:, 0] * i + slope[:, 1] * j) / (height + width)
    if kind == "white":
        return np.ones(shape)
    if kind == "black":
        return np.zeros(shape)
    if kind == "faint":
        return rng.random(shape) * 1e-6
    if kind == "smooth":
        return np.broadcast_to(0.5 + 0.4 * np.sin(0.7 * i + 0.3) * np.cos(0.5 * j - 0.2), shape).copy()
    raise ValueError(kind)


def make_interval(letter: str, kind: str, rng: np.random.Generator) -> tuple[float, float]:
    """Draw a parameter interval of the given kind for one transformation."""
    medium, huge = WIDTHS[letter]
    lowest, highest = LIMITS[letter]
    spread, step, far = PLACES[letter]
    center = float(rng.uniform(-spread if lowest else 0, spread))
    grid = step * float(rng.integers(-1 if letter[:2] != "Sc" and lowest else 0, 2))
    if kind == "tiny":
        low, high = center, center + 1e-6
    elif kind == "medium":
        half = medium * float(rng.random())
        low, high = center - half, center + half
    elif kind == "huge":
        half = huge * float(rng.uniform(0.3, 1))
        low, high = center - half, center + half
    elif kind == "degenerate":
        low = high = center if rng.random() < 0.6 else grid
    elif kind == "straddling":
        low, high = -medium * float(rng.random()), medium * float(rng.random())
    elif kind == "on grid lines":
        low, high = grid, grid + step * float(rng.integers(1, 3))
        if letter not in ("Tu", "Tv") and rng.random() < 0.5:
            low, high = grid, grid + medium
    elif kind == "from a grid line":
        half = medium * float(rng.random())
        low, high = (grid, grid + half) if rng.random() < 0.5 else (grid - half, grid)
    elif kind == "outside":
        low, high = far, far + medium * float(rng.random())
    else:
        raise ValueError(kind)
    low, high = max(low, lowest), min(high, highest)
    return (low, high) if low <= high else (high, high)


def make_thetas(
    low: Sequence[float], high: Sequence[float], rng: np.random.Generator, many: int = 6
) -> list[tuple[Fraction, ...]]:
    """Draw exact parameters from the box: corners, center, the middle of a face, integers inside, random ones."""
    low_, high_ = [Fraction(float(x)) for x in low], [Fraction(float(x)) for x in high]
    d = len(low_)
    center = tuple((a + b) / 2 for a, b in zip(low_, high_, strict=True))
    corners = list(itertools.product(*zip(low_, high_, strict=True)))
    if len(corners) > 4:
        corners = [corners[0], corners[-1], *(corners[int(k)] for k in rng.choice(len(corners), 2, replace=False))]
    thetas = [center, *corners]
    face = list(center)
    k = int(rng.integers(d))
    face[k] = high_[k] if rng.random() < 0.5 else low_[k]
    thetas.append(tuple(face))
    whole = [Fraction(round(float(a + (b - a) * Fraction(rng.random())))) for a, b in zip(low_, high_, strict=True)]
    thetas.append(tuple(min(max(w, a), b) for w, a, b in zip(whole, low_, high_, strict=True)))
    thetas += [
        tuple(a + (b - a) * Fraction(float(rng.random())) for a, b in zip(low_, high_, strict=True))
        for _ in range(many)
    ]
    return list(dict.fromkeys(thetas))
