"""Pixel bounds in float32, inside the kernel of `pixel_kernel.py`: where results are float32, and boxes meet at most two cells each way.

Only a position's center is found in float64, and from it the nearest grid line and the distance from that, which are exact; all else is
float32. Why the result is an enclosure, with u = 2^-24, L the largest of the pixels around a box, and D the largest difference of two of
them: at most L, or 2 L where a picture has pixels of either sign. Numbers that underflow, by 2^-126 at most, are less than what 2^-25 and
2^-97 leave room for.

- Positions. A center is off by 3 roundings of float64, for which the table's radius has 8. It is less than 2^28 (`entry_kernel.py`), so
  adding `WHOLE` rounds it to a grid line, and the distance, at most 1/2, has no rounding until it becomes float32: 2^-26. Entries 1 and
  offsets are not in the table; their 8 roundings are less than 2^-36. So remainders begin at 2^-25. A slope is off by 4 u of its terms,
  and slopes of pixels times it round twice more; radii in the table have 16 u of their entry's slopes, and 16 u of themselves, where their
  own sum rounds 4 times. Hence line + distance + sum_k slope_k e_k + [-remainder, remainder] holds the position, and distance +- reach all
  of them: the reach has 16 u of itself for at most 9 roundings.
- Cells. |distance| + reach < 1 as rounded is so exactly, and the lines before, at and after the nearest one are all there are;
  |distance| >= reach likewise, and the box lies in one cell, where reach <= 1/2. Where a position is not known to be small, remainders
  are infinite, and so are the reaches of both axes, or they are NaN: neither holds (a maximum may drop one NaN, not both).
- Pixels are rounded to float32: L u of any value, as weights are >= 0 and their sum is 1.
- One cell. Weights are off by u / 2. `right` and d - c are off by D u, `top` and `bottom` by (1.5 D + L) u; the center, which lies between
  them, by (3 D + 2 L) u; slope_v by (4 D + 2 L) u, slope_u, which lies between the differences, by 5 D u, `mixed` by 4 D u. Slopes times
  1/2 and `mixed` times 1/4: all in all (8.5 D + 4 L) u.
- Two cells. Weights are off by u. Values along a line are off by (2.5 D + 2 L) u, both ways twice that. The plane takes as much from one
  corner as it gives to the opposite one, so both are their mean, but for 12.1 u of the slopes (3.03 of the root, twice, and 6 more):
  6.1 D u, and L u of the sum. The other points add (2 D + 2 L) u, the mid-point (D + L) u: at most (12.1 D + 7 L) u or (8 D + 8 L) u.
- `ROUNDINGS` of `fused_pixels.py` are more than these, and 16 u of the radius more than its own 6.
- Where the largest pixel is 2^100 or more, or not finite, they are not finite either, nor is any radius.
"""

import triton
import triton.language as tl

from tiltproof.bounds.cell_kernel import fold, three
from tiltproof.bounds.position_kernel import GENERAL, general, number

RING = tl.constexpr(3)
"""Lines around the picture in its copy, unless it is reflected: boxes further out see nothing else."""
WHOLE = tl.constexpr(1.5 * 2.0**52)
"""What added to a number of less than 51 bits leaves its whole part in the last bits."""


@triton.jit
def _loaded(at, step: tl.constexpr, sign: tl.constexpr, codes: tl.constexpr):
    """A number of each of a row's entries that are in the table, ``step`` apart, times ``sign``."""
    numbers = ()
    for digit in tl.static_range(3):
        if codes // 3**digit % 3 == GENERAL:
            numbers = numbers + (tl.load(at) * sign,)
            at += step
    return numbers


@triton.jit
def _loaded_row(entry, small, sign: tl.constexpr, codes: tl.constexpr, symbols: tl.constexpr):
    """Of a row's entries in the table: centers, radii, and the slopes for each symbol."""
    numbers = _loaded(entry, symbols + 2, sign, codes), _loaded(small + symbols, symbols + 1, 1.0, codes)
    for k in tl.static_range(symbols):
        numbers = numbers + (_loaded(small + k, symbols + 1, sign, codes),)
    return numbers


@triton.jit
def numbers_of(entry, small, composed: tl.constexpr, symbols: tl.constexpr):
    """What there is to know of a pair: where remainders begin, and the entries of both rows."""
    count, start = general(composed % 27), tl.load(small)
    across = _loaded_row(entry + 1, small + 1, 1.0, composed % 27, symbols)
    entry, small = entry + 1 + count * (symbols + 2), small + 1 + count * (symbols + 1)
    down = _loaded_row(entry, small, -1.0, composed // 27, symbols)
    return start, across, down


@triton.jit
def _row(numbers, u, v, start, sign: tl.constexpr, codes: tl.constexpr, ones: tl.constexpr):
    """start +- (a u + b v + c), where numbers have their sign; entries 1 count where ``ones``."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    c: tl.constexpr = codes // 9 % 3
    total = start
    if c == GENERAL:
        total = total + numbers[a // 2 + b // 2]
    elif c == 1 and ones:
        total = total + sign
    if b == GENERAL:
        total = tl.fma(numbers[a // 2], v, total)
    elif b == 1 and ones:
        total = total + v * sign
    if a == GENERAL:
        total = tl.fma(numbers[0], u, total)
    elif a == 1 and ones:
        total = total + u * sign
    return total


@triton.jit
def _axis(start, numbers, u, v, sign: tl.constexpr, offset: tl.constexpr, codes: tl.constexpr, symbols: tl.constexpr):
    """Where pixels look along one axis: nearest grid line, distance of the center from it, slopes, remainder, reach."""
    zero = tl.zeros_like(u)
    center = _row(numbers[0], u.to(tl.float64), v.to(tl.float64), number(offset), sign, codes, True)
    whole = center + number(WHOLE)
    line = whole.to(tl.int64, bitcast=True).to(tl.int32)
    apart = (center - (whole - number(WHOLE))).to(tl.float32)
    slopes = ()
    spread = zero
    for k in tl.static_range(symbols):
        slope = _row(numbers[2 + k], u, v, zero, sign, codes, False)
        slopes = slopes + (slope,)
        spread = tl.abs(slope) if k == 0 else spread + tl.abs(slope)
    rest = _row(numbers[1], tl.abs(u), tl.abs(v), zero + start, 1.0, codes, False)
    return line, apart, slopes, rest, (rest + spread) * (1 + 2.0**-20)


@triton.jit
def places(numbers, here, height: tl.constexpr, width: tl.constexpr, composed: tl.constexpr, symbols: tl.constexpr):
    """Both axes; and 1 or 2, so many cells at most meets each box both ways, or 3 where that is not so or not known."""
    middle_x: tl.constexpr = (width - 1) / 2
    middle_y: tl.constexpr = (height - 1) / 2
    u, v = (here % width).to(tl.float32) - middle_x, middle_y - (here // width).to(tl.float32)
    x = _axis(numbers[0], numbers[1], u, v, 1.0, middle_x, composed % 27, symbols)
    y = _axis(numbers[0], numbers[2], u, v, -1.0, middle_y, composed // 27, symbols)
    across, down = tl.abs(x[1]), tl.abs(y[1])
    inside, outside = tl.minimum(across - x[4], down - y[4]), tl.maximum(across + x[4], down + y[4])
    return x, y, tl.where(outside < 1, tl.where(inside >= 0, 1, 2), 3)


@triton.jit
def _indices(line, size: tl.constexpr, reflected: tl.constexpr):
    """Of three grid lines, in the copy; those that lie outside stay outside, where all are the same."""
    if reflected:
        return fold(line, size), fold(line + 1, size), fold(line + 2, size)
    else:
        first = tl.minimum(tl.maximum(line, -RING), size) + RING
        return first, first + 1, first + 2


@triton.jit
def where(x, y, height: tl.constexpr, width: tl.constexpr, reflected_x: tl.constexpr, reflected_y: tl.constexpr):
    """Indices of the copy's pixels around boxes that begin in the cells after lines x and y: columns, and rows times their stride."""
    stride: tl.constexpr = width + (0 if reflected_x else 2 * RING)
    columns, rows = _indices(x, width, reflected_x), _indices(y, height, reflected_y)
    return columns, (rows[0] * stride, rows[1] * stride, rows[2] * stride)


@triton.jit
def _pixel(source, spot, i: tl.constexpr, j: tl.constexpr, stride: tl.constexpr, apart: tl.constexpr):
    """Of row i and column j of those around a box; ``apart``: lines that follow each other may lie anywhere."""
    if apart:
        return tl.load(source + (spot[1][i] + spot[0][j]))
    else:
        return tl.load(source + (spot[1][0] + spot[0][0]) + (i * stride + j))


@triton.jit
def within(x):
    """An axis of boxes in one cell: its first line, and the center's place in it."""
    before = x[1].to(tl.int32, bitcast=True) >> 31
    return x[0] + before, tl.where(before < 0, x[1] + 1, x[1])


@triton.jit
def one_cell(source, spot, w, z, curved, rest_x, rest_y, floor, stride: tl.constexpr, apart: tl.constexpr):
    """Center, radius and slopes of a picture where boxes lie in one cell: as in `cell_kernel.four`."""
    a, b = _pixel(source, spot, 0, 0, stride, apart), _pixel(source, spot, 0, 1, stride, apart)
    c, d = _pixel(source, spot, 1, 0, stride, apart), _pixel(source, spot, 1, 1, stride, apart)
    right, across = b - a, d - c
    mixed, top, bottom = across - right, tl.fma(w, right, a), tl.fma(w, across, c)
    slope_u, slope_v = tl.fma(mixed, z, right), bottom - top
    center = tl.fma(z, slope_v, top)
    largest = _larger(_larger(a, b), _larger(c, d))
    return (
        center,
        _total(tl.fma(tl.abs(mixed), curved, largest * floor), slope_u, slope_v, rest_x, rest_y),
        slope_u,
        slope_v,
    )


@triton.jit
def _larger(a, b):
    """Without sign; a NaN may be lost, but not in the slopes."""
    return tl.maximum(tl.abs(a), tl.abs(b))


@triton.jit
def _total(rest, slope_u, slope_v, rest_x, rest_y):
    """The radius: of the residual and roundings, and of the positions' remainders."""
    total = tl.fma(tl.abs(slope_v), rest_y, tl.fma(tl.abs(slope_u), rest_x, rest))
    return tl.fma(total, 1 + 2.0**-20, 2.0**-97)


@triton.jit
def across(x, other):
    """An axis of boxes in two cells: first line, weights as in `cell_kernel.in_two_cells`, center less the second point, 1 / (4 reach)."""
    line, center, reach = x[0], x[1], x[4]
    low, high, root = center - reach, center + reach, tl.rsqrt(reach * other[4]) * 0.5
    before = low.to(tl.int32, bitcast=True) >> 31
    crossed = (before < 0) & (high > 0)
    shift = tl.where(before < 0, 1.0, 0.0)
    weights = low + shift, tl.where(crossed, 1.0, high + shift), tl.where(crossed, high, 0.0)
    return (
        line + before,
        weights,
        tl.where(crossed, center, -reach),
        other[4] * (root * root),
    )


@triton.jit
def _line(source, spot, i: tl.constexpr, weights, stride: tl.constexpr, apart: tl.constexpr):
    """The values of one grid line, and its largest pixel."""
    a, b = _pixel(source, spot, i, 0, stride, apart), _pixel(source, spot, i, 1, stride, apart)
    c = _pixel(source, spot, i, 2, stride, apart)
    return three(a, b, c, weights), _larger(_larger(a, b), c)


@triton.jit
def two_cells(source, spot, x, y, reach_x, reach_y, rest_x, rest_y, floor, stride: tl.constexpr, apart: tl.constexpr):
    """The same where boxes meet two cells; x, y: from `across`."""
    p, above = _line(source, spot, 0, x[1], stride, apart)
    q, middle = _line(source, spot, 1, x[1], stride, apart)
    r, below = _line(source, spot, 2, x[1], stride, apart)
    largest = _larger(_larger(above, middle), below)
    a, b, c = three(p[0], q[0], r[0], y[1]), three(p[1], q[1], r[1], y[1]), three(p[2], q[2], r[2], y[1])
    one, other = c[2] - a[0], c[0] - a[2]
    slope_u, slope_v = (one + other) * x[3], (one - other) * y[3]
    one, other = (a[0] + c[2]) * 0.5, (a[2] + c[0]) * 0.5
    low, high = tl.minimum(one, other), tl.maximum(one, other)  # all four corners: see above
    along, tilt = slope_u * reach_x, slope_v * reach_y
    side = tl.fma(slope_u, x[2], b[0]) + tilt
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    side = tl.fma(slope_u, x[2], b[2]) - tilt
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    side = tl.fma(slope_v, y[2], a[1]) + along
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    side = tl.fma(slope_v, y[2], c[1]) - along
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    side = tl.fma(slope_v, y[2], tl.fma(slope_u, x[2], b[1]))
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    radius = _total(tl.fma(high - low, 0.5, largest * floor), slope_u, slope_v, rest_x, rest_y)
    return (low + high) * 0.5, radius, slope_u, slope_v
