"""Functions of one symbol as Chebyshev polynomials in whole numbers times 2^-128, where float64 has too few bits.

Every result is rounded down to a whole number, and what that and the terms beyond the degree leave is counted in the same units. Terms are
Python's integers, or arrays of them for pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiltproof.enclosures.centered import BITS, GUARD, ONE, pi, sine

LARGEST = 2**10
"""Angles below which `sine` holds."""


class Unsupported(ArithmeticError):
    """A function of these numbers is not known well enough."""


class Fixed:
    """The set {sum_k terms[k] T_k(e) + x: |x| <= error}, in units of 2^-128, for e in [-1, 1]."""

    def __init__(self, terms: Sequence[Any], error: Any) -> None:
        self.terms, self.error = list(terms), error

    @classmethod
    def of(cls, floats: Sequence[float]) -> Fixed:
        """The polynomial with these coefficients."""
        ratios = [number.as_integer_ratio() for number in floats]
        return cls([(top << BITS) // bottom for top, bottom in ratios], len(ratios))

    def constant(self, number: int) -> Fixed:
        """A number in units of 2^-128, of this degree."""
        return Fixed([number, *[0] * (len(self.terms) - 1)], 0)

    def size(self) -> Any:
        """At least every |x| of the set."""
        return sum(abs(term) for term in self.terms) + self.error

    def without_center(self) -> Fixed:
        return Fixed([self.terms[0] * 0, *self.terms[1:]], self.error)

    def __neg__(self) -> Fixed:
        return Fixed([-term for term in self.terms], self.error)

    def __add__(self, other: Fixed | int) -> Fixed:
        if not isinstance(other, Fixed):
            return Fixed([self.terms[0] + other * ONE, *self.terms[1:]], self.error)
        terms = [a + b for a, b in zip(self.terms, other.terms, strict=True)]
        return Fixed(terms, self.error + other.error)

    __radd__ = __add__

    def __mul__(self, other: Fixed | float) -> Fixed:
        """T_i T_j = (T_(i + j) + T_|i - j|) / 2, so twice the product is summed; of terms beyond the degree |T| <= 1 is what is left.

        With x, y the unknown parts, P y + Q x + x y is at most (|P| + |x|) |y| + (|Q| + |y|) |x|, x y counted twice.
        """
        if not isinstance(other, Fixed):
            return self._ratio(*other.as_integer_ratio())
        count = len(self.terms)
        twice, beyond = [self.terms[0] * other.terms[0] * 0 for _ in range(count)], 0
        for i, a in enumerate(self.terms):
            for j, b in enumerate(other.terms):
                product = a * b
                if i + j < count:
                    twice[i + j] = twice[i + j] + product
                else:
                    beyond = beyond + abs(product)
                twice[abs(i - j)] = twice[abs(i - j)] + product
        unknown = self.size() * other.error + other.size() * self.error
        error = ((beyond + 2 * unknown) >> (BITS + 1)) + 1 + count
        return Fixed([term >> (BITS + 1) for term in twice], error)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Fixed:
        top, bottom = other.as_integer_ratio()
        return self._ratio(bottom, top) if top > 0 else self._ratio(-bottom, -top)

    def _ratio(self, top: int, bottom: int) -> Fixed:
        """Times top / bottom, for bottom > 0; each term is rounded down."""
        terms = [term * top // bottom for term in self.terms]
        return Fixed(terms, self.error * abs(top) // bottom + 1 + len(terms))

    def _plus_unknown(self, size: int) -> Fixed:
        return Fixed(self.terms, self.error + size)

    def deg2rad(self) -> Fixed:
        """Times pi / 180, which is off by less than 2^7 2^-160: at most 2^-5 units for numbers below 2^20."""
        if self.size() >= ONE << 20:
            raise Unsupported
        unit = pi() // 180
        terms = [term * unit >> (BITS + GUARD) for term in self.terms]
        return Fixed(terms, self.error + 1 + 2 * len(terms))

    def sin(self) -> Fixed:
        """Compute sin(c + D) = sin c cos D + cos c sin D."""
        return self._turned(0)

    def cos(self) -> Fixed:
        """The sine a quarter turn later."""
        return self._turned(1)

    def _turned(self, quarters: int) -> Fixed:
        """Taylor's polynomials: |sin D - (D - D^3 / 6)| <= |D|^5 / 120, |cos D - (1 - D^2 / 2 + D^4 / 24)| <= |D|^6 / 720."""
        middle, rest = self.terms[0], self.without_center()
        if abs(middle) >= LARGEST * ONE:
            raise Unsupported
        size, square = rest.size(), rest * rest
        small = rest + -(rest * square) / 6
        fourth = square * square
        even = square * -0.5 + fourth / 24 + 1
        small = small._plus_unknown((size**5 >> (4 * BITS)) // 120 + 1)
        even = even._plus_unknown((size**6 >> (5 * BITS)) // 720 + 1)
        value, slope = (self.constant(sine(middle, quarters + k))._plus_unknown(1) for k in (0, 1))
        return value * even + slope * small

    def reciprocal(self) -> Fixed:
        """1 / (c + D) = (1 - E + E^2 - E^3 + E^4 - E^5 / (1 + E)) / c with E = D / c, for c > 2^-20 and |E| <= 1/2."""
        middle = self.terms[0]
        if middle <= ONE >> 20:
            raise Unsupported
        inverse = self.constant(ONE * ONE // middle)._plus_unknown(1)
        ratio = self.without_center() * inverse
        size = ratio.size()
        if 2 * size > ONE:
            raise Unsupported
        total = self.constant(ONE)
        for _ in range(4):
            total = -(ratio * total) + 1
        return total._plus_unknown((2 * size**5 >> (4 * BITS)) + 1) * inverse
