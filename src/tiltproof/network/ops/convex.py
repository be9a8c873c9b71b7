"""Convex functions of one variable, bounded by tangents and chords."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import widen
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import (
    BackwardResult,
    Rule,
    backward_gamma,
    dot,
    farthest,
    lengths,
    row_size,
)

PRECISION = 2.0**-44
"""Far exceeds the error of float64 library functions and of the few float64 operations around them."""

Function = tuple[Tensor, Tensor, Tensor]


class Convex(Rule):
    """An elementwise convex f on [l, h], worked out in float64.

    For every slope s, f(x) - s x is at most its larger value at l and h. For every point t, f(x) >= f(t) + f'(t) (x - t), so that
    f(x) - s x >= f(t) - s t - |f'(t) - s| (h - l); t with f'(t) = s makes the last term vanish but for roundings.
    """

    def ends(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        """l and h."""
        return form.lower.double(), form.upper.double()

    def inside(self, operation: Operation, low: Tensor, high: Tensor) -> Tensor:
        """Where f can be worked out on [l, h]; elsewhere nothing is proved."""
        raise NotImplementedError

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def derivative(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def at_slope(self, operation: Operation, slope: Tensor) -> Tensor:
        """About where f' has this value."""
        raise NotImplementedError

    def evaluation_error(self, operation: Operation, low: Tensor, high: Tensor) -> Tensor:
        """How far a floating-point evaluation of f may be off on [l, h]."""
        raise NotImplementedError

    def _domain(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """l, h, and where they are of use; 0 elsewhere."""
        low, high = self.ends(operation, form)
        inside = self.inside(operation, low, high) & (low <= high)
        return torch.where(inside, low, 1.0), torch.where(inside, high, 1.0), inside

    def _line_below(self, operation: Operation, low: Tensor, high: Tensor, slope: Tensor, at: Tensor) -> Tensor:
        """Offset of the line of this slope below f, by the tangent at a point."""
        value, steep = self.value(operation, at), self.derivative(operation, at)
        slack = PRECISION * (value.abs() + (slope.abs() + steep.abs()) * (low.abs() + high.abs()))
        return value - slope * at - (steep - slope).abs() * (high - low) - slack

    def _line_above(self, operation: Operation, low: Tensor, high: Tensor, slope: Tensor) -> Tensor:
        """Offset of the line of this slope above f."""
        first, last = self.value(operation, low), self.value(operation, high)
        slack = PRECISION * (first.abs() + last.abs() + slope.abs() * (low.abs() + high.abs()))
        return torch.maximum(first - slope * low, last - slope * high) + slack

    def _chord(self, operation: Operation, low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
        """Its slope, or the derivative's at the ends where that is closer, as the bounds' dtype has it."""
        rise = (self.value(operation, high) - self.value(operation, low)) / (high - low)
        first, last = self.derivative(operation, low), self.derivative(operation, high)
        return torch.where(high > low, torch.minimum(torch.maximum(rise, first), last), first).to(dtype).double()

    def _point(self, operation: Operation, low: Tensor, high: Tensor, slope: Tensor) -> Tensor:
        point = self.at_slope(operation, slope)
        point = torch.where(point.isfinite(), point, (low + high) / 2)
        return torch.minimum(torch.maximum(point, low), high)

    def band(self, operation: Operation, form: AffineForm) -> Function:
        """Slope s and both offsets of parallel lines around f: of the chord, or of slope 0 where that leaves less of a remainder."""
        low, high, inside = self._domain(operation, form)
        best: Function | None = None
        for slope in (self._chord(operation, low, high, form.radius.dtype), torch.zeros_like(low)):
            below = self._line_below(operation, low, high, slope, self._point(operation, low, high, slope))
            above = self._line_above(operation, low, high, slope)
            if best is None:
                best = slope, below, above
                continue
            now, before = (s.abs() * form.radius + (b - a) / 2 for s, a, b in ((slope, below, above), best))
            better = now < before
            best = (
                torch.where(better, slope, best[0]),
                torch.where(better, below, best[1]),
                torch.where(better, above, best[2]),
            )
        assert best is not None
        slope, below, above = best
        return slope, torch.where(inside, below, -torch.inf), torch.where(inside, above, torch.inf)

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        (form,) = inputs
        slope, below, above = self.band(operation, form)
        if not form.unit:
            below, above = below.to(form.radius.dtype), above.to(form.radius.dtype)
        dtype = form.radius.dtype
        sound = (above < torch.inf) & (form.reach() < torch.inf)
        below, above = torch.where(sound, below, 0.0), torch.where(sound, above, 0.0)
        gain, middle, half = slope.to(dtype), ((below + above) / 2).to(dtype), ((above - below) / 2).to(dtype)
        stack = torch.cat([(form.center * gain + middle)[None], form.slopes * gain])
        magnitude = gain.abs() * farthest(form) + middle.abs() + half
        radius = widen(form.radius * gain.abs() + half, magnitude, 8, form.unit)
        if operation.evaluation:
            low, high, _ = self._domain(operation, form)
            radius = radius + (self.evaluation_error(operation, low, high) * (1 + 2.0**-20)).to(dtype)
        return AffineForm(stack, torch.where(sound, radius, torch.inf), form.unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a >= 0: the tangent in the middle; a < 0: the chord."""
        (form,) = inputs
        low, high, inside = self._domain(operation, form)
        middle = (low + high) / 2
        tangent = self.derivative(operation, middle).to(a.dtype).double()
        chord = self._chord(operation, low, high, a.dtype)
        below = self._line_below(operation, low, high, tangent, middle)
        above = self._line_above(operation, low, high, chord)
        gain, offset = torch.where(a > 0, tangent, chord), torch.where(a > 0, below, above)
        offset = torch.where(inside, offset, torch.where(a > 0, -torch.inf, torch.inf))
        result = BackwardResult([a * gain.to(a.dtype)], constant=dot(a, offset))
        if form.unit:
            size = lengths(gain.abs().to(a.dtype) * farthest(form) + offset.abs().to(a.dtype))
            result.rounding_budget = size * backward_gamma(9, row_size(a), form.unit)
            if operation.evaluation:
                theirs = self.evaluation_error(operation, low, high).to(a.dtype)
                result.rounding_budget = result.rounding_budget + lengths(theirs) * (1 + 2.0**-20)
        return result
