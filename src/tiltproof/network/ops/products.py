"""Products of two branches: gates, x * sigmoid(x), squares."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, absolute_sum
from tiltproof.enclosures.rounding import SMALLEST, gamma, widen
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import (
    UNDERFLOW,
    BackwardResult,
    Built,
    Input,
    Refused,
    Rule,
    backward_gamma,
    dot,
    evaluated,
    farthest,
    lengths,
    ones_length,
    reduced,
    row_size,
    rule,
    total,
)

MOST_UNEVEN = 2.0**20
"""Largest ratio of two deviations that `product_of_deviations` evens out."""


def shared_symbols(first: AffineForm, second: AffineForm) -> tuple[AffineForm, AffineForm]:
    """Both forms over the same symbols: those that only one of them still has join its radius."""
    kept = min(first.symbols, second.symbols)
    return _with_symbols(first, kept), _with_symbols(second, kept)


def _with_symbols(form: AffineForm, kept: int) -> AffineForm:
    if form.symbols <= kept:
        return form
    radius = widen(form.radius + absolute_sum(form.slopes[kept:]), 0.0, form.symbols + 2, form.unit)
    return AffineForm(form.stack[: 1 + kept], radius, form.unit, form.quadratic and kept > 1)


def product_of_deviations(first: AffineForm, second: AffineForm) -> tuple[Tensor, Tensor]:
    """(m, t) with |D1 D2 - m| <= t, D_i = x_i - c_i, for two forms over the same symbols.

    For every s > 0, 4 s D1 D2 = (s D1 + D2)^2 - (s D1 - D2)^2. So -M^2 / (4 s) <= D1 D2 <= P^2 / (4 s), where P and M are the deviations
    of s D1 + D2 and of s D1 - D2, in which shared symbols add up or cancel. s = deviation_2 / deviation_1 makes both terms equally large:
    then t is half the product of the deviations where D1 and D2 are multiples of each other, and at most their product, which replaces
    it where s is cut off.
    """
    one, two, unit = first.deviation(), second.deviation(), first.unit
    s = (two / (one + SMALLEST[one.dtype])).clamp(1 / MOST_UNEVEN, MOST_UNEVEN)
    s = torch.where(s > 0, s, 1.0)  # a NaN
    size, roundings = s * one + two, 2 * first.symbols + 8
    sides = []
    for sign in (1, -1):
        side = s * first.radius + second.radius
        for plane, other in zip(first.slopes, second.slopes, strict=True):
            side = side + (s * plane + sign * other).abs()
        side = widen(side, size, roundings, unit)  # a sum that cancels rounds relative to its terms
        sides.append(side * (side / s) / 4)
    high, low = sides
    middle, rest = (high - low) / 2, widen((high + low) / 2, 0.0, 8, unit)
    plain = widen(one * two, 0.0, 4, unit)
    better = rest < plain  # false for a NaN
    return torch.where(better, middle, 0.0), torch.where(better, rest, plain)


def multiply(first: AffineForm, second: AffineForm) -> AffineForm:
    """x1 x2 = c1 c2 + c1 D2 + c2 D1 + D1 D2 over shared symbols, with D1 D2 from `product_of_deviations`, or, of quadratic forms, with
    its part s e^2 = s / 2 + s / 2 (2 e^2 - 1) in their second symbol; or the interval product where that is narrower than the remainder.

    Roundings: of c1 c2 and its sum, 2; of a slope, 3; all relative to products that add up to at most the product of the magnitudes.
    """
    first, second = shared_symbols(first, second)
    a, b = first.center, second.center
    stack = torch.cat([(a * b)[None], a * second.slopes + b * first.slopes])
    radius = a.abs() * second.radius + b.abs() * first.radius
    middle, rest = product_of_deviations(first, second)
    quadratic = (first.quadratic or second.quadratic) and first.symbols > 1
    if quadratic:
        square, other = first.product_of_deviations(second)
        shared = other < rest
        stack[2] += torch.where(shared, square / 2, 0.0)
        middle, rest = torch.where(shared, square / 2, middle), torch.where(shared, other, rest)
    stack[0] += middle
    radius = widen(radius + rest, first.magnitude() * second.magnitude(), 8, first.unit)
    return narrower(AffineForm(stack, radius, first.unit, quadratic), *_interval_product(first, second))


def _interval_product(first: AffineForm, second: AffineForm) -> tuple[Tensor, Tensor]:
    """The products of the ends, without their roundings."""
    ends = [x * y for x in (first.lower, first.upper) for y in (second.lower, second.upper)]
    return (
        torch.minimum(torch.minimum(ends[0], ends[1]), torch.minimum(ends[2], ends[3])),
        torch.maximum(torch.maximum(ends[0], ends[1]), torch.maximum(ends[2], ends[3])),
    )


def narrower(form: AffineForm, low: Tensor, high: Tensor, anyway: Tensor | None = None) -> AffineForm:
    """The interval [low, high], whose ends may have rounded twice, wherever it is narrower than the form's remainder; or ``anyway``."""
    middle = (low + high) / 2
    half = torch.maximum(high - middle, middle - low)
    half = widen(half, torch.maximum(low.abs(), high.abs()), 6, form.unit)
    better = half < form.radius  # false for a NaN
    better = better if anyway is None else better | anyway
    flat = torch.cat([middle[None], torch.zeros_like(form.slopes)])
    stack, radius = torch.where(better, flat, form.stack), torch.where(better, half, form.radius)
    return AffineForm(stack, radius, form.unit, form.quadratic)


Plane = tuple[Tensor, Tensor, Tensor]
"""p1, p2 and o of p1 x1 + p2 x2 + o; o is float64."""


@rule("product")
class Product(Rule):
    """y = x1 x2, entry by entry; a dimension of size 1 serves all entries of the other branch."""

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        return evaluated(multiply(*inputs), 2, operation.evaluation)

    def planes(self, first: AffineForm, second: AffineForm) -> tuple[Plane, Plane]:
        """A plane below the product and one above it, on [l1, h1] x [l2, h2].

        McCormick's planes are

            x1 x2 >= l1 x2 + l2 x1 - l1 l2,   x1 x2 >= h1 x2 + h2 x1 - h1 h2,
            x1 x2 <= h1 x2 + l2 x1 - h1 l2,   x1 x2 <= l1 x2 + h2 x1 - l1 h2,

        because (x1 - l1) (x2 - l2) >= 0 and so on; or x1 x2 = c1 x2 + c2 x1 - c1 c2 + D1 D2 with D1 D2 from `product_of_deviations`.
        All of McCormick's have the same value at the center, and no other depends on what the branches share; so the choice is by the
        value at the center plus half of the plane's own bound. Each of them holds for its numbers as rounded.
        """
        middle, rest = product_of_deviations(*shared_symbols(first, second))
        a, b = first.center, second.center
        ends = {"low": (first.lower, second.lower), "high": (first.upper, second.upper)}

        def corner(one: str, two: str) -> Plane:
            x, y = ends[one][0], ends[two][1]
            return y, x, -(x.double() * y.double())

        through = -(a.double() * b.double())
        middle, rest = middle.double(), rest.double()
        below = [(b, a, through + (middle - rest)), corner("low", "low"), corner("high", "high")]
        above = [(b, a, through + (middle + rest)), corner("high", "low"), corner("low", "high")]
        return self._best(first, second, below, 1), self._best(first, second, above, -1)

    def _best(self, first: AffineForm, second: AffineForm, planes: list[Plane], sign: int) -> Plane:
        one, two = shared_symbols(first, second)

        def score(plane: Plane) -> Tensor:
            p, q, offset = plane
            spread = p.abs() * one.radius + q.abs() * two.radius
            for slope, other in zip(one.slopes, two.slopes, strict=True):
                spread = spread + (p * slope + q * other).abs()
            return sign * 1.5 * (p * one.center + q * two.center + offset) - spread / 2

        best, highest = planes[0], score(planes[0])
        for plane in planes[1:]:
            value = score(plane)
            better = value > highest  # false for a NaN
            highest = torch.where(better, value, highest)
            p, q, offset = (torch.where(better, new, old) for new, old in zip(plane, best, strict=True))
            best = p, q, offset
        return best

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """The plane below serves a >= 0, the plane above a < 0. A coefficient of a smaller branch is a sum over what it serves."""
        first, second = inputs
        p, q, offset = (torch.where(a > 0, *pair) for pair in zip(*self.planes(first, second), strict=True))
        shares = [reduced(a * p, first.shape), reduced(a * q, second.shape)]
        result = BackwardResult(shares, constant=dot(a, offset))
        if first.unit:
            served = max(row_size(a) // max(1, math.prod(form.shape[1:])) for form in inputs)
            far = farthest(first), farthest(second)
            size = p.abs() * far[0] + q.abs() * far[1] + offset.abs().to(a.dtype)
            result.rounding_budget = lengths(size) * backward_gamma(served + 9, row_size(a), first.unit)
            if operation.evaluation:
                theirs = lengths((far[0] * far[1]).expand_as(a)) + UNDERFLOW * ones_length(a)
                result.rounding_budget = result.rounding_budget + theirs * gamma(4, operation.evaluation)
        return result


@rule("square")
class Square(Rule):
    """y = x^2 = c^2 + 2 c D + D^2, where D^2 is at least 0 and at most the square of the deviation."""

    activation = True

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """Or the interval of squares, or, of a quadratic form, as in `multiply`."""
        (form,) = inputs
        if form.quadratic and form.symbols > 1:
            result = multiply(form, form)
        else:
            half = form.deviation() * form.deviation() / 2
            center = form.center
            stack = torch.cat([(center * center + half)[None], 2 * center * form.slopes])
            radius = widen(2 * center.abs() * form.radius + half, form.magnitude() * form.magnitude(), 8, form.unit)
            result = AffineForm(stack, radius, form.unit)
        lower, upper = form.lower, form.upper
        farther = torch.maximum(upper.abs(), lower.abs())
        nearer = torch.maximum(lower, -upper).clamp(min=0)  # 0 inside
        return evaluated(narrower(result, nearer * nearer, farther * farther), 2, operation.evaluation)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """x^2 = 2 c x - c^2 + D^2, and 0 <= D^2 <= deviation^2: the lower end serves a >= 0, the upper one a < 0."""
        (form,) = inputs
        center = form.center
        offset = a.clamp(max=0).double() * form.deviation().double() ** 2 - a.double() * center.double() ** 2
        result = BackwardResult([a * (2 * center)], constant=total(offset))
        if form.unit:
            far = farthest(form)
            size = lengths((2 * center.abs() + far) * far + form.deviation() ** 2)
            result.rounding_budget = size * backward_gamma(9, row_size(a), form.unit)
            if operation.evaluation:
                theirs = lengths(far * far) + UNDERFLOW * ones_length(a)
                result.rounding_budget = result.rounding_budget + theirs * gamma(4, operation.evaluation)
        return result


def product_of(x: Input, other: Input) -> Built:
    """The product of two branches; of a branch with itself, its square."""
    if x.name == other.name:
        return Built("square", (x.name,))
    if len(x.shape) != len(other.shape):
        raise Refused(
            f"a product of branches of shapes {x.shape} and {other.shape}, which would mix images of the batch"
        )
    return Built("product", (x.name, other.name))
