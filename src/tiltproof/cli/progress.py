"""Live progress of a run: one changing line on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiltproof.certify import Progress, RangeProgress
from tiltproof.cli.live import Counted, HalfMinutes, Line, live_line

PHASES = {"attack": "attacking", "prove": "proving"}
COUNTS = ("certified", "falsified", "unknown")
AnyProgress = Progress | RangeProgress


@contextmanager
def live_progress(images: int, quiet: bool = False) -> Iterator[Callable[[AnyProgress], None] | None]:
    """A callback for `certify` and `certify_range`: one line kept up to date on a terminal, a line on stderr now and then elsewhere."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield Occasionally()
    else:
        with live_line(_line, PHASES["attack"], images, Counted()) as update:
            yield update


def _line(progress: AnyProgress) -> Line:
    doing = PHASES.get(progress.phase, progress.phase) if isinstance(progress, Progress) else PHASES["prove"]
    return Line(doing, progress.done, progress.images, status(progress))


class Occasionally(HalfMinutes):
    """For logs: says nothing about a short run, and then one line every half minute."""

    def __call__(self, progress: AnyProgress) -> None:
        if self.passed():
            self.say(f"{progress.done:,}/{progress.images:,} images | {status(progress)}")


def status(progress: AnyProgress) -> str:
    """Verdicts so far, boxes a second and the time left, in one line.

    >>> status(Progress(images=100, done=40, certified=38, falsified=1, unknown=0, misclassified=1, boxes=9000,
    ...                 seconds=4.0, phase="prove", seconds_left=6.2))
    'certified 38, falsified 1, unknown 0 | 2,250 boxes/s | 0:06 left'
    """
    parts = (
        [", ".join(f"{word} {getattr(progress, word):,}" for word in COUNTS)] if isinstance(progress, Progress) else []
    )
    if progress.seconds > 0 and progress.boxes:
        parts.append(f"{progress.boxes / progress.seconds:,.0f} boxes/s")
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return " | ".join(parts)
