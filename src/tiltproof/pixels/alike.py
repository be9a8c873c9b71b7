"""Pixels that have the same value at every parameter of a box, and so are rounded alike: they cross a threshold together.

A pixel of a moved image is

    p(t) = sum over rows r and columns c of hat(row(t) - r) hat(column(t) - c) x[r, c],  hat(z) = max(0, 1 - |z|),

of which only the lines count that row(t) and column(t) come within one of. Two pixels are alike if their rows, and their columns, are
the same functions of t up to a whole number of lines each, and the values of these lines are the same ones. That is read off the inverse
map, not off numbers: with a shift all columns are one function plus j, with a scaling they are one function of u, and its negative for -u
meets the flipped image; a rotation by 180 degrees flips both. Where all rows of the window are equal, p does not depend on row(t), as the
hats of all rows sum to 1; likewise for columns. More lines than needed only keep pixels apart that are alike.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tiltproof.pixels.coordinates import coordinates_of_chosen
from tiltproof.transforms.base import Transform
from tiltproof.transforms.geometric import (
    Rotation,
    Scaling,
    ScalingU,
    ScalingV,
    Shearing,
    ShearingV,
    TranslationU,
    TranslationV,
)
from tiltproof.transforms.interpolation import ring_index, with_ring

WIDEST = 6
"""Lines of a window; over larger ones no pixels are called alike."""
STAYS: dict[type, str] = {
    TranslationU: "rows",
    Shearing: "rows",
    ScalingU: "rows",
    TranslationV: "columns",
    ShearingV: "columns",
    ScalingV: "columns",
}
"""Transformations that leave the row or the column of every pixel as it is."""


def alike(
    image: Tensor, transform: Transform, low: float, high: float, pixels: Tensor, channels: Tensor
) -> list[Hashable]:
    """Return a key for each pixel number ``pixels[q]`` of channel ``channels[q]`` of an image [C, H, W] over the box [low, high]: pixels
    of the same key have the same value at each of its parameters."""
    kind: type = type(transform.parts[0])
    _, height, width = image.shape
    j, i = pixels % width, pixels // width
    u, v = 2 * j - (width - 1), (height - 1) - 2 * i  # twice the centered position
    flip_j, flip_i = torch.zeros_like(u, dtype=torch.bool), torch.zeros_like(u, dtype=torch.bool)
    if kind in (Scaling, ScalingU):
        flip_j = u < 0
    if kind in (Scaling, ScalingV):
        flip_i = v < 0
    if kind is Rotation:
        flip_j = flip_i = (v < 0) | ((v == 0) & (u < 0))
    j, i = torch.where(flip_j, width - 1 - j, j), torch.where(flip_i, height - 1 - i, i)
    first, last = (torch.tensor([[end]], dtype=torch.float64) for end in (low, high))
    place = coordinates_of_chosen(transform, first, last, torch.zeros_like(i), i * width + j, height, width)
    columns, rows = ((side.lower.flatten(), side.upper.flatten()) for side in (place.columns, place.rows))
    exact = STAYS.get(kind)
    across, down = lines(*columns, j if exact == "columns" else None), lines(*rows, i if exact == "rows" else None)
    ring = with_ring(image.unsqueeze(0))[0].permute(2, 0, 1)
    flips = {(a, b): ring.flip([k for k, yes in ((1, a), (2, b)) if yes]) for a in (False, True) for b in (False, True)}
    keys: list[Hashable] = []
    for q, (c, a, b) in enumerate(zip(channels.tolist(), flip_i.tolist(), flip_j.tolist(), strict=True)):
        over_columns, over_rows = across[q], down[q]
        if over_columns is None or over_rows is None:
            keys.append((int(pixels[q]), c))
            continue
        (left, right), (top, bottom) = over_columns, over_rows
        index_rows, index_columns = (
            ring_index(torch.arange(first, last + 1), size, transform.padding)
            for first, last, size in ((top, bottom, height), (left, right, width))
        )
        window = flips[a, b][c][index_rows][:, index_columns]
        key_column, key_row = functions(kind, int(i[q]), int(j[q]), left, top)
        if bool((window == window[:1]).all()):  # p does not depend on the row
            window, key_row = window[:1], ()
        if bool((window == window[:, :1]).all()):
            window, key_column = window[:, :1], ()
        keys.append((key_column, key_row, tuple(window.shape), window.numpy().tobytes()))
    return keys


def lines(lower: Tensor, upper: Tensor, exact: Tensor | None) -> list[tuple[int, int] | None]:
    """Return the first and the last line that positions in [lower, upper] come within one of; None where they are too many. ``exact``:
    the positions themselves, where these do not change."""
    if exact is not None:
        return [(line, line) for line in exact.tolist()]
    first, last = lower.floor(), upper.floor() + 1
    known = (last - first < WIDEST) & (first.abs() < 2**30)  # false for NaN
    return [
        (int(a), int(b)) if yes else None
        for a, b, yes in zip(first.tolist(), last.tolist(), known.tolist(), strict=True)
    ]


def functions(kind: type, i: int, j: int, left: int, top: int) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return keys of column(t) and row(t) minus the first column and row of the window: the same key, the same function.

    u = j - (width - 1) / 2 and v = (height - 1) / 2 - i, both not negative where an image is flipped.
    """
    if kind is TranslationU:  # j - t; i
        return (left - j,), (0,)
    if kind is TranslationV:  # j; i + t
        return (0,), (top - i,)
    if kind is Shearing:  # j - s v; i
        return (left - j, i), (0,)
    if kind is ShearingV:  # j; i + s u
        return (0,), (top - i, j)
    if kind is ScalingU:  # u / (1 + s); i
        return (left, j), (0,)
    if kind is ScalingV:
        return (0,), (top, i)
    if kind is Scaling:
        return (left, j), (top, i)
    return (left, i, j), (top, i, j)  # of both u and v
