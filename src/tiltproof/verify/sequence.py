"""One statement about the frames of a drive: how far any transformation of any frame moves an output, at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiltproof.verify.results import RangeResult


@dataclass(frozen=True)
class SequenceStatement:
    """In every frame and for every parameter of the range, each output differs from the network's answer to the frame as it
    is by at most ``largest_deviation``.

    Attributes
    ----------
    frames : int
        Frames of the sequence.
    proved : bool
        Whether every output of every frame is bounded; without that there is no largest deviation.
    largest_deviation : float or None
        The proved bound over all frames and outputs, rounded up.
    worst_frame : int
        The number of the frame it comes from; the first without a bound, if there is one.
    worst_output : int
        The output.
    reached : float
        The largest deviation that a transformation was found to reach: no bound is smaller.
    """

    frames: int
    proved: bool
    largest_deviation: float | None
    worst_frame: int
    worst_output: int
    reached: float

    def record(self) -> dict[str, Any]:
        """Return a plain dictionary for JSON."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        if not self.proved:
            return f"not proved: nothing bounds output {self.worst_output} of frame {self.worst_frame}"
        return (
            f"in all {self.frames:,} frames no output moves by more than {self.largest_deviation:.4g} "
            f"(frame {self.worst_frame}, output {self.worst_output}; {self.reached:.4g} is reached)"
        )


def deviations(result: RangeResult) -> list[float]:
    """For each output at least |f(T(x)) - prediction| over the proved range, rounded up; infinite where nothing is proved."""
    found = []
    for low, middle, high in zip(result.lower, result.prediction, result.upper, strict=True):
        # a difference rounds to nearest; the next float is not below the exact one
        sides = high - middle, middle - low
        known = all(side < math.inf for side in sides)  # false for NaN
        found.append(math.nextafter(max(sides), math.inf) if known else math.inf)
    return found


def sequence_statement(results: Sequence[RangeResult]) -> SequenceStatement:
    """Make one statement of the results of all frames."""
    every = [
        (deviation, result.image, output) for result in results for output, deviation in enumerate(deviations(result))
    ]
    largest, frame, output = max(every, key=lambda one: one[0])  # the first of equal ones
    reached = max(
        max(high - middle, middle - low, 0.0)
        for result in results
        for low, middle, high in zip(result.inner_lower, result.prediction, result.inner_upper, strict=True)
    )
    proved = largest < math.inf
    return SequenceStatement(len(results), proved, largest if proved else None, frame, output, reached)
