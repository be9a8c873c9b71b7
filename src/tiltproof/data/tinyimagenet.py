"""Tiny ImageNet in its original folders: 64 x 64 JPEG pictures of 200 classes, named by WordNet numbers such as n01443537.

    wnids.txt                          the class names, one a line
    train/n01443537/images/*.JPEG      training pictures, a folder a class
    val/images/*.JPEG                  validation pictures
    val/val_annotations.txt            file name, tab, class name, tab, a box that is not used

A label is the position of the class name in sorted order. The labels of the set's own test pictures were never published: the
validation pictures stand in for them, as everywhere in the literature.
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
"""The paper's: random crops of this size in training, the middle one at test time."""
MOST_TEXT_BYTES = 2**22
CLASS_NAME = re.compile(r"n\d{8}")
FILE_NAME = re.compile(r"\w[\w.-]{0,100}\.JPEG", re.ASCII)


def read_tinyimagenet(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Pixels as unsigned bytes and labels: all of the training pictures, or the middle of the validation pictures."""
    classes = read_classes(folder)
    listed = training_pictures(folder, classes) if split == "train" else validation_pictures(folder, classes)
    cache = PixelCache(folder, f"tinyimagenet-{split}", (3, SIZE, SIZE), "Tiny ImageNet")
    pixels = cache.pixels([name for name, _ in listed])
    labels = torch.tensor([label for _, label in listed], dtype=torch.int64)
    return pixels if split == "train" else center_crop(pixels, TEST_CROP).contiguous(), labels


def read_classes(folder: Path) -> list[str]:
    """The class names in sorted order."""
    names = sorted(_lines(folder / CLASSES_FILE))
    for name in names:
        if not CLASS_NAME.fullmatch(name):
            raise InputError(f"{folder / CLASSES_FILE} holds something else than names of classes", got=shown(name))
    if not names or len(set(names)) < len(names):
        raise InputError(f"{folder / CLASSES_FILE} must name each class once", got=f"{len(names)} names")
    return names


def training_pictures(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """Path below the folder and label, class by class, in the order of the pictures' numbers."""
    listed = []
    for label, name in enumerate(classes):
        inside = f"train/{name}/images"
        try:
            files = [path.name for path in (folder / inside).iterdir() if path.suffix == ".JPEG"]
        except OSError as error:
            raise InputError(
                f"the training pictures of the class {name} cannot be read",
                got=f"{folder / inside} ({error.strerror})",
                why="the archive was not unpacked as a whole",
            ) from None
        if not files:
            raise InputError(f"the class {name} has no training pictures", got=folder / inside)
        # n01443537_9.JPEG before n01443537_10.JPEG: all names of a class differ in the number alone
        listed += [(f"{inside}/{file}", label) for file in sorted(files, key=lambda file: (len(file), file))]
    return listed


def validation_pictures(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """Path below the folder and label, in the order of the annotations."""
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
        raise InputError(f"{folder / ANNOTATIONS} lists no pictures")
    return [(f"val/images/{file}", label) for file, label in found.items()]


def _lines(path: Path) -> list[str]:
    """The lines of a text that are not empty."""
    content = read_with(path, lambda read: read(MOST_TEXT_BYTES + 1))
    if len(content) > MOST_TEXT_BYTES:
        raise InputError(f"{path} is too large", do=f"keep to {MOST_TEXT_BYTES:,} bytes")
    try:
        return [line for line in content.decode("utf-8").splitlines() if line]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text", got=f"byte {error.start}") from None
