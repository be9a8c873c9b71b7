"""Numbers of a moved picture that are equal whatever the parameter, and so become the same whole number.

A number is a sum of hat functions around grid lines, each times the image's value there. Lines are told by what they are relative to where
the pixel comes from: for a shift that is the pixel's own line, for a scaling the middle of the image, counted away from it, for a rotation
the middle, turned by half a turn for pixels of one half of the image. Two numbers are equal if relative lines have equal values and
positions relative to them are one function of the parameter. All hats along an axis sum to one: where the values do not change along it,
the position along it does not matter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.checker.form import Form
from tiltproof.checker.photometric import endless
from tiltproof.checker.tiling import BLURS

Line = tuple[int, int, tuple[int, ...]]
SPAN = 6
"""Most lines along an axis."""


def stencil(
    image: Tensor, letter: str, padding: str, pixel: tuple[int, int], reach: tuple[range, range]
) -> tuple[Any, ...] | None:
    """Describe the number of ``pixel`` (row, column) of one channel [H, W] whose source comes near the lines ``reach``."""
    (i, j), (height, width) = pixel, image.shape
    rows, columns = reach
    across, down = 2 * j - (width - 1), (height - 1) - 2 * i
    if letter in ("Tu", "Sh", "Scu"):
        rows = range(i, i + 1)
    if letter in ("Tv", "Shv", "Scv"):
        columns = range(j, j + 1)
    if max(len(rows), len(columns)) > SPAN:
        return None
    half = letter == "R" and (down < 0 or (down == 0 and across < 0))
    # a line c as a c + b, and what makes its distance to the source a function of the parameter alone
    column: Line
    row: Line
    column, row = (2, -(width - 1), (across, down)), (2, -(height - 1), (across, down))
    if letter in ("Tu", "Sh"):
        column, row = (1, -j, (down,) if letter == "Sh" else ()), (1, -i, ())
    elif letter in ("Tv", "Shv"):
        column, row = (1, -j, ()), (1, -i, (across,) if letter == "Shv" else ())
    elif letter in ("Sc", "Scu", "Scv"):
        side, upright = (-1 if across < 0 else 1), (-1 if down < 0 else 1)
        column = (2 * side, -(width - 1) * side, (abs(across),)) if letter != "Scv" else (1, -j, ())
        row = (2 * upright, -(height - 1) * upright, (abs(down),)) if letter != "Scu" else (1, -i, ())
    elif half:
        column, row = (-2, width - 1, (-across, -down)), (-2, height - 1, (-across, -down))
    values = {(row[0] * r + row[1], column[0] * c + column[1]): at(image, r, c, padding) for r in rows for c in columns}
    about: list[Any] = [row[2], column[2]]
    for axis in (0, 1):  # is the value the same all along this axis?
        flat: dict[tuple[int, int], set[float]] = {}
        for place, value in values.items():
            flat.setdefault((0, place[1]) if axis == 0 else (place[0], 0), set()).add(value)
        if all(len(found) == 1 for found in flat.values()):
            values = {place: found.pop() for place, found in flat.items()}
            about[axis] = "any"
    return (*about, tuple(sorted(values.items())))


def at(image: Tensor, row: int, column: int, padding: str) -> float:
    """Return the value of the endless image."""
    place, inside = [], True
    for index, size in ((row, image.shape[0]), (column, image.shape[1])):
        known, within = endless(torch.tensor(index), size, padding)
        place.append(int(known))
        inside = inside and bool(within)
    return float(image[place[0], place[1]]) if inside else 0.0


def choices(
    image: Tensor,
    letter: str,
    padding: str,
    numbers: list[tuple[int, int, float]],
    column: Form | None,
    row: Form | None,
) -> list[int]:
    """Return the same small number for numbers (channel, pixel, lower value) that are equal and have the same two values.

    ``column`` and ``row``: where each comes from, over one piece, if pixels move.
    """
    moved = [] if row is None or column is None else [row, column]
    ends = [[end.flatten().tolist() for end in (form.lower(), form.upper())] for form in moved]
    known: dict[Any, int] = {}
    found = []
    for k, (channel, pixel, lower) in enumerate(numbers):
        reach = [(side[0][k], side[1][k]) for side in ends]
        about: Any = None
        if moved and all(abs(end) < 2**20 for side in reach for end in side):  # false for NaN
            lines = tuple(range(int(low // 1), int(high // 1) + 2) for low, high in reach)
            about = stencil(image[channel], letter, padding, divmod(pixel, image.shape[2]), (lines[0], lines[1]))
        if letter in BLURS:  # they treat equal channels alike
            channel = next(c for c in range(channel + 1) if torch.equal(image[c], image[channel]))
        key = (lower, about) if about is not None else (lower, channel, pixel)
        found.append(known.setdefault(key, len(known)))
    return found
