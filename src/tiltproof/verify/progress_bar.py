"""``progress=True``: a bar in a terminal or a notebook, occasional lines in a log; and what progress says in how much room."""

from __future__ import annotations

import html
import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tiltproof.errors import InputError
from tiltproof.verify.results import Progress, Verdict

PHASES = {"attack": "attacking", "prove": "proving"}
COUNTS = (Verdict.CERTIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN)
LOG_SECONDS, DRAW_SECONDS = 30, 0.1
BAR = 10
"""Least width of a bar, in characters."""


def phase_words(progress: Progress) -> str:
    """Return what a run is doing, in a word or two."""
    return PHASES.get(progress.phase, progress.phase)


def statuses(progress: Progress) -> list[str]:
    """Verdicts so far, boxes per second and time left, each time with less, the longest text first.

    >>> for text in statuses(Progress(images=100, done=40, certified=38, falsified=1, unknown=0, misclassified=1, boxes=9000,
    ...                               seconds=4.0, phase="prove", seconds_left=6.2)):
    ...     print(text)
    certified 38, falsified 1, unknown 0 | 2,250 boxes/s | 0:06 left
    certified 38, falsified 1, unknown 0 | 0:06 left
    certified 38, falsified 1 | 0:06 left
    certified 38 | 0:06 left
    0:06 left
    <BLANKLINE>
    """
    counts = [] if progress.ranges else [f"{word} {getattr(progress, word):,}" for word in COUNTS]
    speed = [f"{progress.boxes / progress.seconds:,.0f} boxes/s"] if progress.seconds > 0 and progress.boxes else []
    left = []
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        left = [f"{minutes}:{seconds:02d} left"]
    fewer = [", ".join(counts[:most]) for most in range(len(counts), 0, -1)]
    parts = [[*fewer[:1], *speed, *left], *([text, *left] for text in fewer), left, []]
    return list(dict.fromkeys(" | ".join(part) for part in parts))


def fitting(texts: Sequence[str], room: int) -> str:
    """Return the first text that fits, or nothing.

    >>> fitting(["a long text", "short"], 8), fitting(["a long text"], 8)
    ('short', '')
    """
    return next((text for text in texts if len(text) <= room), "")


def line(progress: Progress, width: int) -> str:
    """One line of at most ``width`` characters, in ASCII.

    >>> line(Progress(images=8, done=2, certified=2, falsified=0, unknown=0, misclassified=0, boxes=9, seconds=3.0,
    ...               phase="prove"), 60)
    'proving 2/8 [##--------] certified 2, falsified 0, unknown 0'
    """
    head = f"{phase_words(progress)} {progress.done:,}/{progress.images:,} "
    room = width - len(head) - 3
    status = fitting(statuses(progress), room - BAR)
    bar = min(30, room - len(status))
    full = bar * progress.done // max(1, progress.images)
    return f"{head}[{'#' * full}{'-' * (bar - full)}] {status}".rstrip()[: max(width, 1)]


class TerminalBar:
    """Redraws one line of stderr."""

    def __init__(self) -> None:
        self.drawn, self.length = 0.0, 0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.drawn >= DRAW_SECONDS or progress.done == progress.images:
            self.drawn = now
            text = line(progress, shutil.get_terminal_size().columns - 1)
            sys.stderr.write("\r" + text.ljust(self.length))
            sys.stderr.flush()
            self.length = len(text)

    def close(self) -> None:
        sys.stderr.write("\r" + " " * self.length + "\r")
        sys.stderr.flush()


class NotebookBar:
    """An HTML bar under the cell of a notebook; it stays there when the run has ended."""

    def __init__(self) -> None:
        self.shown = importlib.import_module("IPython.display")
        self.handle = self.shown.display(self.shown.HTML(""), display_id=True)
        self.drawn = 0.0
        self.last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        if time.monotonic() - self.drawn >= DRAW_SECONDS:
            self.draw(progress)

    def draw(self, progress: Progress) -> None:
        self.drawn = time.monotonic()
        words = html.escape(f"{progress.done:,}/{progress.images:,} {statuses(progress)[0]}")
        bar = f'<progress value="{progress.done}" max="{progress.images}"></progress>'
        self.handle.update(self.shown.HTML(f"{html.escape(phase_words(progress))} {bar} {words}"))

    def close(self) -> None:
        if self.last is not None:
            self.draw(self.last)


class LogLines:
    """A line of stderr every half minute, for logs and pipes."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self.last >= LOG_SECONDS:
            self.last = time.monotonic()
            text = f"{phase_words(progress)} | {progress.done:,}/{progress.images:,} images | {statuses(progress)[0]}"
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Nothing is left to be drawn."""


def new_bar() -> TerminalBar | NotebookBar | LogLines:
    """Return what suits the place where the program runs."""
    interactive: Any = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return NotebookBar()
    return TerminalBar() if sys.stderr.isatty() else LogLines()


@contextmanager
def reported(progress: Callable[[Progress], None] | bool | None) -> Iterator[Callable[[Progress], None] | None]:
    """The callback for the option ``progress``; True is a bar, which is closed at the end."""
    if progress is not True:
        if progress and not callable(progress):
            raise InputError("progress is a function, or True for a bar", got=repr(progress))
        yield progress or None
        return
    bar = new_bar()
    try:
        yield bar
    finally:
        bar.close()
