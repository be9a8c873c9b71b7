"""Live progress of a training run: one changing line on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiltproof.cli.live import HalfMinutes, Line, live_line
from tiltproof.train import TrainProgress

PHASES = {"train": "training", "certify": "certifying"}


@contextmanager
def live_training(quiet: bool = False) -> Iterator[Callable[[TrainProgress], None] | None]:
    """A callback for `train`: one line kept up to date on a terminal, a line on stderr now and then elsewhere."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield Occasionally()
    else:
        with live_line(_line, PHASES["train"], None) as update:
            yield update


def _line(progress: TrainProgress) -> Line:
    return Line(PHASES.get(progress.phase, progress.phase), progress.step, progress.steps, status(progress))


class Occasionally(HalfMinutes):
    """For logs: the first report after each half minute, and the change of phase."""

    phase = "train"

    def __call__(self, progress: TrainProgress) -> None:
        if self.passed() or progress.phase != self.phase:
            self.phase = progress.phase
            self.say(f"{PHASES.get(progress.phase, progress.phase)} | {status(progress)}")


def status(progress: TrainProgress) -> str:
    """Epoch, losses, the clean term's weight, box sizes and the time left, in one line.

    >>> status(TrainProgress(epoch=3, epochs=100, step=500, steps=20_000, clean_loss=0.1234, certified_loss=0.5,
    ...                      kappa=0.9, nu=(0.05,), seconds=30.0, seconds_left=3725.0))
    'epoch 3/100 | clean 0.1234, certified 0.5000 | kappa 0.90, nu 0.05 | 1:02:05 left'
    """
    losses = f"clean {progress.clean_loss:.4f}"
    parts = [f"epoch {progress.epoch}/{progress.epochs}"]
    if progress.certified_loss is None:
        parts.append(losses)
    else:
        parts.append(f"{losses}, certified {progress.certified_loss:.4f}")
        parts.append(f"kappa {progress.kappa:.2f}, nu {' '.join(f'{half:.3g}' for half in progress.nu)}")
    if progress.phase == "train" and progress.seconds_left is not None:
        parts.append(f"{clock(progress.seconds_left)} left")
    return " | ".join(parts)


def clock(seconds: float) -> str:
    """Hours (where there are any), minutes and seconds.

    >>> clock(59.6), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
