"""What commands print: a live progress line on a terminal, occasional lines in a log, and tables of results."""

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

from tiltproof.runtime.memory_size import shown_size
from tiltproof.verify.results import Progress, Reason

Report = TypeVar("Report")
LOG_SECONDS = 30


class Line(NamedTuple):
    """One report: the activity, how much of it is done, and the rest of the line."""

    doing: str
    completed: float
    total: float | None
    status: str


class Counted(ProgressColumn):
    """The count done and the total, with a unit; nothing while the total is unknown."""

    def __init__(self, things: str = "") -> None:
        self.things = things
        super().__init__()

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        return Text(f"{task.completed:,.0f}/{task.total:,.0f} {self.things}".rstrip())


@contextmanager
def live_line(
    show: Callable[[Report], Line], first: str, total: float | None, *columns: ProgressColumn
) -> Iterator[Callable[[Report], None]]:
    """A callback that shows each report; ``first`` is the activity before the first one, ``columns`` go between bar and status."""
    shape = (TextColumn("{task.description}"), BarColumn(bar_width=None), *columns, TextColumn("{task.fields[status]}"))
    with LiveDisplay(*shape, transient=True, expand=True) as display:
        task = display.add_task(first, total=total, status="")

        def update(report: Report) -> None:
            line = show(report)
            display.update(task, description=line.doing, total=line.total, completed=line.completed, status=line.status)

        yield update


@contextmanager
def live_count(quiet: bool, doing: str, things: str) -> Iterator[Callable[[int, int], None] | None]:
    """A callback for (done, total), shown as a bar with the unit ``things`` on a terminal; None elsewhere."""
    if quiet or not sys.stdout.isatty():
        yield None
        return

    def show(done_of: tuple[int, int]) -> Line:
        return Line(doing, *done_of, "")

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


PHASES = {"attack": "attacking", "prove": "proving"}
COUNTS = ("certified", "falsified", "unknown")


@contextmanager
def live_progress(images: int, quiet: bool = False) -> Iterator[Callable[[Progress], None] | None]:
    """A callback for `certify` and `certify_range`: a progress bar on a terminal, elsewhere a line on stderr every half minute."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield RunLog()
    else:
        with live_line(_line, PHASES["attack"], images, Counted()) as update:
            yield update


def _line(progress: Progress) -> Line:
    return Line(PHASES.get(progress.phase, progress.phase), progress.done, progress.images, status(progress))


class RunLog(LogLine):
    """One line every half minute; none for a short run."""

    def __call__(self, progress: Progress) -> None:
        if self.due():
            self.say(f"{progress.done:,}/{progress.images:,} images | {status(progress)}")


def status(progress: Progress) -> str:
    """One line: verdicts so far, boxes per second, time left.

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


VERDICTS = {
    "certified": "proved for every parameter of the range",
    "falsified": "a transformation breaks the answer",
    "unknown": "not decided within the budget or the splits",
    "misclassified": "wrong before any transformation",
}


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the number of images per verdict, and the cost."""
    images = summary["images"]
    table = _titled(summary)
    table.add_column("verdict")
    table.add_column("images", justify="right")
    table.add_column("percent", justify="right")
    table.add_column("meaning", style="dim")
    for word, meaning in VERDICTS.items():
        table.add_row(word, f"{summary[word]:,}", f"{100 * summary[word] / images:.2f}", meaning)
    table.add_section()
    table.add_row("all", f"{images:,}", "100.00", f"{summary['correct']:,} {_right(summary)} before any transformation")
    console = Console()
    console.print(table)
    if summary.get("keep"):
        console.print(f"proved of certified images: the network {summary['keep']}", highlight=False)
    print_cost(console, summary)
    print_unknown_reasons(console, summary)
    _print_memory(console, summary)


def print_cost(console: Console, summary: Mapping[str, Any]) -> None:
    """Print boxes and seconds."""
    each = f"{summary['seconds'] / summary['images']:.3g} s per image"
    console.print(f"{summary['boxes']:,} boxes in {summary['seconds']:.1f} s ({each})", highlight=False)


def print_unknown_reasons(console: Console, summary: Mapping[str, Any]) -> None:
    """Print why images are unknown, and what would help."""
    for word, count in summary["unknown_reasons"].items():
        reason = Reason(word)
        console.print(f"{count:,} unknown: {reason.meaning}. What would help: {reason.advice}.", highlight=False)


def _right(summary: Mapping[str, Any]) -> str:
    return "satisfy it" if summary.get("keep") else "correct"


def print_ranges(summary: Mapping[str, Any]) -> None:
    """Print how wide the proved ranges and the inner ranges are, and the cost."""
    images, seconds = summary["images"], summary["seconds"]
    table = _titled(summary)
    table.add_column("output range")
    table.add_column("mean", justify="right")
    table.add_column("meaning", style="dim")
    table.add_row("proved width", _figure(summary["mean_width"]), f"largest {_figure(summary['largest_width'])}")
    table.add_row("inner width", f"{summary['mean_inner_width']:.4g}", "reached: no proof can give less")
    if "mean_absolute_error" in summary:
        table.add_section()
        table.add_row("error", f"{summary['mean_absolute_error']:.4g}", "absolute, on the untransformed image")
        certified = summary["certified_mean_absolute_error"]
        table.add_row("certified error", _figure(certified), "the largest that the proved range allows")
    console = Console()
    console.print(table)
    tight = f"{summary['complete']:,} of {images:,} ranges as tight as asked for"
    console.print(
        f"{tight}; {summary['boxes']:,} boxes in {seconds:.1f} s ({seconds / images:.3g} s per image)", highlight=False
    )
    _print_memory(console, summary)


def _titled(summary: Mapping[str, Any]) -> Table:
    return Table(title=run_title(summary), title_justify="left")


def run_title(summary: Mapping[str, Any]) -> str:
    """The claim of a run in a line."""
    semantics = "" if summary["semantics"] == "real" else f", semantics {summary['semantics']}"
    return f"{summary['transform']}, method {summary['method']}{semantics}"


def _print_memory(console: Console, summary: Mapping[str, Any]) -> None:
    """With ``--memory``, print the peak and the size that batches were chosen for."""
    settings = summary["settings"]
    if "memory_peak" in settings:
        peak, limit = (shown_size(settings[name]) for name in ("memory_peak", "memory_limit"))
        console.print(f"memory: {peak} at its peak, batches sized for {limit}", highlight=False)


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"


def print_rows(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table; ``columns`` maps each heading to ``left`` or ``right``."""
    table = Table(box=SIMPLE_HEAD)
    for heading, justify in columns.items():
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
