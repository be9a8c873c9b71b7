"""What a folder of images holds, by its layout: a table, a folder per class, the German traffic signs, or images alone.

    labels.csv and images                   a table: filename,label or filename,target_0,target_1,... or filename alone (`folder`)
    00000/GT-00000.csv, 00000/*.ppm, ...    GTSRB's training images
    GT-final_test.csv and *.ppm             GTSRB's test images; the table may also lie next to ``Images``, as in the archives
    cat/*.png, dog/**/*.jpg                 a folder per class: class numbers are those of the names in sorted order, as in torchvision
    *.png                                   images without answers, by sorted names

Names that begin with a dot are ignored, and so are files in class folders that are not images by their ending. Links are followed to files
inside the folder, and to no other place.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tiltproof.data.folder import (
    LABELS_FILE,
    MAX_ROWS,
    checked_name,
    locate,
    no_answers,
    read_labels,
    read_table,
    shown,
    unlabelled,
    usable,
)
from tiltproof.errors import InputError

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
MAX_ENTRIES = 2_000_000
"""Most entries of all folders that are listed."""
MAX_CLASSES = 100_000
SIGN_CLASSES = 43
SIGN_COLUMNS = ("Filename", "ClassId")
SIGN_TEST, SIGN_TEST_IMAGES = "GT-final_test.csv", ("Images", "Final_Test/Images", "GTSRB/Final_Test/Images", "")
SIGN_TRAINING = ("Final_Training/Images", "GTSRB/Final_Training/Images", "Training", "GTSRB/Training", "")
"""Where the archives, and torchvision, put the images."""


@dataclass(frozen=True)
class Listing:
    """Images by their paths in the resolved folder ``base``, and their answers: classes [N], or targets [N] or [N, K]; K = 0: none."""

    base: Path
    names: list[str]
    labels: Tensor
    classes: tuple[str, ...] = ()
    """Names of the classes: the folders', if there is one for each."""


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn the operating system's errors, such as a missing permission or a loop of links, into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError("a folder of images cannot be read", got=f"{shown(str(folder))} ({error.strerror})") from None


def list_folder(path: str | Path, task: str) -> Listing:
    """List the images of a folder by its layout."""
    folder = Path(path)
    with _readable(folder):
        return _listing(folder, task)


def _listing(folder: Path, task: str) -> Listing:
    if not folder.is_dir():
        raise InputError(
            "not a folder of images", got=folder, do="give a folder that contains labels.csv and its images"
        )
    base = folder.resolve()
    if os.path.lexists(folder / LABELS_FILE):
        return Listing(base, *read_labels(folder, task))
    signs = traffic_signs(folder, "test") or _sign_classes(folder)
    if signs is not None:
        return signs
    folders, images = _entries(folder)
    if not folders and not images:
        raise _no_images(folder)
    if folders and images:
        raise InputError(
            f"the folder {folder} has no {LABELS_FILE}, and both images and folders",
            got=f"{shown(images[0])} and {shown(folders[0])}",
            do="put every image into the folder of its class, or write labels.csv with the columns filename,label",
        )
    if folders:
        return _classes(folder, folders, task)
    if task == "classification":
        raise unlabelled(folder, f"{len(images):,} images and no {LABELS_FILE}")
    return Listing(base, images, no_answers(len(images)))


def _no_images(folder: Path) -> InputError:
    return InputError(
        f"the folder has no {LABELS_FILE}, no images and no folder per class",
        got=folder,
        do="write labels.csv with the columns filename,label, or put the images into a folder per class",
    )


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the images in a folder."""
    folders, images = [], []
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count == MAX_ENTRIES:
                raise InputError(f"{folder} has too many files", got=f"more than {MAX_ENTRIES:,}")
            if entry.name.startswith("."):
                continue
            if Path(folder, entry.name).is_dir():  # of a loop of links, entry.is_dir() raises
                folders.append(entry.name)
            elif entry.name.lower().endswith(IMAGE_ENDINGS):
                images.append(entry.name)
            if len(folders) > MAX_CLASSES or len(images) > MAX_ROWS:
                raise _too_many(folder)
    for name in folders + images:
        _check_name(folder, name)
    return sorted(folders), sorted(images)


def _too_many(folder: Path) -> InputError:
    return InputError(f"{folder} holds too many images", got=f"more than {MAX_ROWS:,}", do="list some in labels.csv")


def _check_name(folder: Path, name: str) -> None:
    if not usable(name):
        raise InputError(f"a name in {folder} cannot be used", got=shown(name), do="rename it")


def _classes(folder: Path, names: list[str], task: str) -> Listing:
    """List a folder per class: class numbers in sorted order of the names, and in each the images in sorted order of their paths."""
    inside = next((name for name in names if os.path.lexists(folder / name / LABELS_FILE)), None)
    if inside is not None:
        raise InputError(
            f"the folder has no {LABELS_FILE}, but a folder in it has", got=folder, do=f"give {folder / inside}"
        )
    if {name.lower() for name in names} <= SPLITS:
        raise InputError(
            f"{folder} has no classes",
            got=f"the splits {', '.join(names)}",
            do=f"give one of them: {folder / names[0]}",
        )
    if task == "regression":
        raise InputError(
            "a folder per class has no target values",
            got=folder,
            do="write labels.csv with the columns filename,target_0, or filename alone; or leave out --task regression",
        )
    if all(name.isascii() and name.isdigit() for name in names) and sorted(names, key=int) != names:
        k = next(k for k, name in enumerate(sorted(names, key=int)) if name != names[k])
        warnings.warn(
            f"class numbers follow the sorted names of the folders, as in torchvision: class {k} is the folder {names[k]}",
            stacklevel=2,
        )
    base, seen = folder.resolve(), 0
    listed: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        locate(base, name)
        inner: list[tuple[str, str]] = []
        for where, folders, files in os.walk(folder / name, onerror=_refuse):
            seen += len(folders) + len(files)
            if seen > MAX_ENTRIES:
                raise InputError(f"{folder} has too many files", got=f"more than {MAX_ENTRIES:,}")
            folders[:] = [each for each in folders if not each.startswith(".")]
            for each in folders:
                if Path(where, each).is_symlink():
                    raise InputError(
                        "links to folders inside a class are not followed", got=shown(str(Path(where, each)))
                    )
            place = Path(where).relative_to(folder).as_posix()
            pictures = [each for each in files if each.lower().endswith(IMAGE_ENDINGS) and not each.startswith(".")]
            inner += [(place, each) for each in pictures]
            if len(listed) + len(inner) > MAX_ROWS:
                raise _too_many(folder)
        if not inner:
            raise InputError(
                f"the folder of the class {shown(name)} has no images",
                got=shown(str(folder / name)),
                do=f"give images ({', '.join(IMAGE_ENDINGS)}), or remove the folder",
            )
        for place, each in sorted(inner):
            _check_name(folder, f"{place}/{each}")
            listed.append(f"{place}/{each}")
        labels += [label] * len(inner)
    return Listing(base, listed, torch.tensor(labels, dtype=torch.int64), tuple(names))


def _refuse(error: OSError) -> None:
    raise error


def traffic_signs(root: Path, split: str) -> Listing | None:
    """List the images of the German traffic sign benchmark (GTSRB) under a folder, or return None if it has another layout."""
    with _readable(root):
        return _traffic_signs(root, split)


def _traffic_signs(root: Path, split: str) -> Listing | None:
    if split == "train":
        found = (_sign_classes(root / place) for place in SIGN_TRAINING)
        return next((listing for listing in found if listing is not None), None)
    for place in SIGN_TEST_IMAGES:
        images = root / place
        tables = [root / table / SIGN_TEST for table in dict.fromkeys((place, *map(str, Path(place).parents)))]
        table = next((path for path in tables if path.is_file()), None)
        if table is not None and images.is_dir():
            return _signs(images, [(table, "")])
    return None


def _sign_classes(folder: Path) -> Listing | None:
    """List GTSRB's training images, or return None if a folder has no class with its table."""
    names = [f"{number:05}" for number in range(SIGN_CLASSES)]
    tables = [(folder / name / f"GT-{name}.csv", name) for name in names]
    found = [(path, name) for path, name in tables if path.is_file()]
    return _signs(folder, found) if found else None


def _signs(folder: Path, tables: list[tuple[Path, str]]) -> Listing:
    """List the images of these tables in sorted order; ``tables``: with the folder, named after the class, in which the images are."""
    listed: list[tuple[str, int]] = []
    for path, inside in tables:
        for line, (name, number) in read_table(path, SIGN_COLUMNS, ";"):
            file, text = checked_name(path, line, name, number), (number or "").strip()
            right = text.isascii() and text.isdigit() and len(text) < 4 and int(text) < SIGN_CLASSES
            if not right or (inside and int(text) != int(inside)):
                wanted = f"{int(inside)}, as the folder" if inside else f"a number from 0 to {SIGN_CLASSES - 1}"
                raise InputError(f"line {line} of {path}: ClassId must be {wanted}", got=shown(number))
            listed.append((f"{inside}/{file}" if inside else file, int(text)))
        if len(listed) > MAX_ROWS:
            raise _too_many(folder)
    listed.sort()
    return Listing(folder.resolve(), [name for name, _ in listed], torch.tensor([label for _, label in listed]))
