"""Entries of matrices for many boxes of parameters, by a program from `matrix_program.py`: `AffineForm` and `Interval` in Triton.

Every function is the method of the same name, step by step: forms are (center, slopes, radius), intervals (lower, upper), one number for
each pair. ``f`` holds what `widen` needs for 2, 4, 16 and 8 roundings, for as many as there are symbols, and for two more. ``bent``: there
are two symbols, e and 2 e^2 - 1, and products and Taylor's formula put their second order into the latter.
"""

import triton
import triton.language as tl

from tiltproof.kernels.triton.coordinates import (
    EIGHT_ROUNDINGS,
    ordered,
    outward,
    product,
    product_of_deviations,
    widen,
)

NEGATE, ADD, ADD_NUMBER, TIMES, TIMES_NUMBER, OVER_NUMBER, DEG2RAD, SIN, COS, RECIPROCAL, NUMBER = (
    tl.constexpr(k) for k in range(11)
)
TWO, FOUR, SIXTEEN, EIGHT, SYMBOLS, REACH, TINY, PI, DEGREE, FIFTH = (
    tl.constexpr(k) for k in (0, 3, 6, 9, 12, 15, 18, 19, 20, 21)
)


@triton.jit
def sum_of(slopes, symbols: tl.constexpr):
    total = tl.abs(slopes[0])
    for k in tl.static_range(1, symbols):
        total = total + tl.abs(slopes[k])
    return total


@triton.jit
def size_of(center, slopes, symbols: tl.constexpr):
    total = tl.abs(center)
    for k in tl.static_range(symbols):
        total = total + tl.abs(slopes[k])
    return total


@triton.jit
def _scaled(slopes, factor, symbols: tl.constexpr):
    result = ()
    for k in tl.static_range(symbols):
        result = result + (slopes[k] * factor,)
    return result


@triton.jit
def _add(a, b, f, symbols: tl.constexpr):
    slopes = ()
    for k in tl.static_range(symbols):
        slopes = slopes + (a[1][k] + b[1][k],)
    center = a[0] + b[0]
    return center, slopes, widen(a[2] + b[2], size_of(center, slopes, symbols), f + TWO)


@triton.jit
def _times(a, b, f, symbols: tl.constexpr, bent: tl.constexpr):
    slopes = ()
    for k in tl.static_range(symbols):
        slopes = slopes + (a[0] * b[1][k] + b[0] * a[1][k],)
    radius = tl.abs(a[0]) * b[2] + tl.abs(b[0]) * a[2]
    magnitude = size_of(a[0], a[1], symbols) * size_of(b[0], b[1], symbols)
    if bent:
        square, rest = product_of_deviations(a, b, _deviation(b, f, symbols))
        half = square * 0.5
        return a[0] * b[0] + half, (slopes[0], slopes[1] + half), widen(radius + rest, magnitude, f + EIGHT)
    else:
        radius = radius + _deviation(a, f, symbols) * _deviation(b, f, symbols)
        return a[0] * b[0], slopes, widen(radius, magnitude, f + FOUR)


@triton.jit
def _deviation(a, f, symbols: tl.constexpr):
    """Like `widen` of a magnitude that is no tensor: without a fused multiply-add, by 0."""
    return (a[2] + sum_of(a[1], symbols)) * tl.load(f + SYMBOLS + 1) + tl.load(f + SYMBOLS + 2)


@triton.jit
def _taylor(a, value, slope, bend, second, third, f, symbols: tl.constexpr, bent: tl.constexpr):
    slopes = _scaled(a[1], slope, symbols)
    deviation = _deviation(a, f, symbols)
    square, rest = deviation * deviation, second * deviation * deviation
    if bent:
        share, rest = product_of_deviations(a, a, deviation)
        half = bend * share * 0.5
        value, slopes = value + half, (slopes[0], slopes[1] + half)
        rest = tl.abs(bend) * rest + third * square * deviation
    magnitude = size_of(value, slopes, symbols) + 1 + deviation + tl.abs(bend) * square
    return value, slopes, widen(tl.abs(slope) * a[2] + rest, magnitude, f + SIXTEEN)


@triton.jit
def _wave(a, value, slope, f, symbols: tl.constexpr, bent: tl.constexpr):
    """sin or cos, where slope is its derivative at the center."""
    bend = tl.abs(value) + _deviation(a, f, symbols)
    second = tl.where(bend > 1, 1.0, bend) * 0.5
    return _taylor(a, value, slope, -value * 0.5, second, tl.load(f + FIFTH), f, symbols, bent)


@triton.jit
def _reciprocal(a, f, symbols: tl.constexpr, bent: tl.constexpr):
    low = a[0] - widen(a[2] + sum_of(a[1], symbols), tl.abs(a[0]), f + REACH)
    deviation = _deviation(a, f, symbols)
    value = 1.0 / a[0]
    slope, bend = -value * value, value * value * value
    cube = low * low * low
    second, third = tl.where(low > 0, 1.0 / cube, float("inf")), tl.where(low > 0, 1.0 / (cube * low), float("inf"))
    form = _taylor(a, value, slope, bend, second, third, f, symbols, bent)
    magnitude = tl.abs(value) + tl.abs(slope) * (size_of(a[0], a[1], symbols) + deviation)
    magnitude = magnitude + tl.abs(bend) * deviation * deviation
    return form[0], form[1], widen(form[2], magnitude, f + SIXTEEN)


@triton.jit
def form_of(op: tl.constexpr, a, b, number, f, symbols: tl.constexpr, bent: tl.constexpr):
    if op == NEGATE:
        return -a[0], _scaled(a[1], -1.0, symbols), a[2]
    elif op == ADD:
        return _add(a, b, f, symbols)
    elif op == ADD_NUMBER:
        center = a[0] + number
        return center, a[1], widen(a[2], size_of(center, a[1], symbols), f + TWO)
    elif op == TIMES:
        return _times(a, b, f, symbols, bent)
    elif op == TIMES_NUMBER:
        center, slopes = a[0] * number, _scaled(a[1], number, symbols)
        return center, slopes, widen(a[2] * tl.abs(number), size_of(center, slopes, symbols), f + TWO)
    elif op == OVER_NUMBER:
        center, slopes = a[0] / number, ()
        for k in tl.static_range(symbols):
            slopes = slopes + (a[1][k] / number,)
        return center, slopes, widen(a[2] / tl.abs(number), size_of(center, slopes, symbols), f + TWO)
    elif op == DEG2RAD:
        degree = tl.load(f + DEGREE)
        center, slopes = a[0] * degree, _scaled(a[1], degree, symbols)
        return center, slopes, widen(a[2] * degree, size_of(center, slopes, symbols), f + FOUR)
    elif op == SIN:
        return _wave(a, tl.sin(a[0]), tl.cos(a[0]), f, symbols, bent)
    elif op == COS:
        return _wave(a, tl.cos(a[0]), -tl.sin(a[0]), f, symbols, bent)
    elif op == RECIPROCAL:
        return _reciprocal(a, f, symbols, bent)
    else:
        return a[0] * 0.0 + number, _scaled(a[1], 0.0, symbols), a[2] * 0.0


@triton.jit
def _turns(lower, upper, first, last, phase, f):
    """`Interval._with_turns`; first and last: the function at the ends."""
    pi = tl.load(f + PI)
    low = (lower - phase) / pi - (1 + tl.abs(lower)) * (2.0**-47)
    high = (upper - phase) / pi + (1 + tl.abs(upper)) * (2.0**-47)
    even = tl.ceil(low * 0.5) * 2 <= high
    odd = tl.ceil((low - 1) * 0.5) * 2 + 1 <= high
    least, most = ordered(first, last)
    least, most = least - 2.0**-49, most + 2.0**-49
    return tl.where(odd | (least < -1), -1.0, least), tl.where(even | (most > 1), 1.0, most)


@triton.jit
def _interval(op: tl.constexpr, a, b, number, f):
    lower, upper = a[0], a[1]
    tiny = tl.load(f + TINY)
    if op == NEGATE:
        return -upper, -lower
    elif op == ADD:
        return outward(lower + b[0], upper + b[1], tiny)
    elif op == ADD_NUMBER:
        return outward(lower + number, upper + number, tiny)
    elif op == TIMES:
        return product(lower, upper, b[0], b[1], tiny, False)
    elif op == TIMES_NUMBER:
        return product(lower, upper, number, number, tiny, False)
    elif op == OVER_NUMBER:
        low, high = ordered(lower / number, upper / number)
        return outward(low, high, tiny)
    elif op == DEG2RAD:
        low, high = lower * tl.load(f + DEGREE), upper * tl.load(f + DEGREE)
        return low - tl.fma(tl.abs(low), 2.0**-51, tiny), high + tl.fma(tl.abs(high), 2.0**-51, tiny)
    elif op == SIN:
        return _turns(lower, upper, tl.sin(lower), tl.sin(upper), tl.load(f + PI) * 0.5, f)
    elif op == COS:
        return _turns(lower, upper, tl.cos(lower), tl.cos(upper), 0.0, f)
    elif op == RECIPROCAL:
        return outward(1.0 / upper, tl.where(lower > 0, 1.0 / lower, float("inf")), tiny)
    else:
        return lower * 0.0 + number, upper * 0.0 + number


@triton.jit
def _write_intervals(table, asked, intervals, f, numbers, program: tl.constexpr, shared: tl.constexpr, intervals_out: tl.constexpr,
                     intervals_count: tl.constexpr):  # fmt: skip
    """The steps before ``shared`` in interval arithmetic, from the parameters' own, and what is wanted of them; NaN unless finite."""
    for k in tl.static_range(shared):
        intervals = intervals + (
            _interval(program >> (24 * k) & 255, intervals[program >> (24 * k + 8) & 255],
                      intervals[program >> (24 * k + 16) & 255], tl.load(numbers + k), f),
        )  # fmt: skip
    for k in tl.static_range(intervals_count):
        interval = intervals[intervals_out >> (8 * k) & 255]
        wide = interval[1] - interval[0]
        unknown = (wide - wide) * 0.0  # a NaN unless both are finite
        tl.store(table, interval[0] + unknown, mask=asked)
        tl.store(table + 1, interval[1] + unknown, mask=asked)
        table += 2


@triton.jit(do_not_specialize=("pairs",))  # else it is compiled again for numbers that 16 divides
def entries(
    low_at, high_at, table, period_at, f, numbers, pairs, first: tl.constexpr, inputs: tl.constexpr, program: tl.constexpr,
    shared: tl.constexpr, length: tl.constexpr, forms_out: tl.constexpr, forms_count: tl.constexpr,
    intervals_out: tl.constexpr, intervals_count: tl.constexpr, symbols: tl.constexpr, rows: tl.constexpr, combined: tl.constexpr,
    bent: tl.constexpr, block: tl.constexpr, small=None, few: tl.constexpr = 0,
):  # fmt: skip
    """A block of pairs. A step of ``program`` is three bytes: what, of which, and with which; from ``shared`` on they are of forms only.

    ``small``: another table, of ``few`` rows, for `triton/pixels_float32.py`.
    """
    pair = tl.program_id(0) * block + tl.arange(0, block)
    mask = pair < pairs
    forms, ends = (), ()
    parameters: tl.constexpr = symbols - bent
    again = mask & (pair > 0)
    for k in tl.static_range(first, first + inputs):
        low = tl.load(low_at + pair.to(tl.int64) * parameters + k, mask=mask, other=0.0)
        high = tl.load(high_at + pair.to(tl.int64) * parameters + k, mask=mask, other=0.0)
        again = again & (low == tl.load(low_at + k)) & (high == tl.load(high_at + k))
        center = (low + high) * 0.5
        above, below = high - center, center - low
        half = tl.where((above < below) | (below != below), below, above)
        slopes = ()
        for other in tl.static_range(symbols):
            slopes = slopes + ((half if other == k else tl.zeros_like(half)),)
        forms = forms + ((center, slopes, widen(tl.zeros_like(half), tl.abs(center) + half, f + TWO)),)
        ends = ends + ((low, high),)
    soonest = tl.min(tl.where(again, pair, pairs))
    tl.atomic_min(period_at, soonest, mask=soonest < pairs)
    for k in tl.static_range(length):
        number = tl.load(numbers + k)
        forms = forms + (
            form_of(program >> (24 * k) & 255, forms[program >> (24 * k + 8) & 255], forms[program >> (24 * k + 16) & 255], number, f,
                  symbols, bent),
        )  # fmt: skip
    table += pair.to(tl.int64) * rows
    plain_at, plain_small = table, small
    if combined:
        table += 1
    if small is not None:
        small += pair.to(tl.int64) * few
        plain_small = small
        small += 1
    sizes, spreads, radii = tl.zeros_like(forms[0][0]), tl.zeros_like(forms[0][0]), tl.zeros_like(forms[0][0])
    for k in tl.static_range(forms_count):
        form = forms[forms_out >> (8 * k) & 255]
        tl.store(table, form[0], mask=mask)
        for other in tl.static_range(symbols):
            table += 1
            tl.store(table, form[1][other], mask=mask)
        radius = form[2]
        if combined:  # eight roundings of the entry's magnitude are due wherever its radius is: `coordinates.combine`
            radius = radius + size_of(form[0], form[1], symbols) * EIGHT_ROUNDINGS
        tl.store(table + 1, radius, mask=mask)
        table += 2
        spread = sum_of(form[1], symbols)
        sizes, spreads, radii = sizes + tl.abs(form[0]), spreads + spread, radii + radius
        if small is not None:
            for other in tl.static_range(symbols):
                tl.store(small + other, form[1][other].to(tl.float32), mask=mask)
            radius = tl.fma(spread, 16 * 2.0**-24, radius) * (1 + 2.0**-20)
            tl.store(small + symbols, radius.to(tl.float32), mask=mask)
            small += symbols + 1
    asked = mask  # for which interval bounds are needed
    if combined:
        # the forms' boxes will do, and no number is so large that a position leaves 30 bits; not so where anything is a NaN
        plain = (radii <= tl.fma(spreads, 2.0**-7, 2.0**-40)) & (sizes + spreads < 2.0**14)
        tl.store(plain_at, tl.where(plain, 0.0 if bent else 1.0, 0.0), mask=mask)
        asked = mask if bent else mask & ~plain
        if small is not None:
            plain = plain & (sizes + spreads < 2.0**7)
            tl.store(plain_small, tl.where(plain, 2.0**-24, float("inf")).to(tl.float32), mask=mask)
    if tl.max(tl.where(asked, 1, 0)) > 0:  # rare, and most of the work
        _write_intervals(table, asked, ends, f, numbers, program, shared, intervals_out, intervals_count)
