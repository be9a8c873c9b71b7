"""The currency of every proof: ``center + sum_k slopes[k] * e_k + [-radius, radius]`` with each e_k in [-1, 1].

The symbols e_k are the (scaled) transformation parameters of a box and are shared by every pixel, channel and neuron
of a row; that is what lets errors cancel. A plain interval is the case of no symbols.

Where one parameter alone varies, forms may carry a second symbol, ``2 e_1^2 - 1`` (``quadratic``): what is quadratic in the
parameter is then shared by all pixels as well, and cancels too, instead of going into every radius. Code that does not
know the relation between the two symbols treats them as independent.

What is left over, the vector x with |x_i| <= radius_i, may also be known to be short as a whole: |x|_2 <= ``ball``, over all entries of a
row. Through deep networks its length grows with the largest singular values of the layers, far slower than radii grow with |W|. Code that
does not know about the ball drops it.

An `Interval` has no symbols, so that nothing cancels, and costs less: for Algorithm 1 of the paper, and for cutting coordinate boxes down.
Every operation of either widens its result outward by more than its own rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.enclosures.rounding import SMALLEST, UNIT, gamma, widen


class AffineForm:
    """A batch of P sets of tensors; ``stack`` holds center and slopes, [1 + d, P, ...], ``radius`` [P, ...].

    ``unit`` is the unit roundoff that the form's arithmetic absorbs into ``radius``; 0 turns that off, for
    training, where a bound has to be differentiable and cheap but proves nothing. ``quadratic``: the symbols are e_1 and
    2 e_1^2 - 1, and perhaps more functions of e_1; forms that meet in arithmetic share their symbols, so one that knows is
    enough.
    """

    def __init__(self, stack: Tensor, radius: Tensor, unit: float | None = None, quadratic: bool = False) -> None:
        self.stack, self.radius, self.quadratic = stack, radius, quadratic
        self.unit = UNIT[stack.dtype] if unit is None else unit
        self._reach: Tensor | None = None
        self.lengths: Tensor | None = None  # of the values at each position, once computed
        self.norms: Tensor | None = None  # of all values of each row, once computed
        self._magnitude: Tensor | None = None
        self.ball: Tensor | None = None  # [P]: at least |x|_2 of what is left over; None: not tracked
        self.kinks: Tensor | None = None  # entries with a kink inside the box, once computed (`relu.kinked`)

    @classmethod
    def constant(cls, value: Tensor, symbols: int = 0, unit: float | None = None) -> AffineForm:
        """An exactly known value, written over ``symbols`` symbols."""
        stack = torch.cat([value[None], value.new_zeros(symbols, *value.shape)])
        return cls(stack, torch.zeros_like(value), unit)

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor, unit: float | None = None) -> AffineForm:
        """The interval [lower, upper] as a form without symbols."""
        center = (lower + upper) / 2
        radius = torch.maximum(upper - center, center - lower)
        unit = UNIT[lower.dtype] if unit is None else unit
        return cls(center[None], widen(radius, center.abs(), 1, unit), unit)

    @property
    def center(self) -> Tensor:
        return self.stack[0]

    @property
    def slopes(self) -> Tensor:
        return self.stack[1:]

    @property
    def symbols(self) -> int:
        return len(self.stack) - 1

    @property
    def shape(self) -> torch.Size:
        return self.radius.shape

    @property
    def like(self) -> Tensor:
        """A tensor of the form's dtype, on its device."""
        return self.radius

    @property
    def device(self) -> torch.device:
        return self.like.device

    def __len__(self) -> int:
        return len(self.radius)

    def __getitem__(self, rows: Any) -> AffineForm:
        """Select some of the P rows."""
        form = AffineForm(self.stack[:, rows], self.radius[rows], self.unit, self.quadratic)
        form._reach = None if self._reach is None else self._reach[rows]
        form.ball = None if self.ball is None else self.ball[rows]
        return form

    def with_ball(self, ball: Tensor | None) -> AffineForm:
        """The same form with a bound of the length of what is left over, or that of the radii; infinite where a radius is not finite."""
        if ball is not None:
            length = row_length(self.radius)
            ball = torch.where(length < torch.inf, torch.minimum(ball, length), torch.inf)
        self.ball = ball
        return self

    def deviation(self) -> Tensor:
        """How far the set reaches from its center: radius + sum_k |slopes[k]|, rounded up."""
        if not self.symbols:
            return self.radius
        return widen(self.radius + absolute_sum(self.slopes), 0.0, self.symbols, self.unit)

    def magnitude(self) -> Tensor:
        """At least |center| + sum_k |slopes[k]|: what the roundings of a linear map are relative to."""
        return absolute_sum(self.stack) if self._magnitude is None else self._magnitude

    def with_magnitude(self, magnitude: Tensor) -> AffineForm:
        """The same form with a bound of its magnitude that was found on the way."""
        self._magnitude = magnitude
        return self

    def reach(self) -> Tensor:
        """``deviation`` made large enough that center - reach and center + reach, as rounded, are bounds."""
        if self._reach is None:
            deviation = self.radius + absolute_sum(self.slopes) if self.symbols else self.radius
            self._reach = widen(deviation, self.center.abs(), self.symbols + 2, self.unit)
        return self._reach

    def extent(self) -> Tensor:
        """At least |x| for every x of the form, but for a rounding for each symbol and two more; the cheaper way."""
        return self.magnitude() + self.radius if self._reach is None else self.center.abs() + self._reach

    @property
    def lower(self) -> Tensor:
        return self.center - self.reach()

    @property
    def upper(self) -> Tensor:
        return self.center + self.reach()

    @property
    def width(self) -> Tensor:
        return 2 * self.deviation()

    def exactly(self, function: Callable[[Tensor], Tensor]) -> AffineForm:
        """Apply a function that only moves entries about (reshape, permute, slice, pick): no rounding at all."""
        rows = function(self.stack.flatten(0, 1))
        stack = rows.view(len(self.stack), len(self), *rows.shape[1:])
        form = AffineForm(stack, function(self.radius), self.unit, self.quadratic)
        form._magnitude = None if self._magnitude is None else function(self._magnitude)
        return form

    def to(self, dtype: torch.dtype) -> AffineForm:
        """The same set or a little more in another dtype; each rounded entry moves by at most u |entry|."""
        if dtype == self.stack.dtype:
            return self
        unit = UNIT[dtype] if self.unit else 0.0
        radius = self.radius if not unit else self.radius + self.magnitude() * (2 * unit)
        radius = (radius * (1 + 4 * unit) + (8 * SMALLEST[dtype] if unit else 0.0)).to(dtype)
        return AffineForm(self.stack.to(dtype), radius, unit, self.quadratic)

    def __neg__(self) -> AffineForm:
        return AffineForm(-self.stack, self.radius, self.unit, self.quadratic).with_ball(self.ball)

    def __add__(self, other: AffineForm | Tensor | float) -> AffineForm:
        """Sums of centers, of slopes, of radii, of balls; one rounding of each entry, whose length joins the ball."""
        quadratic, ball = self.quadratic, None
        if isinstance(other, AffineForm):
            stack, radius, quadratic = (
                self.stack + other.stack,
                self.radius + other.radius,
                quadratic or other.quadratic,
            )
            if self.ball is not None and other.ball is not None and self.shape == other.shape:
                ball = self.ball + other.ball
        else:
            stack, radius = torch.cat([(self.center + other)[None], self.slopes]), self.radius
        magnitude = absolute_sum(stack)
        form = AffineForm(stack, widen(radius, magnitude, 2, self.unit), self.unit, quadratic)
        if ball is None:
            return form
        errors = widen(torch.zeros_like(magnitude), magnitude, 2, self.unit)
        return form.with_magnitude(magnitude).with_ball(added_lengths(ball, row_length(errors), self.unit))

    __radd__ = __add__

    def __sub__(self, other: AffineForm | Tensor | float) -> AffineForm:
        return self + (-other)

    def __rsub__(self, other: Tensor | float) -> AffineForm:
        return (-self) + other

    def __mul__(self, other: AffineForm | Tensor | float) -> AffineForm:
        """(c1 + D1)(c2 + D2) = c1 c2 + c1 D2 + c2 D1 + D1 D2 with |Di| <= deviation_i (method, section 1)."""
        if not isinstance(other, AffineForm):
            size = other.abs() if isinstance(other, Tensor) else abs(other)
            stack = self.stack * other
            return AffineForm(
                stack, widen(self.radius * size, absolute_sum(stack), 2, self.unit), self.unit, self.quadratic
            )
        a, b, quadratic = self.center, other.center, self.quadratic or other.quadratic
        stack = torch.cat([(a * b)[None], a * other.slopes + b * self.slopes])
        radius = a.abs() * other.radius + b.abs() * self.radius
        if quadratic:
            square, rest = self.product_of_deviations(other)
            stack[0] += square / 2
            stack[2] += square / 2
            radius = radius + rest
        else:
            radius = radius + self.deviation() * other.deviation()
        magnitude = self.magnitude() * other.magnitude()
        return AffineForm(stack, widen(radius, magnitude, 8 if quadratic else 4, self.unit), self.unit, quadratic)

    def product_of_deviations(self, other: AffineForm) -> tuple[Tensor, Tensor]:
        """(s, t) with |D1 D2 - s e^2| <= t for two quadratic forms c_i + D_i; note that s e^2 = s / 2 + s / 2 (2 e^2 - 1).

        D_i = s_i e + R_i with |R_i| <= |b_i| + r_i (b_i: all slopes but s_i), so D1 D2 = s_1 s_2 e^2 + s_1 e R_2 + R_1 D2, and
        |D2| <= deviation_2.
        """
        mine, others = (absolute_sum(form.slopes[1:]) + form.radius for form in (self, other))
        first, second = self.slopes[0], other.slopes[0]
        return first * second, first.abs() * others + mine * other.deviation()

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> AffineForm:
        stack = self.stack / other
        return AffineForm(
            stack, widen(self.radius / abs(other), absolute_sum(stack), 2, self.unit), self.unit, self.quadratic
        )

    def deg2rad(self) -> AffineForm:
        """Times pi / 180: one rounding for the constant, one for the product (4 are allowed for)."""
        stack = self.stack.deg2rad()
        return AffineForm(
            stack, widen(self.radius.deg2rad(), absolute_sum(stack), 4, self.unit), self.unit, self.quadratic
        )

    def _taylor(self, value: Tensor, slope: Tensor, bend: Tensor, second: Tensor, third: Tensor) -> AffineForm:
        """f(c + D) = f(c) + f'(c) D + remainder, |remainder| <= second D^2, where second >= max|f''| / 2 (method, section 1).

        Quadratic: f(c + D) = f(c) + f'(c) D + bend D^2 + remainder, |remainder| <= third |D|^3, where bend = f''(c) / 2 and
        6 third is at least the largest third derivative. 16 roundings cover library functions that are accurate to a few units
        in the last place.
        """
        stack = torch.cat([value[None], slope * self.slopes])
        deviation = self.deviation()
        square, rest = deviation * deviation, second * deviation * deviation
        if self.quadratic:
            share, rest = self.product_of_deviations(self)
            stack[0] += bend * share / 2
            stack[2] += bend * share / 2
            rest = bend.abs() * rest + third * square * deviation
        magnitude = absolute_sum(stack) + 1 + deviation + bend.abs() * square
        radius = widen(slope.abs() * self.radius + rest, magnitude, 16, self.unit)
        return AffineForm(stack, radius, self.unit, self.quadratic)

    def sin(self) -> AffineForm:
        """|f''| = |sin| is at most |sin(c)| + deviation, because sine's slope is at most 1, and at most 1."""
        sine, cosine = self.center.sin(), self.center.cos()
        return self._taylor(sine, cosine, -sine / 2, self._bend(sine) / 2, torch.full_like(sine, 1 / 5))

    def cos(self) -> AffineForm:
        """The same of |f''| = |cos|."""
        sine, cosine = self.center.sin(), self.center.cos()
        return self._taylor(cosine, -sine, -cosine / 2, self._bend(cosine) / 2, torch.full_like(sine, 1 / 5))

    def _bend(self, value: Tensor) -> Tensor:
        return (value.abs() + self.deviation()).clamp(max=1)

    def reciprocal(self) -> AffineForm:
        """1 / t for t > 0: |f''| / 2 <= 1 / t_low^3, and the third derivative is at most 6 / t_low^4.

        A set that reaches zero gets an infinite radius (nothing is proved).
        """
        low, deviation, value = self.lower, self.deviation(), self.center.reciprocal()
        slope, bend = -value * value, value * value * value
        cube = low * low * low
        second, third = (torch.where(low > 0, 1 / power, torch.inf) for power in (cube, cube * low))
        form = self._taylor(value, slope, bend, second, third)
        # the library-rounding term of _taylor is absolute; here values may exceed 1, so add a relative one too
        magnitude = value.abs() + slope.abs() * (self.magnitude() + deviation) + bend.abs() * deviation * deviation
        return AffineForm(form.stack, widen(form.radius, magnitude, 16, self.unit), self.unit, self.quadratic)

    def over(self, divisor: AffineForm) -> AffineForm:
        """x / w for w > 0. A divisor that reaches zero gives an infinite radius (nothing is proved).

        For any number q, with n = x - q w: x / w = q + n / w and n / w = n / w_c - n (w - w_c) / (w w_c). With q the
        quotient of the centers, n is of first order (what x and w have in common cancels in it), so the last term, at most
        |n| deviation_w / (w_low w_c), is of second order.
        """
        low, middle = divisor.lower, divisor.center
        quotient = self.center / middle
        rest = self - divisor * quotient
        stack = torch.cat([(rest.center / middle + quotient)[None], rest.slopes / middle])
        size = rest.center.abs() + rest.deviation()
        radius = rest.radius / middle + size * divisor.deviation() / (low * middle)
        radius = torch.where(low > 0, radius, torch.inf)
        return AffineForm(stack, widen(radius, absolute_sum(stack) + quotient.abs(), 4, self.unit), self.unit)


def absolute_sum(planes: Tensor) -> Tensor:
    """sum_k |planes[k]|: plane by plane on a CPU, where a reduction over the leading dimension is slow."""
    if launch_bound(planes):
        return torch.linalg.vector_norm(planes, 1, 0)
    total = planes[0].abs()
    for plane in planes[1:]:
        total = total + plane.abs()
    return total


def row_length(x: Tensor) -> Tensor:
    """At least the Euclidean length of each row of ``x`` [P, ...], in any dtype: [P], float64.

    A sum of n squares and its root round at most n + 8 times; entries whose squares underflow are below 2^-510.
    """
    count = x[0].numel()
    wide = x.double().flatten(1)
    return (wide * wide).sum(1).sqrt() * (1 + 2 * gamma(count + 8, UNIT[torch.float64])) + count * 2.0**-510


def added_lengths(first: Tensor, second: Tensor, unit: float) -> Tensor:
    """At least |x + y|_2 <= |x|_2 + |y|_2."""
    return (first + second) * (1 + 8 * unit)


class GatheredForm(AffineForm):
    """Rows ``rows`` (with repetitions, perhaps) of a form, copied when they are read: a backward pass may exit before most layers."""

    def __init__(self, form: AffineForm, rows: Tensor) -> None:
        self.form, self.rows = form, rows
        self.unit, self.quadratic = form.unit, form.quadratic
        self.lengths = self.norms = self._magnitude = self._reach = None
        self.ball = None if form.ball is None else form.ball[rows]

    @property
    def symbols(self) -> int:
        return self.form.symbols

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.form.shape[1:]))

    @property
    def like(self) -> Tensor:
        return self.form.like

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def stack(self) -> Tensor:  # type: ignore[override]
        return _rows(self.form.stack, self.rows, 1)

    @cached_property
    def radius(self) -> Tensor:  # type: ignore[override]
        return _rows(self.form.radius, self.rows)

    @cached_property
    def center(self) -> Tensor:
        return self.stack[0] if "stack" in self.__dict__ else _rows(self.form.center, self.rows)

    def reach(self) -> Tensor:
        if self._reach is None and self.form._reach is not None:
            self._reach = _rows(self.form._reach, self.rows)
        return super().reach()

    def magnitude(self) -> Tensor:
        if self._magnitude is None and self.form._magnitude is not None:
            self._magnitude = _rows(self.form._magnitude, self.rows)
        return super().magnitude()

    def extent(self) -> Tensor:
        if self.form._reach is not None:
            self.reach()
        return super().extent()


def _rows(values: Tensor, rows: Tensor, dim: int = 0) -> Tensor:
    """Gather rows: a view of a single one, which is not copied; else by index_select, which is fast on a CPU, or by brackets where they
    have to keep channels last in memory."""
    if values.shape[dim] == 1 and not launch_bound(values):
        return values.expand(*values.shape[:dim], len(rows), *values.shape[dim + 1 :])
    if launch_bound(values) or not values.is_contiguous():
        return values[(slice(None),) * dim + (rows,)]
    return values.index_select(dim, rows)


class GatheredForms:
    """The forms of a network's operations, by name, for chosen rows."""

    def __init__(self, forms: Mapping[str, AffineForm], rows: Tensor) -> None:
        self.forms, self.rows = forms, rows
        self._chosen: dict[str, AffineForm] = {}

    def __getitem__(self, name: str) -> AffineForm:
        if name not in self._chosen:
            self._chosen[name] = GatheredForm(self.forms[name], self.rows)
        return self._chosen[name]

    def rest(self, rows: Tensor) -> GatheredForms:
        """Only these of the chosen ones."""
        return GatheredForms(self.forms, self.rows[rows])


class Interval:
    """[lower, upper], entry by entry."""

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        self.lower, self.upper = lower, upper

    @classmethod
    def outward(cls, lower: Tensor, upper: Tensor, roundings: int = 2) -> Interval:
        """[lower, upper] widened by ``roundings`` relative rounding errors of each end."""
        unit, tiny = roundings * UNIT[lower.dtype], SMALLEST[lower.dtype]
        return cls(lower - (lower.abs() * unit + tiny), upper + (upper.abs() * unit + tiny))

    @property
    def like(self) -> Tensor:
        """A tensor of the interval's dtype, on its device."""
        return self.lower

    def exactly(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """Apply a function that only moves entries about."""
        return Interval(function(self.lower), function(self.upper))

    def __neg__(self) -> Interval:
        return Interval(-self.upper, -self.lower)

    def __add__(self, other: Interval | Tensor | float) -> Interval:
        low, high = (other.lower, other.upper) if isinstance(other, Interval) else (other, other)
        return Interval.outward(self.lower + low, self.upper + high)

    __radd__ = __add__

    def __sub__(self, other: Interval | Tensor | float) -> Interval:
        return self + (-other)

    def __rsub__(self, other: Tensor | float) -> Interval:
        return (-self) + other

    def __mul__(self, other: Interval | Tensor | float) -> Interval:
        low, high = (other.lower, other.upper) if isinstance(other, Interval) else (other, other)
        products = torch.stack(
            torch.broadcast_tensors(self.lower * low, self.lower * high, self.upper * low, self.upper * high)
        )
        unknown = products.isnan().any(0)  # 0 times infinity: anything
        lower, upper = products.amin(0), products.amax(0)
        return Interval.outward(torch.where(unknown, -torch.inf, lower), torch.where(unknown, torch.inf, upper))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Interval:
        ends = torch.stack([self.lower / other, self.upper / other])
        return Interval.outward(ends.amin(0), ends.amax(0))

    def deg2rad(self) -> Interval:
        return Interval.outward(self.lower.deg2rad(), self.upper.deg2rad(), roundings=4)

    def reciprocal(self) -> Interval:
        """1 / t for t > 0; anything that reaches zero is unbounded above."""
        upper = torch.where(self.lower > 0, self.lower.reciprocal(), torch.inf)
        return Interval.outward(self.upper.reciprocal(), upper)

    def cos(self) -> Interval:
        """Extremes at the ends, or +1 / -1 where the interval may hold an even / odd multiple of pi.

        The test for a multiple is made with slack, so a doubtful multiple counts as inside.
        """
        ends = torch.stack([self.lower.cos(), self.upper.cos()])
        return self._with_turns(ends, phase=0.0)

    def sin(self) -> Interval:
        ends = torch.stack([self.lower.sin(), self.upper.sin()])
        return self._with_turns(ends, phase=math.pi / 2)

    def _with_turns(self, ends: Tensor, phase: float) -> Interval:
        slack = 64 * UNIT[ends.dtype]
        low = (self.lower - phase) / math.pi - slack * (1 + self.lower.abs())
        high = (self.upper - phase) / math.pi + slack * (1 + self.upper.abs())
        holds_even = (low / 2).ceil() * 2 <= high
        holds_odd = ((low - 1) / 2).ceil() * 2 + 1 <= high
        lower, upper = ends.amin(0) - 16 * UNIT[ends.dtype], ends.amax(0) + 16 * UNIT[ends.dtype]
        lower = torch.where(holds_odd, -1.0, lower.clamp(min=-1.0))
        return Interval(lower, torch.where(holds_even, 1.0, upper.clamp(max=1.0)))

    def clamp01(self) -> Interval:
        return Interval(self.lower.clamp(0, 1), self.upper.clamp(0, 1))
