"""The arithmetic of TFLite's integer kernels, as operations of torch that compute what the kernels compute.

A quantized value is held as the whole number q - z, where q is what the file's network stores and z its zero point. An accumulator x is
multiplied by M = m 2^(s - 31), a multiplier m of 31 bits and a shift s, in two steps that both round to a nearest whole number: by
m / 2^31 after a shift to the left, then by a shift to the right by r = max(-s, 0). So the result n obeys

    |n - M x| <= 1/2 + 2^-(r + 1)  for r > 0, and 1/2 for r = 0,

whichever way ties go. Other kernels for the same files round once, |n - M x| <= 1/2, or multiply in float32 by a factor that is itself
off by roundings: at most 2^-21 |M x| in all. Results are clipped to [low, high] with |low|, |high| <= 255. Where |M x| <= 512, that is
2^-12; beyond, both M x and n are past the same end of the range. So `EXTRA` = 2^-12 covers these kernels as well: what each of them gives
is clip(n) for a whole number n with

    |n - M x| <= 1/2 + slack,  slack = 2^-(r + 1) [r > 0] + EXTRA.

That is the inequality that the bound rules of `requantize`, `rescaled_sum` and `rounded` relax, and that the tests hold against exact
integers. The operations are defined for any real x: where x is no whole number of 32 bits, the same roundings of M x in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

EXTRA = 2.0**-12
"""Slack for kernels that multiply by a float32 factor or by one of 31 bits that was computed otherwise."""
SUM_SHIFT = 20
"""ADD and SUB shift both numbers left by this before they scale them."""


def multiplier_of(factor: float) -> tuple[int, int]:
    """A factor as m 2^(s - 31), m of 31 bits.

    >>> multiplier_of(0.75), multiplier_of(1.0)
    ((1610612736, 0), (1073741824, 1))
    """
    if factor == 0:
        return 0, 0
    fraction, shift = math.frexp(factor)
    whole = math.floor(fraction * 2**31 + 0.5)
    if whole == 2**31:
        whole, shift = whole // 2, shift + 1
    return (0, 0) if shift < -31 else (whole, shift)


def _high_product(x: Tensor, multiplier: Tensor) -> Tensor:
    """x m / 2^31, rounded to a nearest whole number, ties up; int64."""
    product = x * multiplier
    nudge = torch.where(product >= 0, 2**30, 1 - 2**30)
    return torch.div(product + nudge, 2**31, rounding_mode="trunc")


def _right(x: Tensor, shift: Tensor) -> Tensor:
    """x / 2^shift, rounded to a nearest whole number, ties away from zero; int64."""
    mask = (torch.ones_like(shift) << shift) - 1
    return (x >> shift) + ((x & mask) > (mask >> 1) + (x < 0))


def _scaled(x: Tensor, multiplier: Tensor, shift: Tensor) -> Tensor:
    """The kernels' product of x (float64) with m 2^(s - 31), both roundings included; float64."""
    left, right = shift.clamp(min=0), (-shift).clamp(min=0)
    moved = torch.ldexp(x, left)
    whole = (x == x.round()) & (moved.abs() < 2.0**31)
    exact = _right(_high_product(torch.where(whole, moved, 0).long(), multiplier), right).double()
    first = torch.floor(moved * (multiplier.double() / 2**31) + 0.5)
    other = torch.ldexp(first, -right)
    other = torch.where(right > 0, other.sign() * torch.floor(other.abs() + 0.5), other)
    return torch.where(whole, exact, other)


def _constants(x: Tensor, multipliers: Sequence[int], shifts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A number for each channel, or one for all."""
    view = (-1, *[1] * (x.ndim - 2)) if len(multipliers) > 1 else ()
    found = [torch.tensor(list(numbers), dtype=torch.int64, device=x.device) for numbers in (multipliers, shifts)]
    return found[0].reshape(view), found[1].reshape(view)


def _requantize(
    x: Tensor, multipliers: Sequence[int], shifts: Sequence[int], low: int, high: int, slack: float
) -> Tensor:
    result = _scaled(x.double(), *_constants(x, multipliers, shifts))
    return result.clamp(low, high).to(x.dtype)


def _rescaled_sum(
    x: Tensor, y: Tensor, multipliers: Sequence[int], shifts: Sequence[int], minus: bool, low: int, high: int
) -> Tensor:
    m, s = _constants(x, multipliers, shifts)[0].flatten(), _constants(x, multipliers, shifts)[1].flatten()
    first, second = (_scaled(each.double() * 2.0**SUM_SHIFT, m[k], s[k]) for k, each in enumerate((x, y)))
    result = _scaled(first - second if minus else first + second, m[2], s[2])
    return result.clamp(low, high).to(x.dtype)


def _rounded(x: Tensor, factor: float, offset: int, low: int, high: int, slack: float, snap: float) -> Tensor:
    units = x.double() * factor + offset
    half = units.floor() + 0.5
    units = torch.where((units - half).abs() <= snap, half, units)
    whole = units.sign() * (units.abs() + 0.5).floor() - offset
    return whole.clamp(low, high).to(x.dtype)


requantize = torch.library.custom_op(
    "tiltproof::requantize", _requantize, mutates_args=(),
    schema="(Tensor x, int[] multipliers, int[] shifts, int low, int high, float slack) -> Tensor",
)  # fmt: skip
"""Accumulators times their channels' factors, clipped; ``slack``: what other kernels may differ by beside `EXTRA`."""
rescaled_sum = torch.library.custom_op(
    "tiltproof::rescaled_sum", _rescaled_sum, mutates_args=(),
    schema="(Tensor x, Tensor y, int[] multipliers, int[] shifts, bool minus, int low, int high) -> Tensor",
)  # fmt: skip
"""ADD and SUB: three multipliers and shifts, of both numbers and of the sum; clipped."""
rounded = torch.library.custom_op(
    "tiltproof::rounded", _rounded, mutates_args=(),
    schema="(Tensor x, float factor, int offset, int low, int high, float slack, float snap) -> Tensor",
)  # fmt: skip
"""factor x + offset rounded to a nearest whole number, ties away from zero, less the offset; clipped. What is closer than ``snap`` to a tie,
at most the slack, counts as one."""


@requantize.register_fake
def _(x: Tensor, multipliers: list[int], shifts: list[int], low: int, high: int, slack: float) -> Tensor:
    return torch.empty_like(x)


@rounded.register_fake
def _(x: Tensor, factor: float, offset: int, low: int, high: int, slack: float, snap: float) -> Tensor:
    return torch.empty_like(x)


@rescaled_sum.register_fake
def _(x: Tensor, y: Tensor, multipliers: list[int], shifts: list[int], minus: bool, low: int, high: int) -> Tensor:
    return torch.empty_like(x + y)


# Gradients, for attacks: those of the real-valued function, where nothing is clipped.


def _factors(x: Tensor, multipliers: Sequence[int], shifts: Sequence[int]) -> Tensor:
    m, s = _constants(x, multipliers, shifts)
    return torch.ldexp(m.double(), s - 31)


def _keep(ctx: object, inputs: tuple, output: Tensor) -> None:  # type: ignore[type-arg]
    ctx.given = inputs  # type: ignore[attr-defined]
    ctx.result = output  # type: ignore[attr-defined]


def _inside(ctx: object, low: int, high: int) -> Tensor:
    result = ctx.result  # type: ignore[attr-defined]
    return (result > low) & (result < high)


def _requantize_gradient(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, multipliers, shifts, low, high, _ = ctx.given  # type: ignore[attr-defined]
    factor = _factors(x, multipliers, shifts).to(x.dtype)
    return gradient * factor * _inside(ctx, low, high), None, None, None, None, None


def _rounded_gradient(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:
    _, factor, _, low, high, _, _ = ctx.given  # type: ignore[attr-defined]
    return gradient * factor * _inside(ctx, low, high), *[None] * 6


def _sum_gradient(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, y, multipliers, shifts, minus, low, high = ctx.given  # type: ignore[attr-defined]
    first, second = sum_factors(multipliers, shifts, minus)
    gradient = gradient * _inside(ctx, low, high)
    return (gradient * first).sum_to_size(x.shape), (gradient * second).sum_to_size(y.shape), *[None] * 5


def sum_factors(multipliers: Sequence[int], shifts: Sequence[int], minus: bool) -> tuple[float, float]:
    """What ADD or SUB multiplies both numbers by, as a function of real numbers."""
    first, second, both = (math.ldexp(m, s - 31) for m, s in zip(multipliers, shifts, strict=True))
    both *= 2.0**SUM_SHIFT
    return first * both, second * both * (-1 if minus else 1)


requantize.register_autograd(_requantize_gradient, setup_context=_keep)
rounded.register_autograd(_rounded_gradient, setup_context=_keep)
rescaled_sum.register_autograd(_sum_gradient, setup_context=_keep)
