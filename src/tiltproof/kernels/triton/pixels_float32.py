"""Pixel bounds in float32, inside the kernel of `triton/pixels.py`: where results are float32, and boxes meet at most two cells each way.

A position's center is a whole number of 2^-32, of 64 bits: the cell it lies in, and its place there, which becomes float32 like all else.
Why the result is an enclosure, with u = 2^-24, L the largest of the pixels around a box, and D the largest difference of two of them: at
most L, or 2 L where an image has pixels of either sign. Numbers that underflow, by 2^-126 at most, are less than what 2^-24 and 2^-97
leave room for.

- Positions. Entries are less than 2^7 (`triton/matrix_entries.py`) and images have at most 2^12 rows and columns together, so
the first pixel's
  position, and what is summed for it, is less than 2^19: 3 roundings of float64 are less than 2^-32. Rounded to 2^-32, it is off by 2^-33
  more, each entry by 2^-33 for every row or column: `numbers_of` has (height + width) 2^-33 for that; their sums are exact. The place in a
  cell has no rounding until it becomes float32: 2^-25. Entries' own radii have 8 roundings of float64 that are not made any more. So
  remainders begin at 2^-24, and 2^-26 are to spare, for `cells_met`. A slope is off by 4 u of its terms, and slopes of pixels times it
  round twice more; radii in the table have 16 u of their entry's slopes, and 16 u of themselves, where their own sum rounds 4 times. Hence
  cell + place + sum_k slope_k e_k + [-remainder, remainder] holds the position, and place +- reach all of them: for at most 8 roundings the
  reach has 16 u of the slopes, and 12 u of the remainder are left, or a quarter of where it began.
- Cells. The distance from a cell's middle, at most 1/2, is off by 2^-26, which remainders have to spare. |distance| + reach < 1/2 as
  rounded is so exactly, and the box lies in one cell; reach - |distance| < 1/2 likewise, and it meets one more, before or after, as it ends
  less than 1 from the edge that it is nearer to, and before the other. Where a position is not known to be small, remainders are infinite,
  and so are the reaches of both axes, or they are NaN: neither holds (a maximum may drop one NaN, not both).
- Pixels are rounded to float32: L u of any value, as weights are >= 0 and their sum is 1.
- One cell. Weights are places, whose roundings remainders have. `right` and d - c are off by D u, `top` and `bottom` by (D + L) u; the
  center, which lies between them, by (2.5 D + 2 L) u; slope_v by (3 D + 2 L) u, slope_u, which lies between the differences, by 5 D u,
  `mixed` by 4 D u. Slopes times 1/2 and `mixed` times 1/4: all in all (7.5 D + 4 L) u.
- Two cells. Weights are off by u, where they are not 1. Values along a line are off by (3 D + 2 L) u, both ways twice that; in one cell
  along x by less. The plane takes as much from one corner as it gives to the opposite one, so both are their mean, but for 12.1 u of the
  slopes (3.03 of the root, twice, and 6 more): 6.1 D u, and L u of the sum. The other points add (3 D + 2 L) u, as the line that a box
  crosses is u / 2 beside its center's distance from it at most; a box that crosses none has no need of them. The mid-point adds (D + L) u:
  at most (13.1 D + 7 L) u or (10 D + 8 L) u.
- `ROUNDINGS` of `kernels/pixels.py` are more than these, and 16 u of the radius more than its own 6.
- Where the largest pixel is 2^100 or more, or not finite, they are not finite either, nor is any radius.
"""

import triton
import triton.language as tl

from tiltproof.kernels.triton.bilinear import fold, three
from tiltproof.kernels.triton.coordinates import GENERAL, general, number

RING = tl.constexpr(3)
"""Lines around the image in its copy, unless it is reflected: boxes further out see nothing else."""
WHOLE, WHOLE_BITS = tl.constexpr(1.5 * 2.0**52), tl.constexpr(0x4338 << 48)
"""A constant that, added to a number below 2^51, leaves its integer part in the last bits; and the constant's bits."""
HALF_BITS = tl.constexpr(0x3F000000)


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
    """Centers, radii and slopes per symbol of a row's entries in the table."""
    numbers = _loaded(entry, symbols + 2, sign, codes), _loaded(small + symbols, symbols + 1, 1.0, codes)
    for k in tl.static_range(symbols):
        numbers = numbers + (_loaded(small + k, symbols + 1, sign, codes),)
    return numbers


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
def _fixed(value):
    """A number of less than 2^19 as a whole number of 2^-32."""
    return tl.fma(value, 2.0**32, number(WHOLE)).to(tl.int64, bitcast=True) - WHOLE_BITS


@triton.jit
def _steps(
    row, sign: tl.constexpr, offset: tl.constexpr, middle_x: tl.constexpr, middle_y: tl.constexpr, codes: tl.constexpr
):
    """For a row, in place of its centers: the first pixel's position, and the entries that are the steps between columns and rows, as whole
    numbers of 2^-32."""
    steps = (_fixed(_row(row[0], number(-middle_x), number(middle_y), number(offset), sign, codes, True)),)
    if codes % 3 == GENERAL:
        steps = steps + (_fixed(row[0][0]),)
    if codes // 3 % 3 == GENERAL:
        steps = steps + (-_fixed(row[0][codes % 3 // 2]),)
    return (steps,) + row[1:]


@triton.jit
def numbers_of(entry, small, height: tl.constexpr, width: tl.constexpr, composed: tl.constexpr, symbols: tl.constexpr):
    """The data of a pair: where remainders begin, and the entries of both rows."""
    middle_x: tl.constexpr = (width - 1) / 2
    middle_y: tl.constexpr = (height - 1) / 2
    count, start = general(composed % 27), tl.load(small) + (height + width) * 2.0**-33
    across = _loaded_row(entry + 1, small + 1, 1.0, composed % 27, symbols)
    entry, small = entry + 1 + count * (symbols + 2), small + 1 + count * (symbols + 1)
    down = _loaded_row(entry, small, -1.0, composed // 27, symbols)
    return (
        start,
        _steps(across, 1.0, middle_x, middle_x, middle_y, composed % 27),
        _steps(down, -1.0, middle_y, middle_x, middle_y, composed // 27),
    )


@triton.jit
def _place(steps, column, row, sign: tl.constexpr, codes: tl.constexpr):
    """The cell that a position lies in, and its place there."""
    a: tl.constexpr = codes % 3
    b: tl.constexpr = codes // 3 % 3
    place = steps[0]
    if a == GENERAL:
        place = place + steps[1] * column
    elif a == 1:
        place = place + (column << 32) * int(sign)
    if b == GENERAL:
        place = place + steps[1 + a // 2] * row
    elif b == 1:
        place = place - (row << 32) * int(sign)
    return (place >> 32).to(tl.int32), place.to(tl.uint32).to(tl.float32) * 2.0**-32


@triton.jit
def _axis(start, numbers, column, row, u, v, sign: tl.constexpr, codes: tl.constexpr, symbols: tl.constexpr):
    """Source positions along one axis: cell, the center's place in it, slopes, remainder, reach, and how far the center is from the cell's
    middle."""
    zero = tl.zeros_like(u)
    line, center = _place(numbers[0], column, row, sign, codes)
    slopes = ()
    spread = zero
    for k in tl.static_range(symbols):
        slope = _row(numbers[2 + k], u, v, zero, sign, codes, False)
        slopes = slopes + (slope,)
        spread = tl.abs(slope) if k == 0 else spread + tl.abs(slope)
    rest = _row(numbers[1], tl.abs(u), tl.abs(v), zero + start, 1.0, codes, False)
    return line, center, slopes, rest, tl.fma(spread, 1 + 2.0**-20, rest), tl.abs(center - 0.5)


@triton.jit
def places(numbers, here, height: tl.constexpr, width: tl.constexpr, composed: tl.constexpr, symbols: tl.constexpr):
    """Both axes."""
    column, row = here.to(tl.uint32) % width, here.to(tl.uint32) // width
    u, v = column.to(tl.float32) - (width - 1) / 2, (height - 1) / 2 - row.to(tl.float32)
    column, row = column.to(tl.int64), row.to(tl.int64)
    x = _axis(numbers[0], numbers[1], column, row, u, v, 1.0, composed % 27, symbols)
    y = _axis(numbers[0], numbers[2], column, row, u, v, -1.0, composed // 27, symbols)
    return x, y


@triton.jit
def _alone(reach):
    """Whether all are less than 1/2, and none a NaN: numbers >= 0 are in the order of their bits."""
    return tl.max(reach.to(tl.uint32, bitcast=True)) < HALF_BITS


@triton.jit
def cells_met(x, y):
    """The cells that boxes meet at most: 1, one cell; 2, two along y; 3, two both ways; 4, more or unknown."""
    across, down = x[4] + x[5], y[4] + y[5]
    most = 1
    if not _alone(tl.maximum(across, down)):
        most = 4
        if tl.max(tl.where(tl.maximum(x[4] - x[5], y[4] - y[5]) < 0.5, 0, 1)) == 0:
            most = 3
            if _alone(across):
                most = 2
    return most


@triton.jit
def _indices(line, size: tl.constexpr, reflected: tl.constexpr):
    """Indices of three grid lines in the copy; lines outside stay outside, where all are equal."""
    if reflected:
        return fold(line, size), fold(line + 1, size), fold(line + 2, size)
    else:
        first = tl.minimum(tl.maximum(line, -RING), size) + RING
        return first, first + 1, first + 2


@triton.jit
def where(
    copies, x, y, height: tl.constexpr, width: tl.constexpr, reflected_x: tl.constexpr, reflected_y: tl.constexpr
):
    """Addresses of the first copy's pixels around boxes that begin in the cells after lines x and y: pointers to rows, and columns; or, if
    lines are consecutive, a pointer to the first pixel alone."""
    stride: tl.constexpr = width + (0 if reflected_x else 2 * RING)
    columns, rows = _indices(x, width, reflected_x), _indices(y, height, reflected_y)
    if reflected_x or reflected_y:
        return (copies + rows[0] * stride, copies + rows[1] * stride, copies + rows[2] * stride), columns
    else:
        return (copies + (rows[0] * stride + columns[0]),)


@triton.jit
def _pixel(source, spot, i: tl.constexpr, j: tl.constexpr, stride: tl.constexpr):
    """Of row i and column j of those around a box; ``source``: how far an image's copy is from the first one."""
    if len(spot) == 1:
        return tl.load(spot[0] + source + (i * stride + j))
    else:
        return tl.load(spot[0][i] + spot[1][j] + source)


@triton.jit
def one_cell(source, place, stride: tl.constexpr):
    """Center, radius and slopes of an image where boxes lie in one cell: as in `triton.bilinear.four`."""
    spot, w, z, curved, rest_x, rest_y, floor = place
    a, b = _pixel(source, spot, 0, 0, stride), _pixel(source, spot, 0, 1, stride)
    c, d = _pixel(source, spot, 1, 0, stride), _pixel(source, spot, 1, 1, stride)
    right, across = b - a, d - c
    mixed, top, bottom = across - right, tl.fma(w, right, a), tl.fma(w, across, c)
    slope_u, slope_v = tl.fma(mixed, z, right), bottom - top
    center = tl.fma(z, slope_v, top)
    largest = _larger(_larger(a, b), _larger(c, d))
    return (
        center,
        _total(tl.fma(tl.abs(mixed), curved, _rounded(largest, floor)), slope_u, slope_v, rest_x, rest_y),
        slope_u,
        slope_v,
    )


@triton.jit
def _larger(a, b):
    """The larger absolute value; a NaN may be lost, but not in the slopes."""
    return tl.maximum(tl.abs(a), tl.abs(b))


@triton.jit
def _rounded(largest, floor):
    """The allowance for roundings and underflows."""
    return tl.fma(largest, floor, 2.0**-97)


@triton.jit
def _total(rest, slope_u, slope_v, rest_x, rest_y):
    """The radius: of the residual and roundings, and of the positions' remainders."""
    total = tl.fma(tl.abs(slope_v), rest_y, tl.fma(tl.abs(slope_u), rest_x, rest))
    return total * (1 + 2.0**-20)


@triton.jit
def beside(x):
    """An axis of boxes in one cell, for `two_cells`: first line, and weights of both ends."""
    return x[0], (x[1] - x[4], x[1] + x[4])


@triton.jit
def across(x):
    """An axis of boxes in two cells: first line, weights as in `triton.bilinear.in_two_cells`, and the center less the second point."""
    low, high = x[1] - x[4], x[1] + x[4]
    before = low.to(tl.int32, bitcast=True) >> 31
    second, shift = tl.where(before < 0, 0.0, tl.minimum(high, 1.0)), tl.where(before < 0, 1.0, 0.0)
    return x[0] + before, (low + shift, second + shift, high - second), x[1] - second


@triton.jit
def crossing(
    copies,
    x,
    u,
    v,
    floor,
    height: tl.constexpr,
    width: tl.constexpr,
    reflected_x: tl.constexpr,
    reflected_y: tl.constexpr,
):
    """The arguments of `two_cells`; x: from `across`, or from `beside`."""
    y, root = across(v), tl.rsqrt(u[4] * v[4]) * 0.5
    spot = where(copies, x[0], y[0], height, width, reflected_x, reflected_y)
    return spot, x, y, u[4], v[4], root * root, u[3], v[3], floor


@triton.jit
def _line(source, spot, i: tl.constexpr, weights, stride: tl.constexpr):
    """The values of one grid line at the points of the x axis, and its largest pixel."""
    a, b = _pixel(source, spot, i, 0, stride), _pixel(source, spot, i, 1, stride)
    if len(weights) == 2:
        right = b - a
        return (tl.fma(weights[0], right, a), tl.fma(weights[1], right, a)), _larger(a, b)
    else:
        c = _pixel(source, spot, i, 2, stride)
        return three(a, b, c, weights), _larger(_larger(a, b), c)


@triton.jit
def two_cells(source, place, stride: tl.constexpr):
    """The same where boxes meet two cells along y, and two along x, or one; ``place``: from `crossing`."""
    spot, x, y, reach_x, reach_y, quarter, rest_x, rest_y, floor = place
    last: tl.constexpr = len(x[1]) - 1
    p, above = _line(source, spot, 0, x[1], stride)
    q, middle = _line(source, spot, 1, x[1], stride)
    r, below = _line(source, spot, 2, x[1], stride)
    largest = _larger(_larger(above, middle), below)
    a, c = three(p[0], q[0], r[0], y[1]), three(p[last], q[last], r[last], y[1])
    one, other = c[2] - a[0], c[0] - a[2]
    slope_u, slope_v = (one + other) * (quarter * reach_y), (one - other) * (quarter * reach_x)
    one, other = (a[0] + c[2]) * 0.5, (a[2] + c[0]) * 0.5
    low, high = tl.minimum(one, other), tl.maximum(one, other)  # all four corners: see above
    along = slope_u * reach_x
    side = tl.fma(slope_v, y[2], a[1]) + along
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    side = tl.fma(slope_v, y[2], c[1]) - along
    low, high = tl.minimum(low, side), tl.maximum(high, side)
    if last == 2:
        b, tilt = three(p[1], q[1], r[1], y[1]), slope_v * reach_y
        side = tl.fma(slope_u, x[2], b[0]) + tilt
        low, high = tl.minimum(low, side), tl.maximum(high, side)
        side = tl.fma(slope_u, x[2], b[2]) - tilt
        low, high = tl.minimum(low, side), tl.maximum(high, side)
        side = tl.fma(slope_v, y[2], tl.fma(slope_u, x[2], b[1]))
        low, high = tl.minimum(low, side), tl.maximum(high, side)
    radius = _total(tl.fma(high - low, 0.5, _rounded(largest, floor)), slope_u, slope_v, rest_x, rest_y)
    return (low + high) * 0.5, radius, slope_u, slope_v
