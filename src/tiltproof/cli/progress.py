"""Live progress of a run: one changing line on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as LiveDisplay

from tiltproof.certify import Progress

PHASES = {"attack": "attacking", "prove": "proving"}
EVERY_SECONDS = 30
COUNTS = ("certified", "falsified", "unknown")


@contextmanager
def live_progress(images: int, quiet: bool = False) -> Iterator[Callable[[Progress], None] | None]:
    """A callback for `certify`: one line kept up to date on a terminal, a line on stderr now and then elsewhere."""
    if quiet:
        yield None
        return
    if not sys.stdout.isatty():
        yield Occasionally()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[status]}"),
    )
    with LiveDisplay(*columns, transient=True, expand=True) as display:
        task = display.add_task(PHASES["attack"], total=images, status="")

        def update(progress: Progress) -> None:
            display.update(
                task,
                description=PHASES.get(progress.phase, progress.phase),
                total=progress.images,
                completed=progress.done,
                status=status(progress),
            )

        yield update


class Occasionally:
    """For logs: says nothing about a short run, and then one line every half minute."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self.last >= EVERY_SECONDS:
            self.last = time.monotonic()
            print(f"{progress.done:,}/{progress.images:,} images | {status(progress)}", file=sys.stderr, flush=True)  # noqa: T201


def status(progress: Progress) -> str:
    """Verdicts so far, boxes a second and the time left, in one line.

    >>> status(Progress(images=100, done=40, certified=38, falsified=1, unknown=0, misclassified=1, boxes=9000,
    ...                 seconds=4.0, phase="prove", seconds_left=6.2))
    'certified 38, falsified 1, unknown 0 | 2,250 boxes/s | 0:06 left'
    """
    parts = [", ".join(f"{word} {getattr(progress, word):,}" for word in COUNTS)]
    if progress.seconds > 0 and progress.boxes:
        parts.append(f"{progress.boxes / progress.seconds:,.0f} boxes/s")
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return " | ".join(parts)
