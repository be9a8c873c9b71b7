"""The entries of each pair's matrices as one table, for the kernels that `pixels.py` launches.

Parts write their formulas once, with ``+ - * /``, ``sin``, ``cos``, ``deg2rad`` and ``reciprocal`` (`transforms/base.py`). Here such
a formula is traced to a list of steps, which one kernel (`triton/matrix_entries.py`) then runs for all pairs: a few numbers per
pair, for which torch would need hundreds of launches.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.rounding import SMALLEST, UNIT
from tiltproof.transforms.base import Transform
from tiltproof.transforms.interpolation import Matrix, keeps_plane

BLOCK = 64
MOST_STEPS = 200
OPERATIONS = ("negate", "add", "add number", "times", "times number", "over number", "deg2rad", "sin", "cos",
              "reciprocal", "number")  # fmt: skip
"""Operations of a step, numbered as in `triton/matrix_entries.py`."""


class Tape:
    """The steps so far: (operation, first operand, second operand, number)."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[tuple[int, int, int, float]] = []

    def record(self, operation: str, first: int = 0, second: int = 0, number: float = 0.0) -> Traced:
        """Record a step, unless it was recorded before."""
        step = OPERATIONS.index(operation), first, second, number
        if step not in self.steps:
            self.steps.append(step)
        return Traced(self, self.inputs + self.steps.index(step))


class Traced:
    """Stands for a form or an interval; arithmetic on it is written down, as `AffineForm` and `Interval` would do it."""

    def __init__(self, tape: Tape, place: int) -> None:
        self.tape, self.place = tape, place

    def _with(self, other: object, operation: str) -> Traced:
        if isinstance(other, Traced):
            return self.tape.record(operation, self.place, other.place)
        if isinstance(other, numbers.Real):
            return self.tape.record(f"{operation} number", self.place, number=float(other))
        return NotImplemented

    def __neg__(self) -> Traced:
        return self.tape.record("negate", self.place)

    def __add__(self, other: object) -> Traced:
        return self._with(other, "add")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Traced:
        return self + (-other)

    def __rsub__(self, other: object) -> Traced:
        return (-self) + other

    def __mul__(self, other: object) -> Traced:
        return self._with(other, "times")

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Traced:
        return self.tape.record("over number", self.place, number=float(other))

    def deg2rad(self) -> Traced:
        return self.tape.record("deg2rad", self.place)

    def sin(self) -> Traced:
        return self.tape.record("sin", self.place)

    def cos(self) -> Traced:
        return self.tape.record("cos", self.place)

    def reciprocal(self) -> Traced:
        return self.tape.record("reciprocal", self.place)


@dataclass(frozen=True)
class Entries:
    """A run of parts, written down: where in the table each entry of the composed matrix and of the parts' own comes from."""

    first: int
    inputs: int
    steps: tuple[tuple[int, int, int, float], ...]
    shared: int  # steps of the parts' own matrices; those after it compose them
    codes: tuple[int, ...]  # of the composed matrix, then of the parts', in the order of their application
    forms: tuple[int, ...]
    intervals: tuple[int, ...]
    symbols: int
    quadratic: bool

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """The compile-time key of the pixel kernel: codes of the composed matrix and of the parts, how many, symbols, and the table's
        rows."""
        parts = sum(code * 729**k for k, code in enumerate(self.codes[1:]))
        return self.codes[0], parts, len(self.codes) - 1, self.symbols, self.rows

    @property
    def rows(self) -> int:
        return len(self.forms) * (self.symbols + 2) + 2 * len(self.intervals) + bool(self.codes)

    @property
    def float32_rows(self) -> int:
        """Rows of the table for `triton/pixels_float32.py`."""
        return len(self.forms) * (self.symbols + 1) + 1

    def table(self, kernel: Any, low: Tensor, high: Tensor, small: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[P, rows]: of matrices, 1 where the forms' own boxes will do, where remainders are relatively small, and 0 where they should meet
        the intervals; center, slopes and radius of each form, of a matrix's with what `coordinates.combine` allows for roundings; then the
        ends of each interval, NaN unless both are finite, and nothing where the forms will do. And, [1], how far it is from the first pair
        to the next with the same box, or the number of pairs: where each image has the same boxes, all are so far apart. ``small``,
        float32 [P, rows]: what is needed for `triton/pixels_float32.py`, the first number, and slopes and radius of each form, is
        written there.
        """
        pairs = len(low)
        result = low.new_empty(pairs, self.rows)
        period = torch.full((1,), pairs, dtype=torch.int32, device=low.device)
        program = sum((operation | a << 8 | b << 16) << 24 * k for k, (operation, a, b, _) in enumerate(self.steps))
        outputs = [value for places in (self.forms, self.intervals) for value in (_bytes(places), len(places))]
        arguments = (low.contiguous(), high.contiguous(), result, period, *constants(self, low.device), pairs)
        special = (
            self.first,
            self.inputs,
            program,
            self.shared,
            len(self.steps),
            *outputs,
            self.symbols,
            self.rows,
            bool(self.codes),
            self.quadratic,
            BLOCK,
            small,
            0 if small is None else small.shape[1],
        )
        kernel[(-(-pairs // BLOCK),)](*arguments, *special, enable_fp_fusion=False, num_warps=2)
        return result, period


def _bytes(places: tuple[int, ...]) -> int:
    return sum(place << 8 * k for k, place in enumerate(places))


@cache  # for good: recorded graphs read them
def constants(entries: Entries, device: torch.device) -> tuple[Tensor, Tensor]:
    """The numbers of the kernel's arithmetic and of the steps, in float64; sent to a device once."""
    unit, least = UNIT[torch.float64], SMALLEST[torch.float64]
    values = [
        value
        for operations in (2, 4, 16, 8, entries.symbols, entries.symbols + 2)
        for value in (operations * unit, 1 + (operations + 8) * unit, least * (operations + 8))
    ]
    factors = torch.tensor([*values, least, math.pi, math.pi / 180, 1 / 5], dtype=torch.float64, device=device)
    return factors, torch.tensor([*(step[3] for step in entries.steps), 0.0], dtype=torch.float64, device=device)


def trace(transform: Transform, run: list[int], quadratic: bool = False) -> Entries | None:
    """The entries of a run of spatial parts; None for cameras and lenses, for interpolations that are not bilinear, and for
    formulas that do what cannot be written down.

    ``quadratic``: see `coordinates.symbols`.
    """
    if transform.interpolation != "bilinear" or not transform.one_matrix(run):  # the kernels know no other
        return None
    tape = Tape(len(run))
    inputs = [Traced(tape, k) for k in range(len(run))]
    try:
        matrices = [transform.parts[k].inverse_matrix(value) for k, value in zip(run, inputs, strict=True)]
        own = [_read(matrix, tape) for matrix in reversed(matrices)]
        shared = len(tape.steps)
        composed = _read(transform.composed_inverse(run, inputs), tape)
    except (AttributeError, TypeError):
        return None
    known = [each for each in (composed, *own) if each is not None]
    if len(known) <= len(own) or len(run) + len(tape.steps) > MOST_STEPS:
        return None
    codes, places = zip(*known, strict=True)
    intervals = tuple(place for each in places[1:] for place in each)
    steps, forms, symbols = tuple(tape.steps), tuple(places[0]), len(transform.parts) + quadratic
    return Entries(run[0], len(run), steps, shared, codes, forms, intervals, symbols, quadratic)


def _read(matrix: Matrix, tape: Tape) -> tuple[int, list[int]] | None:
    """Code of a matrix (`GENERAL` in `triton/coordinates.py`) and the places of its other entries."""
    if not keeps_plane(matrix) or any(_is(row[0], 0) and _is(row[1], 0) for row in matrix[:2]):
        return None
    code, places = 0, []
    for digit, entry in enumerate(entry for row in matrix[:2] for entry in row):
        if _is(entry, 0) or _is(entry, 1):
            code += int(entry) * 3**digit
            continue
        if not isinstance(entry, (Traced, numbers.Real)):
            return None
        code += 2 * 3**digit
        places.append((entry if isinstance(entry, Traced) else tape.record("number", number=float(entry))).place)
    return code, places


def _is(entry: object, number: int) -> bool:
    """Whether `interpolation.times` treats the entry as exactly this number."""
    return isinstance(entry, int) and entry == number
