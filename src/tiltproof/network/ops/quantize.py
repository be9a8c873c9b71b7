"""Rounding to whole numbers: the quantization of activations, as torch's fake quantization and integer networks have it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import SMALLEST, gamma
from tiltproof.network.graph import Operation
from tiltproof.network.ops.activations import Banded, Line
from tiltproof.network.ops.base import UNDERFLOW, Built, Refused, converter, require_constants, rule

LARGEST = 2.0**60
"""float32 semantics: beyond this many units an evaluation may leave the range of its integers before it clips."""
ROUNDED = 2.0**-46
"""Relative; far exceeds the float64 roundings of a handful of steps."""


@rule("quantize")
class Quantize(Banded):
    """y = step min(max(n, low), high), where n is any whole number with |n - factor x| <= 1/2 + slack.

    How ties are rounded does not matter, since either neighbor is allowed for; ``slack`` covers an integer kernel's fixed-point factor
    and its second rounding. Two enclosures, of which the one that leaves less is used at each entry:

    - n increases with x, up to the choice at ties. On [l, h] it is at least ceil(factor l - 1/2 - slack) and at most
      floor(factor h + 1/2 + slack), so y lies between constants; where both are equal, nothing of the input's width is left.
    - With C(x) = step min(max(factor x, low), high), |y - C(x)| <= step (1/2 + slack), because clipping does not increase distances. C is
      linear but for kinks at low / factor and high / factor, so for any slope s, C(x) - s x over [l, h] lies between its least and its
      largest value at l, h and the kinks inside (a kink outside stands for the nearer end).
    """

    discontinuous = True

    def _units(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        """Units for each x, and how far n may be from that many: 1/2, the slack and roundings."""
        like = form.radius
        factor, slack = (
            torch.as_tensor(operation.settings[name], dtype=torch.float64, device=like.device)
            for name in ("factor", "slack")
        )
        farthest = torch.maximum(form.lower.double().abs(), form.upper.double().abs())
        room = 0.5 + slack + torch.zeros_like(farthest)
        size = farthest * factor + operation.settings["size"] + 1
        if form.unit:
            room = room + ROUNDED * size
        if operation.evaluation:
            room = room + gamma(16, operation.evaluation) * size + UNDERFLOW * factor
            room = torch.where(size < LARGEST, room, torch.inf)
        return factor, room

    def _whole(self, operation: Operation, form: AffineForm, factor: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest y, float64."""
        s = operation.settings
        least = (form.lower.double() * factor - room).ceil().clamp(s["low"], s["high"]) * s["step"]
        most = (form.upper.double() * factor + room).floor().clamp(s["low"], s["high"]) * s["step"]
        slack = ROUNDED * s["step"] * s["size"] if form.unit else 0.0
        return least - slack * (least != 0), most + slack * (most != 0)

    def _clipped(self, operation: Operation, x: Tensor, factor: Tensor) -> Tensor:
        s = operation.settings
        return (x * factor).clamp(s["low"], s["high"]) * s["step"]

    def _points(self, operation: Operation, form: AffineForm, factor: Tensor) -> list[Tensor]:
        """l, h, and the points of [l, h] nearest to the kinks; float64."""
        lower, upper = form.lower.double(), form.upper.double()
        kinks = [(operation.settings[name] / factor + torch.zeros_like(lower)) for name in ("low", "high")]
        return [lower, upper, *(kink.maximum(lower).minimum(upper) for kink in kinks)]

    def _offsets(
        self, operation: Operation, form: AffineForm, slope: Tensor, factor: Tensor, room: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bounds of y - s x over [l, h], for any slope s."""
        points = self._points(operation, form, factor)
        values = torch.stack([self._clipped(operation, x, factor) - slope * x for x in points])
        step = operation.settings["step"]
        beside = step * room
        if form.unit:
            farthest = torch.maximum(points[0].abs(), points[1].abs())
            beside = beside + ROUNDED * (
                farthest * (slope.abs() + step * factor) + step * (operation.settings["size"] + room)
            )
        return values.amin(0) - beside, values.amax(0) + beside

    def _chord(self, operation: Operation, form: AffineForm, x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
        rise = self._clipped(operation, y, factor) - self._clipped(operation, x, factor)
        chord = rise / (y - x + SMALLEST[torch.float64])
        return chord.clamp(min=0).minimum(factor * operation.settings["step"]).to(form.radius.dtype).double()

    def band(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Between constants, or along the chord, whichever leaves the smaller remainder."""
        factor, room = self._units(operation, form)
        lower, upper, *_ = self._points(operation, form, factor)
        slope = self._chord(operation, form, lower, upper, factor)
        low, high = self._offsets(operation, form, slope, factor, room)
        least, most = self._whole(operation, form, factor, room)
        flat = ~((most - least) / 2 > slope * form.radius + (high - low) / 2)
        zero = torch.zeros_like(slope)
        return torch.where(flat, zero, slope), torch.where(flat, least, low), torch.where(flat, most, high)

    def lines(self, operation: Operation, form: AffineForm) -> tuple[Line, Line]:
        """Of the constant, the line through both points where C(x) - s x can be extreme, and C's own slope, the closest at the middle."""
        factor, room = self._units(operation, form)
        lower, upper, at_low, at_high = self._points(operation, form, factor)
        whole = self._whole(operation, form, factor, room)
        middle = (lower + upper) / 2
        found: list[Line] = []
        for index, (x, y) in enumerate(((at_low, upper), (lower, at_high))):
            slope, offset = torch.zeros_like(lower), whole[index]
            own = torch.full_like(lower, operation.settings["step"]) * factor
            for other in (self._chord(operation, form, x, y, factor), own.to(form.radius.dtype).double()):
                candidate = self._offsets(operation, form, other, factor, room)[index]
                gain = (other - slope) * middle + candidate - offset
                better = gain > 0 if index == 0 else gain < 0
                slope, offset = torch.where(better, other, slope), torch.where(better, candidate, offset)
            found.append((slope, offset))
        return found[0], found[1]

    def evaluation_error(self, operation: Operation, form: AffineForm) -> float:
        """An evaluation multiplies by the step, rounded itself."""
        size = operation.settings["step"] * operation.settings["size"] + UNDERFLOW
        return gamma(4, operation.evaluation) * size if operation.evaluation else 0.0


MOST_UNITS = 2**20
"""Largest whole number of a quantized value, by size."""


@converter("fake_quantize_per_tensor_affine.default", "fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(shape: Any, x: Any, scale: Any, zero: Any, low: int, high: int) -> Built:
    """(min(max(round(x / scale) + zero, low), high) - zero) scale: n = round(x / scale), since the zero is a whole number."""
    require_constants(x, scale, zero)
    if not isinstance(scale, (int, float)) or not isinstance(zero, int) or not 2.0**-60 < scale < 2.0**60:
        raise Refused(f"a quantization by {scale} with zero {zero}; numbers have a rule")
    if not low <= zero <= high or low >= high or max(abs(low), abs(high)) > MOST_UNITS:
        raise Refused(f"a quantization to {low} ... {high} with zero {zero}")
    settings = {
        "factor": 1.0 / scale, "step": float(scale), "low": float(low - zero), "high": float(high - zero), "slack": 0.0,
        "size": float(abs(low) + abs(high)), "zero": zero,
    }  # fmt: skip
    return Built("quantize", (x.name,), settings)
