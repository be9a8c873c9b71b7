"""One line that is kept up to date on a terminal, and what is said when a run is interrupted; the commands say what stands in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as LiveDisplay
from rich.text import Text

Report = TypeVar("Report")
EVERY_SECONDS = 30


class Line(NamedTuple):
    """What a report comes to: what is being done, how much of it, and the rest of the line."""

    doing: str
    completed: float
    total: float | None
    status: str


class Counted(ProgressColumn):
    """How many of how many ``things``; nothing as long as their number is not known."""

    def __init__(self, things: str = "") -> None:
        self.things = things
        super().__init__()

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        return Text(f"{task.completed:,.0f}/{task.total:,.0f} {self.things}".rstrip())


@contextmanager
def live_line(
    show: Callable[[Report], Line],
    first: str,
    total: float | None,
    *columns: ProgressColumn,
) -> Iterator[Callable[[Report], None]]:
    """A callback that shows each report: ``first`` is being done until there is one; ``columns`` stand between bar and status."""
    shape = (TextColumn("{task.description}"), BarColumn(bar_width=None), *columns, TextColumn("{task.fields[status]}"))
    with LiveDisplay(*shape, transient=True, expand=True) as display:
        task = display.add_task(first, total=total, status="")

        def update(report: Report) -> None:
            line = show(report)
            display.update(task, description=line.doing, total=line.total, completed=line.completed, status=line.status)

        yield update


@contextmanager
def live_count(quiet: bool, doing: str, things: str) -> Iterator[Callable[[int, int], None] | None]:
    """A callback for (done, of how many), shown as a bar of so many ``things`` on a terminal; None elsewhere."""
    if quiet or not sys.stdout.isatty():
        yield None
        return

    def show(done_of: tuple[int, int]) -> Line:
        return Line(doing, *done_of, "")

    with live_line(show, doing, None, Counted(things), TimeRemainingColumn()) as update:
        yield lambda done, total: update((done, total))


class HalfMinutes:
    """For logs: whether another half minute has passed since something was said."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def passed(self) -> bool:
        return time.monotonic() - self.last >= EVERY_SECONDS

    def say(self, text: str) -> None:
        self.last = time.monotonic()
        print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def kept_after_interruption(text: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C or SIGTERM inside ends the run with this text: what became of its results."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(text()) from None
