"""Numbers in whole digits: x = sum_k d_k 2^(-20 k) with digits d_0 to d_5, exact where float64 rounds.

Digits are whole numbers in float64, so sums of their products are exact as long as the sizes of the terms add up to at most 2^53. Then
`carried` brings them back to at most 2^19, but for the first one. What is dropped is counted: numbers smaller than 2^-100, and products of
digits so far behind the point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, no_rule

BASE, COUNT, GUARD = 2.0**20, 6, 1
"""Digits of a number, and places more that products are kept to."""
LARGEST = 2.0**19
LAST = 2.0 ** (-20 * (COUNT - 1))
"""The unit of the last digit; numbers are rounded to it."""


def carried(digits: Tensor) -> Tensor:
    """The same numbers with digits of at most 2^19 after the first, rounded to `COUNT` of them: off by at most `LAST`.

    Digits of at most 2^52, which stay below 2^53 with a carry.
    """
    result = digits.clone()
    for k in range(len(result) - 1, 0, -1):
        carry = torch.round(result[k] / BASE)
        result[k] -= carry * BASE
        result[k - 1] += carry
    if bool((result[0].abs() >= LARGEST).any()) or not bool(result[0].isfinite().all()):
        raise no_rule("forward", "with numbers this large, in deep networks")
    if len(result) < COUNT:
        return torch.cat([result, result.new_zeros(COUNT - len(result), *result.shape[1:])])
    return result[:COUNT]


def of_floats(x: Tensor) -> Tensor:
    """Digits of floats below 2^19: each remainder is exact. Off by at most `LAST` / 2."""
    result, rest = [], x
    for _ in range(COUNT):
        digit = torch.round(rest)
        result.append(digit)
        rest = (rest - digit) * BASE
    return carried(torch.stack(result))


def of_fractions(numbers: list[Fraction], shape: torch.Size, device: torch.device) -> Tensor:
    """Digits of fractions, rounded down: off by at most `LAST`."""
    places = 20 * (COUNT - 1)
    rows = []
    for number in numbers:
        rest, digits = math.floor(number * 2**places), []
        for _ in range(COUNT - 1):
            digits.append(float(rest % 2**20))
            rest //= 2**20
        if abs(rest) >= 2**50:
            raise no_rule("forward", "with constants this large, in deep networks")
        rows.append([float(rest), *reversed(digits)])
    return carried(torch.tensor(rows, dtype=torch.float64, device=device).T.reshape(COUNT, *shape))


def floats(digits: Tensor) -> tuple[Tensor, Tensor]:
    """Near floats, and how far off they are: one rounding of each sum, of numbers below that of the sizes."""
    parts = [digits[k] * BASE**-k for k in range(len(digits))]
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = total + part
    size = torch.stack(parts).abs().sum(0)
    return total, size * (2 * len(parts) * UNIT)


def product(
    x: Tensor, weight: Tensor, terms: int, multiply: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, float]:
    """W x in digits, for a map whose numbers are sums of ``terms`` products of a weight and a number each, and how far it may be off.

    ``multiply``: that map, of a digit of all weights and one of all numbers. Places beyond `COUNT` + `GUARD` are dropped: fewer than
    2 COUNT pairs of digits, at most 2^38 2^(-20 places) each, and half as many for each further place.
    """
    first = [float(digits[0].abs().max()) if digits[0].numel() else 0.0 for digits in (x, weight)]
    largest = max(LARGEST, first[0]) * max(LARGEST, first[1])
    if not terms * COUNT * largest <= 2.0**52:
        raise no_rule("forward", "with layers this large, in deep networks")
    places: list[Tensor | None] = [None] * (COUNT + GUARD)
    for j in range(COUNT):
        if not bool(weight[j].any()):
            continue
        for i in range(min(COUNT, COUNT + GUARD - j)):
            if bool(x[i].any()):
                found, before = multiply(weight[j], x[i]), places[i + j]
                places[i + j] = found if before is None else before + found
    some = next((place for place in places if place is not None), None)
    some = multiply(weight[0], x[0]) if some is None else some
    filled = [torch.zeros_like(some) if place is None else place for place in places]
    off = terms * 2 * COUNT * 2.0**38 * BASE ** -(COUNT + GUARD) + LAST
    return carried(torch.stack(filled)), off * (1 + 2.0**-18)
