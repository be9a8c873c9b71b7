"""Numbers of more bits than a float64 has: unevaluated sums of two floats, and their exact products in slices.

A float64 sum of products is exact where all terms are whole numbers and the sum of their sizes is at most 2^53, in any order and with or
without fused multiply-add. So each factor is cut into slices: whole numbers of a few bits times powers of two. Products of slices lose
nothing; they are added in pairs of floats.

`two_sum` and `two_product` need float64 operations that are rounded to nearest one by one, which torch's elementwise functions are: each is
a kernel of its own, so nothing is fused. Where a part of a result is flushed to zero, at most 2^-1022 is lost; `SMALLEST` covers that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tiltproof.enclosures.rounding import SMALLEST, UNIT

U = UNIT[torch.float64]
TINY = 64 * SMALLEST[torch.float64]
"""Covers what a few dozen operations may lose to underflow."""
SPLITTER = 2.0**27 + 1
WIDEST = 25
"""Bits of a slice at most."""
MOST_EXPONENT = 400
"""Rows that reach 2^400 are not cut, so that no scaling over- or underflows."""


class Pair(NamedTuple):
    """high + low, both float64."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, value: Tensor) -> Pair:
        return cls(value, torch.zeros_like(value))

    def normal(self) -> Pair:
        """The same numbers with |low| <= u |high|."""
        return Pair(*two_sum(self.high, self.low))

    def apply(self, function: Callable[[Tensor], Tensor]) -> Pair:
        """A function that only moves numbers about, or scales them by powers of two."""
        return Pair(function(self.high), function(self.low))


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as rounded, and what the rounding left out, exactly (Knuth)."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a b as rounded, and what the rounding left out (Dekker): exactly, but for underflows, for sizes below 2^500."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    rest = a_high * b_high - product
    rest = rest + a_high * b_low
    rest = rest + a_low * b_high
    return product, rest + a_low * b_low


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of at most 26 bits each, whose sum is x (Veltkamp)."""
    large = x * SPLITTER
    high = large - (large - x)
    return high, x - high


def summed(terms: list[Tensor]) -> tuple[Pair, Tensor]:
    """The sum as a pair, and a bound of its error.

    What `two_sum` leaves out is exact, and adding it to the low part is off by u of the result at most.
    """
    high, low = terms[0], torch.zeros_like(terms[0])
    off = torch.zeros_like(low)
    for term in terms[1:]:
        high, rest = two_sum(high, term)
        low = low + rest
        off = off + low.abs()
    return Pair(high, low).normal(), off * (U * (1 + 64 * U)) + TINY


def times(x: Pair, y: Pair) -> tuple[Pair, Tensor]:
    """The product as a pair, and a bound of its error.

    x_h y_h is exact; the mixed products round once each; x_l y_l, at most u^2 |x_h y_h| for normal pairs, is left out.
    """
    product, rest = two_product(x.high, y.high)
    mixed = x.high * y.low, x.low * y.high
    result, off = summed([product, rest, *mixed])
    left = (x.low * y.low).abs() + (mixed[0].abs() + mixed[1].abs()) * U
    return result, (off + left) * (1 + 64 * U) + TINY


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, for whole numbers from -1022 to 1023: exactly, from its bits."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


class Slices(NamedTuple):
    """Row r of a pair [R, ...] is the sum over k of ``parts[k][r]``, whole numbers, times 2^(exponent[r] - (k + 1) bits), and what is
    left. ``off`` [R]: zero, or infinite where the row was too large to be cut."""

    parts: list[Tensor]
    exponent: Tensor
    bits: int
    off: Tensor


def sliced(x: Pair, bits: int, count: int) -> Slices:
    """Cut the rows of a pair into ``count`` slices of ``bits`` bits, at most `WIDEST`.

    With 2^e > |x_h| for all entries of a row and R_0 = x: part k is the first float of R_k times 2^((k + 1) bits - e), rounded to a whole
    number, and R_(k + 1) is what is left. Scaling by powers of two and the difference are exact, and `two_sum` makes a normal pair of what
    is left, whose first float is at most (1/2 + 2^(bits - 53)) 2^(e - k bits) for k >= 1. So |R_k| <= 2^(e - k bits), and parts are at most
    2^bits in size.
    """
    assert 0 < bits <= WIDEST
    x = x.normal()
    largest = x.high.abs().flatten(1).amax(1)
    exponent = torch.frexp(largest)[1].clamp(min=-MOST_EXPONENT, max=MOST_EXPONENT)
    off = torch.where(largest < 2.0**MOST_EXPONENT, 0.0, torch.inf)  # infinite for NaN too
    scale = power_of_two(-exponent).view(-1, *[1] * (x.high.ndim - 1))
    (high, low), parts = x.apply(lambda part: part * scale), []
    for k in range(count):
        shift = 2.0 ** (bits * (k + 1))
        part = torch.round(high * shift)
        parts.append(part)
        high, low = two_sum(high - part / shift, low)
    return Slices(parts, exponent, bits, off)


def slice_bits(terms: int) -> int:
    """Bits of slices whose products can be added ``terms`` at a time without rounding: terms 2^(2 bits) <= 2^53."""
    return min(WIDEST, (53 - math.ceil(math.log2(max(terms, 1)))) // 2)


def product_of_slices(
    weight: Slices, x: Slices, terms: int, multiply: Callable[[int, Tensor, Tensor], Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Terms whose sum is W x, and a bound [R, O] of the error for each row of x and output.

    ``multiply(i, part, rows)``: the linear map with weights ``part``, slice i of W [O, ...], of rows [n R, ...]: n R rows with O in
    dimension 1, each entry one sum of at most ``terms`` products.

    With J slices of b bits each, 2^f and 2^e above W's and x's entries: W_i X_j for i + j < J is exact. What is left out is W_i times what
    remains of x after J - i slices, for i < J, and what remains of W times x: each entry at most 2^(f + e - b J), and twice that
    for the last: terms (J + 2) 2^(f + e - b J) in total. The products with i + j >= J - 2 are added as floats: fewer than 2 J numbers of at
    most terms 2^(f + e - b (J - 2)) are off by (2 J)^2 u of that, which is 4 J^2 terms 2^(2 b - 53) 2^(f + e - b J).
    """
    count, bits = len(x.parts), x.bits
    assert weight.bits == bits
    assert terms << (2 * bits) <= 1 << 53
    assert len(weight.parts) == count
    found: dict[int, list[Tensor]] = {}
    for i, part in enumerate(weight.parts):
        if i and not bool(part.any()):
            continue  # nothing of it is left out either
        rows = torch.cat(x.parts[: count - i])
        for j, products in enumerate(multiply(i, part, rows).chunk(count - i)):
            found.setdefault(i + j, []).append(products)
    exponent = x.exponent.view(-1, 1) + weight.exponent.view(1, -1)
    off = power_of_two(exponent - bits * count) * (terms * (count + 2 + 4 * count**2 * 2.0 ** (2 * bits - 53)))
    off = off * (1 + 64 * U) + TINY + x.off.view(-1, 1) + weight.off.view(1, -1)
    result: list[Tensor] = []
    small: list[Tensor] = []
    for order, group in sorted(found.items()):
        scale = power_of_two(exponent - bits * (order + 2))
        for each in group:
            scaled = each * scale.view(*exponent.shape, *[1] * (each.ndim - 2))
            if order < count - 2:
                result.append(scaled)
            else:
                small = [small[0] + scaled] if small else [scaled]
    return result + small, off
