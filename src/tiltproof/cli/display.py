"""One line that is kept up to date on a terminal, and what is said when a run is interrupted; the commands say what stands in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as LiveDisplay
from rich.table import Table
from rich.text import Text

from tiltproof.runtime.batch_size import shown_size
from tiltproof.verify.results import Progress

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


# Live progress of a run: one changing line on a terminal, a line now and then in a log.


PHASES = {"attack": "attacking", "prove": "proving"}
COUNTS = ("certified", "falsified", "unknown")


@contextmanager
def live_progress(images: int, quiet: bool = False) -> Iterator[Callable[[Progress], None] | None]:
    """A callback for `certify` and `certify_range`: one line kept up to date on a terminal, a line on stderr now and then elsewhere."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield Occasionally()
    else:
        with live_line(_line, PHASES["attack"], images, Counted()) as update:
            yield update


def _line(progress: Progress) -> Line:
    return Line(PHASES.get(progress.phase, progress.phase), progress.done, progress.images, status(progress))


class Occasionally(HalfMinutes):
    """For logs: says nothing about a short run, and then one line every half minute."""

    def __call__(self, progress: Progress) -> None:
        if self.passed():
            self.say(f"{progress.done:,}/{progress.images:,} images | {status(progress)}")


def status(progress: Progress) -> str:
    """Verdicts so far, boxes a second and the time left, in one line.

    >>> status(Progress(images=100, done=40, certified=38, falsified=1, unknown=0, misclassified=1, boxes=9000,
    ...                 seconds=4.0, phase="prove", seconds_left=6.2))
    'certified 38, falsified 1, unknown 0 | 2,250 boxes/s | 0:06 left'
    """
    parts = [] if progress.ranges else [", ".join(f"{word} {getattr(progress, word):,}" for word in COUNTS)]
    if progress.seconds > 0 and progress.boxes:
        parts.append(f"{progress.boxes / progress.seconds:,.0f} boxes/s")
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return " | ".join(parts)


# The summaries people read, as tables.


VERDICTS = {
    "certified": "proved for every parameter of the range",
    "falsified": "a transformation breaks the answer",
    "unknown": "not decided by the budget or the splits",
    "misclassified": "wrong before any transformation",
}


def print_summary(summary: Mapping[str, Any]) -> None:
    """How many images got which verdict, and what it cost."""
    images = summary["images"]
    table = Table(title=f"{summary['transform']}, method {summary['method']}", title_justify="left")
    table.add_column("verdict")
    table.add_column("images", justify="right")
    table.add_column("percent", justify="right")
    table.add_column("meaning", style="dim")
    for word, meaning in VERDICTS.items():
        table.add_row(word, f"{summary[word]:,}", f"{100 * summary[word] / images:.2f}", meaning)
    table.add_section()
    table.add_row("all", f"{images:,}", "100.00", f"{summary['correct']:,} correct before any transformation")
    console = Console()
    console.print(table)
    seconds = summary["seconds"]
    console.print(f"{summary['boxes']:,} boxes in {seconds:.1f} s ({seconds / images:.3g} s an image)", highlight=False)
    _print_memory(console, summary)


def print_ranges(summary: Mapping[str, Any]) -> None:
    """How wide the proved ranges are, how much of that is reached for certain, and what it cost."""
    images, seconds = summary["images"], summary["seconds"]
    table = Table(title=f"{summary['transform']}, method {summary['method']}", title_justify="left")
    table.add_column("output range")
    table.add_column("mean", justify="right")
    table.add_column("meaning", style="dim")
    table.add_row("proved width", _figure(summary["mean_width"]), f"largest {_figure(summary['largest_width'])}")
    table.add_row("reached width", f"{summary['mean_inner_width']:.4g}", "no proof can give less")
    if "mean_absolute_error" in summary:
        table.add_section()
        table.add_row("error", f"{summary['mean_absolute_error']:.4g}", "absolute, on the untransformed image")
        certified = summary["certified_mean_absolute_error"]
        table.add_row("certified error", _figure(certified), "the largest that the proved range allows")
    console = Console()
    console.print(table)
    tight = f"{summary['complete']:,} of {images:,} ranges as tight as asked for"
    console.print(
        f"{tight}; {summary['boxes']:,} boxes in {seconds:.1f} s ({seconds / images:.3g} s an image)", highlight=False
    )
    _print_memory(console, summary)


def _print_memory(console: Console, summary: Mapping[str, Any]) -> None:
    """Under ``--memory``: the peak, and what batches were sized for."""
    settings = summary["settings"]
    if "memory_peak" in settings:
        peak, limit = (shown_size(settings[name]) for name in ("memory_peak", "memory_limit"))
        console.print(f"memory: {peak} at its peak, batches sized for {limit}", highlight=False)


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"


def print_rows(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table; ``columns`` maps each heading to its justification, ``left`` or ``right``."""
    table = Table(box=SIMPLE_HEAD)
    for heading, justify in columns.items():
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
