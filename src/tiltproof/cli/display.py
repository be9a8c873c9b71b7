"""Progress while a command works: a live line on a terminal that fits its width, occasional lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as LiveDisplay
from rich.table import Column
from rich.text import Text

from tiltproof.verify.progress_bar import BAR, LOG_SECONDS, PHASES, fitting, phase_words, statuses
from tiltproof.verify.results import Progress

Report = TypeVar("Report")


class Line(NamedTuple):
    """One report: the activity, how much of it is done, and the rest of the line, the longest text first."""

    doing: str
    completed: float
    total: float | None
    statuses: Sequence[str] = ("",)


class Counted(ProgressColumn):
    """The count done and the total, with a unit; nothing while the total is unknown."""

    def __init__(self, things: str = "") -> None:
        self.things = things
        super().__init__(Column(no_wrap=True))

    def text(self, completed: float, total: float | None) -> str:
        return "" if total is None else f"{completed:,.0f}/{total:,.0f} {self.things}".rstrip()

    def render(self, task: Task) -> Text:
        return Text(self.text(task.completed, task.total))


@contextmanager
def live_line(
    show: Callable[[Report], Line], first: str, total: float | None, *columns: ProgressColumn
) -> Iterator[Callable[[Report], None]]:
    """A callback that shows each report; ``first`` is the activity before the first one, ``columns`` go between bar and status."""
    shape = (
        *(TextColumn("{task.description}", table_column=Column(no_wrap=True)), BarColumn(bar_width=None)),
        *(*columns, TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True))),
    )
    with LiveDisplay(*shape, transient=True, expand=True) as display:
        task = display.add_task(first, total=total, status="")

        def update(report: Report) -> None:
            line = show(report)
            widest = (each.text(line.total or 0, line.total) for each in columns if isinstance(each, Counted))
            taken = sum(1 + len(each) for each in (line.doing, *widest)) + BAR
            status = fitting(line.statuses, display.console.width - taken - 1)
            display.update(task, description=line.doing, total=line.total, completed=line.completed, status=status)

        yield update


@contextmanager
def live_count(quiet: bool, doing: str, things: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A callback for (done, total or None), shown as a bar with the unit ``things`` on a terminal; None elsewhere."""
    if quiet or not sys.stdout.isatty():
        yield None
        return

    def show(done_of: tuple[int, int | None]) -> Line:
        return Line(doing, *done_of)

    with live_line(show, doing, None, Counted(things), TimeRemainingColumn()) as update:
        yield lambda done, total: update((done, total))


class LogLine:
    """Progress for logs: a line on stderr at most every half minute, the first after half a minute."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.last >= LOG_SECONDS

    def say(self, text: str) -> None:
        self.last = time.monotonic()
        print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def kept_after_interruption(text: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM inside end the command with this text, which says what became of its results."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(text()) from None


@contextmanager
def live_progress(
    images: int, quiet: bool = False, first: str = PHASES["attack"]
) -> Iterator[Callable[[Progress], None] | None]:
    """A callback for `certify` and `certify_range`: a progress bar on a terminal, elsewhere a line on stderr every half minute."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield RunLog()
    else:
        with live_line(_line, first, images, Counted()) as update:
            yield update


def _line(progress: Progress) -> Line:
    return Line(phase_words(progress), progress.done, progress.images, statuses(progress))


class RunLog(LogLine):
    """One line every half minute; none for a short run."""

    def __call__(self, progress: Progress) -> None:
        if self.due():
            self.say(f"{phase_words(progress)} {progress.done:,}/{progress.images:,} images | {statuses(progress)[0]}")
