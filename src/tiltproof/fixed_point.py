"""The arithmetic of TFLite's integer kernels, as operations of torch that compute what the reference kernels compute, bit by bit.

A kernel multiplies an accumulator x, a whole number of 32 bits, by M = m 2^(s - 31), a multiplier m of 31 bits and a shift s, in two steps
(gemmlowp's fixed-point arithmetic): x 2^max(s, 0) m / 2^31, rounded to a nearest whole number, ties up; that by 2^r, r = max(-s, 0),
rounded again, ties away from zero. `requantize` is that for any real x, which it first rounds to a whole number of 32 bits, and clips the
result to [low, high]. `rescaled_sum`, for ADD and SUB, does that to both numbers shifted to the left by 20, without clipping, and to what
they add up to. `rounded` rounds factor x + offset, ties away from zero, takes the offset off again, and clips. So

    |n - M x| <= 1/2 + slack before it is clipped, slack = 2^-(r + 1) [r > 0] + M / 2, where |x| 2^max(s, 0) < 2^31,

the last term only if x is no whole number; and no operation falls where x rises, since each of its steps never does. Their bound
rules use both facts (`tiltproof.network.ops.fixed_point`); the tests compare with exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST = 2**31 - 1
SUM_SHIFT, SUM_RANGE = 20, 2**30
"""Of ADD and SUB: how far both numbers are shifted to the left, and what they stay within then."""
MOST_SHIFT = 62
"""To the right; shifts to the left are at most 30."""


def multiplier_of(factor: float) -> tuple[int, int]:
    """A factor as m 2^(s - 31), m of 31 bits. TFLite takes one below 2^-32 for 0, which is what accumulators of 32 bits give with it here.

    >>> multiplier_of(0.75), multiplier_of(1.0)
    ((1610612736, 0), (1073741824, 1))
    """
    if factor < 2.0 ** -(MOST_SHIFT + 1):
        return 2**30, -MOST_SHIFT
    fraction, shift = math.frexp(factor)
    whole = math.floor(fraction * 2**31 + 0.5)
    if whole == 2**31:
        whole, shift = whole // 2, shift + 1
    return whole, shift


def check_factors(multipliers: Sequence[int], shifts: Sequence[int], low: int, high: int) -> str | None:
    """What is wrong with these arguments of `requantize`, or None."""
    sizes = len(multipliers) == len(shifts) and len(multipliers) > 0
    if not sizes or not all(type(n) is int for n in (*multipliers, *shifts, low, high)):
        return "factors that are no whole numbers"
    if not all(0 < m < 2**31 for m in multipliers) or not all(-MOST_SHIFT <= s <= 30 for s in shifts):
        return "factors that are not of 31 bits with a shift"
    return None if -(2**30) <= low < high <= 2**30 else f"whole numbers from {low} to {high}"


def by_channel(x: Tensor, numbers: Sequence[int]) -> Tensor:
    """A number for each channel, the second dimension, or one for all; int64."""
    view = (-1, *[1] * (x.ndim - 2)) if len(numbers) > 1 else ()
    return torch.tensor(list(numbers), dtype=torch.int64, device=x.device).reshape(view)


def accumulators(x: Tensor, left: Tensor) -> Tensor:
    """x as whole numbers that keep 32 bits when they are shifted to the left; int64."""
    most = LARGEST >> left
    whole = x.round().clamp_(-(2.0**31), 2.0**31).long()  # both ends are numbers of float32 too
    return whole.clamp_(-most, most)


def multiplied(x: Tensor, multipliers: Tensor, shifts: Tensor) -> Tensor:
    """The kernels' product of whole numbers x with m 2^(s - 31); all int64."""
    left, right = shifts.clamp(min=0), (-shifts).clamp(min=0)
    # a nearest whole number, ties up: floor((p + 2^30) / 2^31). The kernels add 1 - 2^30 to a negative p and divide toward
    # zero, which is the same: ceil((p + 1 - 2^30) / 2^31) = floor((p + 2^30) / 2^31)
    high = ((x << left) * multipliers).add_(2**30).bitwise_right_shift_(31)
    # ties away from zero: floor((h + 2^(r - 1) - [h < 0]) / 2^r) for r > 0, and h for r = 0
    sign = (high >> 63).bitwise_and_(-(right > 0).long())
    half = (torch.ones_like(right) << right) >> 1
    return high.add_(half).add_(sign).bitwise_right_shift_(right)


def rounded_product(x: Tensor, multipliers: Sequence[int], shifts: Sequence[int], low: int, high: int) -> Tensor:
    """`requantize` in float64."""
    return _whole_product(x, multipliers, shifts, low, high).double()


def _whole_product(x: Tensor, multipliers: Sequence[int], shifts: Sequence[int], low: int, high: int) -> Tensor:
    m, s = by_channel(x, multipliers), by_channel(x, shifts)
    return multiplied(accumulators(x, s.clamp(min=0)), m, s).clamp_(low, high)


def _requantize(x: Tensor, multipliers: Sequence[int], shifts: Sequence[int], low: int, high: int) -> Tensor:
    return _whole_product(x, multipliers, shifts, low, high).to(x.dtype)


def rounded_units(units: Tensor, offset: int, low: int, high: int, snap: float) -> Tensor:
    """`rounded` of factor x, float64."""
    moved = units + offset
    half = moved.floor() + 0.5
    moved = torch.where((moved - half).abs() <= snap, half, moved)
    return (moved.sign() * (moved.abs() + 0.5).floor() - offset).clamp(low, high)


def _rounded(x: Tensor, factor: float, offset: int, low: int, high: int, snap: float) -> Tensor:
    return rounded_units(x.double() * factor, offset, low, high, snap).to(x.dtype)


def _rescaled_sum(
    x: Tensor, y: Tensor, multipliers: Sequence[int], shifts: Sequence[int], minus: bool, low: int, high: int
) -> Tensor:
    first, second = (
        rounded_product(
            each.double() * 2.0**SUM_SHIFT, multipliers[k : k + 1], shifts[k : k + 1], -SUM_RANGE, SUM_RANGE
        )
        for k, each in enumerate((x, y))
    )
    total = first - second if minus else first + second
    return rounded_product(total, multipliers[2:], shifts[2:], low, high).to(x.dtype)


requantize = torch.library.custom_op(
    "tiltproof::requantize", _requantize, mutates_args=(),
    schema="(Tensor x, int[] multipliers, int[] shifts, int low, int high) -> Tensor",
)  # fmt: skip
"""Accumulators times their channels' factors, clipped."""
rescaled_sum = torch.library.custom_op(
    "tiltproof::rescaled_sum", _rescaled_sum, mutates_args=(),
    schema="(Tensor x, Tensor y, int[] multipliers, int[] shifts, bool minus, int low, int high) -> Tensor",
)  # fmt: skip
"""ADD and SUB: multipliers and shifts of both numbers and of what they add up to."""
rounded = torch.library.custom_op(
    "tiltproof::rounded", _rounded, mutates_args=(),
    schema="(Tensor x, float factor, int offset, int low, int high, float snap) -> Tensor",
)  # fmt: skip
"""A real number's nearest whole one; what is closer than ``snap`` to a tie counts as one, since a mean of whole numbers may be rounded."""


@requantize.register_fake
def _(x: Tensor, multipliers: list[int], shifts: list[int], low: int, high: int) -> Tensor:
    return torch.empty_like(x)


@rescaled_sum.register_fake
def _(x: Tensor, y: Tensor, multipliers: list[int], shifts: list[int], minus: bool, low: int, high: int) -> Tensor:
    return torch.empty_like(x + y)


@rounded.register_fake
def _(x: Tensor, factor: float, offset: int, low: int, high: int, snap: float) -> Tensor:
    return torch.empty_like(x)


# Gradients, for attacks: those of M x, where nothing is clipped.


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given, ctx.result = inputs, output


def _inside(ctx: Any, low: int, high: int) -> Tensor:
    return (ctx.result > low) & (ctx.result < high)


def _requantize_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, multipliers, shifts, low, high = ctx.given
    factor = torch.ldexp(by_channel(x, multipliers).double(), by_channel(x, shifts) - 31).to(x.dtype)
    return gradient * factor * _inside(ctx, low, high), None, None, None, None


def _rounded_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    _, factor, _, low, high, _ = ctx.given
    return gradient * factor * _inside(ctx, low, high), None, None, None, None, None


def _sum_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, y, multipliers, shifts, minus, low, high = ctx.given
    first, second, both = (math.ldexp(m, s - 31) for m, s in zip(multipliers, shifts, strict=True))
    gradient = gradient * _inside(ctx, low, high) * (both * 2.0**SUM_SHIFT)
    sign = -1 if minus else 1
    return (gradient * first).sum_to_size(x.shape), (gradient * second * sign).sum_to_size(y.shape), *[None] * 5


rescaled_sum.register_autograd(_sum_gradient, setup_context=_keep)
requantize.register_autograd(_requantize_gradient, setup_context=_keep)
rounded.register_autograd(_rounded_gradient, setup_context=_keep)
