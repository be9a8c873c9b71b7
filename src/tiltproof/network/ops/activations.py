"""Rules of activation functions: two-piece linear ones (ReLU, leaky ReLU) and S-shaped ones (sigmoid, tanh)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.quadratic_relu import quadratic_relaxation
from tiltproof.enclosures.relu import relax_relu, relu_chord, relu_gap
from tiltproof.enclosures.rounding import gamma, widen
from tiltproof.kernels.registry import has_kernel
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import (
    UNDERFLOW,
    BackwardResult,
    Rule,
    backward_gamma,
    dot,
    evaluated,
    farthest,
    form_lengths,
    lengths,
    ones_length,
    row_size,
    rule,
)
from tiltproof.network.ops.converters import Built, Refused, converter


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
        """w relu(x) >= w x / 2 + w (shift + tilt e + curvature (2 e^2 - 1)) - |w| rest (`bounds.curvature`), where that loses less
        than lines do
        on the average: half the chord's offset above; below, half of what lies under the shorter end. There it takes the lines' place
        in ``result``, which is changed.

        All terms of an entry are at most 4 |w| max|x|, and so are rest and what the line added to the constant, which is taken off again.
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
        allowance = None if result.allowance is None else result.allowance * 8
        error = None if result.error is None else result.error * 8
        return replace(result, constant=result.constant + sums[0], moves=sums[1:], allowance=allowance, error=error)


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
        result.allowance = form_lengths(form) * ((max(1.0, abs(negative)) + 1 - negative) * allowance)
        result.allowance.add_(UNDERFLOW * ones_length(a) * allowance)
    return result


LIBRARY = 32
"""Units roundoff, relative to 1, by which a float32 sigmoid or tanh of a library is assumed to be off at most."""


class SShaped(Rule):
    """An increasing f whose slope rises up to x = 0 and falls after it, so its least slope on [l, h] is at an end.

    With s <= min(f'(l), f'(h)), f(x) - s x is increasing on [l, h]:  f(l) - s l <= f(x) - s x <= f(h) - s h.
    """

    activation = True

    def value(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def derivative(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def _lines(self, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Slope s and both offsets, in float64; 2^-40 is far more than the library functions' error there."""
        lower, upper = form.lower.double(), form.upper.double()
        at_lower, at_upper = self.value(lower), self.value(upper)
        slope = torch.minimum(self.derivative(at_lower), self.derivative(at_upper))
        slope = (slope - 2.0**-40).clamp(min=0).to(form.radius.dtype).double() * (1 - 2.0**-20)
        slope = slope.to(form.radius.dtype).double()
        slack = 2.0**-40 * (1 + lower.abs() + upper.abs()) if form.unit else 0.0
        return slope, at_lower - slope * lower - slack, at_upper - slope * upper + slack

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        (form,) = inputs
        slope, low, high = self._lines(form)
        dtype = form.radius.dtype
        gain, middle, half = slope.to(dtype), ((low + high) / 2).to(dtype), ((high - low) / 2).to(dtype)
        stack = torch.cat([(form.center * gain + middle)[None], form.slopes * gain])
        magnitude = gain * (form.center.abs() + form.reach()) + middle.abs() + half
        radius = widen(form.radius * gain + half, magnitude, 8, form.unit) + LIBRARY * operation.evaluation
        return AffineForm(stack, torch.where(form.reach() < torch.inf, radius, torch.inf), form.unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        (form,) = inputs
        slope, low, high = self._lines(form)
        offset = torch.where(a > 0, low, high)
        gain = slope.to(a.dtype)
        result = BackwardResult([a * gain], constant=dot(a, offset))
        if form.unit:
            size = lengths(gain * farthest(form) + torch.maximum(low.abs(), high.abs()).to(a.dtype))
            result.allowance = size * backward_gamma(9, row_size(a), form.unit)
            result.allowance += LIBRARY * operation.evaluation * ones_length(a)
        return result


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
