"""The training set on the device: what is trained on, what is held out, and the order of each epoch."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from tiltproof.data import center_crop
from tiltproof.errors import InputError
from tiltproof.training.sampling import generator


class TrainingSet:
    """Images and labels, split once by the seed; 8-bit pixels stay 8-bit until a mini-batch needs them.

    ``run``: images are held out by so many neighbours. ``crop_size``: of held-out images, which are measured, the middle of that size; 0:
    the whole. Those to train on stay whole, for random crops.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        hold_out: float,
        seed: int,
        device: torch.device,
        crop_size: int = 0,
        run: int = 1,
    ) -> None:
        usable = images.dtype.is_floating_point or images.dtype == torch.uint8
        if images.ndim != 4 or len(images) != len(labels) or not usable:
            raise InputError(
                "training needs float images [N, C, H, W] in [0, 1], or unsigned bytes, and N labels",
                got=f"shapes {tuple(images.shape)} ({images.dtype}) and {tuple(labels.shape)}",
            )
        if crop_size > min(images.shape[2:]):
            raise InputError(
                "data.crop_size is larger than the pictures",
                got=f"{crop_size}, and pictures of {images.shape[2]} x {images.shape[3]}",
                do="choose a smaller one, or 0 for the whole picture",
            )
        self.device = device
        pixels = compact(images)
        self.sha256 = _digest(pixels, labels)
        held = round(len(images) * hold_out)
        order = torch.randperm(-(-len(images) // run), generator=generator("hold out", seed, 0))
        order = (order.unsqueeze(1) * run + torch.arange(run)).flatten()
        order = order[order < len(images)]
        self.held_rows, rows = order[:held].sort().values, order[held:].sort().values
        self.pixels, self.labels = pixels[rows].to(device), labels[rows].to(device)
        held_pixels = pixels[self.held_rows]
        middle = center_crop(held_pixels, crop_size).contiguous() if crop_size else held_pixels
        self.held_pixels, self.held_labels = middle.to(device), labels[self.held_rows].to(device)

    def __len__(self) -> int:
        return len(self.pixels)

    def order(self, seed: int, epoch: int) -> Tensor:
        """A permutation of the training images for this epoch, on the device."""
        return torch.randperm(len(self), generator=generator("order", seed, epoch)).to(self.device)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] and labels of these rows."""
        return as_floats(self.pixels[rows]), self.labels[rows]

    def first_held_out(self, count: int) -> tuple[Tensor, Tensor]:
        """The first held-out images, exactly as the data set has their pixels: divided by 255 on the CPU."""
        return as_floats(self.held_pixels[:count].cpu()).to(self.device), self.held_labels[:count]


def compact(images: Tensor) -> Tensor:
    """The images as 8-bit numbers where that loses nothing, else as they are."""
    if images.dtype == torch.uint8:
        return images
    levels = images.mul(255).round_()
    if bool(((levels >= 0) & (levels <= 255)).all()) and torch.equal(levels / 255, images):
        return levels.to(torch.uint8)
    return images


def as_floats(pixels: Tensor) -> Tensor:
    return pixels.to(torch.float32).div_(255) if pixels.dtype == torch.uint8 else pixels


def _digest(pixels: Tensor, labels: Tensor) -> str:
    """sha256 of all pixels and labels: a run is resumed with the data it began with."""
    digest = hashlib.sha256(str((tuple(pixels.shape), str(pixels.dtype))).encode())
    numbers = labels.to(torch.float32 if labels.is_floating_point() else torch.int64)
    for tensor in (pixels, numbers):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
