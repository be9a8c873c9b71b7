"""The middle of pictures."""

from __future__ import annotations

from torch import Tensor

from tiltproof.errors import InputError


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The middle ``size`` x ``size`` pixels of images [N, C, H, W]; of an odd rest, the larger half is cut off below and right.

    >>> import torch
    >>> centre_crop(torch.arange(20).view(1, 1, 4, 5), 2).flatten().tolist()
    [6, 7, 11, 12]
    """
    height, width = images.shape[-2:]
    if not 0 < size <= min(height, width):
        raise InputError("a crop must fit into the picture", got=f"{size} x {size} out of {height} x {width}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]
