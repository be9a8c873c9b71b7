"""Back-substitution in one pass over memory each: through ReLU, concretization, and branching scores; torch makes about forty.

Each row of coefficients reads its own row of the forms, so nothing is copied. The kernels take the reference's steps, with
their roundings; sums are in float64, in any order.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import accelerates
from tiltproof.enclosures.affine_form import AffineForm, GatheredForm
from tiltproof.enclosures.relu import relu_chord, relu_gap
from tiltproof.enclosures.rounding import UNIT
from tiltproof.kernels.relu import MOST_SYMBOLS, factors
from tiltproof.kernels.triton.rows import meet, pull, share
from tiltproof.network import backward
from tiltproof.network.ops import activations
from tiltproof.network.ops.base import FLOOR, UNDERFLOW, BackwardResult, backward_gamma, dot, row_size

BLOCK = 1024
"""Entries of one program."""


def _possible(a: Tensor, form: AffineForm, negative_slope: float = 0.0, *_: object) -> bool:
    if negative_slope or not (isinstance(form, GatheredForm) and form.unit and a.numel()):
        return False
    source = form.form
    possible = source.symbols <= MOST_SYMBOLS and source.stack.dtype == source.radius.dtype == a.dtype
    return possible and _order(source.radius, source.stack) is not None and not a.requires_grad


def _key(a: Tensor, form: AffineForm, *_: object) -> Hashable:
    return a.device, a.dtype, form.symbols


def _order(*tensors: Tensor) -> bool | None:
    """`_channels_last` of tensors with the same order; None where orders differ."""
    first, *others = map(_channels_last, tensors)
    return first if all(other == first for other in others) else None


def _channels_last(x: Tensor) -> bool | None:
    """The memory order of x: False for its own, True for channels last, None for any other."""
    if x.is_contiguous():
        return False
    return True if x.ndim >= 4 and x.movedim(-3, -1).is_contiguous() else None


def reference(name: str, a: Tensor, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
    """The reference of the self-check: coefficients, sums, and the sizes of the terms; ``a`` [Q, n]."""
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


def _agrees(name: str, device: torch.device, dtype: torch.dtype, symbols: int) -> bool:
    """Compare with the reference on numbers of all kinds."""
    generator = torch.Generator().manual_seed(0)
    for entries in (5, 2 * BLOCK, 2 * BLOCK + 77):  # a compiler treats multiples of 16 differently
        stack, a = (torch.randn(k, 7, entries, dtype=dtype, generator=generator) for k in (1 + symbols, 1))
        powers = 10.0 ** -torch.arange(7 * entries).remainder(12).view(7, entries)
        radius, a = (torch.rand(7, entries, dtype=dtype, generator=generator) * powers).to(dtype), a[0] * powers.flip(1)
        stack[:, 5], radius[6, 0], stack[0, 4, 0], a = 0.0, torch.inf, torch.nan, a.to(dtype)
        rows = torch.tensor([3, 0, 6, 4, 3, 5, 1])
        form = AffineForm(stack.to(device), radius.to(device))
        out, sums = _launch(name, a.to(device), form.stack, form.radius, rows.to(device))
        wanted, totals, sizes = reference(name, a.to(device), form[rows.to(device)])
        # they may differ by a fused multiply-add in one of them and none in the other, and by the order of float64 sums
        near = torch.isclose(out, wanted, rtol=8 * form.unit, atol=0.0, equal_nan=True).all()
        close = ((sums - totals).abs() <= sizes * (8 * form.unit)) | (sums == totals) | (sums.isnan() & totals.isnan())
        if not bool(near and close.all()):
            return False
    return True


@accelerates(
    activations.relu_backward,
    when=_possible,
    key=_key,
    check=lambda a, form, *_: _agrees("pull", a.device, a.dtype, form.symbols),
)
def relu_backward(a: Tensor, form: GatheredForm, *_: float) -> BackwardResult:
    """Back-substitution through ReLU.

    Roundings and underflows are those of the reference, entry by entry instead of by lengths: sum |a_c| |x_c| <= |a|_2 |x|_2.
    """
    out, (constant, crossed, weights, sizes) = _gathered_launch("pull", a, form)
    allowance = backward_gamma(8, row_size(a), form.unit)
    error = torch.add(crossed * (2 * allowance), weights, alpha=UNDERFLOW * allowance + FLOOR[a.dtype])
    return BackwardResult([out], constant=constant, error=error, size=sizes)


@accelerates(
    backward.concretized,
    when=_possible,
    key=_key,
    check=lambda a, form: _agrees("meet", a.device, a.dtype, form.symbols),
)
def concretized(a: Tensor, form: GatheredForm) -> tuple[Tensor, Tensor, Tensor]:
    """a . each plane of the form [1 + d, Q], |a| . radius and |a| . (|x| at most) [Q], in float64."""
    sums = _gathered_launch("meet", a, form)[1]
    return sums[: 1 + form.symbols], sums[-1], sums[1 + form.symbols :].sum(0)


def _scores_possible(a: Tensor | None, before: AffineForm, after: AffineForm | None) -> bool:
    if not (isinstance(before, GatheredForm) and isinstance(after, GatheredForm | None) and len(before)):
        return False
    source, radius = before.form, before.form.radius
    last = _order(radius, source.stack, radius if after is None else after.form.radius)
    graded = radius.requires_grad or (a is not None and a.requires_grad)
    return last is not None and not graded and source.symbols <= MOST_SYMBOLS


@accelerates(backward.relaxation_shares, when=_scores_possible, slows="searches")
def relaxation_shares(a: Tensor | None, before: GatheredForm, after: GatheredForm | None) -> Tensor:
    """Branching scores. They are part of no bound, so there is no self-check: a wrong kernel would only mislead the search."""
    source, radius = before.form, before.form.radius
    ends = radius if after is None else after.form.radius
    entries, rows = row_size(radius), before.rows.to(torch.int64).contiguous()
    grid = len(rows), -(-entries // BLOCK)
    sums = radius.new_empty(source.symbols, *grid, dtype=torch.float64)
    given = None if a is None else (a.movedim(-3, -1) if _channels_last(radius) else a).contiguous()
    share[grid](
        given, source.stack, radius, None if after is None else ends, rows, sums, radius.numel(), entries, source.symbols, BLOCK
    )  # fmt: skip
    return sums.sum(2).T


def _gathered_launch(name: str, a: Tensor, form: GatheredForm) -> tuple[Tensor, Tensor]:
    """Coefficients and sums, for coefficients and a form in the form's memory order."""
    source = form.form
    last = _channels_last(source.radius)
    planes, radius = (x.movedim(-3, -1) if last else x for x in (source.stack, source.radius))
    rows = form.rows.to(torch.int64).contiguous()
    out, sums = _launch(name, (a.movedim(-3, -1) if last else a).contiguous(), planes, radius, rows)
    return (out.movedim(-1, -3) if last else out), sums


def _launch(name: str, a: Tensor, stack: Tensor, radius: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Run kernel ``name``: the coefficients and the sums. All tensors are contiguous, in one order."""
    symbols, entries = len(stack) - 1, row_size(a)
    grid = len(a), -(-entries // BLOCK)
    sums = a.new_empty(4 if name == "pull" else 2 * symbols + 3, *grid, dtype=torch.float64)
    out = torch.empty_like(a) if name == "pull" else a
    written: tuple[Tensor, ...] = (sums,)
    special: tuple[Any, ...] = (symbols, BLOCK)
    if name == "pull":
        written = out, sums, factors(symbols, UNIT[a.dtype], a.dtype, a.device)
        special = symbols, a.dtype == torch.float32, BLOCK
    kernel = pull if name == "pull" else meet
    kernel[grid](a, stack, radius, rows, *written, radius.numel(), entries, *special, enable_fp_fusion=False)
    return out, sums.sum(2)
