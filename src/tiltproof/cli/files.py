"""Results on disk: checked to be writable before a run begins, and never left half written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tiltproof.certify.writing import replace_bytes
from tiltproof.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

STDOUT = Path("-")
"""The name that stands for standard output, on which nothing else is then written."""


def check_writable(path: Path | None) -> None:
    """Refuse a file that could not be written at the end of the run, before it begins; folders that are missing are made then."""
    if path is None:
        return
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return  # a pipe or a device
        folder = path.resolve().parent
        while not folder.exists():
            folder = folder.parent
        right = not path.is_dir() and _takes_files(folder)
    except OSError:  # a name that is too long, or leads through a file
        right = False
    if not right:
        raise InputError(
            "the result file cannot be written there",
            got=f"{path}, which is a folder" if path.is_dir() else f"{path}, whose folder takes no files",
            do="give a file name in a folder that you may write to",
        )


def check_text_file(path: Path | None) -> None:
    """The same for a file of text, which may also be STDOUT."""
    if path != STDOUT:
        check_writable(path)


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

    A link is followed to its file; to STDOUT, or into a pipe or a device such as /dev/stdout, the text is simply written.
    """
    if path == STDOUT:
        typer.echo(text, nl=False)
        return
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path.resolve(), text.encode())
    except OSError as error:
        raise InputError("the result file cannot be written", got=f"{path} ({error.strerror})") from None


def write_picture(path: Path, picture: Image) -> None:
    """Save a picture in the format its name asks for."""
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    except OSError as error:
        raise InputError("the picture cannot be written", got=f"{path} ({error.strerror or error})") from None
