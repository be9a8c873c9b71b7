"""Piecewise linear functions beside ReLU and clamps: maximum and minimum, sign, PReLU, abs, hard sigmoid, shrinkage, thresholds.

Maximum and the jump at 0 have a rule each; everything else is a sum of these, ReLUs and clamps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import SMALLEST, gamma, widen
from tiltproof.errors import UnsupportedOperation
from tiltproof.network.graph import Operation
from tiltproof.network.ops.activations import Banded, Line
from tiltproof.network.ops.activations import clamp as clamp_between
from tiltproof.network.ops.arithmetic import value_of_constant
from tiltproof.network.ops.base import (
    UNDERFLOW,
    BackwardResult,
    Built,
    Input,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    farthest,
    lengths,
    require_constants,
    row_size,
    rule,
)
from tiltproof.network.ops.products import narrower, shared_symbols

STEEPEST = 2.0**20
"""Largest slope of a line beside a jump."""


@rule("maximum")
class Maximum(Rule):
    """y = max(x1, x2) = x2 + relu(d), d = x1 - x2, in which shared symbols cancel.

    For d in [l, h] and any s in [0, 1], relu(d) - s d is convex and 0 at d = 0, so that over [l, h] it lies in [0, t] with
    t = max(-s l, (1 - s) h, 0). Hence s x1 + (1 - s) x2 <= y <= s x1 + (1 - s) x2 + t. With s = h / (h - l), the chord's, t is least.
    A floating-point evaluation is exact.
    """

    def _difference(self, first: AffineForm, second: AffineForm) -> tuple[Tensor, Tensor]:
        """l and h of x1 - x2."""
        one, two = shared_symbols(first, second)
        stack = one.stack - two.stack
        radius = widen(one.radius + two.radius, one.magnitude() + two.magnitude(), 2, one.unit)
        form = AffineForm(stack, radius, one.unit, one.quadratic or two.quadratic)
        return form.lower, form.upper

    def _chord(self, first: AffineForm, second: AffineForm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """s, 1 - s, t, which roundings do not make too small, and the slope of the better line below; that of x1 is 1 or 0."""
        low, high = self._difference(first, second)
        below, above = (-low).clamp(min=0), high.clamp(min=0)
        slope = above / (below + above + SMALLEST[low.dtype])
        slope = torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, slope.clamp(0, 1)))
        other = 1 - slope
        top = torch.maximum(slope * below, other * above) * (1 + 8 * first.unit)
        return slope, other, top, (above > below).to(slope.dtype)

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """Or the interval between the larger lower and the larger upper end."""
        slope, other, top, _ = self._chord(*inputs)
        one, two = shared_symbols(*inputs)
        stack = one.stack * slope + two.stack * other
        stack[0] += top / 2
        magnitude = one.magnitude() + one.radius + two.magnitude() + two.radius + top
        radius = widen(one.radius * slope + two.radius * other + top / 2, magnitude, 8, one.unit)
        form = AffineForm(stack, radius, one.unit, one.quadratic or two.quadratic)
        ends = ((a.lower, a.upper) for a in inputs)
        (low, high), (low_two, high_two) = ends
        return narrower(form, torch.maximum(low, low_two), torch.maximum(high, high_two))

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a >= 0: y >= x1 or y >= x2, whichever may be ahead by more; a < 0: the chord."""
        first, second = inputs
        slope, other, top, better = self._chord(first, second)
        gain = torch.where(a > 0, better, slope)
        rest = torch.where(a > 0, 1 - better, other)
        result = BackwardResult([a * gain, a * rest], constant=dot(a.clamp(max=0), top))
        if first.unit:
            size = lengths(farthest(first) + farthest(second) + top)
            result.rounding_budget = size * backward_gamma(9, row_size(a), first.unit)
        return result


@rule("step")
class Step(Banded):
    """y = low for x < 0, high for x > 0, and any number of [low, high] at x = 0, low < high: sign, comparisons.

    A rounding may put x on the other side of 0, or make it 0: the forms hold every x that an evaluation may have, and one that is
    smaller than the normal numbers may be flushed. So y is known only where x stays away from [-m, m], m = 2^-126 in a float32
    evaluation, else 0; elsewhere it is in [low, high]. With y = low + (high - low) u, 0 <= s, on [l, h] with l <= m, -m <= h:

        u >= s x + min(-s m, 1 - s h),   u <= s x + max(1 + s m, -s l),

    because u >= 0 where x <= m, u = 1 beyond; u <= 1 where x >= -m, u = 0 before.
    """

    discontinuous = True

    def _ends(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, float]:
        return form.lower.double(), form.upper.double(), UNDERFLOW if operation.evaluation else 0.0

    def _size(self, operation: Operation) -> tuple[float, float, float]:
        low, high = operation.settings["low"], operation.settings["high"]
        return low, high, 2.0**-40 * (abs(low) + abs(high))

    def band(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Constants: no parallel lines are closer to both sides of a jump."""
        lower, upper, margin = self._ends(operation, form)
        low, high, _ = self._size(operation)
        least, most = (torch.full_like(lower, end) for end in (low, high))
        # comparisons are false for a NaN, which then keeps the whole range
        return (
            torch.zeros_like(lower),
            torch.where(lower > margin, most, least),
            torch.where(upper < -margin, least, most),
        )

    def lines(self, operation: Operation, form: AffineForm) -> tuple[Line, Line]:
        """The line through the jump's corner and the farther end, where that end is farther than the other; else the constant."""
        lower, upper, margin = self._ends(operation, form)
        low, high, slack = self._size(operation)
        slack = slack if form.unit else 0.0
        zero, least, most = self.band(operation, form)
        crossing = (least < most) & (lower < 0) & (upper > 0)

        def steepness(near: Tensor, far: Tensor) -> Tensor:
            slope = (1 / (far + SMALLEST[torch.float64])).clamp(max=STEEPEST).to(form.radius.dtype).double()
            # slopes that are nothing in the bounds' dtype are 0
            return torch.where(crossing & (far > near) & (slope >= 2.0**-60), slope, zero)

        rise = high - low
        up, down = steepness(-lower, upper), steepness(upper, -lower)
        below = torch.minimum(-up * margin, 1 - up * upper) * rise + low - slack
        above = torch.maximum(1 + down * margin, -down * lower) * rise + low + slack
        slopes = [(each * rise).to(form.radius.dtype).double() for each in (up, down)]
        # a rounded slope differs by 2^-23 of itself, and the line by as much of |x|
        moved = [
            (slope - each * rise).abs() * torch.maximum(lower.abs(), upper.abs())
            for slope, each in zip(slopes, (up, down), strict=True)
        ]
        below = torch.where(up > 0, below - moved[0], least)
        above = torch.where(down > 0, above + moved[1], most)
        return (slopes[0], below), (slopes[1], above)

    def evaluation_error(self, operation: Operation, form: AffineForm) -> float:
        """An evaluation rounds low and high."""
        low, high, _ = self._size(operation)
        return gamma(4, operation.evaluation) * (abs(low) + abs(high) + UNDERFLOW) if operation.evaluation else 0.0


def scaled(inner: str | Built, shape: tuple[int, ...] | None, factor: Any = 1.0, shift: Any = None) -> Built:
    """factor * inner + shift with numbers, or tensors of the module that fit the shape."""

    def made(constant: Any) -> Callable[[dict[str, Tensor]], Any]:
        return lambda constants: constant(constants) if callable(constant) else value_of_constant(constant, constants)

    def used(constants: dict[str, Tensor]) -> Tensor:
        return torch.cat([made(each)(constants).flatten() for each in (factor, shift) if each is not None])

    derived = {"scale": made(factor), "constants": used} | ({} if shift is None else {"shift": made(shift)})
    return Built("scale", (inner,), {"shift": None} if shift is None else {}, derived, shape)


def number(name: str, value: Any, low: float = -(2.0**40), high: float = 2.0**40) -> float:
    if not isinstance(value, (int, float)) or not low <= value <= high or 0 < abs(value) < 2.0**-100:
        raise Refused(f"{name} = {value}; a number from {low:g} to {high:g} has a rule")
    return float(value)


def relu_of(inner: str | Built, shape: tuple[int, ...]) -> Built:
    return Built("relu", (inner,), shape=shape)


def step_of(inner: str | Built, shape: tuple[int, ...], low: float, high: float) -> Built:
    return Built("step", (inner,), {"low": low, "high": high}, shape=shape)


def larger_than(x: Input, bound: float) -> Built:
    """max(x, bound) = bound + relu(x - bound)."""
    return scaled(relu_of(scaled(x.name, x.shape, shift=-bound), x.shape), x.shape, shift=bound)


def smaller_than(x: Input, bound: float) -> Built:
    """min(x, bound) = bound - relu(bound - x)."""
    return scaled(relu_of(scaled(x.name, x.shape, -1.0, bound), x.shape), x.shape, -1.0, bound)


@converter("clamp.default")
def clamp(shape: Any, x: Any, low: Any = None, high: Any = None) -> Built:
    if low is None and high is not None:
        return clamp_max(shape, x, high)
    return clamp_min(shape, x, low) if high is None and low is not None else clamp_between(shape, x, low, high)


@converter("clamp_min.default")
def clamp_min(shape: Any, x: Any, low: Any) -> Built:
    require_constants(x, low)
    return larger_than(x, number("min", low))


@converter("clamp_max.default")
def clamp_max(shape: Any, x: Any, high: Any) -> Built:
    require_constants(x, high)
    return smaller_than(x, number("max", high))


@converter("maximum.default", "max.other")
def maximum(shape: Any, x: Any, other: Any) -> Built:
    """With a constant b: b + relu(x - b)."""
    if isinstance(x, Input) and isinstance(other, Input):
        if x.shape != other.shape:
            raise Refused(f"the larger of branches of shapes {x.shape} and {other.shape}")
        return Built("identity", (x.name,)) if x.name == other.name else Built("maximum", (x.name, other.name))
    x, other = (x, other) if isinstance(x, Input) else (other, x)
    if x.shape != shape:
        raise Refused(f"a constant that changes the shape from {x.shape} to {shape}")
    before = scaled(x.name, shape, 1.0, fitted(other, shape, -1.0))
    return scaled(relu_of(before, shape), shape, 1.0, fitted(other, shape, 1.0))


@converter("minimum.default", "min.other")
def minimum(shape: Any, x: Any, other: Any) -> Built:
    """min(x1, x2) = -max(-x1, -x2)."""
    if isinstance(x, Input) and isinstance(other, Input):
        if x.shape != other.shape:
            raise Refused(f"the smaller of branches of shapes {x.shape} and {other.shape}")
        if x.name == other.name:
            return Built("identity", (x.name,))
        turned = tuple(scaled(each.name, shape, -1.0) for each in (x, other))
        return scaled(Built("maximum", turned, shape=shape), shape, -1.0)
    x, other = (x, other) if isinstance(x, Input) else (other, x)
    if x.shape != shape:
        raise Refused(f"a constant that changes the shape from {x.shape} to {shape}")
    before = scaled(x.name, shape, -1.0, fitted(other, shape, 1.0))
    return scaled(relu_of(before, shape), shape, -1.0, fitted(other, shape, 1.0))


def fitted(constant: Any, shape: tuple[int, ...], factor: float) -> Callable[[dict[str, Tensor]], Tensor]:
    """A constant, times 1 or -1, without a dimension for the batch."""

    def made(constants: dict[str, Tensor]) -> Tensor:
        value = value_of_constant(constant, constants) * factor
        if value.ndim > len(shape):
            if math.prod(value.shape[: value.ndim - len(shape)]) != 1:
                raise UnsupportedOperation(
                    "a constant has a row for each image of a batch",
                    got=f"shape {list(value.shape)}",
                    do="give it one row for all: torch.zeros(1, ...) instead of torch.zeros(len(x), ...)",
                )
            value = value.flatten(0, value.ndim - len(shape)) if len(shape) else value.reshape(())
        return value

    return made


@converter("abs.default")
def absolute(shape: Any, x: Any) -> Built:
    """|x| is x above 0 and -x below."""
    return Built("relu", (x.name,), {"negative_slope": -1.0})


@converter("prelu.default", "_prelu_kernel.default")
def prelu(shape: Any, x: Any, weight: Any) -> Built:
    """a x + (1 - a) relu(x), whatever a is, with one a for all or one for each channel."""
    require_constants(x, weight)

    def slopes(constants: dict[str, Tensor]) -> Tensor:
        value = value_of_constant(weight, constants)
        return value.reshape(()) if value.numel() == 1 else value.reshape(-1, *[1] * (len(shape) - 1))

    rest = scaled(relu_of(x.name, shape), shape, lambda constants: 1 - slopes(constants))
    return Built("add", (scaled(x.name, shape, slopes), rest))


@converter("hardsigmoid.default")
def hardsigmoid(shape: Any, x: Any) -> Built:
    """min(max(x / 6 + 1 / 2, 0), 1)."""
    return Built("clamp", (scaled(x.name, shape, 1 / 6, 0.5),), {"low": 0.0, "high": 1.0})


def distance(x: Input, bound: float, sign: float = 1.0) -> Built:
    """sign x - bound."""
    return scaled(x.name, x.shape, sign, -bound)


@converter("threshold.default")
def threshold(shape: Any, x: Any, bound: Any, value: Any) -> Built:
    """x where x > t, else v: v + relu(x - t), and the jump from v to t if they differ."""
    require_constants(x, bound, value)
    bound, value = number("threshold", bound), number("value", value)
    result = scaled(relu_of(distance(x, bound), shape), shape, shift=value)
    if bound == value:
        return result
    jump = step_of(distance(x, bound), shape, 0.0, 1.0)
    return Built("add", (result, scaled(jump, shape, bound - value)))


@converter("softshrink.default")
def softshrink(shape: Any, x: Any, bound: Any = 0.5) -> Built:
    """x - min(max(x, -b), b)."""
    bound = number("lambd", bound, 2.0**-100)
    return Built("sub", (x.name, Built("clamp", (x.name,), {"low": -bound, "high": bound}, shape=shape)))


@converter("hardshrink.default")
def hardshrink(shape: Any, x: Any, bound: Any = 0.5) -> Built:
    """x where |x| > b, else 0: softshrink, and jumps of b at -b and b."""
    bound = number("lambd", bound, 2.0**-100)
    soft = softshrink(shape, x, bound)
    soft.shape = shape
    jumps = (step_of(distance(x, bound, sign), shape, 0.0, bound) for sign in (1.0, -1.0))
    return Built("add", (soft, Built("sub", tuple(jumps), shape=shape)))


@converter("sign.default", "sgn.default")
def sign(shape: Any, x: Any) -> Built:
    return Built("step", (x.name,), {"low": -1.0, "high": 1.0})
