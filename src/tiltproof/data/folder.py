"""The ``labels.csv`` of a folder of images: a stranger's text, so its size, its lines and its file names are checked."""

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
MOST_BYTES = 2**25
MOST_ROWS = 250_000
MOST_COLUMNS = 100
MOST_LETTERS = 1000
"""Of a file name; no file system takes longer ones."""

_shortened = reprlib.Repr()
_shortened.maxstring = 100


def read_labels(folder: Path) -> list[tuple[str, int]]:
    """The rows of the table, in order: file name, relative to the folder and not leading out of it, and label."""
    path = folder / LABELS_FILE
    return [
        (checked_name(path, line, name, label), _class_number(path, line, label))
        for line, (name, label) in read_rows(folder, ("filename", "label"))
    ]


def read_rows(folder: Path, columns: tuple[str, ...]) -> list[tuple[int, list[str | None]]]:
    """Of each row of the table its line and the fields in these columns; None where a row is too short."""
    path = folder / LABELS_FILE
    try:
        _check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as stream:
            table = csv.reader(stream, strict=True)
            places = _places(path, next(table, []), columns)
            rows: list[tuple[int, list[str | None]]] = []
            for fields in table:
                if not fields:  # an empty line
                    continue
                if len(rows) == MOST_ROWS:
                    raise InputError(f"{path} lists too many images", got=f"more than {MOST_ROWS:,} rows")
                rows.append((table.line_num, [fields[k] if k < len(fields) else None for k in places]))
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
    """The file that a row names; neither dots nor an absolute path nor a link may lead out of the resolved folder."""
    try:
        path = (base / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links
        raise InputError(f"a file that {LABELS_FILE} lists cannot be found", got=f"{name} ({error})") from None
    if not path.is_relative_to(base):
        raise InputError(f"{base / LABELS_FILE} points outside the folder", got=name)
    return path


def shown(text: str | None) -> str:
    """A text of the table for a message: as it is when that is short and printable, else quoted and shortened.

    >>> shown("cat"), shown("a\\x1b[2J")
    ('cat', "'a\\\\x1b[2J'")
    """
    text = text or ""
    return text if len(text) <= _shortened.maxstring and text.isprintable() else _shortened.repr(text)


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    if not path.is_file():  # a pipe would wait forever, /dev/zero never end
        raise InputError(f"{path} is not a regular file")
    if size > MOST_BYTES:
        raise InputError(f"{path} is too large", got=f"{size:,} bytes", do=f"keep to {MOST_BYTES:,} bytes")


def _places(path: Path, heading: list[str], columns: tuple[str, ...]) -> list[int]:
    if len(heading) > MOST_COLUMNS:
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
    """The file name of a row that has a label."""
    if not name or label is None:
        raise InputError(f"line {line} of {path} needs a filename and a label", got=f"{shown(name)},{shown(label)}")
    if len(name) > MOST_LETTERS or not name.isprintable():
        raise InputError(f"line {line} of {path} holds an unusable filename", got=shown(name))
    return name


def _class_number(path: Path, line: int, label: str | None) -> int:
    text = (label or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"line {line} of {path}: a label is a class number 0, 1, 2, ...", got=shown(label))
    return int(text)


# A folder of the user's own images with a ``labels.csv`` (columns ``filename`` and ``label``).


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
