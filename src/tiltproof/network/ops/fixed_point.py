"""Rules of the fixed-point operations of integer networks (`tiltproof.fixed_point`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import gamma
from tiltproof.fixed_point import SUM_RANGE, SUM_SHIFT, check_factors, rounded_product, rounded_units
from tiltproof.network.graph import Operation
from tiltproof.network.ops.arithmetic import scaled_by
from tiltproof.network.ops.base import (
    UNDERFLOW,
    Built,
    Input,
    Refused,
    converter,
    farthest,
    require_constants,
    rule,
)
from tiltproof.network.ops.quantize import ROUNDED, Quantize


@rule("requantize")
class Requantize(Quantize):
    """y = clip(n), n = the kernels' M x: |n - M x| <= 1/2 + slack, for x in the range of 32 bits, as `Quantize` relaxes it.

    And y never falls where x rises, so on [l, h] it lies between its values at l and at h. Where these round to one accumulator, y is
    known exactly. That is why nothing is lost at a point, though slack would leave many y open there.
    """

    def _units(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        factor, room = super()._units(operation, form)
        within = farthest(form).double() * (1 + ROUNDED) < torch.as_tensor(
            operation.settings["most"], dtype=torch.float64, device=form.radius.device
        )
        return factor, torch.where(within, room, torch.inf)

    def _at(self, operation: Operation, x: Tensor) -> Tensor:
        s = operation.settings
        return rounded_product(x, s["multipliers"], s["shifts"], int(s["low"]), int(s["high"]))

    def _whole(self, operation: Operation, form: AffineForm, factor: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        least, most = (self._at(operation, end.double()) for end in (form.lower, form.upper))
        return self._known(operation, least, most, form)

    def _known(self, operation: Operation, least: Tensor, most: Tensor, form: AffineForm) -> tuple[Tensor, Tensor]:
        """The whole range where nothing is known of x."""
        s, known = operation.settings, form.reach() < torch.inf
        return torch.where(known, least, s["low"]), torch.where(known, most, s["high"])


@rule("rounded")
class Rounded(Requantize):
    """y = clip(n), n a nearest whole number of factor x but for ``snap``: |n - factor x| <= 1/2 + snap; it never falls either.

    factor l and factor h are widened by what their products round.
    """

    def _whole(self, operation: Operation, form: AffineForm, factor: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        s = operation.settings
        ends = [form.lower.double() * factor, form.upper.double() * factor]
        beside = torch.zeros_like(ends[0])
        if form.unit:
            beside = ROUNDED * (ends[0].abs() + ends[1].abs() + 2.0**-60)
        if operation.evaluation:
            size = torch.maximum(ends[0].abs(), ends[1].abs()) + s["size"] + 1
            beside = beside + gamma(16, operation.evaluation) * size + UNDERFLOW * factor
        span = int(s["offset"]), int(s["low"]), int(s["high"]), s["slack"]
        least, most = rounded_units(ends[0] - beside, *span), rounded_units(ends[1] + beside, *span)
        return self._known(operation, least, most, form)


def _clipped_to(low: int, high: int) -> dict[str, Any]:
    return {"step": 1.0, "low": float(low), "high": float(high), "size": float(abs(low) + abs(high))}


def _settings(shape: Any, multipliers: Any, shifts: Any, low: int, high: int) -> dict[str, Any]:
    """One factor for each channel, or one for all. Each m 2^(s - 31) is a float64 number."""
    wrong = check_factors(multipliers, shifts, low, high)
    if wrong or len(multipliers) not in (1, shape[0]):
        raise Refused(wrong or f"{len(multipliers)} factors for {shape[0]} channels")
    view = (-1, *[1] * (len(shape) - 1)) if len(multipliers) > 1 else ()

    def numbers(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).reshape(view)

    factors = [math.ldexp(m, s - 31) for m, s in zip(multipliers, shifts, strict=True)]
    slacks = [factor / 2 + (2.0 ** (s - 1) if s < 0 else 0.0) for factor, s in zip(factors, shifts, strict=True)]
    return {
        "factor": numbers(factors), "slack": numbers(slacks), "most": numbers([2.0 ** (30 - max(s, 0)) for s in shifts]),
        "multipliers": tuple(multipliers), "shifts": tuple(shifts), **_clipped_to(low, high),
    }  # fmt: skip


@converter("tiltproof.requantize.default")
def requantize(shape: Any, x: Any, multipliers: Any, shifts: Any, low: int, high: int) -> Built:
    require_constants(x)
    return Built("requantize", (x.name,), _settings(shape, multipliers, shifts, low, high))


@converter("tiltproof.rescaled_sum.default")
def rescaled_sum(shape: Any, x: Any, y: Any, multipliers: Any, shifts: Any, minus: bool, low: int, high: int) -> Built:
    """As it is defined: both numbers shifted and scaled, and what they add up to scaled again."""
    if len(multipliers) != 3 or len(shifts) != 3:
        raise Refused(f"a sum with {len(multipliers)} factors")
    for other in (x, y):
        if not isinstance(other, Input) or len(other.shape) != len(shape):
            raise Refused("a sum of whole numbers with a constant, or of other dimensions")
    terms = []
    for k, each in enumerate((x, y)):
        moved = scaled_by(each.shape, each, 2.0**SUM_SHIFT, lambda c: c, None)
        moved.shape = each.shape
        settings = _settings(each.shape, multipliers[k : k + 1], shifts[k : k + 1], -SUM_RANGE, SUM_RANGE)
        terms.append(Built("requantize", (moved,), settings, shape=each.shape))
    total = Built("sub" if minus else "add", tuple(terms), shape=shape)
    return Built("requantize", (total,), _settings(shape, multipliers[2:], shifts[2:], low, high))


@converter("tiltproof.rounded.default")
def rounded(shape: Any, x: Any, factor: float, offset: int, low: int, high: int, snap: float) -> Built:
    """A whole offset that is added before the rounding and taken off after it changes no distance."""
    require_constants(x)
    wrong = check_factors([1], [0], low, high)
    if wrong or not 2.0**-60 < factor < 2.0**60 or abs(offset) > 2**20 or not 0 <= snap <= 2.0**-4:
        raise Refused(wrong or f"a rounding of {factor} x + {offset} where {snap} is a tie")
    settings = {"factor": float(factor), "slack": float(snap), "offset": offset, "most": math.inf}
    return Built("rounded", (x.name,), {**settings, **_clipped_to(low, high)})
