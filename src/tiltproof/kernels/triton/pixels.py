"""The kernel that `kernels/pixels.py` launches: pixel bounds in one pass over memory.

What follows is of float64; of float32, see `triton/pixels_float32.py`. Positions are the reference's, step by step
(`coordinates`), found once for
pairs that share a box. The forms are those of `pixels.api.affine_of_exact`, by less arithmetic. Why the result is an enclosure, with L the
largest pixel and u = 2^-53 (slopes may be any numbers: the residual is measured against those that are used):

- The radius has 48 L u, and 24 u |slope| (step + spread), for roundings; a step, the sum of two distances, is at least the larger one.
  Halves and products with powers of two are exact. Weights are in [0, 1], and off by u / 2.
- Boxes in one cell (`four`): `right`, c - a and d - c are off by 2 L u, `mixed` by 8 L u; slope_u, which weighs `right` and d - c, by
  8 L u, and slope_v, whose parts have no rounding in common, by 12 L u. Half a box is at most 1/2, so that is 10 L u. `mixed` is at most
  4 L, and half widths are off by 1.25 u with the middle: 7 L u of their product. The center has 3 L u from a + w right, 12 L u from slope_v
  in place of the true one, L u of each of its sums, and 2 L u from each place where the plane is level, |place| <= 1 + step: 21 L u. All
  in all 38 L u, and 4 u |slope| step. Where a slope is not used, 2.5 L u of its half width take the place of the 2 L u: 39 L u at most.
- Boxes in two cells (`nine`): a + w (b - a) is off by 4 L u, the end of the second cell by 7 L u, and both ways 14 L u, as the weights of
  pixels are in [0, 1] and their sum is 1; the plane, the mid-point and half the width add 4 L u, and 5 u |slope| step.
- Boxes in any number of cells have the reference's roundings, 12 of the interpolation and 8 of the residual and its mid-point. A hull has
  12 L u. Slopes times the positions' slopes round twice, 2 u |slope| spread.
- A box with more than MANY_POINTS points, or one that sees a reflection whole, gets its hull without slopes. The reference decides
  that for all boxes of a batch at once, the kernel for each: its result does not depend on what else is in the batch. So that it is
  never much looser, positions whose remainder is more than a pixel larger than their box, as may be in large boxes, get the hull too.
- A number that is not finite makes center or radius NaN or infinite, which proves nothing: a pixel through the slopes, a position
  through its size (0 times infinity is NaN).
"""

import triton
import triton.language as tl

from tiltproof.kernels.triton.bilinear import (
    REFLECT,
    any_number,
    cells_of,
    four,
    in_one_cell,
    in_two_cells,
    nine,
    pixels_of,
)
from tiltproof.kernels.triton.coordinates import LEAST, UNIT, larger, number, positions, widened
from tiltproof.kernels.triton.pixels_float32 import (
    RING,
    across,
    beside,
    cells_met,
    crossing,
    numbers_of,
    one_cell,
    places,
    two_cells,
    where,
)

MANY_POINTS, ROUNDINGS = tl.constexpr(36), tl.constexpr(48)
SINGLE_ONE, SINGLE_TWO, ONE, TWO, ANY = (tl.constexpr(k) for k in range(5))
"""Tiers: float32 or float64 for boxes in one cell, or in two each way; or any number of cells."""


@triton.jit
def place_of(plane: tl.constexpr, block: tl.constexpr):
    """The pair and the pixels that a program is for."""
    blocks: tl.constexpr = (plane + block - 1) // block
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * block + tl.arange(0, block)


@triton.jit
def sight(entry, here, height: tl.constexpr, width: tl.constexpr, composed: tl.constexpr, parts: tl.constexpr,
          count: tl.constexpr, symbols: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr):  # fmt: skip
    """Source positions of these pixels: the forms of both axes, their boxes, and the cells that the boxes meet."""
    form_x, form_y, columns, rows = positions(entry, here, height, width, composed, parts, count, symbols)
    x = cells_of(columns[0], columns[1], width, padding_x)
    y = cells_of(rows[0], rows[1], height, padding_y)
    return form_x, form_y, columns, rows, x, y


@triton.jit
def _radius(rest, slope_u, slope_v, size_x, size_y):
    """`widen` of the residual and its roundings, and of what the slopes, without sign, make of the positions' remainders and roundings."""
    total = tl.fma(tl.abs(slope_v), size_y, tl.fma(tl.abs(slope_u), size_x, rest))
    return tl.fma(total, number(1 + (ROUNDINGS + 8) * UNIT), number((ROUNDINGS + 8) * LEAST))


@triton.jit
def _hull(low, high, largest):
    """Center and radius without slopes: `pixels.api.hull` and `AffineForm.between`."""
    below, above = low - largest * (12 * UNIT), high + largest * (12 * UNIT)
    middle = (below + above) * 0.5
    return middle, widened(larger(above - middle, middle - below), tl.abs(middle), 1)


@triton.jit
def _store(stack, radius_at, planes, mask, center, radius, slope_u, slope_v, slopes_x, slopes_y, flat, symbols: tl.constexpr,
           single: tl.constexpr):  # fmt: skip
    """Writes the form; ``single``: float64 made wider and rounded as by `AffineForm.to`. ``flat``: None, or where there are no slopes."""
    if single:
        center = center.to(tl.float32)
    size = tl.abs(center)
    tl.store(stack, center, mask=mask)
    for k in tl.static_range(symbols):
        slope = tl.fma(slope_u, slopes_x[k], slope_v * slopes_y[k])
        if flat is not None:
            slope = tl.where(flat, 0.0, slope)
        if single:
            slope = slope.to(tl.float32)
        size = size + tl.abs(slope)
        stack += planes
        tl.store(stack, slope, mask=mask)
    if single:
        # an entry moves by 2^-24 of it, and twice that is added; four roundings of sums of numbers >= 0 are less than the factor's 12
        radius = tl.fma(size, 2.0**-23, radius.to(tl.float32)) * (1 + 12 * 2.0**-24) + 2.0**-97
    tl.store(radius_at, radius, mask=mask)


@triton.jit
def _box(low_at, high_at, pair, first: tl.constexpr, inputs: tl.constexpr, parameters: tl.constexpr):
    """A pair's box, as far as it moves pixels."""
    ends = ()
    for k in tl.static_range(first, first + inputs):
        at = pair.to(tl.int64) * parameters + k
        ends = ends + (tl.load(low_at + at), tl.load(high_at + at))
    return ends


@triton.jit
def _same(one, other, count: tl.constexpr):
    """Whether two boxes are the same; false if an end is a NaN."""
    same = one[0] == other[0]
    for k in tl.static_range(1, count):
        same = same & (one[k] == other[k])
    return same


@triton.jit
def _channel(source, kind: tl.constexpr, place, height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr,
             padding_x: tl.constexpr, padding_y: tl.constexpr):  # fmt: skip
    """Center, radius and slopes of one channel; ``place``: what `pixels` has prepared for boxes of this kind."""
    if kind == SINGLE_ONE:
        return one_cell(source, place, stride)
    elif kind == SINGLE_TWO:
        return two_cells(source, place, stride)
    elif kind == ONE:
        columns, in_x, rows, in_y, x, y, curved, floor = place
        center, slope_u, slope_v, mixed = four(source, width, columns, in_x, rows, in_y, x, y)
        return center, _radius(tl.fma(tl.abs(mixed), curved, floor), slope_u, slope_v, x[4], y[4]), slope_u, slope_v
    elif kind == TWO:
        columns, in_x, rows, in_y, x, y, size_x, size_y, floor = place
        slope_u, slope_v, low, high = nine(source, width, columns, in_x, rows, in_y, x, y)
        return (
            (low + high) * 0.5,
            _radius(tl.fma(high - low, 0.5, floor), slope_u, slope_v, size_x, size_y),
            slope_u,
            slope_v,
        )
    else:
        x, y, box_x, box_y, center_u, center_v, most_x, most_y, flat, size_x, size_y, floor, largest, mask = place
        slope_u, slope_v, low, high = any_number(source, x, y, box_x, box_y, center_u, center_v, height, width, most_x, most_y, flat,
                                                 mask, padding_x, padding_y)  # fmt: skip
        middle, hull = _hull(low, high, largest)
        radius = _radius(tl.fma(high - low, 0.5, floor), slope_u, slope_v, size_x, size_y)
        return tl.where(flat, middle, (low + high) * 0.5), tl.where(flat, hull, radius), slope_u, slope_v


@triton.jit
def _last(low_at, high_at, pair, period, stop, first: tl.constexpr, inputs: tl.constexpr, parameters: tl.constexpr):
    """The first pair after this one, ``period`` apart, whose box is another one, or ``stop`` and beyond."""
    last = pair + period
    going = last < stop
    while going:
        going = _same(_box(low_at, high_at, pair, first, inputs, parameters),
                      _box(low_at, high_at, last, first, inputs, parameters), 2 * inputs)  # fmt: skip
        if going:
            last += period
        going = going & (last < stop)
    return last


@triton.jit
def _pairs(kind: tl.constexpr, place, slopes_x, slopes_y, flat, here, memory, pair, period, last, pairs, channels,
           height: tl.constexpr, width: tl.constexpr, symbols: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr,
           single: tl.constexpr):  # fmt: skip
    """The forms of pairs whose box is the same: from one to ``last``, ``period`` apart."""
    plane: tl.constexpr = height * width
    pictures, rows_of, stack_at, radius_at = memory
    stride: tl.constexpr = width + (2 * RING if kind <= SINGLE_TWO and padding_x != REFLECT else 0)
    tall: tl.constexpr = height + (2 * RING if kind <= SINGLE_TWO and padding_y != REFLECT else 0)
    size: tl.constexpr = stride * tall
    picture = tl.full((), plane, tl.int64) * channels
    planes, seen = pairs * picture, tl.full((), size, tl.int64) * channels
    mask = None if tl.constexpr(plane) % here.shape[0] == 0 else here < plane
    going = pair == pair
    while going:  # at least once, as the compiler can see
        source, begin = pictures + tl.load(rows_of + pair).to(tl.int32).to(tl.int64) * seen, pair * picture
        stack, radius = stack_at + here + begin, radius_at + here + begin
        channel = 0
        while channel < channels:
            center, rest, slope_u, slope_v = _channel(source, kind, place, height, width, stride, padding_x, padding_y)
            _store(stack, radius, planes, mask, center, rest, slope_u, slope_v, slopes_x, slopes_y, flat, symbols,
                   single and kind > SINGLE_TWO)  # fmt: skip
            source, stack, radius, channel = source + size, stack + plane, radius + plane, channel + 1
        pair += period
        going = pair < last


@triton.jit
def _double(entry, here, memory, largest, floor, pair, period, last, pairs, channels, height: tl.constexpr, width: tl.constexpr,
            composed: tl.constexpr, parts: tl.constexpr, count: tl.constexpr, symbols: tl.constexpr, padding_x: tl.constexpr,
            padding_y: tl.constexpr, single: tl.constexpr):  # fmt: skip
    """`_pairs` in float64; boxes of one or two cells each way by the shorter ways only where results are float64."""
    mask = here < height * width
    u, v, columns, rows, x, y = sight(entry, here, height, width, composed, parts, count, symbols, padding_x, padding_y)
    from_x, to_x, from_y, to_y = columns[0] - u[0], columns[1] - u[0], rows[0] - v[0], rows[1] - v[0]
    step_x, step_y = tl.abs(from_x) + tl.abs(to_x), tl.abs(from_y) + tl.abs(to_y)
    size_x, size_y = tl.fma(step_x + u[3], 24 * UNIT, u[2]), tl.fma(step_y + v[3], 24 * UNIT, v[2])
    flat = ((x[3] + 1) * (y[3] + 1) > MANY_POINTS) | ~x[4] | ~y[4] | (u[2] > step_x + 1) | (v[2] > step_y + 1)
    most = tl.max(tl.where(mask, tl.where(flat, 3, tl.maximum(x[3], y[3])), 1))
    if most == 1 and not single:
        near_x, near_y = pixels_of(x[0], x[3], width, mask, padding_x), pixels_of(y[0], y[3], height, mask, padding_y)
        one_x, one_y = in_one_cell(x, u, to_x - from_x, size_x), in_one_cell(y, v, to_y - from_y, size_y)
        one = near_x[0], near_x[1], near_y[0], near_y[1], one_x, one_y, one_x[2] * one_y[2], floor
        _pairs(ONE, one, one_x[3], one_y[3], None, here, memory, pair, period, last, pairs, channels,
               height, width, symbols, padding_x, padding_y, single)  # fmt: skip
    elif most == 2 and not single:
        near_x, near_y = pixels_of(x[0], x[3], width, mask, padding_x), pixels_of(y[0], y[3], height, mask, padding_y)
        two_x = in_two_cells(x, columns[0], columns[1], u[0], to_x - from_x)
        two_y = in_two_cells(y, rows[0], rows[1], v[0], to_y - from_y)
        two = near_x[0], near_x[1], near_y[0], near_y[1], two_x, two_y, size_x, size_y, floor
        _pairs(TWO, two, u[1], v[1], None, here, memory, pair, period, last, pairs, channels,
               height, width, symbols, padding_x, padding_y, single)  # fmt: skip
    else:
        most_x, most_y = tl.max(tl.where(mask, x[3], 1)), tl.max(tl.where(mask, y[3], 1))
        many = x, y, columns, rows, u[0], v[0], most_x, most_y, flat, size_x, size_y, floor, largest, mask
        _pairs(ANY, many, u[1], v[1], flat, here, memory, pair, period, last, pairs, channels,
               height, width, symbols, padding_x, padding_y, single)  # fmt: skip


# else it is compiled again for numbers that 16 divides; and wider stores have another layout, for which positions would be found twice
@triton.jit(do_not_specialize=("pairs", "together", "strip", "stack", "radius"))
def pixels(
    pictures, rows_of, table, largest_at, stack, radius, low, high, period_at, pairs, channels, together, strip,
    first: tl.constexpr, inputs: tl.constexpr, parameters: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    composed: tl.constexpr, parts: tl.constexpr, count: tl.constexpr, symbols: tl.constexpr, entries: tl.constexpr,
    padding_x: tl.constexpr, padding_y: tl.constexpr, single: tl.constexpr, block: tl.constexpr,
    copies=None, small=None, floor_at=None, few: tl.constexpr = 0,
):  # fmt: skip
    """``strip`` blocks of pixels, all channels; of up to ``together`` pairs, ``period`` apart, for which positions are found once while
    boxes are the same."""
    plane: tl.constexpr = height * width
    blocks: tl.constexpr = (plane + block - 1) // block
    period, largest = tl.load(period_at), tl.load(largest_at)
    memory = pictures, rows_of, stack, radius
    floor, stride = largest * (ROUNDINGS * UNIT), period * together
    fast: tl.constexpr = copies is not None
    if fast:
        copied = tl.full((), 0, tl.int64), rows_of, stack, radius  # places begin with pointers to the copies
        floor_one, floor_two = tl.load(floor_at), tl.load(floor_at + 1)
    begin = tl.program_id(0) * strip
    end = tl.minimum(begin + strip, blocks)
    slot = tl.program_id(1)
    while slot < (pairs + stride - 1) // stride * period:
        turn = slot * 0
        if slot >= period:  # boxes that are not shared skip this: a division is expensive
            turn = slot // period
        pair, stop = slot + turn * (stride - period), tl.minimum((turn + 1) * stride, pairs)
        while pair < stop:
            entry = table + pair.to(tl.int64) * entries
            last = _last(low, high, pair, period, stop, first, inputs, parameters)
            if fast:
                numbers = numbers_of(entry, small + pair.to(tl.int64) * few, height, width, composed, symbols)
            at = begin
            while at < end:
                here = at * block + tl.arange(0, block)
                most = 4
                if fast:
                    # where there is no need of a minimum it keeps the compiler from counting in 64 bits, unless blocks are whole rows
                    pixel = here if plane % block == 0 and block % width == 0 else tl.minimum(here, plane - 1)
                    u, v = places(numbers, pixel, height, width, composed, symbols)
                    most = cells_met(u, v)
                if fast and most == 1:
                    spot = where(copies, u[0], v[0], height, width, padding_x == REFLECT, padding_y == REFLECT)
                    place = spot, u[1], v[1], u[4] * v[4], u[3], v[3], floor_one
                    _pairs(SINGLE_ONE, place, u[2], v[2], None, here, copied, pair, period, last, pairs, channels,
                           height, width, symbols, padding_x, padding_y, single)  # fmt: skip
                elif fast and most == 2:
                    place = crossing(
                        copies, beside(u), u, v, floor_two, height, width, padding_x == REFLECT, padding_y == REFLECT
                    )
                    _pairs(SINGLE_TWO, place, u[2], v[2], None, here, copied, pair, period, last, pairs, channels,
                           height, width, symbols, padding_x, padding_y, single)  # fmt: skip
                elif fast and most == 3:
                    place = crossing(
                        copies, across(u), u, v, floor_two, height, width, padding_x == REFLECT, padding_y == REFLECT
                    )
                    _pairs(SINGLE_TWO, place, u[2], v[2], None, here, copied, pair, period, last, pairs, channels,
                           height, width, symbols, padding_x, padding_y, single)  # fmt: skip
                else:
                    _double(entry, here, memory, largest, floor, pair, period, last, pairs, channels, height, width, composed,
                            parts, count, symbols, padding_x, padding_y, single)  # fmt: skip
                at += 1
            pair = last
        slot += tl.num_programs(1)
