"""Inverse maps as matrices in homogeneous coordinates, affine (2x3) or projective (3x3), and source positions of pixels.

A matrix maps the pixel (u, v, 1) to (x, y, w), which stands for the position (x / w, y / w). Products of matrices are
compositions of maps, with one division at the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Matrix = tuple[tuple[Any, Any, Any], ...]
"""Rows x, y and, unless it is (0, 0, 1), w; entries are the integers 0 and 1, or anything with arithmetic."""
SMALLEST_DEPTH = 2.0**-20
"""Smallest divisor w of a position; `pixels/coordinates.py` refuses ranges that come near it."""


def lifted(matrix: Matrix) -> Matrix:
    """Return the matrix with all three rows."""
    return (*matrix, (0, 0, 1)) if len(matrix) == 2 else matrix


def keeps_plane(matrix: Matrix) -> bool:
    """Return whether w is 1 everywhere, so that no division is needed."""
    return all(isinstance(entry, int) for entry in lifted(matrix)[2])


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """Return a @ b; entries 0 and 1 cost nothing."""
    first, second = lifted(a), lifted(b)

    def entry(i: int, j: int) -> Any:
        total = plus(times(first[i][0], second[0][j]), times(first[i][1], second[1][j]))
        return plus(total, times(first[i][2], second[2][j]))

    return tuple((entry(i, 0), entry(i, 1), entry(i, 2)) for i in range(max(len(a), len(b))))


def times(x: Any, y: Any) -> Any:
    """Return x * y, without an operation if one of them is the integer 0 or 1."""
    if isinstance(x, int) and x in (0, 1):
        return y if x else 0
    if isinstance(y, int) and y in (0, 1):
        return x if y else 0
    return x * y


def plus(x: Any, y: Any) -> Any:
    """Return x + y, without an operation if one of them is the integer 0."""
    if isinstance(x, int) and x == 0:
        return y
    return x if isinstance(y, int) and y == 0 else x + y


def applied(matrix: Matrix, x: Any, y: Any, w: Any) -> tuple[Any, Any, Any]:
    """Return matrix @ (x, y, w)."""
    first, second, third = (plus(plus(times(row[0], x), times(row[1], y)), times(row[2], w)) for row in lifted(matrix))
    return first, second, third


def centered_grid(height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return u of every column [1, 1, W] and v of every row [1, H, 1]: origin at the image's center, v upwards."""
    u = torch.arange(width, dtype=like.dtype, device=like.device) - (width - 1) / 2
    v = (height - 1) / 2 - torch.arange(height, dtype=like.dtype, device=like.device)
    return u.view(1, 1, width), v.view(1, height, 1)


def pixel_coordinates(matrix: Matrix, height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fractional source column and row (0-based, from the top left) of every output pixel, [N, H, W]."""
    u, v = centered_grid(height, width, like)
    source = [row[0] * u + row[1] * v + row[2] for row in matrix]
    if not keeps_plane(matrix):
        depth = source[2].clamp(min=SMALLEST_DEPTH)
        source = [source[0] / depth, source[1] / depth]
    column, row = source[0] + (width - 1) / 2, (height - 1) / 2 - source[1]
    shape = torch.broadcast_shapes(column.shape, row.shape, (1, height, width))
    return column.expand(shape), row.expand(shape)
