"""A training run's folder: one message for whatever keeps it from being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiltproof.errors import InputError


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
