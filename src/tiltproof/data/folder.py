"""Tables of images in a folder, which may be untrusted: ``labels.csv`` with a class number, target values or neither for each image."""

from __future__ import annotations

import csv
import math
import re
import reprlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.image_file import read_image
from tiltproof.data.preparation import Preparation
from tiltproof.errors import InputError

LABELS_FILE = "labels.csv"
TASKS = ("classification", "regression", "any")
"""What images are loaded for: with class numbers, with target values if there are any, or with class numbers if there are any."""
TARGET = re.compile(r"target_(\d{1,4})", re.ASCII)
DECIMAL = re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})([eE][+-]?\d{1,3})?", re.ASCII)
MAX_BYTES = 2**25
"""Size limit of labels.csv."""
MAX_ROWS = 250_000
MAX_COLUMNS = 100
MAX_LETTERS = 1000
"""Longest file name; no file system allows more."""
MAX_VALUES = 2**30
"""Limit of the pixel values of all images: 4 GiB in float32."""
_shortened = reprlib.Repr()
_shortened.maxstring = 100


def read_labels(folder: Path, task: str) -> tuple[list[str], Tensor]:
    """Return the file name of each row, in order, and the answers: class numbers [N], target values [N] or [N, K], or none [N, 0]."""
    path = folder / LABELS_FILE
    chosen: list[str] = []

    def columns(heading: list[str]) -> tuple[str, ...]:
        chosen.extend(_answer_columns(path, heading, task))
        return ("filename", *chosen)

    rows = read_rows(folder, columns)
    if task == "any" and chosen and not all(_is_class(label) for _, (_, label) in rows):
        chosen.clear()
    names = [checked_name(path, line, fields[0], *fields[1 : 1 + len(chosen)]) for line, fields in rows]
    if not chosen:
        return names, no_answers(len(rows))
    if task != "regression":
        return names, torch.tensor([_class_number(path, line, label) for line, (_, label) in rows], dtype=torch.int64)
    values = [[_number(path, line, field) for field in fields[1:]] for line, fields in rows]
    targets = torch.tensor(values, dtype=torch.float64)
    return names, targets[:, 0] if chosen == ["label"] else targets


def no_answers(count: int) -> Tensor:
    """Return target values [N, 0], which stand for none."""
    return torch.empty(count, 0, dtype=torch.float64)


def _answer_columns(path: Path, heading: list[str], task: str) -> list[str]:
    """Return the columns of the answers that this task needs."""
    numbers = sorted(int(match[1]) for name in heading if (match := TARGET.fullmatch(name)))
    if task == "regression" and numbers:
        if numbers != list(range(len(numbers))):
            raise InputError(
                f"the columns of targets in {path} must count from 0 without a gap",
                got=", ".join(f"target_{number}" for number in numbers[:10]),
                do="name them target_0,target_1,...",
            )
        return [f"target_{number}" for number in numbers]
    if "label" in heading:
        return ["label"]
    if "filename" not in heading or task == "classification":
        if "filename" in heading and (numbers or len(heading) == 1):
            raise unlabelled(path, "target values" if numbers else "file names only")
        return ["label"]
    return []


def unlabelled(where: Path, got: str) -> InputError:
    """Return the error for images whose classes are not known."""
    return InputError(
        f"the images in {where} have no class numbers",
        got=got,
        why="data without labels, or a regression",
        do="write labels.csv with the columns filename,label, or put the images into a folder per class; for a network whose "
        "outputs are numbers, give --task regression (task='regression' in Python)",
    )


Columns = tuple[str, ...] | Callable[[list[str]], tuple[str, ...]]
"""Columns to read, or a function that chooses them by the first line."""


def read_rows(folder: Path, columns: Columns) -> list[tuple[int, list[str | None]]]:
    """Return each row's line number and fields in these columns of labels.csv; None if the row is too short."""
    return read_table(folder / LABELS_FILE, columns)


def read_table(path: Path, columns: Columns, delimiter: str = ",") -> list[tuple[int, list[str | None]]]:
    """Return the same of another table."""
    try:
        _check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as stream:
            table = csv.reader(stream, strict=True, delimiter=delimiter)
            heading = next(table, [])
            if len(heading) > MAX_COLUMNS:
                raise InputError(
                    f"{path} has too many columns", got=f"{len(heading):,}", do="keep those that are needed"
                )
            needed = columns(heading) if callable(columns) else columns
            positions = _positions(path, heading, needed, delimiter)
            rows: list[tuple[int, list[str | None]]] = []
            for fields in table:
                if not fields:  # an empty line
                    continue
                if len(rows) == MAX_ROWS:
                    raise InputError(f"{path} lists too many images", got=f"more than {MAX_ROWS:,} rows")
                rows.append((table.line_num, [fields[k] if k < len(fields) else None for k in positions]))
    except FileNotFoundError:
        raise InputError(
            f"the folder has no {path.name}", got=path.parent, do="write one with the columns filename,label"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV text in UTF-8", got=error) from None
    if not rows:
        raise InputError(f"{path} lists no images", got="a header and no rows")
    return rows


def locate(base: Path, name: str) -> Path:
    """Return the file that a row names; no dots, absolute path or link may lead out of the resolved folder."""
    try:
        path = (base / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links
        raise InputError(f"a file that {LABELS_FILE} lists cannot be found", got=f"{name} ({error})") from None
    if not path.is_relative_to(base):
        raise InputError(f"{base / LABELS_FILE} points outside the folder", got=name)
    return path


def shown(text: str | None) -> str:
    """Format a text of the table for a message: unchanged if it is short and printable, else quoted and shortened.

    >>> shown("cat"), shown("a\\x1b[2J")
    ('cat', "'a\\\\x1b[2J'")
    """
    text = text or ""
    return text if len(text) <= _shortened.maxstring and text.isprintable() else _shortened.repr(text)


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    if not path.is_file():  # reading a pipe could block, and /dev/zero would not end
        raise InputError(f"{path} is not a regular file")
    if size > MAX_BYTES:
        raise InputError(f"{path} is too large", got=f"{size:,} bytes", do=f"keep to {MAX_BYTES:,} bytes")


def _positions(path: Path, heading: list[str], columns: tuple[str, ...], delimiter: str) -> list[int]:
    missing = sorted(set(columns) - set(heading))
    if missing:
        raise InputError(
            f"{path} lacks the column {' and '.join(missing)}",
            got=f"the first line {shown(delimiter.join(heading)) or '(empty)'!r}",
            do=f"make the first line: {delimiter.join(columns)}",
        )
    return [heading.index(column) for column in columns]


def checked_name(path: Path, line: int, name: str | None, *answers: str | None) -> str:
    """Return the file name of a row that has all answers."""
    if not name or None in answers:
        got = ",".join(shown(field) for field in (name, *answers))
        raise InputError(
            f"line {line} of {path} needs a filename and {'a label' if answers else 'nothing else'}", got=got
        )
    if not usable(name):
        raise InputError(f"line {line} of {path} contains an invalid filename", got=shown(name))
    return name


def usable(name: str) -> bool:
    """Whether a file name can be shown, and stored as text."""
    return len(name) <= MAX_LETTERS and name.isprintable()


def _is_class(label: str | None) -> bool:
    text = (label or "").strip()
    return text.isascii() and text.isdigit() and len(text) < 10


def _class_number(path: Path, line: int, label: str | None) -> int:
    if not _is_class(label):
        real = (
            "; for real-valued targets give --task regression (task='regression' in Python)" if _decimal(label) else ""
        )
        raise InputError(
            f"line {line} of {path}: a label is a class number 0, 1, 2, ...",
            got=shown(label),
            do=f"number the classes{real}",
        )
    return int((label or "").strip())


def _number(path: Path, line: int, field: str | None) -> float:
    if not _decimal(field):
        raise InputError(
            f"line {line} of {path}: a target is a finite decimal number",
            got=shown(field) or "(empty)",
            do="write e.g. -0.25",
        )
    return float((field or "").strip())


def _decimal(field: str | None) -> bool:
    text = (field or "").strip()
    return DECIMAL.fullmatch(text) is not None and math.isfinite(float(text))


def read_images(base: Path, names: list[str], preparation: Preparation) -> Tensor:
    """Read images of a resolved folder, given by their paths in it, as unsigned bytes [N, C, H, W].

    Parameters are trusted except for what the files contain: no path leads out of the folder.
    """
    first = _read(base, names[0], preparation)
    if first.size * len(names) > MAX_VALUES:
        raise InputError(
            "the images of the folder do not fit into memory together",
            got=f"{len(names):,} images of {_size(first)}",
            do="choose fewer of them, e.g. --limit 1000 (limit=1000 in Python), or list fewer in labels.csv",
        )
    images = np.empty((len(names), *first.shape), np.uint8)
    for k, name in enumerate(names):
        image = first if k == 0 else _read(base, name, preparation)
        if image.shape != first.shape:
            raise InputError(
                "the images of a folder must all have one size and mode",
                got=f"{name} is {_size(image)}, {names[0]} is {_size(first)}",
                do="give --rgb (rgb=True in Python) for gray images among colored ones"
                if image.shape[1:] == first.shape[1:]
                else "give --resize and --crop (resize= and crop= in Python), or resize or convert them first",
            )
        images[k] = image
    return torch.from_numpy(images)


def _read(base: Path, name: str, preparation: Preparation) -> np.ndarray:
    return preparation.apply(read_image(locate(base, name)), name)


def _size(image: np.ndarray) -> str:
    channels, height, width = image.shape
    return f"{width} x {height} {'gray' if channels == 1 else 'RGB'}"
