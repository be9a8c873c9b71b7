"""Source positions of pixels, inside the kernel of `triton/pixels.py`: `coordinates.combine`, `_intervals` and their meet, pixel by pixel.

The table holds, for every pair, the entries of matrices that are neither 0 nor 1. A form's radius allows for 8 roundings of a u + b v + c +
offset (6 are made; what an entry 0 or 1 saves is exact), its reach for symbols + 2; intervals move outwards after every step. A fused
multiply-add rounds once where two operations round twice, and stands only where torch's own loops have one. Where remainders are small
beside the forms' own boxes (`triton/matrix_entries.py`), these will do: the meet would take little from them.
"""

import triton
import triton.language as tl

UNIT, LEAST, EIGHT_ROUNDINGS = tl.constexpr(2.0**-53), tl.constexpr(2.0**-900), tl.constexpr(8 * 2.0**-53)
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
def number(value: tl.constexpr):
    """A float64 constant: the compiler would take the number for float32."""
    return tl.full((), value, tl.float64)


@triton.jit
def widened(radius, magnitude, operations: tl.constexpr):
    """`rounding.widen` by a number of roundings that is known to the compiler."""
    total = tl.fma(magnitude, number(operations * UNIT), radius)
    return total * number(1 + (operations + 8) * UNIT) + number((operations + 8) * LEAST)


@triton.jit
def product_of_deviations(a, b, deviation):
    """`AffineForm.product_of_deviations` of two bent forms (center, slopes, radius, ...); ``deviation``: of the second."""
    mine, others = tl.abs(a[1][1]) + a[2], tl.abs(b[1][1]) + b[2]
    return a[1][0] * b[1][0], tl.abs(a[1][0]) * others + mine * deviation


@triton.jit
def general(codes: tl.constexpr):
    """How many of a row's three entries are in the table."""
    return (codes % 3) // 2 + (codes // 3 % 3) // 2 + (codes // 9 % 3) // 2


@triton.jit
def outward(lower, upper, tiny):
    """`Interval.outward`. A power of two times a number is exact, so a fused multiply-add gives the same."""
    return lower - tl.fma(tl.abs(lower), 2.0**-52, tiny), upper + tl.fma(tl.abs(upper), 2.0**-52, tiny)


@triton.jit
def product(low, high, lower, upper, tiny, point: tl.constexpr):
    """`Interval.__mul__`; ``point``: lower and upper are the same finite number, low and high finite, or both a NaN like the product."""
    p, q = low * lower, high * lower
    least, most = ordered(p, q)
    if point:
        return outward(least, most, tiny)
    unknown = (p != p) | (q != q)
    p, q = low * upper, high * upper
    unknown = unknown | (p != p) | (q != q)
    p, q = ordered(p, q)
    least, most = ordered(least, p)[0], ordered(most, q)[1]
    return outward(tl.where(unknown, float("-inf"), least), tl.where(unknown, float("inf"), most), tiny)


@triton.jit
def _moved(entry, u_low, u_high, v_low, v_high, tiny, codes: tl.constexpr, point: tl.constexpr):
    """A row (a, b, c) of one part in interval arithmetic: a u + b v + c. Not both a and b are 0."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    lower, upper = u_low, u_high
    if a == GENERAL:
        lower, upper = product(tl.load(entry), tl.load(entry + 1), u_low, u_high, tiny, point)
        entry += 2
    if b != 0:
        low, high = v_low, v_high
        if b == GENERAL:
            low, high = product(tl.load(entry), tl.load(entry + 1), v_low, v_high, tiny, point)
            entry += 2
        if a == 0:
            lower, upper = low, high
        else:
            lower, upper = outward(lower + low, upper + high, tiny)
    if c == GENERAL:
        lower, upper = outward(lower + tl.load(entry), upper + tl.load(entry + 1), tiny)
    elif c == 1:
        lower, upper = outward(lower + 1.0, upper + 1.0, tiny)
    return lower, upper


@triton.jit
def _plane(entry, u, v, codes: tl.constexpr, plane: tl.constexpr, symbols: tl.constexpr):
    """Plane 0 (center) or 1 ... (slopes) of a u + b v + c; entries 0 and 1 have a center alone."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    first: tl.constexpr = (a == GENERAL) or (a == 1 and plane == 0)
    second: tl.constexpr = (b == GENERAL) or (b == 1 and plane == 0)
    total = tl.zeros_like(u)
    if a == GENERAL:
        total = tl.load(entry + plane) * u
        entry += symbols + 2
    elif first:
        total = u
    if second:
        term = v
        if b == GENERAL:
            term = tl.load(entry + plane) * v
            entry += symbols + 2
        if first:
            total = total + term
        else:
            total = term
    if c == GENERAL:
        if first or second:
            total = total + tl.load(entry + plane)
        else:
            total = tl.zeros_like(u) + tl.load(entry + plane)
    elif c == 1 and plane == 0:
        total = total + 1.0
    return total


@triton.jit
def _radius(entry, u, v, offset: tl.constexpr, codes: tl.constexpr, symbols: tl.constexpr):
    """The form's radius, of |u|, |v| and |offset|: entries 1 have no radius, but roundings."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    entry += symbols + 1
    total = tl.zeros_like(u)
    if a == GENERAL:
        total = tl.load(entry) * u
        entry += symbols + 2
    elif a == 1:
        total = u * EIGHT_ROUNDINGS
    if b == GENERAL:
        term = tl.load(entry) * v
        entry += symbols + 2
        total = total + term if a != 0 else term
    elif b == 1:
        term = v * EIGHT_ROUNDINGS
        total = total + term if a != 0 else term
    if c == GENERAL:
        total = total + tl.load(entry)
    elif c == 1:
        total = total + EIGHT_ROUNDINGS
    return (total + number(offset * EIGHT_ROUNDINGS)) * number(1 + 16 * UNIT) + number(16 * LEAST)


@triton.jit
def _form(entry, u, v, sign: tl.constexpr, offset: tl.constexpr, codes: tl.constexpr, symbols: tl.constexpr):
    """`combine` and the form's ends: center, slopes, radius, sum of |slopes|, lower, upper."""
    center = _plane(entry, u, v, codes, 0, symbols)
    center = (center if sign > 0 else -center) + number(offset)
    slopes = ()
    spread = tl.zeros_like(u)
    for k in tl.static_range(1, symbols + 1):
        slope = _plane(entry, u, v, codes, k, symbols)
        slopes = slopes + (slope if sign > 0 else -slope,)
        spread = tl.abs(slope) if k == 1 else spread + tl.abs(slope)
    radius = _radius(entry, tl.abs(u), tl.abs(v), offset, codes, symbols)
    reach = widened(radius + spread, tl.abs(center), symbols + 2)
    return center, slopes, radius, spread, center - reach, center + reach


@triton.jit
def _meet(form, low, high):
    """Intersect the form's range with the interval; an interval's NaN end is ignored, a form's stays a NaN."""
    return tl.where(low > form[4], low, form[4]), tl.where(high < form[5], high, form[5])


@triton.jit
def _met(entry, u, v, x, y, middle_x: tl.constexpr, middle_y: tl.constexpr, parts: tl.constexpr, count: tl.constexpr):
    """The boxes of both axes: what the forms and interval arithmetic, part by part, have in common."""
    tiny = number(LEAST)
    u_low, u_high, v_low, v_high = u, u, v, v
    for k in tl.static_range(count):
        low, high = _moved(entry, u_low, u_high, v_low, v_high, tiny, parts // 729**k % 27, k == 0)
        entry += general(parts // 729**k % 27) * 2
        v_low, v_high = _moved(entry, u_low, u_high, v_low, v_high, tiny, parts // 729**k // 27 % 27, k == 0)
        entry += general(parts // 729**k // 27 % 27) * 2
        u_low, u_high = low, high
    u_low, u_high = outward(u_low + number(middle_x), u_high + number(middle_x), tiny)
    v_low, v_high = outward(number(middle_y) - v_high, number(middle_y) - v_low, tiny)
    return _meet(x, u_low, u_high), _meet(y, v_low, v_high)


@triton.jit
def positions(entry, here, height: tl.constexpr, width: tl.constexpr, composed: tl.constexpr, parts: tl.constexpr,
              count: tl.constexpr, symbols: tl.constexpr):  # fmt: skip
    """Forms and boxes of both axes; ``parts``: the codes of ``count`` matrices, six digits each, in the order of their application."""
    middle_x: tl.constexpr = (width - 1) / 2
    middle_y: tl.constexpr = (height - 1) / 2
    u, v = (here % width).to(tl.float64) - number(middle_x), number(middle_y) - (here // width).to(tl.float64)
    first: tl.constexpr = composed % 27
    second: tl.constexpr = composed // 27
    meets = tl.load(entry) == 0
    entry += 1
    x = _form(entry, u, v, 1, middle_x, first, symbols)
    entry += general(first) * (symbols + 2)
    y = _form(entry, u, v, -1, middle_y, second, symbols)
    entry += general(second) * (symbols + 2)
    columns, rows = (x[4], x[5]), (y[4], y[5])
    if meets:
        columns, rows = _met(entry, u, v, x, y, middle_x, middle_y, parts, count)
    return x, y, columns, rows
