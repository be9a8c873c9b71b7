"""The end of a linear operation in one pass over memory: the shift of centers, and what roundings add to radii.

Torch makes three passes, two of them slow, because a number for each channel is broadcast to channels that come last. The
kernel is the reference bit for bit.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tiltproof.device import accelerates
from tiltproof.kernels.im2col import power_of_two
from tiltproof.kernels.triton.rows import shifted
from tiltproof.network.ops import base

TILE = 2048
"""Entries of one program."""
MOST_CHANNELS = 128
"""Channels among them, at most."""


def _possible(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> bool:
    """Whether channels are last in memory, and shift and extra have one number for each."""
    for each in (center, radius):
        if each.ndim < 2 or each.requires_grad or not each.movedim(1, -1).is_contiguous():
            return False
    single = (center.shape[1], *[1] * (center.ndim - 2))
    known = all(each.shape == single and each.is_contiguous() and not each.requires_grad for each in (shift, extra))
    same = {each.dtype for each in (center, radius, shift, extra)}
    return known and len(same) == 1 and bool(center.numel())


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare with the reference, bit for bit, on numbers of all kinds."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.finfo(dtype).eps
    for channels in (1, 10, 32, 200):
        center, radius = torch.randn(2, 7, 6, 5, channels, dtype=dtype, generator=generator).abs()
        center[0, 0, 0, 0], radius[1, 2, 3, 0], radius[2] = torch.nan, torch.inf, 0.0
        shift, extra = torch.randn(2, channels, 1, 1, dtype=dtype, generator=generator)
        forms = [center.movedim(-1, 1).to(device), radius.movedim(-1, 1).to(device)]
        mine, others = [each.clone() for each in forms], [each.clone() for each in forms]
        for function, (c, r) in ((_launch, mine), (shift_and_widen.reference, others)):
            function(c, r, shift.to(device), 1 + 40 * unit, extra.abs().to(device))
        if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(mine, others, strict=True)):
            return False
    return True


@accelerates(
    base.shift_and_widen,
    when=_possible,
    key=lambda center, *_: (center.device, center.dtype),
    check=lambda center, *_: _agrees(center.device, center.dtype),
)
def shift_and_widen(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> None:
    _launch(center, radius, shift, factor, extra)


def _launch(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> None:
    channels = center.shape[1]
    rows = center.numel() // channels
    width = min(power_of_two(channels), MOST_CHANNELS)
    grid, lines = (-(-rows // (TILE // width)) * -(-channels // width),), TILE // width
    number = _number(factor, center.dtype, center.device)
    shifted[grid](center, radius, shift, extra, number, rows, channels, lines, width, enable_fp_fusion=False)


@lru_cache(maxsize=64)
def _number(factor: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rounded to the dtype as torch rounds a Python number; sent to a device once."""
    return torch.tensor([factor], dtype=dtype, device=device)
