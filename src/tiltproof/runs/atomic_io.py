"""Atomic file replacement and an exclusive lock on a run folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from tiltproof.errors import InputError


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a temporary file, rename it, and sync the folder."""
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
    """Return one JSON document, one value per line."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def lock(stream: IO[bytes], folder: Path) -> None:
    """Lock ``folder`` for one writer, where the system has such locks, until the file is closed or the process ends."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError("another process is writing to this run", got=folder, do="wait for it, or stop it") from None
