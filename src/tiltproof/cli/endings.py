"""How a command ends early: its exit code, and the one line on stderr that says why."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import tiltproof
from tiltproof.errors import InputError, shown
from tiltproof.starting import INTERRUPTED

BAD_INPUT, INTERNAL_ERROR, PIPE_CLOSED, TERMINATED = 2, 70, 141, 143
PACKAGE = Path(tiltproof.__file__).parent
MOST_CHARACTERS = 400


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; whatever cleans up after Ctrl-C cleans up after it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`, once.

    Not in a process of torchrun: one that waits for the others could not act on it, and has to die at once.
    """
    ours = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ending(error: BaseException) -> tuple[str, int]:
    """The line that tells of the exception that ended a command, and the exit code."""
    if isinstance(error, InputError):
        return f"error: {error}", BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        word, code = ("terminated", TERMINATED) if isinstance(error, Terminated) else ("interrupted", INTERRUPTED)
        return f"{word}: {error}" if str(error) else word, code
    text = shown(" ".join(str(error).split()), MOST_CHARACTERS)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return (
        f"internal error: {what} ({place(error)}). This is a defect of tiltproof, and no verdict. Please report it to the "
        "project's issue tracker with this line, the command, and what tiltproof --debug COMMAND ... prints.",
        INTERNAL_ERROR,
    )


def place(error: BaseException) -> str:
    """Where an exception was raised, and from where in the package, if it was not raised there."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "place unknown"
    last = frames[-1]
    text = f"{_short(Path(last.filename))}, line {last.lineno}"
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    if not inside or inside[-1] is last:
        return text
    return f"{text}, called from {_short(Path(inside[-1].filename))}, line {inside[-1].lineno}"


def _short(path: Path) -> str:
    """A path from the name of its package on."""
    if path.is_relative_to(PACKAGE):
        return str(path.relative_to(PACKAGE.parent))
    return shown("/".join(path.parts[-2:]))
