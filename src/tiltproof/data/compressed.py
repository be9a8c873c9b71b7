"""Files that may be stored plain, as ``.gz`` or as ``.xz``: find whichever is there and read no more than expected."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tiltproof.errors import InputError

Content = TypeVar("Content")

SUFFIXES = ("", ".gz", ".xz")
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


def find(folder: Path, name: str) -> Path | None:
    """The file called ``name`` in this folder, plain or compressed, or None."""
    candidates = (folder / (name + suffix) for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def read_with(path: Path, reader: Callable[[io.BufferedIOBase], Content]) -> Content:
    """Open a plain or compressed file for ``reader``; a missing or damaged file is an `InputError`."""
    try:
        with _open(path) as stream:
            return reader(stream)
    except FileNotFoundError:
        raise InputError("a data file is missing", got=path, do="check the path") from None
    except DAMAGE as error:
        raise InputError(
            "a compressed data file is damaged",
            got=f"{path} ({error})",
            why="the download or the copy was cut short",
            do="fetch the file again",
        ) from None
    except OSError as error:
        raise InputError("a data file cannot be read", got=f"{path} ({error.strerror or error})") from None


def _open(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")
