"""Functions of one symbol e in [-1, 1] as Chebyshev polynomials with a remainder: sum_k c_k T_k(e) + [-r, r].

Forms with a single first-order symbol are off by the square of the box's width; a polynomial of degree n, by its power
n + 1. As |T_k| <= 1 on [-1, 1], the coefficients of such a polynomial serve as the slopes of an `AffineForm`, whose
symbols are T_1(e), ..., T_n(e).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import absolute_sum
from tiltproof.enclosures.relu import least
from tiltproof.enclosures.rounding import UNIT, widen

U = UNIT[torch.float64]


class Polynomial:
    """A batch of sets {sum_k stack[k] T_k(e) + x: |x| <= radius}: ``stack`` [1 + n, ...] with n >= 2 and ``radius``
    [...], float64.

    It has the arithmetic that the formulas of transformations use (`transforms.base`).
    """

    def __init__(self, stack: Tensor, radius: Tensor) -> None:
        self.stack, self.radius = stack, radius

    @classmethod
    def constant(cls, value: Tensor, degree: int) -> Polynomial:
        """An exactly known value."""
        return cls(torch.cat([value[None], value.new_zeros(degree, *value.shape)]), torch.zeros_like(value))

    @property
    def degree(self) -> int:
        return len(self.stack) - 1

    @property
    def center(self) -> Tensor:
        return self.stack[0]

    def varying(self) -> Tensor:
        """At least sum_k |c_k| for k >= 1."""
        return absolute_sum(self.stack[1:]) * (1 + 8 * U)

    def deviation(self) -> Tensor:
        """How far the set reaches from its center, rounded up."""
        return widen(self.radius + self.varying(), 0.0, 4, U)

    def magnitude(self) -> Tensor:
        """At least |x| for every x of the set."""
        return (self.center.abs() + self.deviation()) * (1 + 2 * U)

    def without_center(self) -> Polynomial:
        """The set less its center: no rounding."""
        return Polynomial(torch.cat([torch.zeros_like(self.stack[:1]), self.stack[1:]]), self.radius)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds: the exact range of c_1 e + c_2 (2 e^2 - 1), and |c_k| for the others.

        The slope of T_k is at most k^2 on [-1, 1]. Where |c_1| >= sum_(k >= 2) k^2 |c_k|, polynomials are monotonic,
        and their bounds are their values at the ends, T_k(1) = 1 and T_k(-1) = (-1)^k.
        """
        first, second = self.stack[1], self.stack[2]
        sizes = self.stack[2:].abs()
        rest = sizes[1:].sum(0)
        squares = torch.arange(2, self.degree + 1, dtype=sizes.dtype, device=sizes.device) ** 2
        steady = first.abs() * (1 - 16 * U) >= (sizes * squares.view(-1, *[1] * self.center.ndim)).sum(0)
        odd, even = self.stack[1::2].sum(0), self.stack[2::2].sum(0)
        # ten roundings in `least` and the sums, each at most of the sum of all |c_k|, k >= 1, and two of the sums with
        # the center
        slack = self.center.abs() * (2 * U) + (first.abs() + second.abs() + rest + self.radius) * (16 * U)
        slack = widen(self.radius + slack, 0.0, 4, U)
        low = torch.where(steady, even - odd.abs(), least(first, second) - rest)
        high = torch.where(steady, even + odd.abs(), rest - least(-first, -second))
        return self.center + low - slack, self.center + high + slack

    def __neg__(self) -> Polynomial:
        return Polynomial(-self.stack, self.radius)

    def __add__(self, other: Polynomial | Tensor | float) -> Polynomial:
        """Sums of coefficients and of radii; one rounding of each coefficient that changes."""
        if isinstance(other, Polynomial):
            stack = self.stack + other.stack
            return Polynomial(stack, widen(self.radius + other.radius, absolute_sum(stack), 1, U))
        center = self.center + other
        return Polynomial(torch.cat([center[None], self.stack[1:]]), widen(self.radius, center.abs(), 1, U))

    __radd__ = __add__

    def __sub__(self, other: Polynomial | Tensor | float) -> Polynomial:
        return self + (-other)

    def __rsub__(self, other: Tensor | float) -> Polynomial:
        return (-self) + other

    def __mul__(self, other: Polynomial | Tensor | float) -> Polynomial:
        """T_i T_j = (T_(i + j) + T_|i - j|) / 2 for i + j <= n; of the others |T_i T_j| <= 1 is what is left.

        With D_1 and D_2 the sums of |c_k|, k >= 1, and r_1, r_2 the radii: the unknown parts add |P| r_2 + |Q| r_1 +
        r_1 r_2. Roundings: the product of the centers and the sum that it enters last, 2 |c_0 d_0|; each of the others
        is one product, and takes part in fewer than 2 n + 3 sums.
        """
        if not isinstance(other, Polynomial):
            size = other.abs() if isinstance(other, Tensor) else abs(other)
            stack = self.stack * other
            return Polynomial(stack, widen(self.radius * size, absolute_sum(stack), 1, U))
        n, a, b = self.degree, self.stack, other.stack
        zero = torch.zeros_like(a[0] * b[0])
        terms, dropped = [zero.clone() for _ in range(n + 1)], zero
        for i in range(n + 1):
            for j in range(n + 1):
                if i + j == 0:
                    continue
                product = a[i] * b[j]
                if i + j > n:
                    dropped = dropped + product.abs()
                elif i == 0 or j == 0:
                    terms[i + j] = terms[i + j] + product
                else:
                    terms[i + j] = terms[i + j] + product / 2
                    terms[abs(i - j)] = terms[abs(i - j)] + product / 2
        terms[0] = a[0] * b[0] + terms[0]
        mine, others = self.varying(), other.varying()
        first, second = a[0].abs(), b[0].abs()
        radius = (first + mine) * other.radius + (second + others) * self.radius + self.radius * other.radius + dropped
        small = first * others + mine * second + mine * others
        return Polynomial(torch.stack(terms), widen(radius, first * second * 2 + small * (2 * n + 6), 1, U))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Polynomial:
        stack = self.stack / other
        return Polynomial(stack, widen(self.radius / abs(other), absolute_sum(stack), 1, U))

    def deg2rad(self) -> Polynomial:
        """Times pi / 180: one rounding for the constant, one for the product (4 are allowed for)."""
        stack = self.stack.deg2rad()
        return Polynomial(stack, widen(self.radius.deg2rad(), absolute_sum(stack), 4, U))

    def _plus_unknown(self, size: Tensor) -> Polynomial:
        """The same set with ``size`` >= 0 more in its radius."""
        return Polynomial(self.stack, widen(self.radius + size, 0.0, 2, U))

    def sine_and_cosine_less_one(self) -> tuple[Polynomial, Polynomial]:
        """sin x and cos x - 1 for small x: Taylor's polynomials of degrees 3 and 4 with Lagrange's remainders.

        |sin x - (x - x^3 / 6)| <= |x|^5 / 120 and |cos x - (1 - x^2 / 2 + x^4 / 24)| <= |x|^6 / 720 for all x.
        """
        size = self.magnitude()
        square, power = self * self, size * size
        fifth = power * power * size
        sine, cosine = self * (square / -6 + 1.0), square * (square / 24 + -0.5)
        # quotients by 120 and 720, and powers: fewer than 16 roundings of numbers >= 0
        more = 1 + 16 * U
        return sine._plus_unknown(fifth * (more / 120)), cosine._plus_unknown(fifth * size * (more / 720))

    def inverse_less_one(self) -> Polynomial:
        """1 / (1 + x) - 1 = -x + x^2 - x^3 + x^4 - x^5 / (1 + x), exactly, for x > -1; else an infinite radius
        (nothing is proved)."""
        total = -self + 1.0
        for _ in range(2):
            total = -(self * total) + 1.0
        total = -(self * total)
        size = self.magnitude()
        square, least = size * size, 1 + self.ends()[0]
        # 1 + x is rounded to 2^-33 of itself
        rest = square * square * size / least * (1 + 2.0**-30)
        return total._plus_unknown(torch.where(least > 2.0**-20, rest, torch.inf))

    def reciprocal(self) -> Polynomial:
        """1 / x for x > 0: with c the center and E = (x - c) / c, 1 / x = (1 + (1 / (1 + E) - 1)) / c; else an
        infinite radius."""
        middle = self.center
        around = self.without_center()
        ratio = Polynomial(
            around.stack / middle, widen(around.radius / middle.abs(), around.varying() / middle.abs(), 1, U)
        )
        inverse = middle.reciprocal()
        result = (ratio.inverse_less_one() + 1.0) * inverse
        # the reciprocal is off by one rounding, so every number of the product is
        result = result._plus_unknown(result.magnitude() * (2 * U))
        return Polynomial(result.stack, torch.where((middle > 0) & (self.ends()[0] > 0), result.radius, torch.inf))

    def over(self, divisor: Polynomial) -> Polynomial:
        """x / w for w > 0. A divisor that reaches zero gives an infinite radius (nothing is proved)."""
        return self * divisor.reciprocal()
