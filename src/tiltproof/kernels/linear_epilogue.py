"""The end of a linear operation in one pass over memory, on a GPU: the shift of centers, and what roundings add to radii.

Torch makes three passes of it, two of them slow, because a number for each channel meets channels that come last. The steps and their
roundings are those of the reference, bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import current
from tiltproof.kernels.im2col import power_of_two
from tiltproof.kernels.registry import given_up, kernel, trusted

TILE, MOST_PLACES = 2048, 128
"""Entries that the kernel works on at a time, and channels among them at most."""
_kernels: dict[str, Any] = {}


def shift_and_widen(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> None:
    """center + shift, and radius * factor + extra, in place; ``shift`` and ``extra`` have a number for each channel."""
    if _on_gpu(center) and _possible(center, radius, shift, extra) and _kernel() is not None:
        try:
            if _trusted(center.device, center.dtype):
                _launch(center, radius, shift, factor, extra)
                return
        except Exception as error:
            given_up(_kernels, "shifted", error, "bounds")
    reference(center, radius, shift, factor, extra)


def reference(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> None:
    center.add_(shift)
    radius.mul_(factor).add_(extra)


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _possible(center: Tensor, radius: Tensor, shift: Tensor, extra: Tensor) -> bool:
    """Whether the channels come last in memory, and shift and extra are numbers for each of them."""
    for each in (center, radius):
        if each.ndim < 2 or each.requires_grad or not each.movedim(1, -1).is_contiguous():
            return False
    single = (center.shape[1], *[1] * (center.ndim - 2))
    known = all(each.shape == single and each.is_contiguous() and not each.requires_grad for each in (shift, extra))
    same = {each.dtype for each in (center, radius, shift, extra)}
    return known and len(same) == 1 and bool(center.numel())


def _launch(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> None:
    channels = center.shape[1]
    rows = center.numel() // channels
    places = min(power_of_two(channels), MOST_PLACES)
    grid, lines = (-(-rows // (TILE // places)) * -(-channels // places),), TILE // places
    number = _number(factor, center.dtype, center.device)
    with current(center.device):
        _kernel()[grid](
            center, radius, shift, extra, number, rows, channels, lines, places, enable_fp_fusion=False
        )  # fmt: skip


@lru_cache(maxsize=64)
def _number(factor: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rounded to the dtype as torch rounds a number that meets a tensor; sent to a device once."""
    return torch.tensor([factor], dtype=dtype, device=device)


def _trusted(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel does on this device what the reference does: looked at once, on numbers of all kinds."""
    key = f"{device} {dtype}"
    return trusted(_kernels, key, lambda: _agrees(device, dtype), f"Triton's kernel and the reference differ on {key}")


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    unit = torch.finfo(dtype).eps
    for channels in (1, 10, 32, 200):
        center, radius = torch.randn(2, 7, 6, 5, channels, dtype=dtype, generator=generator).abs()
        center[0, 0, 0, 0], radius[1, 2, 3, 0], radius[2] = torch.nan, torch.inf, 0.0
        shift, extra = torch.randn(2, channels, 1, 1, dtype=dtype, generator=generator)
        forms = [center.movedim(-1, 1).to(device), radius.movedim(-1, 1).to(device)]
        mine, others = [each.clone() for each in forms], [each.clone() for each in forms]
        for way, (c, r) in ((_launch, mine), (reference, others)):
            way(c, r, shift.to(device), 1 + 40 * unit, extra.abs().to(device))
        if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(mine, others, strict=True)):
            return False
    return True


def _kernel() -> Any:
    return kernel(_kernels, "shifted", "tiltproof.kernels.triton.rows")
