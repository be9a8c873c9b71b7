"""Random crops, horizontal flips and erased squares of a mini-batch: each image its own, all at once, on the images' device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.training.sampling import generator


def augment(
    images: Tensor,
    labels: Tensor,
    *,
    padding: int,
    flip: bool,
    seed: int,
    step: int,
    share: tuple[int, int] = (0, 1),
    fill: str = "zeros",
    size: int = 0,
    signed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Crop each image [n, C, H, W] out of itself and a frame of ``padding`` pixels around it, and flip half of them.

    Crops are ``size`` x ``size``, or with 0 of the image's own size. The frame is black (``zeros``) or repeats the border (``edge``).
    ``signed``: labels [n] change their sign where the image is flipped, as steering angles do; others stay.

    Offsets and flips are drawn for the whole batch of n x world images from (seed, step) alone; of them this process
    takes those of its rows. ``share`` is (rank, world).
    """
    number, channels, height, width = images.shape
    crop = (size or height, size or width)
    room = (height + 2 * padding - crop[0], width + 2 * padding - crop[1])
    if not any(room) and not flip:
        return images, labels
    rank, world = share
    mine = slice(rank * number, (rank + 1) * number)
    drawn = draw(number * world, room, flip, seed, step)[:, mine]
    top, left, flipped = drawn.to(images.device, non_blocking=True)  # the host does not wait for the GPU
    rows = top[:, None] + torch.arange(crop[0], device=images.device)
    across = torch.arange(crop[1], device=images.device)
    columns = left[:, None] + torch.where(flipped[:, None] > 0, across.flip(0), across)
    framed = F.pad(images, (padding,) * 4, mode="replicate" if fill == "edge" else "constant")
    which = torch.arange(number, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    crops = framed[which, channel, rows[:, None, :, None], columns[:, None, None, :]]
    return crops, torch.where(flipped > 0, -labels, labels) if signed else labels


def draw(number: int, room: tuple[int, int], flip: bool, seed: int, step: int) -> Tensor:
    """First row (0 to ``room[0]``) and first column (0 to ``room[1]``) of each crop, and whether to flip it, [3, number]."""
    random = generator("augment", seed, step)
    corners = [torch.randint(0, most + 1, (1, number), generator=random) for most in room]
    flips = torch.randint(0, 2, (1, number), generator=random) * int(flip)
    return torch.cat([*corners, flips])


GREY = 0.5


def erase(images: Tensor, side: int, seed: int, step: int, share: tuple[int, int] = (0, 1)) -> Tensor:
    """Make a square of ``side`` x ``side`` pixels of each image [n, C, H, W] grey, anywhere inside it; ``share`` as of `augment`."""
    number, _, height, width = images.shape
    if side >= max(height, width):
        raise InputError(
            "data.erase leaves nothing of the pictures", got=f"squares of {side} pixels, pictures of {height} x {width}"
        )
    rank, world = share
    random = generator("erase", seed, step)
    room = (max(0, height - side), max(0, width - side))
    drawn = torch.stack([torch.randint(0, most + 1, (number * world,), generator=random) for most in room])
    corner = drawn[:, rank * number : (rank + 1) * number].to(images.device, non_blocking=True)
    rows, columns = (
        torch.arange(size, device=images.device) - first[:, None]
        for size, first in zip((height, width), corner, strict=True)
    )
    inside = ((rows >= 0) & (rows < side))[:, None, :, None] & ((columns >= 0) & (columns < side))[:, None, None, :]
    return images.masked_fill(inside, GREY)
