"""A training run's folder: one run at a time writes into it, and one message says whatever keeps it from being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from tiltproof.certify.writing import lock
from tiltproof.errors import InputError
from tiltproof.train.processes import Processes

LOCK = ".lock"
"""An empty file that stays: removed, it could be locked by one process and made anew by another."""


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


@contextmanager
def writing_alone(folder: Path, processes: Processes, device: torch.device) -> Iterator[None]:
    """Make the folder and lock it: the first process for all of them. Where another run holds it, each process says so and ends.

    Were the first one to end alone, the others would wait for it.
    """
    with ExitStack() as opened:
        refused = None
        if processes.first:
            try:
                with writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                    lock(opened.enter_context((folder / LOCK).open("ab")), folder)
            except InputError as error:
                refused = error
        if processes.sum(torch.tensor(float(refused is not None), device=device)):
            raise refused or InputError(
                "the first process was refused the run folder", got=folder, do="see its message"
            )
        yield
