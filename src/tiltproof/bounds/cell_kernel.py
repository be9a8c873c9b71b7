"""Slopes, and the residual's least and greatest value, of a picture over boxes, inside the kernel of `pixel_kernel.py`.

The steps are those of `cells.axis`, `CellWalk` and `resample.affine_of_exact`. Over each cell the residual is bilinear, so its extremes
are at box edges and grid lines (cells.py); a point on a grid line between two cells is the line's own value, as lerp(a, b, 1) =
b + 0 (b - a) = b without a rounding. Slopes are any numbers: the residual is measured against those that are used. Indices stay inside
of the picture whatever the box is: comparisons with a NaN take the branch of the whole picture.
"""

import triton
import triton.language as tl

from tiltproof.bounds.position_kernel import larger, ordered, smaller

ZEROS, BORDER, REFLECT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FAR, THIN = tl.constexpr(2.0**30), tl.constexpr(2.0**-30)


@triton.jit
def _lerp(a, b, weight):
    """As torch: from the nearer end."""
    late = weight >= 0.5
    return tl.fma(tl.where(late, weight - 1, weight), b - a, tl.where(late, b, a))


@triton.jit
def _between(x, low, high):
    """Clamped; a NaN becomes ``low``."""
    return tl.where(x > low, tl.where(x < high, x, high), low)


@triton.jit
def cells_of(low, high, size, padding: tl.constexpr):
    """`cells.axis`: first grid line, where the box begins and ends, how many cells it meets, and whether it sees everything."""
    if padding == REFLECT:
        some = (low >= -FAR) & (high <= FAR) & (high - low <= 2.0 * size)
        first, last = tl.where(some, low, 0.0), tl.where(some, high, 2.0 * size)
    else:
        first, last = _between(low, -2.0, size + 1.0), -_between(-high, -(size + 1.0), 2.0)
    base = tl.floor(first)
    if padding != REFLECT:
        some = base == base
    cells = tl.maximum(tl.ceil(last) - base, 1.0)
    return base, first - base, last, cells.to(tl.int32), some


@triton.jit
def _index(line, size, padding: tl.constexpr):
    """`ring_index` without a ring: an index of the picture, and whether there is a pixel."""
    if padding == ZEROS:
        return line, (line >= 0) & (line < size)
    if padding == BORDER:
        return tl.minimum(tl.maximum(line, 0), size - 1), line == line
    period = 2 * (size - 1)
    folded = line % period
    folded = tl.where(folded < 0, folded + period, folded)
    return tl.minimum(folded, period - folded), line == line


@triton.jit
def _three(a, b, c, start, end, two):
    """A line over one or two cells: at the box's start, on the grid line inside it (or again at its end), and at its end."""
    last = _lerp(tl.where(two, b, a), tl.where(two, c, b), end)
    return _lerp(a, b, start), tl.where(two, b, last), last


@triton.jit
def _secant(rise, run):
    return tl.where(run > THIN, rise / (2 * run), 0.0)


@triton.jit
def _row(source, line, there, columns, inside, x):
    """The values of one grid line at the three points of the x axis."""
    source += line
    a = tl.load(source + columns[0], mask=there & inside[0], other=0.0)
    b = tl.load(source + columns[1], mask=there & inside[1], other=0.0)
    c = tl.load(source + columns[2], mask=there & inside[2], other=0.0)
    return _three(a, b, c, x[0], x[1], x[2])


@triton.jit
def pixels_of(base, cells, size, mask, padding: tl.constexpr):
    """Indices of the three grid lines that two cells have; the third only where there is a second cell."""
    line = base.to(tl.int32)
    a, in_a = _index(line, size, padding)
    b, in_b = _index(line + 1, size, padding)
    c, in_c = _index(line + 2, size, padding)
    return (a, b, c), (in_a & mask, in_b & mask, in_c & mask & (cells > 1))


@triton.jit
def points_of(x, low, high, center):
    """Weights of the start and of the end, whether there is a second cell; and the three points' distances from the center."""
    base, start, last, two = x[0], x[1], x[2], x[3] > 1
    end = larger(last - tl.where(two, base + 1, base), 0.0)  # at most 1, where there are no more cells
    return (start, end, two), (low - center, tl.where(two, base + 1, high) - center, high - center)


@triton.jit
def _spread(low, high, a, b, c):
    """[low, high], and three values more."""
    a, b = ordered(a, b)
    return ordered(low, ordered(a, c)[0])[0], ordered(high, ordered(b, c)[1])[1]


@triton.jit
def _known(low, rise_u, rise_v):
    """A number wins over a NaN in `ordered`; but every pixel is part of a corner, and so of the rises."""
    return tl.where((rise_u != rise_u) | (rise_v != rise_v), float("nan"), low)


@triton.jit
def four(source, width, columns, in_x, rows, in_y, x, y, across, down):
    """Boxes that lie in one cell: slopes and residual's ends."""
    top, bottom = source + rows[0] * width, source + rows[1] * width
    a = tl.load(top + columns[0], mask=in_y[0] & in_x[0], other=0.0)
    b = tl.load(top + columns[1], mask=in_y[0] & in_x[1], other=0.0)
    c = tl.load(bottom + columns[0], mask=in_y[1] & in_x[0], other=0.0)
    d = tl.load(bottom + columns[1], mask=in_y[1] & in_x[1], other=0.0)
    west, east, under_west, under_east = _lerp(a, b, x[0]), _lerp(a, b, x[1]), _lerp(c, d, x[0]), _lerp(c, d, x[1])
    sw, nw = _lerp(west, under_west, y[0]), _lerp(west, under_west, y[1])
    se, ne = _lerp(east, under_east, y[0]), _lerp(east, under_east, y[1])
    rise_u, rise_v = se + ne - sw - nw, nw + ne - sw - se
    slope_u, slope_v = _secant(rise_u, across[2] - across[0]), _secant(rise_v, down[2] - down[0])
    left, right, first, last = slope_u * across[0], slope_u * across[2], slope_v * down[0], slope_v * down[2]
    a, b = ordered(sw - left - first, se - right - first)
    c, d = ordered(nw - left - last, ne - right - last)
    return slope_u, slope_v, _known(ordered(a, c)[0], rise_u, rise_v), ordered(b, d)[1]


@triton.jit
def nine(source, width, columns, in_x, rows, in_y, x, y, across, down):
    """The same for boxes that meet at most two cells each way."""
    p = _row(source, rows[0] * width, in_y[0], columns, in_x, x)
    q = _row(source, rows[1] * width, in_y[1], columns, in_x, x)
    r = _row(source, rows[2] * width, in_y[2], columns, in_x, x)
    a = _three(p[0], q[0], r[0], y[0], y[1], y[2])
    b = _three(p[1], q[1], r[1], y[0], y[1], y[2])
    c = _three(p[2], q[2], r[2], y[0], y[1], y[2])
    rise_u, rise_v = c[0] + c[2] - a[0] - a[2], a[2] + c[2] - a[0] - c[0]
    slope_u, slope_v = _secant(rise_u, across[2] - across[0]), _secant(rise_v, down[2] - down[0])
    left, middle, right = slope_u * across[0], slope_u * across[1], slope_u * across[2]
    fall = slope_v * down[0]
    low, high = ordered(a[0] - left - fall, b[0] - middle - fall)
    third = c[0] - right - fall
    low, high = ordered(low, third)[0], ordered(high, third)[1]
    for j in tl.static_range(1, 3):
        fall = slope_v * down[j]
        low, high = _spread(low, high, a[j] - left - fall, b[j] - middle - fall, c[j] - right - fall)
    return slope_u, slope_v, _known(low, rise_u, rise_v), high


@triton.jit
def _weight(point, base, start, last):
    """Cell and weight of a point of an axis, as `CellWalk` has them."""
    cell = tl.maximum(point - 1, 0)
    return cell, tl.where(point > 0, _between(last - (base + cell), 0.0, 1.0), start)


@triton.jit
def _value(source, i, j, x, y, height, width, mask, padding_x: tl.constexpr, padding_y: tl.constexpr):
    """The picture at point (i, j) of each box."""
    k, weight_x = _weight(i, x[0], x[1], x[2])
    m, weight_y = _weight(j, y[0], y[1], y[2])
    column, row = x[0].to(tl.int32) + k, y[0].to(tl.int32) + m
    left, in_left = _index(column, width, padding_x)
    right, in_right = _index(column + 1, width, padding_x)
    top, in_top = _index(row, height, padding_y)
    bottom, in_bottom = _index(row + 1, height, padding_y)
    nw = tl.load(source + top * width + left, mask=mask & in_top & in_left, other=0.0)
    ne = tl.load(source + top * width + right, mask=mask & in_top & in_right, other=0.0)
    sw = tl.load(source + bottom * width + left, mask=mask & in_bottom & in_left, other=0.0)
    se = tl.load(source + bottom * width + right, mask=mask & in_bottom & in_right, other=0.0)
    return _lerp(_lerp(nw, ne, weight_x), _lerp(sw, se, weight_x), weight_y)


@triton.jit
def _step(point, base, last, low, high, center):
    line = base + point
    return tl.where(point > 0, tl.where(line < last, line, high), low) - center


@triton.jit
def any_number(source, x, y, columns, rows, center_u, center_v, height, width, most_x, most_y, flat, mask,
         padding_x: tl.constexpr, padding_y: tl.constexpr):  # fmt: skip
    """The same as `nine` for any number of cells; slopes are 0 where ``flat``."""
    cells_x, cells_y = x[3], y[3]
    zero = tl.zeros_like(cells_x)
    sw = _value(source, zero, zero, x, y, height, width, mask, padding_x, padding_y)
    se = _value(source, cells_x, zero, x, y, height, width, mask, padding_x, padding_y)
    nw = _value(source, zero, cells_y, x, y, height, width, mask, padding_x, padding_y)
    ne = _value(source, cells_x, cells_y, x, y, height, width, mask, padding_x, padding_y)
    run_x = (columns[1] - center_u) - (columns[0] - center_u)
    run_y = (rows[1] - center_v) - (rows[0] - center_v)
    slope_u = tl.where(flat, 0.0, _secant(se + ne - sw - nw, run_x))
    slope_v = tl.where(flat, 0.0, _secant(nw + ne - sw - se, run_y))
    low = tl.full(sw.shape, float("inf"), tl.float64)
    high = -low
    row = 0
    while row <= most_y:
        j = tl.minimum(zero + row, cells_y)
        down = tl.where(flat, 0.0, slope_v * _step(j, y[0], y[2], rows[0], rows[1], center_v))
        column = 0
        while column <= most_x:
            i = tl.minimum(zero + column, cells_x)
            across = tl.where(flat, 0.0, slope_u * _step(i, x[0], x[2], columns[0], columns[1], center_u))
            residual = _value(source, i, j, x, y, height, width, mask, padding_x, padding_y) - across - down
            low, high = smaller(low, residual), larger(high, residual)
            column += 1
        row += 1
    return slope_u, slope_v, low, high
