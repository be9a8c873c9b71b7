"""The kernel that `kernels/photometric.py` launches: contrast, brightness and their clamp in one pass over memory.

Forms are those of `triton/matrix_entries.py`, (center, slopes, radius), here with a number per pixel; every step is the method of the
same name, with its roundings.
"""

import triton
import triton.language as tl

from tiltproof.kernels.triton.matrix_entries import ADD_NUMBER, NEGATE, form_of, size_of, sum_of
from tiltproof.kernels.triton.relu import line

RELU, SINGLE = tl.constexpr(22), tl.constexpr(28)
"""Offsets in the factors: of those of ReLU (`relu.factors`), after those of `triton/matrix_entries.py`; and of those of `AffineForm.to`."""


@triton.jit
def _relu(form, f, symbols: tl.constexpr):
    """`enclosures.relu.zonotope_relu`."""
    c, slopes, r = form
    slope, half, radius, _ = line(c, r + sum_of(slopes, symbols), r, f + RELU, False)
    scaled = ()
    for k in tl.static_range(symbols):
        scaled = scaled + (slopes[k] * slope,)
    return c * slope + half, scaled, radius


@triton.jit(do_not_specialize=("pairs", "entries"))  # else it is compiled again for numbers that 16 divides
def values(
    stack, radius, table, new_stack, new_radius, f, pairs, entries, program: tl.constexpr, length: tl.constexpr,
    symbols: tl.constexpr, single: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A block of pixels of one pair. A byte of ``program`` says how the next form of the table changes the image."""
    blocks = tl.cdiv(entries, block)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * block + tl.arange(0, block)
    mask = place < entries
    here, planes = pair * entries + place, entries.to(tl.int64) * pairs
    slopes, plane = (), stack + here
    for _ in tl.static_range(symbols):
        plane += planes
        slopes = slopes + (tl.load(plane, mask=mask, other=0.0),)
    form = tl.load(stack + here, mask=mask, other=0.0), slopes, tl.load(radius + here, mask=mask, other=0.0)
    table += pair * length * (symbols + 2)
    for k in tl.static_range(length):
        numbers = ()
        for other in tl.static_range(symbols):
            numbers = numbers + (tl.load(table + other + 1),)
        value = tl.load(table), numbers, tl.load(table + symbols + 1)
        form = form_of(program >> (8 * k) & 255, form, value, 0.0, f, symbols, False)
        table += symbols + 2
    for _ in tl.static_range(2):  # min(1, max(0, x)) = 1 - relu(1 - relu(x))
        form = form_of(NEGATE, _relu(form, f, symbols), form, 0.0, f, symbols, False)
        form = form_of(ADD_NUMBER, form, form, 1.0, f, symbols, False)
    rest = form[2]
    if single:
        rest = tl.fma(size_of(form[0], form[1], symbols), 2.0**-23, rest)
        rest = rest * tl.load(f + SINGLE) + tl.load(f + SINGLE + 1)
    plane = new_stack + here
    tl.store(plane, form[0], mask=mask)
    for k in tl.static_range(symbols):
        plane += planes
        tl.store(plane, form[1][k], mask=mask)
    tl.store(new_radius + here, rest, mask=mask)
