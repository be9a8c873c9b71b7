"""The kernel of `fused_pixels.py`: pixel bounds in one pass over memory.

Each line is a step of the reference, in its order (`resample.affine_of_exact`). Why the result is an enclosure:

- Roundings are the reference's, 24 of `magnitude`: 12 of the interpolation, of which a fused multiply-add saves some, 8 of the residual
  and its mid-point, 3 of each slope; for a hull 12 of the largest pixel. Halves and products with powers of two are exact.
- A box with more than MANY_POINTS points, or one that sees a reflection whole, gets its hull without slopes. The reference decides
  that for all boxes of a batch at once, the kernel for each: its result does not depend on what else is in the batch. So that it is
  never much looser, positions whose remainder is more than a pixel larger than their box, as may be in large boxes, get the hull too.
- A number that is not finite makes center or radius NaN or infinite, which proves nothing: a pixel through the rises, a position
  through `magnitude` (0 times infinity is NaN).
"""

import triton
import triton.language as tl

from tiltproof.bounds.cell_kernel import any_number, cells_of, four, nine, pixels_of, points_of
from tiltproof.bounds.position_kernel import larger, positions, widen

MANY_POINTS, UNIT = tl.constexpr(36), tl.constexpr(2.0**-53)


@triton.jit
def place_of(plane: tl.constexpr, block: tl.constexpr):
    """The pair and the pixels that a program is for."""
    blocks: tl.constexpr = (plane + block - 1) // block
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * block + tl.arange(0, block)


@triton.jit
def sight(entry, pairs, here, factors, height: tl.constexpr, width: tl.constexpr, composed: tl.constexpr, parts: tl.constexpr,
          count: tl.constexpr, symbols: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr):  # fmt: skip
    """Where these pixels look: the forms of both axes, their boxes, and the cells that the boxes meet."""
    u = (here % width).to(tl.float64) - tl.load(factors)
    v = tl.load(factors + 1) - (here // width).to(tl.float64)
    form_x, form_y, columns, rows = positions(entry, pairs, u, v, factors, composed, parts, count, symbols)
    x = cells_of(columns[0], columns[1], width, padding_x)
    y = cells_of(rows[0], rows[1], height, padding_y)
    return form_x, form_y, columns, rows, x, y


@triton.jit
def _bounds(low, high, slope_u, slope_v, x, y, step_x, step_y, largest, factors):
    """Center and radius, as `affine_of_exact` has them."""
    size_u, size_v = tl.abs(slope_u), tl.abs(slope_v)
    radius = (high - low) * 0.5 + size_u * x[2] + size_v * y[2]
    magnitude = largest + size_u * (step_x + x[3])
    return (low + high) * 0.5, widen(radius, magnitude + size_v * (step_y + y[3]), factors + 9)


@triton.jit
def _hull(low, high, largest, factors):
    """The same without slopes: `resample.hull` and `AffineForm.between`."""
    below, above = low - largest * (12 * UNIT), high + largest * (12 * UNIT)
    middle = (below + above) * 0.5
    return middle, widen(larger(above - middle, middle - below), tl.abs(middle), factors + 12)


@triton.jit
def _store(stack, radius_at, planes, here, mask, center, radius, slope_u, slope_v, x, y, flat, factors,
           symbols: tl.constexpr, single: tl.constexpr):  # fmt: skip
    """Writes the form; ``single``: made wider and rounded as by `AffineForm.to`. ``flat``: None, or where there are no slopes."""
    size = tl.abs(center)
    tl.store(stack + here, center, mask=mask)
    for k in tl.static_range(symbols):
        slope = slope_u * x[1][k] + slope_v * y[1][k]
        if flat is not None:
            slope = tl.where(flat, 0.0, slope)
        size = size + tl.abs(slope)
        stack += planes
        tl.store(stack + here, slope, mask=mask)
    if single:
        radius = tl.fma(size, 2.0**-23, radius) * tl.load(factors + 15) + tl.load(factors + 16)
    tl.store(radius_at + here, radius, mask=mask)


@triton.jit
def _write(stack, radius_at, planes, here, mask, low, high, slope_u, slope_v, x, y, step_x, step_y, largest, flat, factors,
           symbols: tl.constexpr, single: tl.constexpr):  # fmt: skip
    """Bounds the residual and stores one channel's form; ``flat``: None, or where the hull takes the slopes' place."""
    center, radius = _bounds(low, high, slope_u, slope_v, x, y, step_x, step_y, largest, factors)
    if flat is not None:
        middle, hull = _hull(low, high, largest, factors)
        center, radius = tl.where(flat, middle, center), tl.where(flat, hull, radius)
    _store(stack, radius_at, planes, here, mask, center, radius, slope_u, slope_v, x, y, flat, factors, symbols, single)


@triton.jit(do_not_specialize=("pairs",))  # else it is compiled again for numbers that 16 divides
def pixels(
    pictures, rows_of, table, factors, largest_at, stack, radius, pairs, channels, height: tl.constexpr, width: tl.constexpr,
    composed: tl.constexpr, parts: tl.constexpr, count: tl.constexpr, symbols: tl.constexpr,
    padding_x: tl.constexpr, padding_y: tl.constexpr, single: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One block of pixels of one pair, all channels."""
    plane: tl.constexpr = height * width
    pair, here = place_of(plane, block)
    mask = here < plane
    form_x, form_y, columns, rows, x, y = sight(table + pair, pairs, here, factors, height, width, composed, parts, count, symbols,
                                                padding_x, padding_y)  # fmt: skip
    weights_x, across = points_of(x, columns[0], columns[1], form_x[0])
    weights_y, down = points_of(y, rows[0], rows[1], form_y[0])
    step_x = tl.fma(tl.abs(form_x[0]), 2 * UNIT, larger(tl.abs(across[0]), tl.abs(across[2])))
    step_y = tl.fma(tl.abs(form_y[0]), 2 * UNIT, larger(tl.abs(down[0]), tl.abs(down[2])))
    largest = tl.load(largest_at)
    picture = tl.full((), plane, tl.int64) * channels
    source = pictures + tl.load(rows_of + pair) * picture
    stack, radius, planes = stack + pair * picture, radius + pair * picture, pairs * picture
    flat = ((x[3] + 1) * (y[3] + 1) > MANY_POINTS) | ~x[4] | ~y[4] | (form_x[2] > step_x + 1) | (form_y[2] > step_y + 1)
    most_x, most_y = tl.max(tl.where(mask, x[3], 1)), tl.max(tl.where(mask, y[3], 1))
    most = tl.maximum(tl.maximum(most_x, most_y), tl.max(tl.where(mask & flat, 3, 1)))
    column, in_x = pixels_of(x[0], x[3], width, mask, padding_x)
    row, in_y = pixels_of(y[0], y[3], height, mask, padding_y)
    channel = 0
    if most == 1:
        while channel < channels:
            slope_u, slope_v, low, high = four(
                source, width, column, in_x, row, in_y, weights_x, weights_y, across, down
            )
            _write(stack, radius, planes, here, mask, low, high, slope_u, slope_v, form_x, form_y, step_x, step_y, largest, None,
                   factors, symbols, single)  # fmt: skip
            source, stack, radius, channel = source + plane, stack + plane, radius + plane, channel + 1
    elif most == 2:
        while channel < channels:
            slope_u, slope_v, low, high = nine(
                source, width, column, in_x, row, in_y, weights_x, weights_y, across, down
            )
            _write(stack, radius, planes, here, mask, low, high, slope_u, slope_v, form_x, form_y, step_x, step_y, largest, None,
                   factors, symbols, single)  # fmt: skip
            source, stack, radius, channel = source + plane, stack + plane, radius + plane, channel + 1
    else:
        while channel < channels:
            slope_u, slope_v, low, high = any_number(source, x, y, columns, rows, form_x[0], form_y[0], height, width, most_x, most_y,
                                                     flat, mask, padding_x, padding_y)  # fmt: skip
            _write(stack, radius, planes, here, mask, low, high, slope_u, slope_v, form_x, form_y, step_x, step_y, largest, flat,
                   factors, symbols, single)  # fmt: skip
            source, stack, radius, channel = source + plane, stack + plane, radius + plane, channel + 1
