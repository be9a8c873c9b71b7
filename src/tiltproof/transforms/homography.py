"""Inverse maps as matrices, and where each output pixel looks: in the plane (2x3), or through a camera (3x3).

A pixel (u, v) is the vector (u, v, 1); a matrix takes it to (x, y, w), which stands for the position (x / w, y / w).
Products of matrices are then compositions of maps, and nothing is divided before the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Matrix = tuple[tuple[Any, Any, Any], ...]
"""Rows x, y and, if it is not (0, 0, 1), w; entries are the numbers 0 and 1 or anything that has arithmetic."""

SMALLEST_DEPTH = 2.0**-20
"""Smallest w by which a position is divided. Ranges that come anywhere near it are refused (`pixels/camera_depth.py`)."""


def lifted(matrix: Matrix) -> Matrix:
    """With all three rows."""
    return (*matrix, (0, 0, 1)) if len(matrix) == 2 else matrix


def keeps_plane(matrix: Matrix) -> bool:
    """Whether w is 1 everywhere, so that there is nothing to divide by."""
    return all(isinstance(entry, int) for entry in lifted(matrix)[2])


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """a @ b; entries 0 and 1 cost nothing."""
    first, second = lifted(a), lifted(b)

    def entry(i: int, j: int) -> Any:
        total = plus(times(first[i][0], second[0][j]), times(first[i][1], second[1][j]))
        return plus(total, times(first[i][2], second[2][j]))

    return tuple((entry(i, 0), entry(i, 1), entry(i, 2)) for i in range(max(len(a), len(b))))


def times(x: Any, y: Any) -> Any:
    if isinstance(x, int) and x in (0, 1):
        return y if x else 0
    if isinstance(y, int) and y in (0, 1):
        return x if y else 0
    return x * y


def plus(x: Any, y: Any) -> Any:
    if isinstance(x, int) and x == 0:
        return y
    return x if isinstance(y, int) and y == 0 else x + y


def applied(matrix: Matrix, x: Any, y: Any, w: Any) -> tuple[Any, Any, Any]:
    """matrix @ (x, y, w)."""
    first, second, third = (plus(plus(times(row[0], x), times(row[1], y)), times(row[2], w)) for row in lifted(matrix))
    return first, second, third


def centered_grid(height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """u of every column [1, 1, W] and v of every row [1, H, 1]: origin at the picture's center, v upwards."""
    u = torch.arange(width, dtype=like.dtype, device=like.device) - (width - 1) / 2
    v = (height - 1) / 2 - torch.arange(height, dtype=like.dtype, device=like.device)
    return u.view(1, 1, width), v.view(1, height, 1)


def pixel_coordinates(matrix: Matrix, height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Fractional source column and row (0-based, from the top left) of every output pixel, [N, H, W]."""
    u, v = centered_grid(height, width, like)
    source = [row[0] * u + row[1] * v + row[2] for row in matrix]
    if not keeps_plane(matrix):
        depth = source[2].clamp(min=SMALLEST_DEPTH)
        source = [source[0] / depth, source[1] / depth]
    column, row = source[0] + (width - 1) / 2, (height - 1) / 2 - source[1]
    shape = torch.broadcast_shapes(column.shape, row.shape, (1, height, width))
    return column.expand(shape), row.expand(shape)
