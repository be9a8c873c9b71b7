"""Results on disk: checked to be writable before a run begins, and never left half written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltproof.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image


def check_writable(path: Path | None) -> None:
    """Refuse a file that could not be written at the end of the run, before it begins."""
    if path is None:
        return
    if path.exists() and not path.is_file() and not path.is_dir():
        return  # a pipe or a device
    folder = path.resolve().parent
    if path.is_dir() or not _takes_files(folder):
        raise InputError(
            "the result file cannot be written there",
            got=f"{path}, which is a folder" if path.is_dir() else f"{path}, whose folder is missing or read-only",
            do="give a file name in an existing folder",
        )


def _takes_files(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def prepare_folder(folder: Path | None, overwrite: bool = True) -> None:
    """Make the folder; one that already holds something is kept as it is unless it may be overwritten."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise InputError("the result folder cannot be used", got=f"{folder} ({error.strerror})") from None
    if occupied and not overwrite:
        raise InputError(
            "the result folder is not empty",
            got=folder,
            do="choose another folder, or add --overwrite to replace its results",
        )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one JSON document."""
    write_atomically(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON document a line."""
    write_atomically(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the whole new one.

    A link is followed to its file; into a pipe or a device such as /dev/stdout the text is simply written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("the result file cannot be written", got=f"{path} ({error.strerror})") from None


def write_picture(path: Path, picture: Image) -> None:
    """Save a picture in the format its name asks for."""
    try:
        picture.save(path)
    except OSError as error:
        raise InputError("the picture cannot be written", got=f"{path} ({error.strerror or error})") from None
