"""Values of an image at fractional positions: bilinear, nearest or bicubic interpolation.

Bilinear interpolation is `interpolation.sample`. The nearest pixel is the one at the position rounded to whole numbers; a
position halfway between two is given to the one to the right or below here, while bounds allow for either. Bicubic
interpolation is Keys' cubic convolution with a = -3/4, as in PyTorch and OpenCV: weights of four pixels along each axis,
    a t (1 - t)^2,  (a + 2) t^3 - (a + 3) t^2 + 1,  the same for 1 - t,  a (1 - t) t^2
at the place t in [0, 1] between the middle two. They add up to 1, the outer ones are negative, and the result is clamped to
[0, 1]. Pixels outside the image are the padding's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.transforms.interpolation import in_reach, pixels_at, ring_index, sample, with_ring

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
