"""Where each pixel looks, inside the kernel of `pixel_kernel.py`: `coordinates.combine`, `_intervals` and their meet, pixel by pixel.

The table holds, for every pair, the entries of matrices that are neither 0 nor 1. A form's radius allows for 8 roundings of
a u + b v + c + offset (6 are made; what an entry 0 or 1 saves is exact), its reach for symbols + 2; intervals move outwards after every
step. A fused multiply-add rounds once where two operations round twice, and stands only where torch's own loops have one.
"""

import triton
import triton.language as tl

GENERAL = tl.constexpr(2)
"""Entries of a matrix are written 0, 1 or 2 (in the table), as digits of a number to base 3, the first entry last."""


@triton.jit
def larger(a, b):
    """`torch.maximum`: a NaN stays one."""
    return tl.where((a < b) | (b != b), b, a)


@triton.jit
def smaller(a, b):
    return tl.where((b < a) | (b != b), b, a)


@triton.jit
def ordered(a, b):
    """The smaller and the larger, by one comparison; where one is a NaN, both in some order."""
    below = a < b
    return tl.where(below, a, b), tl.where(below, b, a)


@triton.jit
def widen(radius, magnitude, factors):
    """`rounding.widen`; factors: operations u, 1 + (operations + 8) u, (operations + 8) SMALLEST, rounded by torch."""
    return tl.fma(magnitude, tl.load(factors), radius) * tl.load(factors + 1) + tl.load(factors + 2)


@triton.jit
def product_of_deviations(a, b, deviation):
    """`AffineForm.product_of_deviations` of two bent forms (center, slopes, radius, ...); ``deviation``: of the second."""
    mine, others = tl.abs(a[1][1]) + a[2], tl.abs(b[1][1]) + b[2]
    return a[1][0] * b[1][0], tl.abs(a[1][0]) * others + mine * deviation


@triton.jit
def _general(codes: tl.constexpr):
    """How many of a row's three entries are in the table."""
    return (codes % 3) // 2 + (codes // 3 % 3) // 2 + (codes // 9 % 3) // 2


@triton.jit
def outward(lower, upper, tiny):
    """`Interval.outward`. A power of two times a number is exact, so a fused multiply-add gives the same."""
    return lower - tl.fma(tl.abs(lower), 2.0**-52, tiny), upper + tl.fma(tl.abs(upper), 2.0**-52, tiny)


@triton.jit
def product(low, high, lower, upper, tiny, point: tl.constexpr):
    """`Interval.__mul__`; ``point``: lower and upper are the same."""
    p, q = low * lower, high * lower
    unknown = (p != p) | (q != q)
    least, most = ordered(p, q)
    if not point:
        p, q = low * upper, high * upper
        unknown = unknown | (p != p) | (q != q)
        p, q = ordered(p, q)
        least, most = ordered(least, p)[0], ordered(most, q)[1]
    return outward(tl.where(unknown, float("-inf"), least), tl.where(unknown, float("inf"), most), tiny)


@triton.jit
def _moved(entry, pairs, u_low, u_high, v_low, v_high, tiny, codes: tl.constexpr, point: tl.constexpr):
    """A row (a, b, c) of one part in interval arithmetic: a u + b v + c. Not both a and b are 0."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    lower, upper = u_low, u_high
    if a == GENERAL:
        lower, upper = product(tl.load(entry), tl.load(entry + pairs), u_low, u_high, tiny, point)
        entry += 2 * pairs
    if b != 0:
        low, high = v_low, v_high
        if b == GENERAL:
            low, high = product(tl.load(entry), tl.load(entry + pairs), v_low, v_high, tiny, point)
            entry += 2 * pairs
        if a == 0:
            lower, upper = low, high
        else:
            lower, upper = outward(lower + low, upper + high, tiny)
    if c == GENERAL:
        lower, upper = outward(lower + tl.load(entry), upper + tl.load(entry + pairs), tiny)
    elif c == 1:
        lower, upper = outward(lower + 1.0, upper + 1.0, tiny)
    return lower, upper


@triton.jit
def _plane(entry, pairs, u, v, codes: tl.constexpr, plane: tl.constexpr, symbols: tl.constexpr):
    """Plane 0 (center), 1 ... (slopes) or symbols + 1 (radius) of a u + b v + c; entries 0 and 1 have a center alone."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    first: tl.constexpr = (a == GENERAL) or (a == 1 and plane == 0)
    second: tl.constexpr = (b == GENERAL) or (b == 1 and plane == 0)
    total = tl.zeros_like(u)
    if a == GENERAL:
        total = tl.load(entry + plane * pairs) * u
        entry += (symbols + 2) * pairs
    elif first:
        total = u
    if second:
        term = v
        if b == GENERAL:
            term = tl.load(entry + plane * pairs) * v
            entry += (symbols + 2) * pairs
        if first:
            total = total + term
        else:
            total = term
    if c == GENERAL:
        if first or second:
            total = total + tl.load(entry + plane * pairs)
        else:
            total = tl.zeros_like(u) + tl.load(entry + plane * pairs)
    elif c == 1 and plane == 0:
        total = total + 1.0
    return total


@triton.jit
def _size(entry, pairs, symbols: tl.constexpr):
    """An entry's magnitude: sum of the planes' absolute values."""
    total = tl.abs(tl.load(entry))
    for plane in tl.static_range(1, symbols + 1):
        total = total + tl.abs(tl.load(entry + plane * pairs))
    return total


@triton.jit
def _magnitude(entry, pairs, u, v, offset, codes: tl.constexpr, symbols: tl.constexpr):
    """ma |u| + mb |v| + mc + |offset|, where |u| and |v| are given."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    total = tl.zeros_like(u)
    if a == GENERAL:
        total = _size(entry, pairs, symbols) * u
        entry += (symbols + 2) * pairs
    elif a == 1:
        total = u
    if b == GENERAL:
        term = _size(entry, pairs, symbols) * v
        entry += (symbols + 2) * pairs
        total = total + term if a != 0 else term
    elif b == 1:
        total = total + v if a != 0 else v
    if c == GENERAL:
        total = total + _size(entry, pairs, symbols)
    elif c == 1:
        total = total + 1.0
    return total + offset


@triton.jit
def _form(entry, pairs, u, v, sign: tl.constexpr, offset, factors, codes: tl.constexpr, symbols: tl.constexpr):
    """`combine` and the form's ends: center, slopes, radius, sum of |slopes|, lower, upper."""
    center = _plane(entry, pairs, u, v, codes, 0, symbols)
    center = (center if sign > 0 else -center) + offset
    slopes = ()
    spread = tl.zeros_like(u)
    for k in tl.static_range(1, symbols + 1):
        slope = _plane(entry, pairs, u, v, codes, k, symbols)
        slopes = slopes + (slope if sign > 0 else -slope,)
        spread = tl.abs(slope) if k == 1 else spread + tl.abs(slope)
    size_u, size_v = tl.abs(u), tl.abs(v)
    magnitude = _magnitude(entry, pairs, size_u, size_v, offset, codes, symbols)
    radius = widen(_plane(entry, pairs, size_u, size_v, codes, symbols + 1, symbols), magnitude, factors)
    reach = widen(radius + spread, tl.abs(center), factors + 3)
    return center, slopes, radius, spread, center - reach, center + reach


@triton.jit
def positions(
    entry, pairs, u, v, factors, composed: tl.constexpr, parts: tl.constexpr, count: tl.constexpr, symbols: tl.constexpr
):
    """Forms and boxes of both axes; ``parts``: the codes of ``count`` matrices, six digits each, in the order of their application."""
    middle_x, middle_y, tiny = tl.load(factors), tl.load(factors + 1), tl.load(factors + 2)
    first: tl.constexpr = composed % 27
    second: tl.constexpr = composed // 27
    x = _form(entry, pairs, u, v, 1, middle_x, factors + 3, first, symbols)
    entry += _general(first) * (symbols + 2) * pairs
    y = _form(entry, pairs, u, v, -1, middle_y, factors + 3, second, symbols)
    entry += _general(second) * (symbols + 2) * pairs
    u_low, u_high, v_low, v_high = u, u, v, v
    for k in tl.static_range(count):
        low, high = _moved(entry, pairs, u_low, u_high, v_low, v_high, tiny, parts // 729**k % 27, k == 0)
        entry += _general(parts // 729**k % 27) * 2 * pairs
        v_low, v_high = _moved(entry, pairs, u_low, u_high, v_low, v_high, tiny, parts // 729**k // 27 % 27, k == 0)
        entry += _general(parts // 729**k // 27 % 27) * 2 * pairs
        u_low, u_high = low, high
    u_low, u_high = outward(u_low + middle_x, u_high + middle_x, tiny)
    v_low, v_high = outward(middle_y - v_high, middle_y - v_low, tiny)
    columns = larger(x[4], u_low), smaller(x[5], u_high)
    rows = larger(y[4], v_low), smaller(y[5], v_high)
    return x, y, columns, rows
