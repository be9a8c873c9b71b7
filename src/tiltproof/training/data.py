"""The training set on the device, its order and hold-out, and augmentation: crops, flips and erased squares."""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.data import center_crop
from tiltproof.errors import InputError
from tiltproof.training.sampling import generator


class TrainingSet:
    """Images and labels, split by the seed; 8-bit pixels are converted mini-batch by mini-batch.

    Parameters
    ----------
    images, labels : Tensor
        Images [N, C, H, W], floats in [0, 1] or unsigned bytes, and N labels.
    hold_out : float
        Fraction of the images held out for validation.
    seed : int
        Seed of the split.
    device : torch.device
        Where the data is stored.
    crop_size : int
        Center crop of the held-out images; 0 for none. Training images stay whole, for random crops.
    run : int
        Number of consecutive images that are held out together.
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
                "data.crop_size is larger than the images",
                got=f"{crop_size}, and images of {images.shape[2]} x {images.shape[3]}",
                do="choose a smaller one, or 0 for the whole image",
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
        """Return a permutation of the training images for this epoch, on the device."""
        return torch.randperm(len(self), generator=generator("order", seed, epoch)).to(self.device)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return images in [0, 1] and labels of these rows."""
        return as_floats(self.pixels[rows]), self.labels[rows]

    def first_held_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first held-out images; divided by 255 on the CPU, to have exactly the data set's pixels."""
        return as_floats(self.held_pixels[:count].cpu()).to(self.device), self.held_labels[:count]


def compact(images: Tensor) -> Tensor:
    """Return the images as 8-bit numbers if that is exact, else unchanged."""
    if images.dtype == torch.uint8:
        return images
    levels = images.mul(255).round_()
    if bool(((levels >= 0) & (levels <= 255)).all()) and torch.equal(levels / 255, images):
        return levels.to(torch.uint8)
    return images


def as_floats(pixels: Tensor) -> Tensor:
    return pixels.to(torch.float32).div_(255) if pixels.dtype == torch.uint8 else pixels


def _digest(pixels: Tensor, labels: Tensor) -> str:
    """Return the sha256 of pixels and labels, by which a resumed run checks its data."""
    digest = hashlib.sha256(str((tuple(pixels.shape), str(pixels.dtype))).encode())
    numbers = labels.to(torch.float32 if labels.is_floating_point() else torch.int64)
    for tensor in (pixels, numbers):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def augment(
    images: Tensor,
    labels: Tensor,
    *,
    padding: int,
    flip: bool,
    seed: int,
    step: int,
    shard: tuple[int, int] = (0, 1),
    fill: str = "zeros",
    size: int = 0,
    signed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Crop each image [n, C, H, W] at random after padding it, and flip half of them horizontally.

    Crops are ``size`` x ``size``, or of the image's size if it is 0. The padding of ``padding`` pixels is black (``zeros``) or
    repeats the border (``edge``). Labels [n] of flipped images change their sign if they are ``signed``, as steering angles are.

    Offsets and flips are drawn for the whole mini-batch of n x world images from (seed, step) alone; this process takes those of
    its rows. ``shard`` is (rank, world).
    """
    number, channels, height, width = images.shape
    crop = (size or height, size or width)
    room = (height + 2 * padding - crop[0], width + 2 * padding - crop[1])
    if not any(room) and not flip:
        return images, labels
    rank, world = shard
    mine = slice(rank * number, (rank + 1) * number)
    drawn = draw(number * world, room, flip, seed, step)[:, mine]
    top, left, flipped = drawn.to(images.device, non_blocking=True)  # without synchronizing with the GPU
    rows = top[:, None] + torch.arange(crop[0], device=images.device)
    offsets = torch.arange(crop[1], device=images.device)
    columns = left[:, None] + torch.where(flipped[:, None] > 0, offsets.flip(0), offsets)
    padded = F.pad(images, (padding,) * 4, mode="replicate" if fill == "edge" else "constant")
    which = torch.arange(number, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    crops = padded[which, channel, rows[:, None, :, None], columns[:, None, None, :]]
    return crops, torch.where(flipped > 0, -labels, labels) if signed else labels


def draw(number: int, room: tuple[int, int], flip: bool, seed: int, step: int) -> Tensor:
    """Draw the first row (0 to ``room[0]``) and column (0 to ``room[1]``) of each crop, and whether to flip it, [3, number]."""
    random = generator("augment", seed, step)
    corners = [torch.randint(0, most + 1, (1, number), generator=random) for most in room]
    flips = torch.randint(0, 2, (1, number), generator=random) * int(flip)
    return torch.cat([*corners, flips])


GRAY = 0.5
"""The value of erased pixels."""


def erase(images: Tensor, side: int, seed: int, step: int, shard: tuple[int, int] = (0, 1)) -> Tensor:
    """Make a random square of ``side`` x ``side`` pixels of each image [n, C, H, W] gray; ``shard`` as for `augment`."""
    number, _, height, width = images.shape
    if side >= max(height, width):
        raise InputError(
            "data.erase covers whole images", got=f"squares of {side} pixels, images of {height} x {width}"
        )
    rank, world = shard
    random = generator("erase", seed, step)
    room = (max(0, height - side), max(0, width - side))
    drawn = torch.stack([torch.randint(0, most + 1, (number * world,), generator=random) for most in room])
    corner = drawn[:, rank * number : (rank + 1) * number].to(images.device, non_blocking=True)
    rows, columns = (
        torch.arange(size, device=images.device) - first[:, None]
        for size, first in zip((height, width), corner, strict=True)
    )
    inside = ((rows >= 0) & (rows < side))[:, None, :, None] & ((columns >= 0) & (columns < side))[:, None, None, :]
    return images.masked_fill(inside, GRAY)
