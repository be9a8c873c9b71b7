"""A folder of the user's own images with a ``labels.csv`` (columns ``filename`` and ``label``)."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError

LABELS_FILE = "labels.csv"
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF")
MODES = ("L", "RGB")
MOST_PIXELS_PER_IMAGE = 2048 * 2048
MOST_VALUES = 2**30
"""All images together, as numbers: 4 GiB in float32."""


def load_folder(path: str | Path) -> tuple[Tensor, Tensor]:
    """Images [N, C, H, W] in [0, 1] and labels [N], in the order of the rows of ``labels.csv``."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError("not a folder of images", got=folder, do="give a folder that holds labels.csv and its images")
    rows = _read_labels(folder)
    first = _read_image(folder / rows[0][0])
    if first.size * len(rows) > MOST_VALUES:
        raise InputError(
            "the images of the folder do not fit into memory together",
            got=f"{len(rows):,} images of {_size(first)}",
            do="list fewer of them in labels.csv",
        )
    images = np.empty((len(rows), *first.shape), np.uint8)
    for k, (name, _) in enumerate(rows):
        image = first if k == 0 else _read_image(folder / name)
        if image.shape != first.shape:
            raise InputError(
                "the images of a folder must all have one size and mode",
                got=f"{name} is {_size(image)}, {rows[0][0]} is {_size(first)}",
                do="resize or convert them first",
            )
        images[k] = image
    labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
    return torch.from_numpy(images).to(torch.float32) / 255, labels


def _read_labels(folder: Path) -> list[tuple[str, int]]:
    path = folder / LABELS_FILE
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            table = csv.DictReader(stream, strict=True)
            missing = {"filename", "label"} - set(table.fieldnames or ())
            if missing:
                raise InputError(
                    f"{path} lacks the column {' and '.join(sorted(missing))}",
                    got=f"the first line {','.join(table.fieldnames or ()) or '(empty)'!r}",
                    do="make the first line: filename,label",
                )
            rows = [_row(folder, path, table.line_num, row["filename"], row["label"]) for row in table]
    except FileNotFoundError:
        raise InputError(
            f"the folder has no {LABELS_FILE}", got=folder, do="write one with the columns filename,label"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV text in UTF-8", got=error) from None
    if not rows:
        raise InputError(f"{path} lists no images", got="a header and no rows")
    return rows


def _row(folder: Path, path: Path, line: int, name: str | None, label: str | None) -> tuple[str, int]:
    if not name or label is None:
        raise InputError(f"line {line} of {path} needs a filename and a label", got=f"{name},{label}")
    # Names come from a file that may be a stranger's: none of them may lead out of the folder.
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"line {line} of {path} points outside the folder", got=name)
    text = label.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"line {line} of {path}: a label is a class number 0, 1, 2, ...", got=label)
    return name, int(text)


def _read_image(path: Path) -> np.ndarray:
    """One image as unsigned bytes [C, H, W]; its size is checked before its pixels are decoded."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > MOST_PIXELS_PER_IMAGE:
                    raise InputError(
                        f"the image {path} is too large",
                        got=f"{width} x {height}",
                        do=f"keep to {MOST_PIXELS_PER_IMAGE:,} pixels an image",
                    )
                if picture.mode not in MODES:
                    raise InputError(
                        f"the image {path} is neither 8-bit grey nor RGB",
                        got=f"mode {picture.mode}",
                        why="a palette, an alpha channel or 16 bits a pixel",
                        do='convert it, e.g. Image.open(path).convert("RGB").save(path)',
                    )
                pixels = np.asarray(picture)
    except FileNotFoundError:
        raise InputError(f"an image that {LABELS_FILE} lists is missing", got=path) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise InputError(f"the image {path} is too large", got="more pixels than any reasonable photograph") from None
    except UnidentifiedImageError:
        raise InputError(f"not an image: {path}", do=f"use one of {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the image {path} is damaged", got=error, why="the file was cut short") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(image: np.ndarray) -> str:
    channels, height, width = image.shape
    return f"{width} x {height} {'grey' if channels == 1 else 'RGB'}"
