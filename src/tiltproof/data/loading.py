"""Open a data set by its name, or a folder of images, and load it, or some of its images, as tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.binary_sets import read_cifar_binary, read_idx
from tiltproof.data.compressed import find
from tiltproof.data.download import fetch_cifar10, fetch_mnist
from tiltproof.data.driving import Frame, read_driving, read_frames
from tiltproof.data.folder import LABELS_FILE, TASKS, read_images
from tiltproof.data.layouts import SIGN_TEST, Listing, list_folder, traffic_signs
from tiltproof.data.preparation import Preparation, Size
from tiltproof.data.tinyimagenet import CLASSES_FILE, FOLDER, read_tinyimagenet
from tiltproof.errors import InputError
from tiltproof.names import DATA_NAMES

SAMPLE_ROOT = Path(__file__).parent / "sample"
CLASS_NAMES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
ROOT_VARIABLE = "TILTPROOF_DATA"


@dataclass(frozen=True)
class Source:
    """An opened data set: all its ``labels``, and a function that reads images by their numbers as unsigned bytes [N, C, H, W]."""

    labels: Tensor
    pixels: Callable[[Sequence[int]], Tensor]
    names: Sequence[str] = ()
    """The names of the classes, if the data have any."""

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, numbers: Sequence[int]) -> Tensor:
        """Return images in [0, 1], float32."""
        return self.pixels(numbers).to(torch.float32).div_(255)

    def read(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return these images, and their labels."""
        part = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else torch.tensor(numbers)
        return self.images(numbers), self.labels[part]


def load(
    name: str | Path,
    root: str | Path | None = None,
    split: str = "test",
    *,
    task: str = "classification",
    resize: Size | None = None,
    crop: Size | None = None,
    rgb: bool = False,
    start: int = 0,
    limit: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Load a data set or a folder of images.

    Parameters
    ----------
    name : str or Path
        ``mnist``, ``cifar10``, ``tinyimagenet``, ``driving`` or ``gtsrb``; bundled, ``mnist-sample`` or ``cifar10-sample`` (the first
        100 test images) or ``driving-sample`` (24 frames from all over the test drive); or the path of a folder of images with a
        ``labels.csv``, with a folder per class, or without answers.
    root : str or Path, optional
        The folder that contains ``mnist/``, ``cifar10/`` and so on, or that folder itself; by default ``$TILTPROOF_DATA``. Without
        either, ``mnist`` and ``cifar10`` are downloaded into a cache folder.
    split : {"test", "train"}
        The part of the data set. Test images of ``tinyimagenet`` are the center 56 x 56 pixels of the validation set; its training
        images are whole, 64 x 64, and take 4 GB. Images of ``driving`` are 66 x 200, in order of time.
    task : {"classification", "regression", "any"}
        Of a folder: class numbers; target values, if there are any; or class numbers, if there are any.
    resize : int, str or (int, int), optional
        The length of the shorter side, or height and width, by Pillow's bilinear filter with antialiasing, as torchvision's ``Resize``.
    crop : int, str or (int, int), optional
        Height and width of the center that is kept, as torchvision's ``CenterCrop``.
    rgb : bool
        Give gray images three equal channels.
    start : int
        The number of the first image.
    limit : int, optional
        At most this many images; the others of a folder are not read.

    Returns
    -------
    images : Tensor
        Images [N, C, H, W] in [0, 1], float32.
    labels : Tensor
        Classes [N], int64; target values [N] or [N, K], float64, with K = 0 if there are none; of ``driving`` steering angles in
        radians, positive to the left, float32.

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
    source = open_data(name, root, split, task=task, resize=resize, crop=crop, rgb=rgb)
    return source.read(selected(str(name), len(source), start, None, limit))


def load_folder(path: str | Path) -> tuple[Tensor, Tensor]:
    """Load a folder of images with class numbers.

    Parameters
    ----------
    path : str or Path
        A folder with ``labels.csv`` and images of one size and mode, 8-bit gray or RGB, or with a folder per class.

    Returns
    -------
    images, labels : Tensor
        Images [N, C, H, W] in [0, 1] and labels [N], in the order of the rows, or of the sorted paths.

    Raises
    ------
    InputError
        If the table or an image cannot be used.
    """
    source = _source(list_folder(path, "classification"), Preparation())
    return source.read(range(len(source)))


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
    source = open_data(name, root, split)
    return source.pixels(range(len(source))), source.labels


def selected(name: str, count: int, start: int = 0, end: int | None = None, limit: int | None = None) -> range:
    """Return the numbers of the images from ``start`` to before ``end``, or at most ``limit``."""
    if end is not None and limit is not None:
        raise InputError(
            "--end and --limit say the same thing twice", got=f"--end {end} --limit {limit}", do="give one"
        )
    if limit is not None:
        if limit < 1:
            raise InputError("--limit must be at least 1", got=limit)
        end = min(start + limit, count)
    end = count if end is None else end
    if not 0 <= start < end <= count:
        raise InputError(
            f"{name} has images 0 to {count - 1}",
            got=f"--start {start} and --end {end}",
            do=f"choose 0 <= start < end <= {count}",
        )
    return range(start, end)


def open_data(
    name: str | Path,
    root: str | Path | None = None,
    split: str = "test",
    *,
    task: str = "classification",
    resize: Size | None = None,
    crop: Size | None = None,
    rgb: bool = False,
) -> Source:
    """Open a data set as `load` does; the images of a folder are read when they are asked for."""
    preparation = Preparation.parse(resize, crop, rgb)
    if task not in TASKS:
        raise InputError("unknown task", got=repr(task), do=f"use one of {', '.join(TASKS)}")
    if split not in ("test", "train"):
        raise InputError("unknown split", got=repr(split), do="use 'test' or 'train'")
    if name not in DATA_NAMES:
        return _source(_user_folder(name, split, task), preparation)
    base, _, bundled = str(name).partition("-")
    if bundled and split == "train":
        raise InputError("the bundled sample contains test images only", got="split 'train'", do=f"load {base!r}")
    if base == "gtsrb":
        return _source(_traffic_signs(root, split), preparation)
    if base in IMAGE_SETS:
        pixels, labels = IMAGE_SETS[base](image_folder(base, SAMPLE_ROOT if bundled else root), split)
    else:
        read, fetch = READERS[base]
        files = FILES[base, split]
        folder = _folder(base, SAMPLE_ROOT if bundled else root, files[0], fetch)
        arrays = read([_existing(folder, file) for file in files])
        pixels, labels = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).to(torch.int64)

    def in_memory(numbers: Sequence[int]) -> Tensor:
        part = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else torch.tensor(numbers)
        if not preparation:
            return pixels[part]
        prepared = [
            preparation.apply(image, f"{k} of {name}") for k, image in zip(numbers, pixels[part].numpy(), strict=True)
        ]
        return torch.from_numpy(np.stack(prepared))

    return Source(labels, in_memory, CLASS_NAMES.get(base, ()))


def _source(listing: Listing, preparation: Preparation) -> Source:
    """Return the source of a folder's images."""
    names = listing.names
    return Source(
        listing.labels,
        lambda numbers: read_images(listing.base, [names[k] for k in numbers], preparation),
        listing.classes,
    )


def _traffic_signs(given: str | Path | None, split: str) -> Listing:
    root = _root(given)
    for folder in () if root is None else (root / "gtsrb", root / "GTSRB", root):
        listing = traffic_signs(folder, split)
        if listing is not None:
            return listing
    what = f"GTSRB_Final_Test_Images.zip and its classes, {SIGN_TEST} of GTSRB_Final_Test_GT.zip,"
    raise InputError(
        "gtsrb is not in the data folder" if root else "gtsrb is not downloaded automatically",
        got=root or "no data folder",
        why=f"no {SIGN_TEST}" if split == "test" else "no class folder with its table, such as 00000/GT-00000.csv",
        do=f"unpack {what if split == 'test' else 'GTSRB_Final_Training_Images.zip'} into DIR/gtsrb, and give --data-root DIR "
        f"(root= in Python) or set ${ROOT_VARIABLE}",
    )


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


def _user_folder(name: str | Path, split: str, task: str) -> Listing:
    if not Path(name).is_dir():
        raise InputError(
            "neither a known data set nor a folder",
            got=str(name),
            do=f"use one of {', '.join(DATA_NAMES)}, or the path of a folder with a labels.csv or a folder per class",
        )
    if split != "test":
        raise InputError("a folder of images has no splits", got=f"split {split!r}", do="leave the split out")
    return list_folder(name, task)


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
