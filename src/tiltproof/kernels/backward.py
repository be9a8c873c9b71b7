"""Coefficients through ReLU, coefficients met with a form, and parameters' shares in a relaxation, in one pass over memory each, on a GPU:
what torch does in some forty.

Each row of coefficients reads its own row of the forms: nothing is copied. The steps and their roundings are those of the reference,
which stays in use on CPUs, for gradients, and wherever Triton or its compiler is missing; sums are in float64, in any order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.device import current
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.gathered import GatheredForm
from tiltproof.enclosures.relu import relu_chord, relu_gap
from tiltproof.enclosures.rounding import UNIT
from tiltproof.kernels.registry import given_up, kernel, trusted
from tiltproof.kernels.relu import MOST_SYMBOLS, factors
from tiltproof.network.ops.base import FLOOR, UNDERFLOW, BackwardResult, backward_gamma, dot, row_size

BLOCK = 1024
_kernels: dict[str, Any] = {}


def fused_relu_pullback(a: Tensor, form: AffineForm) -> BackwardResult | None:
    """`Relu.backward` without a negative slope, or None where the reference has to do it.

    Roundings and underflows are those of the reference, entry by entry instead of by lengths: sum |a_c| |x_c| <= |a|_2 |x|_2.
    """
    pulled = _tried("pull", a, form)
    if pulled is None:
        return None
    out, (constant, crossed, weights, sizes) = pulled
    allowance = backward_gamma(8, row_size(a), form.unit)
    error = torch.add(crossed * (2 * allowance), weights, alpha=UNDERFLOW * allowance + FLOOR[a.dtype])
    return BackwardResult([out], constant=constant, error=error, size=sizes)


def fused_meeting(a: Tensor, form: AffineForm) -> tuple[Tensor, Tensor, Tensor] | None:
    """a . each plane of the form [1 + d, Q], |a| . radius and |a| . (|x| at most) [Q], in float64; or None."""
    met = _tried("meet", a, form)
    if met is None:
        return None
    return met[1][: 1 + form.symbols], met[1][-1], met[1][1 + form.symbols :].sum(0)


def fused_shares(a: Tensor | None, before: AffineForm, after: AffineForm | None) -> Tensor | None:
    """`pull.relaxation_shares`, or None. They are no part of any bound: a kernel that were wrong would only send the search astray."""
    if not (isinstance(before, GatheredForm) and isinstance(after, GatheredForm | None) and len(before)):
        return None
    source, radius = before.form, before.form.radius
    ends = radius if after is None else after.form.radius
    last, graded = _order(radius, source.stack, ends), radius.requires_grad or (a is not None and a.requires_grad)
    if last is None or graded or not (_on_gpu(radius) and source.symbols <= MOST_SYMBOLS) or _kernel("share") is None:
        return None
    entries, rows = row_size(radius), before.rows.to(torch.int64).contiguous()
    grid = len(rows), -(-entries // BLOCK)
    sums = radius.new_empty(source.symbols, *grid, dtype=torch.float64)
    given = None if a is None else (a.movedim(-3, -1) if last else a).contiguous()
    try:
        with current(radius.device):
            _kernel("share")[grid](
                given, source.stack, radius, None if after is None else ends, rows, sums, radius.numel(), entries, source.symbols, BLOCK
            )  # fmt: skip
    except Exception as error:
        given_up(_kernels, "share", error, "searches")
        return None
    return sums.sum(2).T


def _on_gpu(a: Tensor) -> bool:
    return a.is_cuda


def _tried(name: str, a: Tensor, form: AffineForm) -> tuple[Tensor, Tensor] | None:
    if not (_on_gpu(a) and isinstance(form, GatheredForm) and form.unit and a.numel()):
        return None
    source = form.form
    possible = source.symbols <= MOST_SYMBOLS and source.stack.dtype == source.radius.dtype == a.dtype
    last = _order(source.radius, source.stack)
    if not possible or last is None or a.requires_grad or _kernel(name) is None:
        return None
    try:
        if not _trusted(name, a.device, a.dtype, source.symbols):
            return None
        planes, radius = (x.movedim(-3, -1) if last else x for x in (source.stack, source.radius))
        rows = form.rows.to(torch.int64).contiguous()
        out, sums = _launch(name, (a.movedim(-3, -1) if last else a).contiguous(), planes, radius, rows)
    except Exception as error:
        given_up(_kernels, name, error, "bounds")
        return None
    return (out.movedim(-1, -3) if last else out), sums


def _order(*tensors: Tensor) -> bool | None:
    """`_channels_last` of tensors that all lie alike; None where they do not."""
    first, *others = map(_channels_last, tensors)
    return first if all(other == first for other in others) else None


def _channels_last(x: Tensor) -> bool | None:
    """How x lies in memory: in its own order, with the channels last, or (None) otherwise."""
    if x.is_contiguous():
        return False
    return True if x.ndim >= 4 and x.movedim(-3, -1).is_contiguous() else None


def _launch(name: str, a: Tensor, stack: Tensor, radius: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """All contiguous, in one order."""
    symbols, entries = len(stack) - 1, row_size(a)
    grid = len(a), -(-entries // BLOCK)
    sums = a.new_empty(4 if name == "pull" else 2 * symbols + 3, *grid, dtype=torch.float64)
    out = torch.empty_like(a) if name == "pull" else a
    written: tuple[Tensor, ...] = (sums,)
    special: tuple[Any, ...] = (symbols, BLOCK)
    if name == "pull":
        written = out, sums, factors(symbols, UNIT[a.dtype], a.dtype, a.device)
        special = symbols, a.dtype == torch.float32, BLOCK
    with current(a.device):
        _kernel(name)[grid](a, stack, radius, rows, *written, radius.numel(), entries, *special, enable_fp_fusion=False)
    return out, sums.sum(2)


def reference(name: str, a: Tensor, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
    """What a kernel is compared with: coefficients, sums, and the sizes of what was summed; ``a`` [Q, n]."""
    size, extent = a.abs(), form.center.abs() + (form.radius + form.slopes.abs().sum(0))
    if name == "meet":
        planes = [a * plane for plane in form.stack]
        sums = [*planes, *(plane.abs() for plane in planes), size * form.radius]
    else:
        above, below, chord = relu_chord(form)
        offset = relu_gap(chord, above, below)
        sums = [a.clamp(max=0) * offset, size * extent, size, extent.expand_as(a)]
        a = a * torch.where(a > 0, (above > below).to(a.dtype), chord)
    ones = torch.ones_like(size)
    return a, torch.stack([dot(each, ones) for each in sums]), torch.stack([dot(each.abs(), ones) for each in sums])


def _trusted(name: str, device: torch.device, dtype: torch.dtype, symbols: int) -> bool:
    """Whether the kernel does on this device what the reference does: looked at once, on numbers of all kinds."""
    key = f"{name} {device} {dtype} {symbols}"
    difference = f"Triton's kernel and the reference differ on {key}"
    return trusted(_kernels, key, lambda: _agrees(name, device, dtype, symbols), difference)


def _agrees(name: str, device: torch.device, dtype: torch.dtype, symbols: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    for entries in (5, 2 * BLOCK, 2 * BLOCK + 77):  # compilers treat multiples of 16 by themselves
        stack, a = (torch.randn(k, 7, entries, dtype=dtype, generator=generator) for k in (1 + symbols, 1))
        powers = 10.0 ** -torch.arange(7 * entries).remainder(12).view(7, entries)
        radius, a = (torch.rand(7, entries, dtype=dtype, generator=generator) * powers).to(dtype), a[0] * powers.flip(1)
        stack[:, 5], radius[6, 0], stack[0, 4, 0], a = 0.0, torch.inf, torch.nan, a.to(dtype)
        rows = torch.tensor([3, 0, 6, 4, 3, 5, 1])
        form = AffineForm(stack.to(device), radius.to(device))
        out, sums = _launch(name, a.to(device), form.stack, form.radius, rows.to(device))
        wanted, totals, sizes = reference(name, a.to(device), form[rows.to(device)])
        # a fused multiply-add in one of them, and none in the other, and another order of float64 sums, are all that may differ
        near = torch.isclose(out, wanted, rtol=8 * form.unit, atol=0.0, equal_nan=True).all()
        close = ((sums - totals).abs() <= sizes * (8 * form.unit)) | (sums == totals) | (sums.isnan() & totals.isnan())
        if not bool(near and close.all()):
            return False
    return True


def _kernel(name: str) -> Any:
    return kernel(_kernels, name, "tiltproof.kernels.triton.rows")
