"""Rules for smooth functions of one variable: GELU, SiLU, exp, log, powers, sine and the like.

[l, h] is covered by cells. On a cell with middle m and half width q, Taylor's theorem gives for g(x) = f(x) - s x

    |g(x) - g(m)| <= |f'(m) - s| q + M q^2 / 2,   M >= |f''| on the cell,

so the cells bound g on [l, h] whatever s is. A `Curve` holds f, f', M and the points where cells must end, such as kinks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import LARGE32, RULES, TINY32, UNIT, Form, no_rule, rule
from tiltproof.checker.operations import lifted

CELLS, SAMPLES, STEPS = 12, 13, 20
LIBRARY = 64.0  # units of 2^-24 that a float32 library function may be off by
SLACK = 2.0**-44
"""Relative to all numbers involved: float64 library functions are accurate to 2^-48."""
NEAR = (-14.0, -6.0, -3.0, -1.0, 1.0, 3.0, 6.0, 14.0)


@dataclass(frozen=True)
class Curve:
    """A function; `second` gets the ends of a cell, the others points, or l and h.

    ``rounding``: how far a float32 evaluation may be off, in units of 2^-24; ``inside``: where [l, h] lies in the domain.
    """

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    second: Callable[[Tensor, Tensor], Tensor]
    rounding: Callable[[Tensor, Tensor], Tensor]
    cuts: Callable[[Tensor, Tensor], list[Any]] = lambda low, high: list(NEAR)
    inside: Callable[[Tensor, Tensor], Tensor] = lambda low, high: low.isfinite() & high.isfinite()


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the least |x| over [a, b]."""
    return torch.where(a * b > 0, torch.minimum(a.abs(), b.abs()), torch.zeros_like(a))


def farthest(a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(a.abs(), b.abs())


def steepness(curve: Curve, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """Return a slope s with a small |s| radius + width of f - s x, by samples: any slope will do for the bound."""
    cuts = [torch.maximum(low, torch.minimum(high, low * 0 + cut)) for cut in curve.cuts(low, high)]
    points = [*(low + (high - low) * (k / (SAMPLES - 1)) for k in range(SAMPLES)), *cuts]
    values = [curve.value(point) for point in points]
    left = right = torch.zeros_like(low)
    for point in points:
        steep = torch.nan_to_num(curve.derivative(point), 0.0, 0.0, 0.0)
        left, right = torch.minimum(left, steep), torch.maximum(right, steep)

    def cost(s: Tensor) -> Tensor:
        lowest = highest = values[0] - s * points[0]
        for point, value in zip(points[1:], values[1:], strict=True):
            here = value - s * point
            lowest, highest = torch.minimum(lowest, here), torch.maximum(highest, here)
        return s.abs() * radius + (highest - lowest) / 2

    for _ in range(STEPS):  # the cost is convex
        one, other = left + (right - left) / 3, right - (right - left) / 3
        first = cost(one) < cost(other)
        left, right = torch.where(first, left, one), torch.where(first, other, right)
    middle, zero = (left + right) / 2, torch.zeros_like(left)
    small = ((high - low) < 1e-9 * (1 + farthest(low, high))) & (radius <= 0)
    middle = torch.where(small, curve.derivative((low + high) / 2), middle)
    return torch.where(cost(zero) < cost(middle), zero, middle)


def relaxed(x: Form, curve: Curve, drop: Tensor | float = 0.0) -> Form:
    """Return the form of s x + [low, high]; where the domain is left, one with an infinite radius.

    ``drop``: how far below the curve the function may be.
    """
    low, high = x.lower(), x.upper()
    inside = curve.inside(low, high) & low.isfinite() & high.isfinite()
    low, high = (torch.where(inside, end, torch.ones_like(end)) for end in (low, high))
    slope = steepness(curve, low, high, x.radius)
    slope = torch.where(inside, slope, torch.zeros_like(slope))
    lowest, highest, size = torch.full_like(low, math.inf), torch.full_like(low, -math.inf), 1 + farthest(low, high)
    ends = [low, *(torch.maximum(low, torch.minimum(high, low * 0 + cut)) for cut in curve.cuts(low, high)), high]
    for begin, end in itertools.pairwise(ends):
        half = (end - begin).abs() / (2 * CELLS) * (1 + 8 * UNIT)
        for k in range(CELLS):
            middle = begin + (end - begin) * ((k + 0.5) / CELLS)
            value, steep = curve.value(middle), curve.derivative(middle)
            bend = curve.second(middle - half, middle + half) * (1 + 2.0**-30)
            level, spread = value - slope * middle, (steep - slope).abs() * half + bend * half * half / 2
            lowest, highest = torch.minimum(lowest, level - spread), torch.maximum(highest, level + spread)
            size = torch.maximum(size, value.abs() + (1 + slope.abs()) * middle.abs() + steep.abs() * half + spread)
    slack = SLACK * 4 * size
    result = lifted(x, slope, lowest - slack - drop, highest + slack)
    if x.unit:
        error = (x.unit * 1.001) * curve.rounding(low, high) + TINY32
        tame = (error < LARGE32) & (x.magnitude < LARGE32)
        result.rows[-1] += torch.where(tame, error, torch.full_like(error, math.inf))
    bad = ~(inside & result.rows.isfinite().all(0))
    result.rows[:-1] = torch.where(bad, torch.zeros_like(result.rows[:-1]), result.rows[:-1])
    result.rows[-1] = torch.where(bad, torch.full_like(low, math.inf), result.rows[-1])
    return result


def gate(
    value: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor],
    library: float = LIBRARY,
) -> Curve:  # fmt: skip
    """Return the curve of x times a factor in [0, 1]; ``second`` bounds |f''| where |x| is at least its argument."""
    return Curve(value, derivative, lambda a, b: second(distance(a, b)), lambda a, b: library * farthest(a, b))


def phi(x: Tensor) -> Tensor:
    return (-x * x / 2).exp() / math.sqrt(2 * math.pi)


# f'' = phi(x) (2 - x^2), which is at most 2 phi(0), and decreases in size for |x| >= 2
GELU = gate(
    lambda x: x * torch.special.ndtr(x),
    lambda x: torch.special.ndtr(x) + x * phi(x),
    lambda d: torch.where(d >= 2, phi(d) * (d * d - 2), torch.full_like(d, 0.8)),
)


def cubic(x: Tensor) -> Tensor:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def cubic_slope(x: Tensor) -> Tensor:
    return math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


def gelu_tanh_slope(x: Tensor) -> Tensor:
    near = x.clamp(-20, 20)
    return (1 + cubic(x).tanh()) / 2 + near / 2 * cubic_slope(near) / cubic(near).cosh() ** 2


def gelu_tanh_second(d: Tensor) -> Tensor:
    """Bound |f''| = |w' + x w'' / 2 - x w'^2 tanh w| / cosh^2 w by 4 e^(-2 w) of the sum, which falls from d = 3 on."""
    near = d.clamp(max=20)
    steep, bend = cubic_slope(near), math.sqrt(2 / math.pi) * 6 * 0.044715 * near
    far = 4 * (-2 * cubic(near)).exp() * (steep + near * bend / 2 + near * steep**2)
    return torch.where(d >= 3, far.clamp(max=0.8), torch.full_like(d, 0.8))


GELU_TANH = gate(lambda x: x / 2 * (1 + cubic(x).tanh()), gelu_tanh_slope, gelu_tanh_second)

# f'' = sigmoid'(x) (2 - x tanh(x / 2)), at most (2 + d) e^-d and 1 / 2
SILU = gate(
    lambda x: x * torch.sigmoid(x),
    lambda x: torch.sigmoid(x) + x * torch.sigmoid(x) * torch.sigmoid(-x),
    lambda d: ((2 + d) * (-d).exp()).clamp(max=0.5),
)


def mish_value(x: Tensor) -> Tensor:
    return x * F.softplus(x, threshold=1e9).tanh()


def mish_slope(x: Tensor) -> Tensor:
    near = F.softplus(x.clamp(max=300), threshold=1e9)
    return near.tanh() + x.clamp(max=300) * torch.sigmoid(x) / near.cosh() ** 2


# T = tanh(softplus(x)): T' <= 2 e^-d, |T''| <= 2 T', f'' = 2 T' + x T'', at most 0.65 anywhere
MISH = gate(mish_value, mish_slope, lambda d: (4 * (1 + d) * (-d).exp()).clamp(max=0.65), 4 * LIBRARY)

HARDSWISH = Curve(
    lambda x: x * (x + 3).clamp(0, 6) / 6,
    lambda x: torch.where(x.abs() < 3, (2 * x + 3) / 6, (x > 0).double()),
    lambda a, b: ((a + b).abs() < 6).double() / 3,
    lambda a, b: 16 * farthest(a, b),
    lambda low, high: [-3.0, 3.0],
)


def exponential_unit(alpha: float, scale: float, width: float) -> Curve:
    """scale x for x > 0, else scale alpha (e^(x / width) - 1)."""
    low = scale * alpha
    return Curve(
        lambda x: torch.where(x > 0, scale * x, low * (x / width).clamp(max=0).expm1()),
        lambda x: torch.where(x > 0, torch.full_like(x, scale), low / width * (x / width).clamp(max=0).exp()),
        lambda a, b: torch.where(a + b < 0, abs(low) / width**2 * (b / width).clamp(max=0).exp(), torch.zeros_like(a)),
        lambda a, b: LIBRARY * abs(low) + 16 * abs(scale) * b.clamp(min=0),
        lambda a, b: [-8 * width, -3 * width, -width, 0.0],
    )


def softplus_curve(beta: float) -> Curve:
    return Curve(
        lambda x: torch.where(x > 0, x, 0 * x) + torch.log1p((-(beta * x).abs()).exp()) / beta,
        lambda x: torch.sigmoid(beta * x),
        lambda a, b: beta * (-beta * distance(a, b)).exp().clamp(max=0.25),
        lambda a, b: LIBRARY / beta * (4 + (beta * b).clamp(min=0)),
        lambda a, b: [cut / beta for cut in NEAR],
    )


EXP = Curve(
    torch.exp,
    torch.exp,
    lambda a, b: b.exp(),
    lambda a, b: LIBRARY * b.exp(),
    lambda low, high: [high - 16, high - 8, high - 4, high - 2, high - 1],
    lambda low, high: high < 600,
)


def positive(low: Tensor, high: Tensor) -> Tensor:
    """x^p and its derivatives are far from overflow; with float32 semantics nothing on the way is flushed to zero."""
    return (low > 2.0**-99) & (high < 2.0**100)


def either(low: Tensor, high: Tensor) -> Tensor:
    return positive(low, high) | positive(-high, -low)


def growing(low: Tensor, high: Tensor) -> list[Tensor]:
    """Cut at even ratios."""
    return [low * (high / low) ** (k / 8) for k in range(1, 8)]


def power(p: float, library: float = LIBRARY) -> Curve:
    """x^p: |f''| = |p (p - 1)| |x|^(p - 2) is largest at an end of the cell."""
    whole = p == int(p)
    anywhere = whole and p > 0
    return Curve(
        lambda x: x**p,
        lambda x: p * x ** (p - 1),
        lambda a, b: abs(p * (p - 1)) * torch.maximum(a.abs() ** (p - 2), b.abs() ** (p - 2)),
        lambda a, b: (
            (library + 4 * abs(p) * (1 + farthest(a.abs().clamp(min=1e-99).log(), b.abs().clamp(min=1e-99).log())))
            * torch.maximum((a**p).abs(), (b**p).abs())
        ),
        (lambda low, high: [low / 2, low / 4, 0.0, high / 4, high / 2]) if anywhere else growing,
        (lambda low, high: farthest(low, high) < 2.0**100) if anywhere else either if whole else positive,
    )


LOG = Curve(
    torch.log,
    torch.reciprocal,
    lambda a, b: 1 / (a * a),
    lambda a, b: LIBRARY * (1 + farthest(a.log(), b.log())),
    growing,
    positive,
)

ERF = Curve(
    torch.erf,
    lambda x: 2 / math.sqrt(math.pi) * (-x * x).exp(),
    lambda a, b: torch.where(
        distance(a, b) >= 1, 2.2568 * distance(a, b) * (-(distance(a, b) ** 2)).exp(), torch.full_like(a, 0.97)
    ),
    lambda a, b: torch.full_like(a, LIBRARY),
)


def wave(x: Form, value: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> Form:
    """Relax a sine or cosine, |f''| <= 1; on intervals of some one and a half periods it is only known to be in [-1, 1]."""
    few = lambda low, high: (high - low < 9.5) & (farthest(low, high) < 2.0**20)  # noqa: E731
    one = torch.ones_like(x.center)
    curve = Curve(
        value, derivative, lambda a, b: torch.ones_like(a), lambda a, b: torch.full_like(a, LIBRARY),
        lambda low, high: [low + (high - low) * (k / 4) for k in (1, 2, 3)], few,
    )  # fmt: skip
    near, flat = relaxed(x, curve), lifted(x, 0 * one, -one, one)
    if x.unit:
        flat.rows[-1] += LIBRARY * x.unit
    far = ~few(x.lower(), x.upper()) & x.lower().isfinite() & x.upper().isfinite()
    return Form(torch.where(far, flat.rows, near.rows), x.unit)


def plain(name: str, apply: Callable[[Form], Form], *others: Any) -> None:
    """Register a function without arguments, and its in-place form."""
    owners = (torch, torch.Tensor, F)
    rule(*[getattr(owner, name) for owner in owners if hasattr(owner, name)], *others)(lambda input: apply(input))
    places = [getattr(owner, f"{name}_") for owner in owners if hasattr(owner, f"{name}_")]
    rule(*places)(lambda input: input.become(apply(input), name))


plain("exp", lambda x: relaxed(x, EXP))
plain("log", lambda x: relaxed(x, LOG))
plain("sqrt", lambda x: relaxed(x, power(0.5)))
plain("rsqrt", lambda x: relaxed(x, power(-0.5)))
plain("reciprocal", lambda x: relaxed(x, power(-1.0)))
plain("square", lambda x: relaxed(x, power(2.0)))
plain("erf", lambda x: relaxed(x, ERF), torch.special.erf)
plain("sin", lambda x: wave(x, torch.sin, torch.cos))
plain("cos", lambda x: wave(x, torch.cos, lambda t: -torch.sin(t)))


@rule(torch.pow, torch.Tensor.pow)
def pow_(input: Form, exponent: Any) -> Form:
    x = input
    if isinstance(exponent, Form):
        return RULES[torch.Tensor.__rpow__](exponent, x)
    if not isinstance(x, Form) or type(exponent) not in (int, float) or not 1 / 64 <= abs(exponent) <= 64:
        raise no_rule("pow", f"with exponent {exponent}")
    return relaxed(x, power(float(exponent)))


@rule(F.gelu)
def gelu(input: Form, approximate: str = "none") -> Form:
    return relaxed(input, GELU if approximate == "none" else GELU_TANH)


def in_place(input: Form, curve: Curve, inplace: bool, name: str) -> Form:
    result = relaxed(input, curve)
    return input.become(result, name) if inplace else result


@rule(F.silu)
def silu(input: Form, inplace: bool = False) -> Form:
    return in_place(input, SILU, inplace, "silu")


@rule(F.mish)
def mish(input: Form, inplace: bool = False) -> Form:
    return in_place(input, MISH, inplace, "mish")


@rule(F.hardswish)
def hardswish(input: Form, inplace: bool = False) -> Form:
    return in_place(input, HARDSWISH, inplace, "hardswish")


def unit(alpha: float, scale: float, width: float) -> Curve:
    if not all(type(number) in (int, float) and 2.0**-20 <= number <= 2.0**20 for number in (alpha, scale, width)):
        raise no_rule("elu", f"with alpha {alpha}")
    return exponential_unit(float(alpha), float(scale), float(width))


@rule(F.elu)
def elu(input: Form, alpha: float = 1.0, inplace: bool = False) -> Form:
    return in_place(input, unit(alpha, 1.0, 1.0), inplace, "elu")


@rule(F.elu_)
def elu_(input: Form, alpha: float = 1.0) -> Form:
    return elu(input, alpha, inplace=True)


SELU = exponential_unit(1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


@rule(F.selu, torch.selu)
def selu(input: Form, inplace: bool = False) -> Form:
    return in_place(input, SELU, inplace, "selu")


@rule(torch.selu_)
def selu_(input: Form) -> Form:
    return selu(input, inplace=True)


@rule(F.celu, torch.celu)
def celu(input: Form, alpha: float = 1.0, inplace: bool = False) -> Form:
    return in_place(input, unit(alpha, 1.0, alpha), inplace, "celu")


@rule(torch.celu_)
def celu_(input: Form, alpha: float = 1.0) -> Form:
    return celu(input, alpha, inplace=True)


@rule(F.softplus)
def softplus(input: Form, beta: float = 1.0, threshold: float = 20.0) -> Form:
    """Relax log(1 + e^(beta x)) / beta, or x where beta x > threshold: the bounds hold for both where either may be meant."""
    if type(beta) not in (int, float) or type(threshold) not in (int, float):
        raise no_rule("softplus", f"with beta {beta} and threshold {threshold}")
    if not 2.0**-20 <= beta <= 2.0**20 or not 0 <= threshold <= 2.0**20:
        raise no_rule("softplus", f"with beta {beta} and threshold {threshold}")
    drop = math.log1p(math.exp(-0.999 * threshold)) / beta * 1.001
    may = (input.upper() * beta > 0.999 * threshold).double()
    return relaxed(input, softplus_curve(float(beta)), drop * may)
