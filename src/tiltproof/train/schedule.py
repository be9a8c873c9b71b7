"""The learning rate as a function of the step, so that a schedule has no state to save."""

from __future__ import annotations

import math

from tiltproof.errors import InputError
from tiltproof.train.recipe import TrainPart

RISE = 0.2
"""Share of a one-cycle run after which the rate is highest."""
FIRST, LAST = 1 / 25, 1 / 250_000
"""Rates of a one-cycle run at its beginning and end, as shares of the highest."""


def learning_rate(part: TrainPart, step: int, steps_per_epoch: int) -> float:
    """The rate of step ``step``, counted from 0 over the whole run.

    >>> part = TrainPart(epochs=10, learning_rate=1.0, schedule="steps", milestones=(8,), decay=0.1)
    >>> [learning_rate(part, epoch * 5, 5) for epoch in (0, 7, 8)]
    [1.0, 1.0, 0.1]
    """
    if part.schedule == "constant":
        return part.learning_rate
    if part.schedule == "steps":
        passed = sum(step >= milestone * steps_per_epoch for milestone in part.milestones)
        return float(part.learning_rate * part.decay**passed)
    if part.schedule == "one-cycle":
        last = max(part.epochs * steps_per_epoch - 1, 1)
        peak = RISE * last
        if step <= peak:
            return part.learning_rate * _cosine(FIRST, 1, step / peak)
        return part.learning_rate * _cosine(1, LAST, (step - peak) / (last - peak))
    raise InputError("unknown schedule", got=part.schedule, do="use steps, one-cycle or constant")


def _cosine(start: float, end: float, share: float) -> float:
    """Half a cosine wave from start to end."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
