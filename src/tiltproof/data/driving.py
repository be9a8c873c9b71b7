"""Road scenes and steering angles (Udacity's self-driving car data): frames of a drive in ``center/`` and a ``labels.csv``.

    filename,angle_rad,public,split
    1479425441182877835.jpg,-0.0169280299332,0,train

Files are 256 x 112, without the upper part of the camera image, named after their time in nanoseconds, and listed in order of time.
``angle_rad`` is the angle of the steering wheel, positive to the left. ``split`` is ``train``, ``test`` or ``gap``: frames between the
two, which belong to neither because they look like both.

Frames are resized to the paper's 66 x 200 pixels by Pillow's bilinear filter: a triangle that reaches one pixel of the *result* to
either side, so that every pixel of the frame contributes (antialiasing), first along rows, then along columns, each time rounded to
whole numbers 0 to 255. Images therefore stay unsigned bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.folder import LABELS_FILE, checked_name, read_rows, shown
from tiltproof.data.pixel_cache import PixelCache
from tiltproof.errors import InputError

FRAMES = "center"
COLUMNS = ("filename", "angle_rad", "split")
SPLITS = ("train", "test", "gap")
FRAME_SHAPE = (3, 112, 256)
HEIGHT, WIDTH = 66, 200
MAX_RADIANS = 4 * math.pi
"""Largest angle: two full turns of the steering wheel."""


@dataclass(frozen=True)
class Frame:
    """A row of the table of frames.

    Attributes
    ----------
    filename : str
        The image file.
    nanoseconds : int
        Time of the frame.
    angle_radians : float
        Steering angle, positive to the left.
    split : str
        ``train`` or ``test``.
    """

    filename: str
    nanoseconds: int
    angle_radians: float
    split: str


def read_driving(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Read pixels [N, 3, 66, 200] as unsigned bytes, and angles in radians, float32 [N], in order of time."""
    frames = read_frames(folder, split)
    about = "driving, Pillow's bilinear filter"
    cache = PixelCache(folder, f"driving-{split}", FRAME_SHAPE, about, resized, (3, HEIGHT, WIDTH))
    pixels = cache.pixels([f"{FRAMES}/{frame.filename}" for frame in frames])
    return pixels, torch.tensor([frame.angle_radians for frame in frames], dtype=torch.float32)


def read_frames(folder: Path, split: str | None = None) -> list[Frame]:
    """Read the table of frames of a split, or of all, in order of time.

    Where frames were left out, neighbors are more than the camera's 50 milliseconds apart.
    """
    path = folder / LABELS_FILE
    frames: list[Frame] = []
    for line, (name, angle, part) in read_rows(folder, COLUMNS):
        frame = _frame(path, line, name, angle, part)
        if frames and frame.nanoseconds <= frames[-1].nanoseconds:
            raise InputError(f"line {line} of {path}: the frames must be in order of time", got=frame.filename)
        frames.append(frame)
    chosen = [frame for frame in frames if split in (None, frame.split)]
    if not chosen:
        raise InputError(f"{path} lists no frames of the split {split}")
    return chosen


def resized(image: np.ndarray) -> np.ndarray:
    """Resize a frame [3, H, W] to 66 x 200 pixels."""
    from PIL import Image

    frame = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    return np.asarray(frame.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def _frame(path: Path, line: int, name: str | None, angle: str | None, split: str | None) -> Frame:
    filename = checked_name(path, line, name, angle)
    stem, _, ending = filename.partition(".")
    if ending != "jpg" or not (stem.isascii() and stem.isdigit() and len(stem) < 20):
        raise InputError(
            f"line {line} of {path}: a frame is named after its time in nanoseconds, such as 1479425441182877835.jpg",
            got=shown(filename),
        )
    try:
        radians = float(angle or "")
    except ValueError:
        radians = math.nan
    if not abs(radians) <= MAX_RADIANS:  # NaN fails every comparison
        raise InputError(f"line {line} of {path}: an angle is a number of radians", got=shown(angle))
    if split not in SPLITS:
        raise InputError(f"line {line} of {path}: a split is one of {', '.join(SPLITS)}", got=shown(split))
    return Frame(filename, int(stem), radians, split)
