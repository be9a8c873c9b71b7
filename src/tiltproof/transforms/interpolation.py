"""Source positions of pixels, and bilinear, nearest or bicubic interpolation there, with padding.

Images are stored with a ring of zeros around them. A padding is then a map from any integer index to an index into the
extended image. Bounds use the same map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.errors import UnsupportedOperation

# Inverse maps as matrices in homogeneous coordinates, affine (2x3) or projective (3x3): a matrix maps the pixel (u, v, 1) to (x, y, w),
# which stands for the position (x / w, y / w). Products of matrices are compositions of maps, with one division at the end.

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
    return as_positions(*projected(matrix, *centered_grid(height, width, like)), height, width)


def projected(matrix: Matrix, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions that a matrix maps (u, v) to."""
    source = [row[0] * u + row[1] * v + row[2] for row in matrix]
    if not keeps_plane(matrix):
        depth = source[2].clamp(min=SMALLEST_DEPTH)
        source = [source[0] / depth, source[1] / depth]
    return source[0], source[1]


def as_positions(u: Tensor, v: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return (u, v), with the origin in the middle, as fractional columns and rows, [N, H, W]."""
    column, row = u + (width - 1) / 2, (height - 1) / 2 - v
    shape = torch.broadcast_shapes(column.shape, row.shape, (1, height, width))
    return column.expand(shape), row.expand(shape)


# Bilinear interpolation at such positions


def reflects(padding: str) -> bool:
    """Return whether the image goes on outside as its reflection, for ever; by the other paddings it is constant there.

    All code that distinguishes paddings asks here, or names all that it knows, so that a new one is refused and not taken for one of these.
    """
    if padding not in ("zeros", "border", "reflect"):
        raise UnsupportedOperation(f"no rule for padding {padding!r}")
    return padding == "reflect"


def ring_index(index: Tensor, size: int, padding: str) -> Tensor:
    """Map any integer index of the padded, infinite image to an axis of length size + 2 (image plus ring)."""
    if padding == "zeros":
        return index.clamp(-1, size) + 1
    if not reflects(padding) or size == 1:
        return index.clamp(0, size - 1) + 1
    period = 2 * (size - 1)  # reflection about the centers of the border pixels: ... 2 1 [0 1 2 ... n-1] n-2 ...
    folded = index.remainder(period)
    return torch.minimum(folded, period - folded) + 1


def in_reach(position: Tensor, size: int, padding: str) -> Tensor:
    """Return an equivalent position that fits an integer: far outside, the padded image is periodic or constant."""
    if reflects(padding) and size > 1:
        return position.remainder(2 * (size - 1))
    return position.clamp(-(2.0**30), 2.0**30)


def with_ring(images: Tensor) -> Tensor:
    """Return [N, C, H, W] as [N, H + 2, W + 2, C]: channels last, so that one look-up fetches a whole pixel."""
    return torch.nn.functional.pad(images, (1, 1, 1, 1)).permute(0, 2, 3, 1).contiguous()


def pixels_at(flat: Tensor, index: Tensor) -> Tensor:
    """Gather rows of ``flat`` [n, C] at indices of any shape: [..., C]."""
    if launch_bound(index):
        return flat[index]
    # index_select is several times faster on a CPU, and faster still without a dimension for a single channel
    return flat.squeeze(1).index_select(0, index.flatten()).view(*index.shape, flat.shape[1])


def sample(images: Tensor, column: Tensor, row: Tensor, padding: str) -> Tensor:
    """Interpolate each image [N, C, H, W] at its own positions [N, H', W'] -> [N, C, H', W']."""
    number, _, height, width = images.shape
    (x, y), corners = _cells(column, row, height, width, padding)
    ring = with_ring(images)
    flat = ring.reshape(-1, ring.shape[-1])
    start = torch.arange(number, device=images.device).view(-1, 1, 1) * ((height + 2) * (width + 2))
    nw, ne, sw, se = (pixels_at(flat, start + corner) for corner in corners)
    top, bottom = nw * (1 - x) + ne * x, sw * (1 - x) + se * x
    return (top * (1 - y) + bottom * y).permute(0, 3, 1, 2).contiguous()


def sample_each(images: Tensor, column: Tensor, row: Tensor, padding: str) -> Tensor:
    """Interpolate all images [N, C, H, W] at all positions [S, H', W'] -> [N * S, C, H', W'], image by image.

    Not differentiable. Positions are computed once for all images, and one look-up fetches a pixel of all of them.
    """
    number, channels, height, width = images.shape
    (x, y), corners = _cells(column, row, height, width, padding)
    x, y = x.reshape(-1, 1), y.reshape(-1, 1)
    ring = torch.nn.functional.pad(images, (1, 1, 1, 1)).permute(2, 3, 0, 1).reshape(-1, number * channels)
    nw, ne, sw, se = (ring.index_select(0, corner.flatten()) for corner in corners)
    top, bottom = nw.mul_(1 - x).addcmul_(ne, x), sw.mul_(1 - x).addcmul_(se, x)
    values = top.mul_(1 - y).addcmul_(bottom, y).view(*column.shape, number, channels)
    return values.permute(3, 0, 4, 1, 2).flatten(0, 1).contiguous()


def _cells(
    column: Tensor, row: Tensor, height: int, width: int, padding: str
) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """Return the weights of each position within its cell, and the indices of the cell's corners in the image with its ring.

    Corners are in the order north west, north east, south west, south east.
    """
    column, row = in_reach(column, width, padding), in_reach(row, height, padding)
    column0, row0 = column.detach().floor(), row.detach().floor()
    weights = (column - column0).unsqueeze(-1), (row - row0).unsqueeze(-1)
    columns = [ring_index(column0.long() + k, width, padding) for k in (0, 1)]
    rows = [ring_index(row0.long() + k, height, padding) * (width + 2) for k in (0, 1)]
    return weights, [line + place for line in rows for place in columns]


# Any interpolation. The nearest pixel is the one at the position rounded to whole numbers; a position halfway between two is given to the
# one to the right or below here, while bounds allow for either. Bicubic interpolation is Keys' cubic convolution with a = -3/4, as in
# PyTorch and OpenCV: weights of four pixels along each axis,
#     a t (1 - t)^2,  (a + 2) t^3 - (a + 3) t^2 + 1,  the same for 1 - t,  a (1 - t) t^2
# at the place t in [0, 1] between the middle two. They add up to 1, the outer ones are negative, and the result is clamped to [0, 1].
# Pixels outside the image are the padding's.

SHARPNESS = -0.75
"""The number a of cubic convolution: the slope of its kernel at distance 1."""


def resampled(images: Tensor, column: Tensor, row: Tensor, padding: str, interpolation: str) -> Tensor:
    """Look each image [N, C, H, W] up at its own positions [N, H', W'] -> [N, C, H', W']."""
    if interpolation == "bilinear":
        return sample(images, column, row, padding)
    column, row = (
        in_reach(place, size, padding) for place, size in ((column, images.shape[-1]), (row, images.shape[-2]))
    )
    if interpolation == "nearest":
        pixels = _Pixels(images, padding).at((column.detach() + 0.5).floor(), (row.detach() + 0.5).floor())
        return (pixels + 0.0 * (column + row).unsqueeze(-1)).permute(0, 3, 1, 2).contiguous()  # with a gradient: 0
    assert interpolation == "bicubic"
    look_up = _Pixels(images, padding)
    left, top = column.detach().floor(), row.detach().floor()
    across, down = (cubic_weights((place - line).unsqueeze(-1)) for place, line in ((column, left), (row, top)))
    total = None
    for i, weight in enumerate(down, -1):
        line = sum(look_up.at(left + j, top + i) * each for j, each in enumerate(across, -1))
        total = weight * line if total is None else total + weight * line
    assert total is not None
    return total.clamp(0, 1).permute(0, 3, 1, 2).contiguous()


def cubic_weights(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights of the four pixels around a place t in [0, 1] between the middle two."""
    a, s = SHARPNESS, 1 - t
    return a * t * s * s, ((a + 2) * t - (a + 3)) * t * t + 1, ((a + 2) * s - (a + 3)) * s * s + 1, a * s * t * t


class _Pixels:
    """The padded, endless images, channels last."""

    def __init__(self, images: Tensor, padding: str) -> None:
        number, channels, self.height, self.width = images.shape
        self.flat, self.padding = with_ring(images).view(-1, channels), padding
        self.start = torch.arange(number, device=images.device).view(-1, 1, 1) * ((self.height + 2) * (self.width + 2))

    def at(self, column: Tensor, row: Tensor) -> Tensor:
        """Return the pixels at whole positions [N, H', W'] of each image: [N, H', W', C]."""
        i = ring_index(row.long(), self.height, self.padding) * (self.width + 2)
        return pixels_at(self.flat, self.start + i + ring_index(column.long(), self.width, self.padding))
