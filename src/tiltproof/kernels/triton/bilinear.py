"""Slopes, and the residual's least and greatest value, of an image over boxes, inside the kernel of `triton/pixels.py`.

`pixels.bilinear.axis`, `PatchExtrema` and `pixels.api.affine_of_exact` define them. Over each cell the residual is bilinear, so extremes
are at box edges and grid lines. Roundings are counted in triton/pixels.py. Where a box is cut at the padding, the pixels on both
sides of its cell are the same, and their difference is 0 whatever the weights. Indices stay inside of the image whatever the box is:
comparisons with a NaN take the branch of the whole image.
"""

import triton
import triton.language as tl

from tiltproof.kernels.triton.coordinates import larger, ordered, smaller

ZEROS, BORDER, REFLECT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FAR, THIN = tl.constexpr(2.0**30), tl.constexpr(2.0**-30)


@triton.jit
def _lerp(a, b, weight):
    """Linear interpolation as in torch: from the nearer end."""
    late = weight >= 0.5
    return tl.fma(tl.where(late, weight - 1, weight), b - a, tl.where(late, b, a))


@triton.jit
def _between(x, low, high):
    """Clamped; a NaN becomes ``low``."""
    return tl.where(x > low, tl.where(x < high, x, high), low)


@triton.jit
def cells_of(low, high, size, padding: tl.constexpr):
    """`pixels.bilinear.axis`: first grid line, where the box begins and ends, how many cells it meets, and whether it sees everything."""
    if padding == REFLECT:
        some = (low >= -FAR) & (high <= FAR) & (high - low <= 2.0 * size)
        first, last = tl.where(some, low, 0.0), tl.where(some, high, 2.0 * size)
    else:
        first, last = _between(low, -2.0, size + 1.0), -_between(-high, -(size + 1.0), 2.0)
        some = tl.full(low.shape, True, tl.int1)
    base = tl.floor(first)
    cells = tl.maximum(tl.ceil(last).to(tl.int32) - base.to(tl.int32), 1)
    return base, first - base, last, cells, some


@triton.jit
def fold(line, size):
    """The line of the image that a line of the reflected one shows."""
    period = 2 * (size - 1)
    folded = line % period
    folded = tl.where(folded < 0, folded + period, folded)
    return tl.minimum(folded, period - folded)


@triton.jit
def _index(line, size, padding: tl.constexpr):
    """`ring_index` without a ring: an index of the image, and whether there is a pixel."""
    if padding == ZEROS:
        return line, (line >= 0) & (line < size)
    if padding == BORDER:
        return tl.minimum(tl.maximum(line, 0), size - 1), line == line
    return fold(line, size), line == line


@triton.jit
def _secant(rise, run):
    return tl.where(run > THIN, rise / (2 * run), 0.0)


@triton.jit
def pixels_of(base, cells, size, mask, padding: tl.constexpr):
    """Indices of the three grid lines that two cells have; the third only where there is a second cell."""
    line = base.to(tl.int32)
    a, in_a = _index(line, size, padding)
    b, in_b = _index(line + 1, size, padding)
    c, in_c = _index(line + 2, size, padding)
    return (a, b, c), (in_a & mask, in_b & mask, in_c & mask & (cells > 1))


@triton.jit
def in_one_cell(x, form, run, size):
    """An axis of boxes that lie in one cell, for `four`: middle, where the plane is level, half width, slopes, and the slope's part in the
    radius: ``size``, or, where a box is so thin that it gets no slope, half of it, over which the image itself rises.

    0 times what is not finite is NaN.
    """
    end, wide = x[2] - x[0], run > THIN
    middle, half = (x[1] + end) * 0.5, tl.abs(end - x[1]) * 0.5
    slopes = ()
    for k in tl.static_range(len(form[1])):
        slopes = slopes + (tl.where(wide, form[1][k], 0.0),)
    return middle, tl.where(wide, form[0] - x[0], middle), half, slopes, tl.where(wide, size, tl.fma(size, 0.0, half))


@triton.jit
def four(source, width, columns, in_x, rows, in_y, x, y):
    """Boxes that lie in one cell: center, slopes, and mixed difference.

    There the image is a + w g + z h + w z m in the place (w, z) in the cell. About the box's middle, (w, z) = middle + (s, t), it is
    its value there + s (g + z m) + t (h + w m) + s t m: less its tangent, |s t m| <= |m| times both half widths.
    """
    top, bottom = source + rows[0] * width, source + rows[1] * width
    a = tl.load(top + columns[0], mask=in_y[0] & in_x[0], other=0.0)
    b = tl.load(top + columns[1], mask=in_y[0] & in_x[1], other=0.0)
    c = tl.load(bottom + columns[0], mask=in_y[1] & in_x[0], other=0.0)
    d = tl.load(bottom + columns[1], mask=in_y[1] & in_x[1], other=0.0)
    right, mixed = b - a, (d - c) - (b - a)
    slope_u, slope_v = tl.fma(mixed, y[0], right), tl.fma(mixed, x[0], c - a)
    center = tl.fma(x[1] - x[0], slope_u, tl.fma(x[0], right, a))
    return tl.fma(y[1], slope_v, center), slope_u, slope_v, mixed


@triton.jit
def in_two_cells(x, low, high, center, run):
    """An axis of boxes that meet at most two cells, for `nine`: weights of three points, how far they are before the center, 1 / (2 run).

    The points are the box's start, the grid line in it, or again its end, and its end: ``a + w_0 (b - a)``, ``a + w_1 (b - a)``, and that
    ``+ w_2 (c - b)``, where a, b and c are the grid lines' values.
    """
    base, start, last, two = x[0], x[1], x[2], x[3] > 1
    end = larger(last - tl.where(two, base + 1, base), 0.0)  # at most 1, where there are no more cells
    weights = start, tl.where(two, 1.0, end), tl.where(two, end, 0.0)
    return weights, (center - low, center - tl.where(two, base + 1, high), center - high), _secant(1.0, run)


@triton.jit
def three(a, b, c, weights):
    """Values at the three points of an axis."""
    right = b - a
    middle = tl.fma(weights[1], right, a)
    return tl.fma(weights[0], right, a), middle, tl.fma(weights[2], c - b, middle)


@triton.jit
def _row(source, line, there, columns, inside, weights):
    """The values of one grid line at the three points of the x axis."""
    source += line
    a = tl.load(source + columns[0], mask=there & inside[0], other=0.0)
    b = tl.load(source + columns[1], mask=there & inside[1], other=0.0)
    c = tl.load(source + columns[2], mask=there & inside[2], other=0.0)
    return three(a, b, c, weights)


@triton.jit
def nine(source, width, columns, in_x, rows, in_y, x, y):
    """Boxes that meet at most two cells each way: slopes and the residual's ends.

    A number wins over a NaN in `ordered`; but every pixel is part of a corner, and so of the slopes.
    """
    p = _row(source, rows[0] * width, in_y[0], columns, in_x, x[0])
    q = _row(source, rows[1] * width, in_y[1], columns, in_x, x[0])
    r = _row(source, rows[2] * width, in_y[2], columns, in_x, x[0])
    a = three(p[0], q[0], r[0], y[0])
    b = three(p[1], q[1], r[1], y[0])
    c = three(p[2], q[2], r[2], y[0])
    slope_u, slope_v = ((c[0] + c[2]) - (a[0] + a[2])) * x[2], ((a[2] + c[2]) - (a[0] + c[0])) * y[2]
    low, high = _fallen(a[0], b[0], c[0], slope_u, slope_v, x[1], y[1][0])
    for j in tl.static_range(1, 3):
        least, most = _fallen(a[j], b[j], c[j], slope_u, slope_v, x[1], y[1][j])
        low, high = ordered(low, least)[0], ordered(high, most)[1]
    return slope_u, slope_v, low, high


@triton.jit
def _fallen(a, b, c, slope_u, slope_v, across, down):
    """The ends of three values of a line less the plane; taking the same number from all changes nothing of their order."""
    a, b, c = tl.fma(slope_u, across[0], a), tl.fma(slope_u, across[1], b), tl.fma(slope_u, across[2], c)
    a, b = ordered(a, b)
    return tl.fma(slope_v, down, ordered(a, c)[0]), tl.fma(slope_v, down, ordered(b, c)[1])


@triton.jit
def _weight(point, base, start, last):
    """Cell and weight of a point of an axis, as `PatchExtrema` has them."""
    cell = tl.maximum(point - 1, 0)
    return cell, tl.where(point > 0, _between(last - (base + cell), 0.0, 1.0), start)


@triton.jit
def _value(source, i, j, x, y, height, width, mask, padding_x: tl.constexpr, padding_y: tl.constexpr):
    """The image at point (i, j) of each box."""
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
