"""Resize and crop images of mixed sizes, as unsigned bytes, exactly as torchvision's ``Resize`` and ``CenterCrop`` do for Pillow images.

The order is: gray to RGB, resize, crop. `Preparation` says which of them; its texts are in the notes of a run's manifest. The claim
itself holds the sha256 of every prepared image, so another preparation that changes a single pixel is another claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiltproof.data.image_file import MAX_PIXELS
from tiltproof.errors import InputError, shown

MAX_SIDE = 2**16
Size = int | str | Sequence[int]
"""A size as users give it: 224, (224, 200), "224" or "224x200"."""


@dataclass(frozen=True)
class Preparation:
    """What is done to every image before it is an input of the network.

    ``resize``: the length of the shorter side, or height and width; ``crop``: height and width of the center; ``rgb``: gray images
    get three equal channels.
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    rgb: bool = False

    @classmethod
    def parse(cls, resize: Size | None = None, crop: Size | None = None, rgb: bool = False) -> Preparation:
        """Check what a user gave; a crop by one number is a square."""
        cropped = None if crop is None else parse_size(crop, "crop")
        square = (cropped, cropped) if isinstance(cropped, int) else cropped
        return cls(None if resize is None else parse_size(resize, "resize"), square, bool(rgb))

    def apply(self, image: np.ndarray, name: str | Path) -> np.ndarray:
        """Prepare an image [C, H, W] of unsigned bytes; ``name`` is for messages."""
        if self.rgb and len(image) == 1:
            image = np.repeat(image, 3, 0)
        if self.resize is not None:
            image = _resized(image, self.resize, name)
        return image if self.crop is None else _cropped(image, self.crop, name)

    def __bool__(self) -> bool:
        """Whether anything is done."""
        return self != Preparation()


def parse_size(size: Size, name: str) -> int | tuple[int, int]:
    """Parse a length, or height and width.

    >>> parse_size("224", "resize"), parse_size("224x200", "crop"), parse_size((8, 9), "crop")
    (224, (224, 200), (8, 9))
    """
    numbers: list[Any]
    if isinstance(size, str):
        numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 7 else 0 for part in size.split("x")]
    else:
        numbers = list(size) if isinstance(size, Sequence) else [size]
    if len(numbers) not in (1, 2) or not all(type(n) is int and 0 < n <= MAX_SIDE for n in numbers):
        raise InputError(
            f"{name} is a length in pixels, or height and width",
            got=shown(size),
            do=f"write --{name} 224 or --{name} 224x200 ({name}=224 or {name}=(224, 200) in Python)",
        )
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def _resized(image: np.ndarray, size: int | tuple[int, int], name: str | Path) -> np.ndarray:
    """Resize by Pillow's bilinear filter: a triangle that reaches one pixel of the result to either side, so that every pixel
    contributes when an image shrinks (antialiasing); first along rows, then along columns, each time rounded to 0 to 255."""
    from PIL import Image

    height, width = image.shape[1:]
    if isinstance(size, int):  # as torchvision: the longer side is rounded down
        short, long = min(height, width), max(height, width)
        longer = max(1, int(size * long / short))
        size = (size, longer) if height <= width else (longer, size)
    if size[0] * size[1] > MAX_PIXELS:
        raise InputError(
            f"the image {name} becomes too large", got=f"{size[0]} x {size[1]}", do=f"keep to {MAX_PIXELS:,} pixels"
        )
    if size == (height, width):
        return image
    planes = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    result = np.asarray(Image.fromarray(planes).resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return result[None] if len(image) == 1 else result.transpose(2, 0, 1)


def _cropped(image: np.ndarray, size: tuple[int, int], name: str | Path) -> np.ndarray:
    """Return the center; where an odd number of lines is left over, torchvision's choice of the side that loses one more."""
    height, width = image.shape[1:]
    if size[0] > height or size[1] > width:
        raise InputError(
            f"the image {name} is smaller than the crop",
            got=f"height and width {height} x {width}, crop {size[0]} x {size[1]}",
            do="give a smaller crop, or --resize (resize= in Python) as well",
        )
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    return image[:, top : top + size[0], left : left + size[1]]
