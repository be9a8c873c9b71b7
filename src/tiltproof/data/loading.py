"""Load a data set by its name, or a folder of images, as tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.binary_sets import read_cifar_binary, read_idx
from tiltproof.data.compressed import find
from tiltproof.data.download import fetch_cifar10, fetch_mnist
from tiltproof.data.driving import Frame, read_driving, read_frames
from tiltproof.data.folder import LABELS_FILE, read_folder
from tiltproof.data.tinyimagenet import CLASSES_FILE, FOLDER, read_tinyimagenet
from tiltproof.errors import InputError

SAMPLE_ROOT = Path(__file__).parent / "sample"
DATA_NAMES = ("mnist", "cifar10", "tinyimagenet", "driving", "mnist-sample", "cifar10-sample")
SIGNED_LABELS = ("driving",)
"""Data sets whose labels change their sign when an image is flipped, as steering angles do."""
ROOT_VARIABLE = "TILTPROOF_DATA"


def load(name: str | Path, root: str | Path | None = None, split: str = "test") -> tuple[Tensor, Tensor]:
    """Load a data set or a folder of images.

    Parameters
    ----------
    name : str or Path
        ``mnist``, ``cifar10``, ``tinyimagenet``, ``driving``, ``mnist-sample`` or ``cifar10-sample`` (the first 100 test images,
        bundled), or the path of a folder of images with a ``labels.csv``.
    root : str or Path, optional
        The folder that contains ``mnist/``, ``cifar10/`` and so on, or that folder itself; by default ``$TILTPROOF_DATA``. Without
        either, ``mnist`` and ``cifar10`` are downloaded into a cache folder.
    split : {"test", "train"}
        The part of the data set. Test images of ``tinyimagenet`` are the center 56 x 56 pixels of the validation set; its training
        images are whole, 64 x 64, and take 4 GB. Images of ``driving`` are 66 x 200, in order of time.

    Returns
    -------
    images : Tensor
        Images [N, C, H, W] in [0, 1], float32.
    labels : Tensor
        Classes [N], int64; of ``driving`` steering angles in radians, positive to the left, float32.

    Raises
    ------
    InputError
        If the data is unknown, missing or damaged, or cannot be downloaded.

    Examples
    --------
    >>> images, labels = load("mnist-sample")
    >>> images.shape, labels[:8].tolist()
    (torch.Size([100, 1, 28, 28]), [7, 2, 1, 0, 4, 1, 4, 9])
    """
    pixels, labels = load_pixels(name, root, split)
    return pixels.to(torch.float32).div_(255), labels


def load_pixels(name: str | Path, root: str | Path | None = None, split: str = "test") -> tuple[Tensor, Tensor]:
    """Load a data set as `load` does, with pixels as unsigned bytes, which take a quarter of the memory.

    Parameters
    ----------
    name, root, split
        As in `load`.

    Returns
    -------
    pixels : Tensor
        Images [N, C, H, W], uint8.
    labels : Tensor
        As in `load`.

    Raises
    ------
    InputError
        If the data is unknown, missing or damaged, or cannot be downloaded.
    """
    if split not in ("test", "train"):
        raise InputError("unknown split", got=repr(split), do="use 'test' or 'train'")
    if name not in DATA_NAMES:
        return _user_folder(name, split)
    base, _, bundled = str(name).partition("-")
    if bundled and split == "train":
        raise InputError("the bundled sample contains test images only", got="split 'train'", do=f"load {base!r}")
    if base in IMAGE_SETS:
        return IMAGE_SETS[base](image_folder(base, root), split)
    read, fetch = READERS[base]
    files = FILES[base, split]
    folder = _folder(base, SAMPLE_ROOT if bundled else root, files[0], fetch)
    images, labels = read([_existing(folder, file) for file in files])
    return torch.from_numpy(images), torch.from_numpy(labels).to(torch.int64)


def load_frames(root: str | Path | None = None, split: str = "test") -> list[Frame]:
    """Return the table of the frames of ``driving``, in the order of the images of `load`.

    Parameters
    ----------
    root, split
        As in `load`.

    Returns
    -------
    list of Frame
        Names, times and steering angles.

    Raises
    ------
    InputError
        If the data is missing or damaged.
    """
    return read_frames(image_folder("driving", root), split)


def _user_folder(name: str | Path, split: str) -> tuple[Tensor, Tensor]:
    if not Path(name).is_dir():
        raise InputError(
            "neither a known data set nor a folder",
            got=str(name),
            do=f"use one of {', '.join(DATA_NAMES)}, or the path of a folder with a labels.csv",
        )
    if split != "test":
        raise InputError("a folder of images has no splits", got=f"split {split!r}", do="leave the split out")
    return read_folder(name)


def _root(root: str | Path | None) -> Path | None:
    chosen = root or os.environ.get(ROOT_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def _folder(name: str, given: str | Path | None, first_file: str, fetch: Callable[[], Path]) -> Path:
    """Return the folder of the files: ``root/name``, or ``root`` itself."""
    root = _root(given)
    if root is None:
        return fetch()
    for folder in (root / name, root):
        if find(folder, first_file):
            return folder
    raise InputError(
        f"{name} is not in the data folder",
        got=root if root.is_dir() else f"{root}, which is not a folder",
        do=f"put {first_file} (plain, .gz or .xz) and the other files of the set into {root / name}",
    )


def image_folder(name: str, given: str | Path | None) -> Path:
    """Return the folder of a data set of single image files, which is never downloaded."""
    root, (inside, first_file) = _root(given), LAYOUTS[name]
    if root is None:
        raise InputError(
            f"{name} is not downloaded automatically",
            got="no data folder",
            do=f"give --data-root (root= in Python) or set ${ROOT_VARIABLE} to a folder that contains "
            f"{Path(name, inside, first_file)} and its images",
        )
    for folder in (root / name / inside, root / inside, root):
        if (folder / first_file).is_file():
            return folder
    raise InputError(
        f"{name} is not in the data folder",
        got=root if root.is_dir() else f"{root}, which is not a folder",
        do=f"put {first_file} and its images into {root / name / inside}",
    )


def _existing(folder: Path, name: str) -> Path:
    path = find(folder, name)
    if path is None:
        raise InputError("a data file is missing", got=folder / name, do="fetch it (plain, .gz or .xz)")
    return path


def _read_mnist(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if len(images) != len(labels):
        raise InputError(
            f"the image file and the label file in {paths[0].parent} do not match",
            got=f"{len(images):,} images and {len(labels):,} labels",
        )
    return images[:, None].copy(), labels.copy()


def _read_cifar10(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*map(read_cifar_binary, paths), strict=True)
    return np.concatenate(images), np.concatenate(labels)


READERS = {"mnist": (_read_mnist, fetch_mnist), "cifar10": (_read_cifar10, fetch_cifar10)}
FILES = {
    ("mnist", "test"): ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    ("mnist", "train"): ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"],
    ("cifar10", "test"): ["test_batch.bin"],
    ("cifar10", "train"): [f"data_batch_{k}.bin" for k in range(1, 6)],
}
IMAGE_SETS = {"tinyimagenet": read_tinyimagenet, "driving": read_driving}
LAYOUTS = {"tinyimagenet": (FOLDER, CLASSES_FILE), "driving": ("", LABELS_FILE)}
"""For data sets of single image files: their inner folder, and a file that is always there."""
