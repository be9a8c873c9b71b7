"""A folder of the user's images with a ``labels.csv`` (columns ``filename`` and ``label``), which may be untrusted."""

from __future__ import annotations

import csv
import reprlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.image_file import read_image
from tiltproof.errors import InputError

LABELS_FILE = "labels.csv"
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


def read_labels(folder: Path) -> list[tuple[str, int]]:
    """Return the file name and label of each row, in order."""
    path = folder / LABELS_FILE
    return [
        (checked_name(path, line, name, label), _class_number(path, line, label))
        for line, (name, label) in read_rows(folder, ("filename", "label"))
    ]


def read_rows(folder: Path, columns: tuple[str, ...]) -> list[tuple[int, list[str | None]]]:
    """Return each row's line number and fields in these columns; None if the row is too short."""
    path = folder / LABELS_FILE
    try:
        _check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as stream:
            table = csv.reader(stream, strict=True)
            positions = _positions(path, next(table, []), columns)
            rows: list[tuple[int, list[str | None]]] = []
            for fields in table:
                if not fields:  # an empty line
                    continue
                if len(rows) == MAX_ROWS:
                    raise InputError(f"{path} lists too many images", got=f"more than {MAX_ROWS:,} rows")
                rows.append((table.line_num, [fields[k] if k < len(fields) else None for k in positions]))
    except FileNotFoundError:
        raise InputError(
            f"the folder has no {LABELS_FILE}", got=folder, do=f"write one with the columns {','.join(columns)}"
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


def _positions(path: Path, heading: list[str], columns: tuple[str, ...]) -> list[int]:
    if len(heading) > MAX_COLUMNS:
        raise InputError(f"{path} has too many columns", got=f"{len(heading):,}", do=f"keep {' and '.join(columns)}")
    missing = sorted(set(columns) - set(heading))
    if missing:
        raise InputError(
            f"{path} lacks the column {' and '.join(missing)}",
            got=f"the first line {shown(','.join(heading)) or '(empty)'!r}",
            do=f"make the first line: {','.join(columns)}",
        )
    return [heading.index(column) for column in columns]


def checked_name(path: Path, line: int, name: str | None, label: str | None) -> str:
    """Return the file name of a row that has a label."""
    if not name or label is None:
        raise InputError(f"line {line} of {path} needs a filename and a label", got=f"{shown(name)},{shown(label)}")
    if len(name) > MAX_LETTERS or not name.isprintable():
        raise InputError(f"line {line} of {path} contains an invalid filename", got=shown(name))
    return name


def _class_number(path: Path, line: int, label: str | None) -> int:
    text = (label or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"line {line} of {path}: a label is a class number 0, 1, 2, ...", got=shown(label))
    return int(text)


def load_folder(path: str | Path) -> tuple[Tensor, Tensor]:
    """Load a folder of images.

    Parameters
    ----------
    path : str or Path
        A folder with ``labels.csv`` and images of one size and mode, 8-bit gray or RGB.

    Returns
    -------
    images, labels : Tensor
        Images [N, C, H, W] in [0, 1] and labels [N], in the order of the rows.

    Raises
    ------
    InputError
        If the table or an image cannot be used.
    """
    pixels, labels = read_folder(path)
    return pixels.to(torch.float32).div_(255), labels


def read_folder(path: str | Path) -> tuple[Tensor, Tensor]:
    """Read the same with pixels as unsigned bytes."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            "not a folder of images", got=folder, do="give a folder that contains labels.csv and its images"
        )
    rows = read_labels(folder)
    base = folder.resolve()
    first = read_image(locate(base, rows[0][0]))
    if first.size * len(rows) > MAX_VALUES:
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
    return f"{width} x {height} {'gray' if channels == 1 else 'RGB'}"
