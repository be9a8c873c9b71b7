"""What counts as a batch of images."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Photometric, Transform

METHODS = ("affine", "hull", "fgv")


def check_method(method: str, transform: Transform) -> None:
    """Refuse a method that there is not, and the paper's for what it does not define."""
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(METHODS)}")
    beyond = [part.text for part in transform.parts if isinstance(part, Photometric)]
    if method == "fgv" and beyond:
        raise InputError(
            "the paper's method (fgv) is defined for moves of pixels, contrast and brightness only",
            got=", ".join(beyond),
            do="use method affine or hull",
        )


def check_images(images: Tensor) -> None:
    """Refuse anything but a finite floating-point batch [N, C, H, W] with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InputError("images must be a torch tensor", got=type(images).__name__, do="torch.as_tensor(images)")
    if images.ndim != 4:
        raise InputError(
            "images must have shape [N, C, H, W]",
            got=tuple(images.shape),
            why="a missing batch dimension",
            do="images[None]",
        )
    if images.dtype not in (torch.float32, torch.float64):
        raise InputError(
            "images must be float32 or float64",
            got=images.dtype,
            why="8-bit or half-precision pixels",
            do="images.float() / 255",
        )
    if 0 in images.shape:
        raise InputError(
            "there are no images", got=f"shape {tuple(images.shape)}", do="check the selection or the folder"
        )
    if not bool(torch.isfinite(images).all()):
        raise InputError(
            "images contain NaN or infinity", why="a division by zero in preprocessing", do="clean the data first"
        )
    low, high = images.min().item(), images.max().item()
    if low < 0 or high > 1:
        raise InputError(
            "pixel values must lie in [0, 1]",
            got=f"{low:g} to {high:g}",
            why="pixels not divided by 255, or already normalised",
            do="scale to [0, 1] and put the normalisation inside the model",
        )
