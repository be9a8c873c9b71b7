"""A folder of the user's own images with a ``labels.csv`` (columns ``filename`` and ``label``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.image_file import read_image
from tiltproof.data.labels_table import locate, read_labels
from tiltproof.errors import InputError

MOST_VALUES = 2**30
"""All images together, as numbers: 4 GiB in float32."""


def load_folder(path: str | Path) -> tuple[Tensor, Tensor]:
    """Images [N, C, H, W] in [0, 1] and labels [N], in the order of the rows of ``labels.csv``."""
    pixels, labels = read_folder(path)
    return pixels.to(torch.float32).div_(255), labels


def read_folder(path: str | Path) -> tuple[Tensor, Tensor]:
    """The same with pixels as they are in the files, 0 to 255."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError("not a folder of images", got=folder, do="give a folder that holds labels.csv and its images")
    rows = read_labels(folder)
    base = folder.resolve()
    first = read_image(locate(base, rows[0][0]))
    if first.size * len(rows) > MOST_VALUES:
        raise InputError(
            "the images of the folder do not fit into memory together",
            got=f"{len(rows):,} images of {_size(first)}",
            do="list fewer of them in labels.csv",
        )
    images = np.empty((len(rows), *first.shape), np.uint8)
    for k, (name, _) in enumerate(rows):
        image = first if k == 0 else read_image(locate(base, name))
        if image.shape != first.shape:
            raise InputError(
                "the images of a folder must all have one size and mode",
                got=f"{name} is {_size(image)}, {rows[0][0]} is {_size(first)}",
                do="resize or convert them first",
            )
        images[k] = image
    labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
    return torch.from_numpy(images), labels


def _size(image: np.ndarray) -> str:
    channels, height, width = image.shape
    return f"{width} x {height} {'grey' if channels == 1 else 'RGB'}"
