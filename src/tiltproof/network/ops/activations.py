"""Activation functions: ReLU and leaky ReLU, clamps, and S-shaped functions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import has_kernel
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import quadratic_relaxation, relax_relu, relu_chord, relu_gap
from tiltproof.enclosures.rounding import SMALLEST, gamma, widen
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import (
    UNDERFLOW,
    BackwardResult,
    Built,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    evaluated,
    farthest,
    form_lengths,
    lengths,
    ones_length,
    require_constants,
    row_size,
    rule,
)


@rule("relu")
class Relu(Rule):
    """f(x) = x for x >= 0, a x below, a <= 1 (0 for ReLU)."""

    activation = True

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        negative = operation.settings.get("negative_slope", 0.0)
        result = relax_relu(inputs[0], negative)
        # evaluated in floating point ReLU is exact; a leaky one rounds its slope and the product
        return evaluated(result, 4, operation.evaluation) if negative else result

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """Lower bound of w f(x), f(x) = a x + (1 - a) relu(x), on [l, h] with l < 0 < h:
        w >= 0:  relu(x) >= s x for any slope s in [0, 1]; s = 1 where h > -l, else 0;
        w < 0:   relu(x) <= s x + t with the chord's slope s and t from `relu_gap`, which is at most (1 - a) max|x|.
        Rounding: 8 of each coefficient and offset, relative to |x| + t.
        """
        (form,) = inputs
        negative = operation.settings.get("negative_slope", 0.0)
        result = relu_backward(a, form, negative, operation.evaluation)
        return result if negative else self._quadratic(a, form, result)

    def _quadratic(self, a: Tensor, form: AffineForm, result: BackwardResult) -> BackwardResult:
        """w relu(x) >= w x / 2 + w (shift + tilt e + curvature (2 e^2 - 1)) - |w| rest (`enclosures.relu`).

        Replaces the lines in ``result``, which it modifies, wherever it loses less on average: than half the chord's offset above, and
        below, than half the area under the shorter end. All terms of an entry are at most 4 |w| max|x|, and so are rest and the constant
        of the replaced line, which is subtracted again.
        """
        found = quadratic_relaxation(form)
        if found is None:
            return result
        above, below, chord = (line[0] for line in relu_chord(found.form))
        weight, offset = a[found.where], relu_gap(chord, above, below)
        under = torch.minimum(above, below) ** 2 / (above + below) / 2
        better = found.rest < torch.where(weight > 0, under, offset / 2)  # false for a NaN
        where, weight = tuple(index[better] for index in found.where), weight[better]
        result.inputs[0][where] = weight / 2
        shift, tilt, curvature, rest = (each[better] for each in (found.shift, found.tilt, found.curvature, found.rest))
        constant = weight * shift - weight.abs() * rest - weight.clamp(max=0) * offset[better]
        sums = torch.zeros(len(a), 3, dtype=torch.float64, device=a.device)
        parts = torch.stack([constant, weight * tilt, weight * curvature], 1).double()
        sums = sums.index_put_((where[0],), parts, accumulate=True).T
        allowance = None if result.rounding_budget is None else result.rounding_budget * 8
        error = None if result.error is None else result.error * 8
        return replace(
            result, constant=result.constant + sums[0], quadratic_terms=sums[1:], rounding_budget=allowance, error=error
        )


@converter("relu.default")
def relu(shape: Any, x: Any) -> Built:
    return Built("relu", (x.name,))


@converter("leaky_relu.default")
def leaky_relu(shape: Any, x: Any, negative_slope: float = 0.01) -> Built:
    if not (math.isfinite(negative_slope) and negative_slope <= 1):
        raise Refused(f"a negative slope of {negative_slope}; it must be at most 1")
    if 0 < abs(negative_slope) < 2.0**-100:
        raise Refused(f"a negative slope of {negative_slope}; write 0 instead")
    return Built("relu", (x.name,), {"negative_slope": float(negative_slope)})


@has_kernel("backward:relu_backward")
def relu_backward(a: Tensor, form: AffineForm, negative: float, evaluation: float) -> BackwardResult:
    """`Relu.backward` by straight lines."""
    above, below, chord = relu_chord(form)
    offset = relu_gap(chord, above, below) * (1 - negative)
    lower = (above > below).to(chord.dtype)
    if negative:
        chord, lower = (negative + (1 - negative) * slope for slope in (chord, lower))
    # a stable neuron has chord 1 or 0 already, and the same lower slope
    result = BackwardResult([a * torch.where(a > 0, lower, chord)], constant=dot(a.clamp(max=0), offset))
    if form.unit:
        allowance = backward_gamma(8, row_size(a), form.unit)
        allowance += gamma(4, evaluation) if negative else 0.0
        result.rounding_budget = form_lengths(form) * ((max(1.0, abs(negative)) + 1 - negative) * allowance)
        result.rounding_budget.add_(UNDERFLOW * ones_length(a) * allowance)
    return result


Line = tuple[Tensor, Tensor]
"""Slope, which the bounds' dtype can represent, and offset, both float64."""


class Banded(Rule):
    """An elementwise f that lies between two lines on [l, h], of slopes of any sign."""

    activation = True

    def band(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Slope s and both offsets of parallel lines: low <= f(x) - s x <= high."""
        raise NotImplementedError

    def lines(self, operation: Operation, form: AffineForm) -> tuple[Line, Line]:
        """A line below f and a line above it; those of the band, unless other lines are closer."""
        slope, low, high = self.band(operation, form)
        return (slope, low), (slope, high)

    def evaluation_error(self, operation: Operation, form: AffineForm) -> Tensor | float:
        """How far a floating-point evaluation of f may be off at a given x of the form."""
        raise NotImplementedError

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        (form,) = inputs
        slope, low, high = self.band(operation, form)
        dtype = form.radius.dtype
        gain, middle, half = slope.to(dtype), ((low + high) / 2).to(dtype), ((high - low) / 2).to(dtype)
        middle = torch.where(half < torch.inf, middle, 0.0)
        stack = torch.cat([(form.center * gain + middle)[None], form.slopes * gain])
        size = gain.abs()
        magnitude = size * (form.center.abs() + form.reach()) + middle.abs() + half
        radius = widen(form.radius * size + half, magnitude, 8, form.unit) + self.evaluation_error(operation, form)
        return AffineForm(stack, torch.where(form.reach() < torch.inf, radius, torch.inf), form.unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """The line below serves a >= 0, the line above a < 0."""
        (form,) = inputs
        (below, low), (above, high) = self.lines(operation, form)
        offset = torch.where(a > 0, low, high)
        gain = torch.where(a > 0, below, above).to(a.dtype)
        result = BackwardResult([a * gain], constant=dot(a, offset))
        if form.unit:
            gain = torch.maximum(below.abs(), above.abs()).to(a.dtype)
            size = lengths(gain * farthest(form) + torch.maximum(low.abs(), high.abs()).to(a.dtype))
            result.rounding_budget = size * backward_gamma(9, row_size(a), form.unit)
            error = self.evaluation_error(operation, form)
            result.rounding_budget += lengths(error) if isinstance(error, Tensor) else error * ones_length(a)
        return result


@rule("clamp")
class Clamp(Banded):
    """f(x) = min(max(x, lo), hi), lo < hi: Hardtanh, ReLU6.

    For any slope s in [0, 1], f(x) - s x falls up to lo, rises from lo to hi and falls from there on. On [l, h] it is therefore at least
    its value at lo (at the nearest x of [l, h]) or at h, and at most its value at l or at hi (or the nearest x). This holds for s as
    rounded.
    """

    def _value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.clamp(operation.settings["low"], operation.settings["high"])

    def _ends(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """l, h, and the points of [l, h] nearest to lo and hi; float64."""
        lower, upper = form.lower.double(), form.upper.double()
        first, second = (operation.settings[name] + torch.zeros_like(lower) for name in ("low", "high"))
        return lower, upper, first.maximum(lower).minimum(upper), second.maximum(lower).minimum(upper)

    def _offsets(self, operation: Operation, form: AffineForm, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Least and largest f(x) - s x. The float64 product and difference are off by at most 2^-52 (|f(x)| + s |x|)."""
        lower, upper, at_low, at_high = self._ends(operation, form)
        lowest, highest = (
            choose(self._value(operation, x) - slope * x, self._value(operation, y) - slope * y)
            for choose, x, y in ((torch.minimum, at_low, upper), (torch.maximum, lower, at_high))
        )
        sizes = (self._value(operation, x).abs() + x.abs() for x in (lower, upper))
        slack = 2.0**-50 * sum(sizes) if form.unit else 0.0
        return lowest - slack, highest + slack

    def _representable(self, form: AffineForm, slope: Tensor) -> Tensor:
        return slope.clamp(0, 1).to(form.radius.dtype).double()

    def band(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """The chord's slope (f(h) - f(l)) / (h - l) makes the band narrowest, (1 - s) (f(h) - f(l)) wide; but with a remainder
        r > (f(h) - f(l)) / 2 of x the new remainder is least for s = 0. Where x stays between lo and hi, s = 1."""
        lower, upper, at_low, at_high = self._ends(operation, form)
        rise = self._value(operation, upper) - self._value(operation, lower)
        chord = torch.where(2 * form.radius > rise, 0.0, rise / (upper - lower + SMALLEST[torch.float64]))
        inside = (at_low == lower) & (at_high == upper)
        slope = self._representable(form, torch.where(inside, 1.0, chord))
        return slope, *self._offsets(operation, form, slope)

    def lines(self, operation: Operation, form: AffineForm) -> tuple[Line, Line]:
        """The lines whose mean over [l, h] is closest to f's. As a function of s the mean is linear but for a bend at the line through
        both points where f(x) - s x can be extreme, so that this slope, 0 or 1 is best."""
        lower, upper, at_low, at_high = self._ends(operation, form)
        found: list[Line] = []
        for index, (x, y) in enumerate(((at_low, upper), (lower, at_high))):
            rise = self._value(operation, y) - self._value(operation, x)
            bend = self._representable(form, rise / (y - x + SMALLEST[torch.float64]))
            slope, offset = bend, self._offsets(operation, form, bend)[index]
            for other in (torch.zeros_like(bend), torch.ones_like(bend)):
                candidate = self._offsets(operation, form, other)[index]
                gain = (other - slope) * (lower + upper) / 2 + candidate - offset
                better = gain > 0 if index == 0 else gain < 0
                slope, offset = torch.where(better, other, slope), torch.where(better, candidate, offset)
            found.append((slope, offset))
        return found[0], found[1]

    def evaluation_error(self, operation: Operation, form: AffineForm) -> float:
        """An evaluation rounds lo and hi to its own precision; f changes by no more than they do."""
        size = max(abs(operation.settings["low"]), abs(operation.settings["high"])) + UNDERFLOW
        return gamma(2, operation.evaluation) * size if operation.evaluation else 0.0


def clamp(shape: Any, x: Any, low: Any = None, high: Any = None) -> Built:
    require_constants(x, low, high)
    if not all(isinstance(bound, (int, float)) and abs(bound) < 2.0**100 for bound in (low, high)) or not low < high:
        raise Refused(f"a clamp to [{low}, {high}]; only finite constant bounds with low < high are supported")
    return Built("clamp", (x.name,), {"low": float(low), "high": float(high)})


@converter("hardtanh.default")
def hardtanh(shape: Any, x: Any, low: float = -1.0, high: float = 1.0) -> Built:
    return clamp(shape, x, low, high)


@converter("relu6.default")
def relu6(shape: Any, x: Any) -> Built:
    return clamp(shape, x, 0.0, 6.0)


LIBRARY = 32
"""Assumed largest error of a library's float32 sigmoid or tanh, in units roundoff relative to 1."""


class SShaped(Banded):
    """An increasing f whose slope rises up to x = 0 and falls after it, so its least slope on [l, h] is at an end.

    With s <= min(f'(l), f'(h)), f(x) - s x is increasing on [l, h]:  f(l) - s l <= f(x) - s x <= f(h) - s h.
    """

    def value(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def derivative(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def band(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Slope s and both offsets, in float64; 2^-40 far exceeds the error of float64 library functions."""
        lower, upper = form.lower.double(), form.upper.double()
        at_lower, at_upper = self.value(lower), self.value(upper)
        slope = torch.minimum(self.derivative(at_lower), self.derivative(at_upper))
        slope = (slope - 2.0**-40).clamp(min=0).to(form.radius.dtype).double() * (1 - 2.0**-20)
        slope = slope.to(form.radius.dtype).double()
        slack = 2.0**-40 * (1 + lower.abs() + upper.abs()) if form.unit else 0.0
        return slope, at_lower - slope * lower - slack, at_upper - slope * upper + slack

    def evaluation_error(self, operation: Operation, form: AffineForm) -> float:
        return LIBRARY * operation.evaluation


@rule("sigmoid")
class Sigmoid(SShaped):
    def value(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def derivative(self, value: Tensor) -> Tensor:
        return value * (1 - value)


@converter("sigmoid.default")
def sigmoid(shape: Any, x: Any) -> Built:
    return Built("sigmoid", (x.name,))


@rule("tanh")
class Tanh(SShaped):
    def value(self, x: Tensor) -> Tensor:
        return x.tanh()

    def derivative(self, value: Tensor) -> Tensor:
        return 1 - value * value


@converter("tanh.default")
def tanh(shape: Any, x: Any) -> Built:
    return Built("tanh", (x.name,))
