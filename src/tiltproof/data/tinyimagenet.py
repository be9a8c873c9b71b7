"""Tiny ImageNet in its original folders: 64 x 64 JPEG images of 200 classes, named by WordNet numbers such as n01443537.

    wnids.txt                          the class names, one per line
    train/n01443537/images/*.JPEG      training images, one folder per class
    val/images/*.JPEG                  validation images
    val/val_annotations.txt            file name, tab, class name, tab, a box that is not used

A label is the position of the class name in sorted order. The labels of the original test images were never published; as usual in
the literature, the validation images serve as test images.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from tiltproof.data.compressed import read_with
from tiltproof.data.image_file import center_crop
from tiltproof.data.pixel_cache import PixelCache
from tiltproof.errors import InputError, shown

FOLDER = "tiny-imagenet-200"
CLASSES_FILE = "wnids.txt"
ANNOTATIONS = "val/val_annotations.txt"
SIZE = 64
TEST_CROP = 56
"""Size of random crops in training and of center crops at test time, as in the paper."""
MAX_TEXT_BYTES = 2**22
"""Size limit of the text files."""
CLASS_NAME = re.compile(r"n\d{8}")
FILE_NAME = re.compile(r"\w[\w.-]{0,100}\.JPEG", re.ASCII)


def read_tinyimagenet(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Read pixels as unsigned bytes, and labels: whole training images, or center crops of validation images."""
    classes = read_classes(folder)
    listed = training_images(folder, classes) if split == "train" else validation_images(folder, classes)
    cache = PixelCache(folder, f"tinyimagenet-{split}", (3, SIZE, SIZE), "Tiny ImageNet")
    pixels = cache.pixels([name for name, _ in listed])
    labels = torch.tensor([label for _, label in listed], dtype=torch.int64)
    return pixels if split == "train" else center_crop(pixels, TEST_CROP).contiguous(), labels


def read_classes(folder: Path) -> list[str]:
    """Return the class names in sorted order."""
    names = sorted(_lines(folder / CLASSES_FILE))
    for name in names:
        if not CLASS_NAME.fullmatch(name):
            raise InputError(f"{folder / CLASSES_FILE} contains something other than class names", got=shown(name))
    if not names or len(set(names)) < len(names):
        raise InputError(f"{folder / CLASSES_FILE} must name each class once", got=f"{len(names)} names")
    return names


def training_images(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """Return path in the folder and label, class by class, in order of the images' numbers."""
    listed = []
    for label, name in enumerate(classes):
        inside = f"train/{name}/images"
        try:
            files = [path.name for path in (folder / inside).iterdir() if path.suffix == ".JPEG"]
        except OSError as error:
            raise InputError(
                f"the training images of the class {name} cannot be read",
                got=f"{folder / inside} ({error.strerror})",
                why="the archive was not unpacked completely",
            ) from None
        if not files:
            raise InputError(f"the class {name} has no training images", got=folder / inside)
        # n01443537_9.JPEG before n01443537_10.JPEG: names of a class differ only in the number
        listed += [(f"{inside}/{file}", label) for file in sorted(files, key=lambda file: (len(file), file))]
    return listed


def validation_images(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """Return path in the folder and label, in order of the annotations."""
    labels = {name: label for label, name in enumerate(classes)}
    found: dict[str, int] = {}
    for number, line in enumerate(_lines(folder / ANNOTATIONS), 1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if not FILE_NAME.fullmatch(file) or name not in labels or file in found:
            raise InputError(
                f"line {number} of {folder / ANNOTATIONS} must be a file name, a tab and a class of {CLASSES_FILE}, each file once",
                got=shown(line),
            )
        found[file] = labels[name]
    if not found:
        raise InputError(f"{folder / ANNOTATIONS} lists no images")
    return [(f"val/images/{file}", label) for file, label in found.items()]


def _lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file."""
    content = read_with(path, lambda read: read(MAX_TEXT_BYTES + 1))
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"{path} is too large", do=f"keep to {MAX_TEXT_BYTES:,} bytes")
    try:
        return [line for line in content.decode("utf-8").splitlines() if line]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text", got=f"byte {error.start}") from None
