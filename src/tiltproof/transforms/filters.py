"""What the blurs have in common: a weighted mean of shifted copies of the picture, the same for every pixel.

With weights w_k = w_-k that add up to 1, x' = x + sum_{k >= 1} w_k (x shifted by k + x shifted by -k - 2 x). So the weight of the
middle need not be known, and a flat picture stays as it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.transforms.base import Photometric
from tiltproof.transforms.sampling import ring_index

Offset = tuple[float, float]


class Filter(Photometric):
    """A blur: weights that depend on the parameter, at places that do not."""

    least = 0.0

    @property
    def taps(self) -> int:
        """How many places there are on either side."""
        raise NotImplementedError

    def passes(self) -> list[list[Offset]]:
        """For each pass over the picture its places 1, 2, ..., as (columns to the right, rows down)."""
        raise NotImplementedError

    def weights(self, value: Tensor) -> list[Tensor]:
        """w_1, w_2, ... at parameters of any shape."""
        raise NotImplementedError

    def changed(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        weights = self.weights(value)
        for offsets in self.passes():
            images = images + sum(
                (w * differences(images, offset, padding) for w, offset in zip(weights, offsets, strict=True)),
                torch.zeros_like(images),
            )
        return images.clamp(0, 1)  # only rounding could leave it: a weighted mean of values in [0, 1]


def differences(pictures: Tensor, offset: Offset, padding: str) -> Tensor:
    """What lies at the offset, and opposite, less twice the picture itself; [..., H, W]."""
    return both_sides(pictures, offset, padding) - 2 * pictures


def both_sides(pictures: Tensor, offset: Offset, padding: str) -> Tensor:
    return sum(
        (
            _shifted(_shifted(pictures, sign * offset[0], -1, padding), sign * offset[1], -2, padding)
            for sign in (1, -1)
        ),
        torch.zeros_like(pictures),
    )


def _shifted(pictures: Tensor, distance: float, axis: int, padding: str) -> Tensor:
    """Bilinear interpolation at a fixed distance along one axis; outside lies the padding."""
    if distance == 0:
        return pictures
    whole, size = math.floor(distance), pictures.shape[axis]
    ring = torch.nn.functional.pad(pictures, (1, 1) if axis == -1 else (0, 0, 1, 1))
    line = torch.arange(size, device=pictures.device) + whole
    near = ring.index_select(axis, ring_index(line, size, padding))
    if distance == whole:
        return near
    return torch.lerp(near, ring.index_select(axis, ring_index(line + 1, size, padding)), distance - whole)
