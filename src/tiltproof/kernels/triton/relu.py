"""The ReLU relaxation, entry by entry, for the kernels that `kernels/relu.py` and `kernels/backward.py` launch; needs Triton.

``factors`` are the constants of the steps (`relu.factors`). Every comparison keeps a NaN a NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tiltproof.kernels.triton.coordinates import larger


@triton.jit  # type: ignore[untyped-decorator]
def chord(c, deviation, factors, single: tl.constexpr):  # type: ignore[no-untyped-def]
    """`relu.relu_chord` of center and deviation: (above, below, slope)."""
    reach = (deviation + tl.abs(c) * tl.load(factors)) * tl.load(factors + 1) + tl.load(factors + 2)
    above, below = c + reach, reach - c
    above, below = tl.where(above < 0, 0.0, above), tl.where(below < 0, 0.0, below)
    width = above + below + tl.load(factors + 3)
    # the plain quotient of float32 is not rounded to nearest
    slope = tl.div_rn(above, width) if single else above / width
    return above, below, slope


@triton.jit
def gap(slope, above, below):  # type: ignore[no-untyped-def]
    """`relu.relu_gap`."""
    return larger(slope * below, (1 - slope) * above)


@triton.jit  # type: ignore[untyped-decorator]
def line(c, deviation, r, factors, single: tl.constexpr):  # type: ignore[no-untyped-def]
    """`enclosures.relu.zonotope_relu` of center, deviation and radius: slope, half of the gap, the new radius and the magnitude."""
    above, below, slope = chord(c, deviation, factors, single)
    slope = tl.where(2 * r > above, 0.0, slope)
    offset = gap(slope, above, below)
    half = offset / 2
    magnitude = above + 2 * offset
    result = half + r * slope
    result = result + magnitude * tl.load(factors + 4)
    return slope, half, result + tl.load(factors + 5), magnitude


@triton.jit  # type: ignore[untyped-decorator]
def relu(  # type: ignore[no-untyped-def]
    stack, radius, new_stack, new_radius, size, kinks, factors, entries,
    symbols: tl.constexpr, single: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """See `enclosures.relu.zonotope_relu`; planes are reached by adding to pointers: no index overflows."""
    here = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = here < entries
    c = tl.load(stack + here, mask=mask, other=0.0)
    r = tl.load(radius + here, mask=mask, other=0.0)
    deviation = r
    if symbols > 0:
        plane = stack + here + entries
        spread = tl.abs(tl.load(plane, mask=mask, other=0.0))
        tl.store(kinks + here, (tl.abs(c) < spread).to(tl.uint8), mask=mask)
        for _ in tl.static_range(2, symbols + 1):
            plane += entries
            spread = spread + tl.abs(tl.load(plane, mask=mask, other=0.0))
        deviation = r + spread
    slope, half, result, magnitude = line(c, deviation, r, factors, single)
    tl.store(new_stack + here, c * slope + half, mask=mask)
    plane, target = stack + here, new_stack + here
    for _ in tl.static_range(1, symbols + 1):
        plane += entries
        target += entries
        tl.store(target, tl.load(plane, mask=mask, other=0.0) * slope, mask=mask)
    tl.store(new_radius + here, result, mask=mask)
    tl.store(size + here, magnitude, mask=mask)
