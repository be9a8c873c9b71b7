"""Files of a training run: a reader sees the old file or the whole new one, whatever happens to the writer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError


def replace_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, rename, and have the folder's entry reach the disk as well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def document(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in one message that the run folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(
            "the run folder cannot be written",
            got=f"{folder} ({error.strerror or error})",
            why="no space left, or no permission",
            do="make room, then repeat the command with --resume: finished epochs are kept",
        ) from None
