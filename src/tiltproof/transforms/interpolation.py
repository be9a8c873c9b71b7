"""Bilinear interpolation at fractional positions, and padding.

Images are stored with a ring of zeros around them. A padding is then a map from any integer index to an index into the
extended image. Bounds use the same map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.device import launch_bound

PADDINGS = ("zeros", "border", "reflect")


def ring_index(index: Tensor, size: int, padding: str) -> Tensor:
    """Map any integer index of the padded, infinite image to an axis of length size + 2 (image plus ring)."""
    if padding == "zeros":
        return index.clamp(-1, size) + 1
    if padding == "border" or size == 1:
        return index.clamp(0, size - 1) + 1
    period = 2 * (size - 1)  # reflection about the centers of the border pixels: ... 2 1 [0 1 2 ... n-1] n-2 ...
    folded = index.remainder(period)
    return torch.minimum(folded, period - folded) + 1


def _in_reach(position: Tensor, size: int, padding: str) -> Tensor:
    """Return an equivalent position that fits an integer: far outside, the padded image is periodic or constant."""
    if padding == "reflect" and size > 1:
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
    column, row = _in_reach(column, width, padding), _in_reach(row, height, padding)
    column0, row0 = column.detach().floor(), row.detach().floor()
    weights = (column - column0).unsqueeze(-1), (row - row0).unsqueeze(-1)
    columns = [ring_index(column0.long() + k, width, padding) for k in (0, 1)]
    rows = [ring_index(row0.long() + k, height, padding) * (width + 2) for k in (0, 1)]
    return weights, [line + place for line in rows for place in columns]
