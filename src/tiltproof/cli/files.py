"""Results on disk: checked to be writable before a run begins, and never left half written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltproof.certify.writing import replace_bytes
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


def make_folder(folder: Path) -> None:
    """Make the folder; whatever it holds stays."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("the result folder cannot be used", got=f"{folder} ({error.strerror})") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one JSON document."""
    write_atomically(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the whole new one.

    A link is followed to its file; into a pipe or a device such as /dev/stdout the text is simply written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        replace_bytes(path.resolve(), text.encode())
    except OSError as error:
        raise InputError("the result file cannot be written", got=f"{path} ({error.strerror})") from None


def write_picture(path: Path, picture: Image) -> None:
    """Save a picture in the format its name asks for."""
    try:
        picture.save(path)
    except OSError as error:
        raise InputError("the picture cannot be written", got=f"{path} ({error.strerror or error})") from None
