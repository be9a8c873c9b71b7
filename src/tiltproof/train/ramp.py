"""How the certified term comes in: not at all while warming up, then linearly, then in full (the paper's schedule)."""

from __future__ import annotations

from dataclasses import dataclass

from tiltproof.errors import InputError


@dataclass(frozen=True)
class Ramp:
    """Steps of the optimizer: ``warm_up`` without the certified term, then ``ramp`` in which it grows to its final size.

    >>> [Ramp(warm_up=10, ramp=20).share(step) for step in (0, 10, 20, 30, 99)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """

    warm_up: int = 0
    ramp: int = 0

    def __post_init__(self) -> None:
        if self.warm_up < 0 or self.ramp < 0:
            raise InputError("a schedule has no negative number of steps", got=(self.warm_up, self.ramp))

    def share(self, step: int) -> float:
        """0 while warming up, 1 after the ramp."""
        if step < self.warm_up:
            return 0.0
        return min(1.0, (step - self.warm_up) / self.ramp) if self.ramp else 1.0


def between(ends: tuple[float, float], share: float) -> float:
    """From the first end at share 0 to the second at share 1."""
    return ends[0] + (ends[1] - ends[0]) * share
