"""Functions of one symbol around numbers that are known far more precisely than floats: x = c + P(e), P a polynomial
with a remainder.

In a small box nearly all of a source position is its value in the middle of the box, up to an image's size, and
rounding that leaves an error of many units: more than all else. Here it is an integer multiple of 2^-128, of which
positions keep the fraction of a pixel. There are only a few such numbers for each box, so Python's integers are fast
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from tiltproof.enclosures.polynomial import Polynomial, U

BITS = 128
ONE = 1 << BITS
GUARD = 32
"""More bits of intermediate results, whose roundings are then less than one unit of the result."""
COARSE = 36
"""Bits after the point of the first of the two floats that a number is split into."""
MOST = 2.0**15
"""Sums of products of those floats with half integers are exact below: multiples of 2^-37 below 2^16 have at most 53
bits."""


class Centered:
    """A batch of sets {exact[p] 2^-128 + x + y: x in rest[p], |y| <= slack 2^-128}; ``exact`` has P integers, ``rest``
    is [P].

    It has the arithmetic that the formulas of transformations use (`transforms.base`).
    """

    def __init__(self, exact: list[int], slack: int, rest: Polynomial) -> None:
        self.exact, self.slack, self.rest = exact, slack, rest

    @classmethod
    def around(cls, value: Polynomial) -> Centered:
        """The same set as ``value`` [P], with its center taken out."""
        exact = [_fixed(number) for number in value.center.tolist()]
        return cls(exact, 1, value.without_center())

    def floats(self) -> Tensor:
        """The exact numbers, rounded once."""
        return self._tensor([number / ONE for number in self.exact])

    def polynomial(self) -> Polynomial:
        """The same set or a little more as a polynomial."""
        return (self.rest + self.floats())._plus_unknown(self.floats().abs() * (2 * U) + self.slack / ONE)

    def halves(self) -> tuple[Tensor, Tensor]:
        """A multiple of 2^-36 and what is left, at most 2^-37: their sum is off by 2^-90 and the slack."""
        step = 1 << (BITS - COARSE)
        coarse = [(number + step // 2) // step for number in self.exact]
        fine = [(number - part * step) / ONE for number, part in zip(self.exact, coarse, strict=True)]
        return self._tensor([part / 2**COARSE for part in coarse]), self._tensor(fine)

    def _tensor(self, numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=self.rest.radius.device)

    def _largest(self) -> int:
        """At least the largest of the exact numbers, in whole units."""
        return max(abs(number) for number in self.exact) // ONE + 1

    def _with(self, function: Callable[[int], int], slack: int, rest: Polynomial) -> Centered:
        return Centered([function(number) for number in self.exact], slack, rest)

    def __neg__(self) -> Centered:
        return self._with(int.__neg__, self.slack, -self.rest)

    def __add__(self, other: Centered | int) -> Centered:
        if isinstance(other, Centered):
            exact = [a + b for a, b in zip(self.exact, other.exact, strict=True)]
            return Centered(exact, self.slack + other.slack, self.rest + other.rest)
        return self._with(lambda number: number + other * ONE, self.slack, self.rest)

    __radd__ = __add__

    def __mul__(self, other: Centered | float) -> Centered:
        """(c_1 + P_1)(c_2 + P_2) = c_1 c_2 + (c_1 P_2 + c_2 P_1 + P_1 P_2)."""
        if not isinstance(other, Centered):
            top, bottom = other.as_integer_ratio()
            slack = self.slack * (abs(top) // bottom + 1) + 1
            return self._with(lambda number: number * top // bottom, slack, self.rest * float(other))
        exact = [(a * b) >> BITS for a, b in zip(self.exact, other.exact, strict=True)]
        # |y_1 x_2| + |y_2 x_1| + |y_1 y_2|, and the shift
        slack = (self.slack + other.slack) * (self._reach() + other._reach()) + (self.slack * other.slack >> BITS) + 2
        rest = self._times(other.rest) + other._times(self.rest) + self.rest * other.rest
        return Centered(exact, slack, rest)

    def _reach(self) -> int:
        """A whole number larger than every |x| of the sets; those that are not finite prove nothing, and stay so."""
        size = self.rest.magnitude()
        return self._largest() + int(torch.where(torch.isfinite(size), size, 0.0).amax()) + 2

    def _times(self, rest: Polynomial) -> Polynomial:
        """The exact numbers times a polynomial: as rounded, they are off by u of themselves."""
        result = rest * self.floats()
        return result._plus_unknown(result.magnitude() * (2 * U))

    def __truediv__(self, other: float) -> Centered:
        top, bottom = other.as_integer_ratio()
        slack = self.slack * (bottom // abs(top) + 1) + 1
        return self._with(lambda number: number * bottom // top, slack, self.rest / float(other))

    def deg2rad(self) -> Centered:
        """Times pi / 180: the constant is off by less than 2^-145, and numbers are below 2^10."""
        unit = pi() // 180
        return self._with(lambda number: (number * unit) >> (BITS + GUARD), self.slack + 2, self.rest.deg2rad())

    def sin(self) -> Centered:
        """Compute sin(c + D) = sin c + (sin c (cos D - 1) + cos c sin D)."""
        return self._turned(0)

    def cos(self) -> Centered:
        """Compute cos(c + D) = cos c + (cos c (cos D - 1) - sin c sin D): a quarter turn later."""
        return self._turned(1)

    def _turned(self, quarters: int) -> Centered:
        value = self._with(lambda number: sine(number, quarters), self.slack + 2, self.rest)
        slope = self._with(lambda number: sine(number, quarters + 1), self.slack + 2, self.rest)
        sines, cosines = self.rest.sine_and_cosine_less_one()
        value.rest = value._times(cosines) + slope._times(sines)
        # both numbers are off by the slack, and |cos D - 1| <= 2, |sin D| <= 1
        value.slack *= 4
        return value

    def reciprocal(self) -> Centered:
        """1 / (c + D) = 1 / c + (1 / c) (1 / (1 + E) - 1) with E = D / c, for c > 0 and |E| <= 1/2; else an infinite
        radius."""
        exact = [ONE * ONE // max(number, ONE >> 20) for number in self.exact]
        inverse = Centered(exact, 0, self.rest)
        ratio = inverse._times(self.rest)
        inverse.rest = inverse._times(ratio.inverse_less_one())
        # for |E| <= 1/2: 1 / c is off by less than one, E by |D|, and what the slack adds to x changes 1 / x by at
        # most 4 slack / c^2
        inverse.slack = (self.slack + 1) * (inverse._largest() + 1) ** 3 * 4
        low = torch.tensor([number > ONE >> 20 for number in self.exact], device=self.rest.radius.device)
        low = low & (ratio.magnitude() <= 0.5)
        inverse.rest.radius = torch.where(low, inverse.rest.radius, torch.inf)
        return inverse


def _fixed(number: float) -> int:
    top, bottom = number.as_integer_ratio()
    return (top << BITS) // bottom


@lru_cache(maxsize=1)
def pi() -> int:
    """Pi by Machin's formula, 16 arctan(1/5) - 4 arctan(1/239), times 2^(BITS + GUARD), off by less than 2^12."""
    one = 1 << (BITS + GUARD)

    def arctan(n: int) -> int:
        term, total, k = one // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    return 16 * arctan(5) - 4 * arctan(239)


@lru_cache(maxsize=2**14)
def sine(number: int, quarters: int) -> int:
    """sin(number 2^-128 + quarters pi / 2) in units of 2^-128, off by less than one, for |number| below 2^10.

    Reduced to an angle of at most pi / 4, whose sine or cosine is the sum of Taylor's series until its terms vanish.
    """
    quarter = pi() // 2
    angle = number << GUARD
    turns = (angle + quarter // 2) // quarter
    angle, quarters = angle - turns * quarter, (quarters + turns) % 4
    k = quarters % 2
    term = 1 << (BITS + GUARD) if k else angle
    total, square, order = 0, angle * angle >> (BITS + GUARD), 0 if k else 1
    while term not in (0, -1):
        total += term
        term = -(term * square >> (BITS + GUARD)) // ((order + 1) * (order + 2))
        order += 2
    return (-total if quarters > 1 else total) >> GUARD
