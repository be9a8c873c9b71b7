"""Shares of a range: share t of [low, high] is [t low, t high], and 0 is the parameter that changes nothing.

The share of a parameter vector is the least t whose range contains it: the largest of its coordinates, each divided by
the end of the range on its side. A claim about share t is one about the exact real numbers t low and t high, where t,
low and high are floats. Whatever is claimed is rounded down, and whatever is bounded or found is rounded up.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms import Compose, Linf, Transform

ROUNDING = 2.0**-49
"""An edge of the tiling is low + (high - low) t with four roundings, each at most 2^-53 of at most 2 max(|low|, |high|);
taking the difference below adds one more: 9 * 2^-53 < 2^-49."""
SIX_DIGITS = decimal.Context(prec=6, rounding=decimal.ROUND_DOWN)


class Shares:
    """The shares of the range of a transformation, for tensors on ``device``."""

    def __init__(self, transform: Transform, device: torch.device | str = "cpu") -> None:
        self.low, self.high = (
            torch.tensor(end, dtype=torch.float64, device=device) for end in (transform.low, transform.high)
        )
        self.error = ROUNDING * torch.maximum(self.low.abs(), self.high.abs())

    def on(self, device: torch.device) -> Shares:
        """Return the same shares for tensors on another device."""
        other = Shares.__new__(Shares)
        other.low, other.high, other.error = (each.to(device) for each in (self.low, self.high, self.error))
        return other

    def of_points(self, parameters: Tensor) -> Tensor:
        """Return the share of each parameter vector [P, d] inside the range, rounded up, [P]."""
        end = torch.where(parameters < 0, self.low, self.high)
        # division rounds to nearest: the next float is not below the exact quotient
        share = (parameters / end).nextafter(torch.full_like(parameters, torch.inf))
        return torch.where(parameters == 0, 0.0, share).amax(1)

    def of_boxes(self, low: Tensor, high: Tensor) -> Tensor:
        """Return a share [P] so small that its range does not reach into the inside of the boxes [P, d]. It holds for
        the edges as given, and for the exact ones that they were rounded from.

        A box lies outside of share t if along one parameter low_box >= t high or high_box <= t low.
        """
        zero = torch.zeros_like(low)
        above = ((low - self.error) / self.high).nextafter(zero)  # rounded down where positive
        below = ((high + self.error) / self.low).nextafter(zero)
        above = torch.where((low > self.error) & (self.high > 0), above, zero)
        below = torch.where((high < -self.error) & (self.low < 0), below, zero)
        return torch.maximum(above, below).amax(1).clamp(0, 1)

    def ends(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return both ends [P, d] of the ranges of these shares [P], rounded outward."""
        low, high = share.unsqueeze(1) * self.low, share.unsqueeze(1) * self.high
        return low.nextafter(torch.full_like(low, -torch.inf)), high.nextafter(torch.full_like(high, torch.inf))


def check_parameters(transform: Transform) -> None:
    """Raise for noise alone."""
    if not transform.parts:
        raise InputError(
            "a radius is a share of a range of parameters, and noise has none",
            got=str(transform),
            do=f'certify with several epsilons, or give a range as well, e.g. "R(10), {transform}"',
        )


def check_identity(transform: Transform) -> None:
    """Raise unless there is a parameter, and the one that changes nothing lies in the range of every part."""
    check_parameters(transform)
    for part in transform.parts:
        low, high = part.range
        if not low <= 0 <= high:
            raise InputError(
                "a radius is measured from the image as it is, and this range leaves that out",
                got=part.text,
                do=f"give a range that contains 0, e.g. {part.letter}({min(low, 0.0):g}:{max(high, 0.0):g})",
            )


def scaled(share: float, end: float, up: bool = False) -> float:
    """Return share * end, rounded towards zero, or away from it with ``up``.

    >>> scaled(1 / 3, 3.0), scaled(1 / 3, 3.0, up=True)
    (0.9999999999999999, 1.0)
    """
    exact = abs(Fraction(share) * Fraction(end))
    result = float(exact)
    while Fraction(result) < exact if up else Fraction(result) > exact:
        result = math.nextafter(result, math.inf if up else 0.0)
    return result if end >= 0 else -result


def upper_share(point: tuple[float, ...], transform: Transform) -> float:
    """Return the share of a parameter vector inside the range, rounded up.

    >>> from tiltproof.transforms import parse
    >>> upper_share((-5.0, 3.0), parse("R(-10:30), Sc(4)"))
    0.75
    """
    exact = max(
        Fraction(x) / Fraction(low if x < 0 else high) if x else Fraction(0)
        for x, low, high in zip(point, transform.low, transform.high, strict=True)
    )
    result = float(exact)
    return result if Fraction(result) >= exact else math.nextafter(result, math.inf)


def nested(transform: Transform, share: float) -> Transform:
    """Return the transformation over this share of its range, shrunk towards the parameter that changes least, with ends
    of six digits that lie inside of it. Noise stays whole.

    >>> from tiltproof.transforms import parse
    >>> str(nested(parse("R(-10:30), Sc(5:10)"), 0.5))
    'R(-5:15), Sc(5:7.5)'
    """
    if share == 1:
        return transform
    parts: list[Transform] = []
    for part in transform.parts:
        low, high = part.range
        least = min(max(0.0, low), high)  # 0 is the identity for every part
        parts.append(part.over(*(least + _short(share, end - least) for end in (low, high))))
    options = transform.options()
    noise = [Linf(transform.noise)] if transform.noise else []
    return parts[0] if len(parts) == 1 and not options and not noise else Compose(*parts, *noise, **options)


def _short(share: float, end: float) -> float:
    """Return the largest number of six digits, as a float, that is not further from 0 than share * end exactly."""
    exact = abs(Fraction(share) * Fraction(end))
    digits = SIX_DIGITS.divide(Decimal(exact.numerator), Decimal(exact.denominator))
    while Fraction(float(digits)) > exact:  # the float next to the decimal may lie outside
        digits = SIX_DIGITS.next_minus(digits)
    return math.copysign(float(digits), end) if digits else 0.0
