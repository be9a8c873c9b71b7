"""The Triton kernels that `kernels/backward.py` and `kernels/linear_epilogue.py` launch."""

from __future__ import annotations

import triton
import triton.language as tl

from tiltproof.kernels.triton.relu import chord, gap


@triton.jit  # type: ignore[untyped-decorator]
def pull(  # type: ignore[no-untyped-def]
    a, stack, radius, rows, out, sums, factors, plane_entries, entries, symbols: tl.constexpr, single: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """A block of one row of coefficients through ReLU: see `Relu.backward`. Every comparison is such that a NaN stays one."""
    number, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    here = tl.program_id(1) * block + tl.arange(0, block)
    mask = here < entries
    w = tl.load(a + number * entries + here, mask=mask, other=0.0)
    place = tl.load(rows + number).to(tl.int64) * entries + here
    c = tl.load(stack + place, mask=mask, other=0.0)
    deviation = tl.load(radius + place, mask=mask, other=0.0)
    if symbols > 0:
        plane = stack + place + plane_entries
        spread = tl.abs(tl.load(plane, mask=mask, other=0.0))
        for _ in tl.static_range(2, symbols + 1):
            plane += plane_entries
            spread = spread + tl.abs(tl.load(plane, mask=mask, other=0.0))
        deviation = deviation + spread
    above, below, line = chord(c, deviation, factors, single)
    offset = gap(line, above, below)
    slope = tl.where(w > 0, tl.where(above > below, 1.0, 0.0).to(c.dtype), line)
    tl.store(out + number * entries + here, w * slope, mask=mask)
    weight, size = tl.abs(w), tl.abs(c) + deviation
    sums += number * blocks + tl.program_id(1)
    each = tl.num_programs(0).to(tl.int64) * blocks
    tl.store(sums, tl.sum((tl.where(w > 0, 0.0, w) * offset).to(tl.float64), 0))
    tl.store(sums + each, tl.sum((weight * size).to(tl.float64), 0))
    tl.store(sums + 2 * each, tl.sum(weight.to(tl.float64), 0))
    tl.store(sums + 3 * each, tl.sum(size.to(tl.float64), 0))


@triton.jit  # type: ignore[untyped-decorator]
def meet(  # type: ignore[no-untyped-def]
    a, stack, radius, rows, sums, plane_entries, entries, symbols: tl.constexpr, block: tl.constexpr
):
    """A block of one row of coefficients times each plane of the form, and times the radius."""
    number, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    here = tl.program_id(1) * block + tl.arange(0, block)
    mask = here < entries
    w = tl.load(a + number * entries + here, mask=mask, other=0.0)
    place = tl.load(rows + number).to(tl.int64) * entries + here
    sums += number * blocks + tl.program_id(1)
    each = tl.num_programs(0).to(tl.int64) * blocks
    plane = stack + place
    for _ in tl.static_range(symbols + 1):
        product = w * tl.load(plane, mask=mask, other=0.0)
        tl.store(sums, tl.sum(product.to(tl.float64), 0))
        tl.store(sums + (symbols + 1) * each, tl.sum(tl.abs(product).to(tl.float64), 0))
        plane += plane_entries
        sums += each
    spread = tl.abs(w) * tl.load(radius + place, mask=mask, other=0.0)
    tl.store(sums + (symbols + 1) * each, tl.sum(spread.to(tl.float64), 0))


@triton.jit  # type: ignore[untyped-decorator]
def share(  # type: ignore[no-untyped-def]
    a, stack, radius, after, rows, sums, plane_entries, entries, symbols: tl.constexpr, block: tl.constexpr
):
    """A block of one row: |a|, or 1, times what the radius grew by, laid on the symbols as their slopes are to each other."""
    number, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    here = tl.program_id(1) * block + tl.arange(0, block)
    mask = here < entries
    place = tl.load(rows + number).to(tl.int64) * entries + here
    cost = tl.load(radius + place, mask=mask, other=0.0)
    if after is not None:
        cost = tl.maximum(tl.load(after + place, mask=mask, other=0.0) - cost, 0.0)
    if a is not None:
        cost = cost * tl.abs(tl.load(a + number * entries + here, mask=mask, other=0.0))
    plane, whole = stack + place, tl.zeros_like(cost)
    for _ in tl.static_range(symbols):
        plane += plane_entries
        whole = whole + tl.abs(tl.load(plane, mask=mask, other=0.0))
    cost = cost / tl.maximum(whole, 1e-30)
    plane = stack + place
    sums += number * blocks + tl.program_id(1)
    for _ in tl.static_range(symbols):
        plane += plane_entries
        size = tl.abs(tl.load(plane, mask=mask, other=0.0))  # a second time, now that it is near
        tl.store(sums, tl.sum((cost * size).to(tl.float64), 0))
        sums += tl.num_programs(0).to(tl.int64) * blocks


@triton.jit  # type: ignore[untyped-decorator]
def shifted(  # type: ignore[no-untyped-def]
    center, radius, shift, extra, factor, rows, channels, lines: tl.constexpr, places: tl.constexpr
):
    """``lines`` rows of ``places`` channels: center + shift, and radius * factor + extra."""
    tiles, number = tl.cdiv(channels, places), tl.program_id(0)
    row = (number // tiles).to(tl.int64) * lines + tl.arange(0, lines)
    channel = number % tiles * places + tl.arange(0, places)
    known = channel < channels
    mask = (row < rows)[:, None] & known[None, :]
    here = row[:, None] * channels + channel[None, :]
    more, least = tl.load(shift + channel, mask=known, other=0.0), tl.load(extra + channel, mask=known, other=0.0)
    tl.store(center + here, tl.load(center + here, mask=mask, other=0.0) + more[None, :], mask=mask)
    wider = tl.load(radius + here, mask=mask, other=0.0) * tl.load(factor)
    tl.store(radius + here, wider + least[None, :], mask=mask)
