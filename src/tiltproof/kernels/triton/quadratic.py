"""The kernels that make the forms of `triton/pixels.py` quadratic, launched by `kernels/pixels.py`: one within cells, one with a kink.

Each line is a step of the reference (`pixels.quadratic`, with the inequalities), in its order, with its roundings: 32 of `magnitude`, or of
16 times that with a kink. Between the two kernels each pair gets its hinge, one number for all of its pixels.
"""

import triton
import triton.language as tl

from tiltproof.kernels.triton.bilinear import pixels_of
from tiltproof.kernels.triton.coordinates import LEAST, UNIT, number, product_of_deviations, widened
from tiltproof.kernels.triton.pixels import place_of, sight


@triton.jit
def _deviation(form):
    """`AffineForm.deviation`."""
    return (form[2] + form[3]) * number(1 + (len(form[1]) + 8) * UNIT) + number((len(form[1]) + 8) * LEAST)


@triton.jit
def _path(form_x, form_y, x, y, largest):
    """Values shared by all channels: the center's place in the first cell, U V but for its factor, deviations, the roundings' magnitude."""
    along_x, along_y = form_x[0] - x[0], form_y[0] - y[0]
    reach_x, reach_y = _deviation(form_x), _deviation(form_y)
    square, rest = product_of_deviations(form_x, form_y, reach_y)
    moved = 1 + reach_x + reach_y
    magnitude = largest * 4 * (1 + tl.abs(along_x)) * (1 + tl.abs(along_y)) * moved * moved
    return along_x, along_y, square, rest, magnitude, reach_x, reach_y


@triton.jit
def _first_cell(here, right, below, across, u, v, path):
    """`quadratic._first_cell`: center, both slopes, radius; the four pixels are those around the cell."""
    mixed = (across - below) - (right - here)
    slope_u, slope_v = right - here + path[1] * mixed, below - here + path[0] * mixed
    bend = mixed * path[2] * 0.5
    center = here + path[0] * (right - here) + path[1] * slope_v + bend
    slope, curve = slope_u * u[1][0] + slope_v * v[1][0], slope_u * u[1][1] + slope_v * v[1][1] + bend
    radius = tl.abs(slope_u) * u[2] + tl.abs(slope_v) * v[2] + tl.abs(mixed) * path[3]
    return center, slope, curve, widened(radius, path[4], 32)


@triton.jit
def _at(form, line):
    """The e of the kink, as if the path were straight."""
    return -(form[0] - (line[0] + 1)) / form[1][0]


@triton.jit
def _added(smooth, before, across, along, base, other, place, reach, reach_along, hinge, largest, magnitude):
    """`_Kink.of` and `_Kink.added`: center, slopes and radius; ``before``: the three pixels of both lines that the path lies between."""
    first = (before[0][2] - before[0][1]) - (before[0][1] - before[0][0])
    tilt = (before[1][2] - before[1][1]) - (before[1][1] - before[1][0]) - first
    center, slope, bend, remainder = across[0] - (base + 1), across[1][0], across[1][1], across[2]
    over = along[5] - (other + 1)
    over = tl.where(over < 0, 0.0, over)
    jump = first + place * tilt
    at = -center / slope
    rising, falling = tl.abs(slope) * jump, tl.where(slope < 0, jump, 0.0)
    mean, gap = (1 - hinge) * 0.5, (1 - hinge * hinge) * 0.5
    highest = center + reach
    highest = tl.where(highest < 0, 0.0, highest)
    apart = tl.abs(at - hinge) + (tl.abs(at) + 1) * (8 * UNIT)
    radius = smooth[3] + tl.abs(rising) * apart + tl.abs(jump) * (tl.abs(bend) + remainder)
    radius = radius + tl.abs(tilt) * (reach_along + over) * highest
    radius = radius + largest * (8 + 4 * (tl.abs(center) + reach)) * over
    radius = widened(radius, magnitude * 16, 32)
    center = smooth[0] + (rising * (mean - gap * 0.5) + falling * center)
    return center, smooth[1] + (rising * mean + falling * slope), smooth[2], rising * gap * 0.5, radius


@triton.jit
def _crossed(x, y):
    """Masks of the paths that cross one column and of those that cross one row, but no second line of either kind."""
    near = (x[3] <= 2) & (y[3] <= 2)
    return near & (x[3] == 2), near & (y[3] == 2)


@triton.jit(do_not_specialize=("pairs",))  # else it is compiled again for numbers that 16 divides
def smooth(
    pictures, rows_of, table, largest_at, stack, radius, loss, at, pairs, channels, height: tl.constexpr,
    width: tl.constexpr, composed: tl.constexpr, parts: tl.constexpr, count: tl.constexpr, symbols: tl.constexpr, entries: tl.constexpr,
    padding_x: tl.constexpr, padding_y: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Overwrites the forms of pixels that stay in one cell; finds, for each block and both kinds of lines, the worst kink's loss and e."""
    plane: tl.constexpr = height * width
    blocks: tl.constexpr = (height * width + block - 1) // block
    pair, here = place_of(plane, block)
    mask = here < plane
    u, v, _, _, x, y = sight(table + pair.to(tl.int64) * entries, here, height, width, composed, parts, count, symbols, padding_x,
                             padding_y)  # fmt: skip
    path = _path(u, v, x, y, tl.load(largest_at))
    inside = mask & (x[3] == 1) & (y[3] == 1)
    columns, in_x = pixels_of(x[0], x[3], width, inside, padding_x)
    rows, in_y = pixels_of(y[0], y[3], height, inside, padding_y)
    top, bottom = rows[0] * width, rows[1] * width
    picture = tl.full((), plane, tl.int64) * channels
    source = pictures + tl.load(rows_of + pair) * picture
    stack, radius, planes = stack + pair * picture + here, radius + pair * picture + here, pairs * picture
    worst = tl.zeros_like(path[0])
    channel = 0
    while channel < channels:
        a = tl.load(source + top + columns[0], mask=in_y[0] & in_x[0], other=0.0)
        b = tl.load(source + top + columns[1], mask=in_y[0] & in_x[1], other=0.0)
        c = tl.load(source + bottom + columns[0], mask=in_y[1] & in_x[0], other=0.0)
        d = tl.load(source + bottom + columns[1], mask=in_y[1] & in_x[1], other=0.0)
        form = _first_cell(a, b, c, d, u, v, path)
        worst = tl.maximum(worst, tl.load(radius, mask=mask & ~inside, other=0.0))
        tl.store(stack, form[0], mask=inside)
        tl.store(stack + planes, form[1], mask=inside)
        tl.store(stack + 2 * planes, form[2], mask=inside)
        tl.store(stack + 3 * planes, tl.zeros_like(worst), mask=mask)
        tl.store(radius, form[3], mask=inside)
        source, stack, radius, channel = source + plane, stack + plane, radius + plane, channel + 1
    block_of = pair.to(tl.int64) * (2 * blocks) + tl.program_id(0) % blocks
    crossed = _crossed(x, y)
    for side in tl.static_range(2):
        cost = tl.where(mask & crossed[side], worst, 0.0)
        first = tl.argmax(cost, 0)
        e = _at(u, x) if side == 0 else _at(v, y)
        tl.store(loss + block_of + side * blocks, tl.max(cost, 0))
        tl.store(at + block_of + side * blocks, tl.sum(tl.where(tl.arange(0, block) == first, e, 0.0), 0))


@triton.jit(do_not_specialize=("pairs",))  # else it is compiled again for numbers that 16 divides
def kinks(
    pictures, rows_of, table, largest_at, stack, radius, hinge_at, pairs, channels, height: tl.constexpr,
    width: tl.constexpr, composed: tl.constexpr, parts: tl.constexpr, count: tl.constexpr, symbols: tl.constexpr, entries: tl.constexpr,
    padding_x: tl.constexpr, padding_y: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Overwrites the forms of pixels whose path crosses one line, where that leaves a smaller radius."""
    plane: tl.constexpr = height * width
    pair, here = place_of(plane, block)
    mask = here < plane
    u, v, _, _, x, y = sight(table + pair.to(tl.int64) * entries, here, height, width, composed, parts, count, symbols, padding_x,
                             padding_y)  # fmt: skip
    sideways, upwards = _crossed(x, y)
    mask = mask & (sideways | upwards)
    largest, hinge = tl.load(largest_at), tl.load(hinge_at + pair)
    path = _path(u, v, x, y, largest)
    columns, in_x = pixels_of(x[0], x[3], width, mask, padding_x)
    rows, in_y = pixels_of(y[0], y[3], height, mask, padding_y)
    top, middle, bottom = rows[0] * width, rows[1] * width, rows[2] * width
    picture = tl.full((), plane, tl.int64) * channels
    source = pictures + tl.load(rows_of + pair) * picture
    stack, radius, planes = stack + pair * picture + here, radius + pair * picture + here, pairs * picture
    channel = 0
    while channel < channels * tl.max(mask.to(tl.int32), 0):  # nothing to do where no path crosses a line
        a = tl.load(source + top + columns[0], mask=in_y[0] & in_x[0], other=0.0)
        b = tl.load(source + top + columns[1], mask=in_y[0] & in_x[1], other=0.0)
        c = tl.load(source + top + columns[2], mask=in_y[0] & in_x[2], other=0.0)
        d = tl.load(source + middle + columns[0], mask=in_y[1] & in_x[0], other=0.0)
        e = tl.load(source + middle + columns[1], mask=in_y[1] & in_x[1], other=0.0)
        f = tl.load(source + middle + columns[2], mask=in_y[1] & in_x[2], other=0.0)
        g = tl.load(source + bottom + columns[0], mask=in_y[2] & in_x[0], other=0.0)
        h = tl.load(source + bottom + columns[1], mask=in_y[2] & in_x[1], other=0.0)
        cell = _first_cell(a, b, d, e, u, v, path)
        one = _added(cell, ((a, b, c), (d, e, f)), u, v, x[0], y[0], path[1], path[5], path[6], hinge, largest, path[4])
        two = _added(cell, ((a, d, g), (b, e, h)), v, u, y[0], x[0], path[0], path[6], path[5], hinge, largest, path[4])
        so_far = tl.load(radius, mask=mask, other=0.0)
        better = sideways & (one[4] < so_far)  # false for a NaN
        other = upwards & (two[4] < tl.where(better, one[4], so_far))
        better = mask & (better | other)
        for k in tl.static_range(4):
            tl.store(stack + k * planes, tl.where(other, two[k], one[k]), mask=better)
        tl.store(radius, tl.where(other, two[4], one[4]), mask=better)
        source, stack, radius, channel = source + plane, stack + plane, radius + plane, channel + 1
