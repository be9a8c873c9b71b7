"""The ReLU relaxation in one pass over memory, on a GPU: what `relax.zonotope_relu` does in some thirty.

Triton compiles it when it is first needed. The steps, their order and their roundings are those of the reference, which
stays in use on CPUs, for gradients, and wherever Triton or its compiler is missing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import current
from tiltproof.enclosures.rounding import SMALLEST
from tiltproof.kernels.registry import given_up, kernel, trusted

BLOCK = 1024
MOST_SYMBOLS = 16
_kernels: dict[str, Any] = {}


def fused_relu(stack: Tensor, radius: Tensor, unit: float) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """(stack, radius, magnitude) of ReLU's form and where |center| < |first slope|, or None where the reference has to do it. ``unit``
    is not 0."""
    if len(stack) > MOST_SYMBOLS + 1 or not radius.numel() or _kernel() is None:
        return None
    try:
        return _launch(stack, radius, unit) if _trusted(stack.device, stack.dtype) else None
    except Exception as error:
        given_up(_kernels, "relu", error, "bounds")
        return None


def _trusted(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel does on this device what the reference does: looked at once, on numbers of all kinds."""
    key = f"{device} {dtype}"
    return trusted(_kernels, key, lambda: _agrees(device, dtype), f"Triton's kernel and the reference differ on {key}")


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    from tiltproof.enclosures.affine_form import AffineForm
    from tiltproof.enclosures.quadratic_relu import kinked
    from tiltproof.enclosures.relu import zonotope_relu

    generator = torch.Generator().manual_seed(0)
    for symbols in (0, 1, 3):
        stack = torch.randn(1 + symbols, 3000, dtype=dtype, generator=generator)
        radius = torch.rand(3000, dtype=dtype, generator=generator) * 10.0 ** -torch.arange(3000).remainder(12)
        stack[0, :4], radius[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0]), 0.0
        radius[4:6] = torch.tensor([torch.inf, torch.nan])
        stack[:, 6:9] = 0.0
        form = AffineForm(stack.to(device), radius.to(dtype).to(device))
        wanted = zonotope_relu(form)
        *found, kinks = _launch(form.stack, form.radius, form.unit)
        if symbols and not bool((kinks == kinked(form)).all()):
            return False
        for mine, reference in zip(found, (wanted.stack, wanted.radius, wanted.magnitude()), strict=True):
            # a fused multiply-add in one of them, and none in the other, is all that may differ
            near = torch.isclose(mine, reference, rtol=4 * form.unit, atol=0.0, equal_nan=True)
            if not bool(near.all()):
                return False
    return True


def _launch(stack: Tensor, radius: Tensor, unit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not _same_order(stack, radius):
        stack, radius = stack.contiguous(), radius.contiguous()
    new_stack, new_radius, size = torch.empty_like(stack), torch.empty_like(radius), torch.empty_like(radius)
    kinks = torch.empty_like(radius, dtype=torch.uint8)
    symbols, entries = len(stack) - 1, radius.numel()
    numbers = factors(symbols, unit, stack.dtype, stack.device)
    single = stack.dtype == torch.float32
    arguments = (stack, radius, new_stack, new_radius, size, kinks, numbers, entries, symbols, single, BLOCK)
    with current(stack.device):
        _kernel()[(-(-entries // BLOCK),)](*arguments, enable_fp_fusion=False)
    return new_stack, new_radius, size, kinks.view(torch.bool)


def _same_order(stack: Tensor, radius: Tensor) -> bool:
    """Whether planes lie one after the other, each without gaps and in the radius's order, whatever that is (channels last, say)."""
    if stack.stride() != (radius.numel(), *radius.stride()):
        return False
    expected = 1
    for stride, size in sorted(zip(radius.stride(), radius.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


@lru_cache(maxsize=64)
def factors(symbols: int, unit: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers of the steps, rounded to the dtype as torch rounds a number that meets a tensor; sent to a device once."""
    smallest = SMALLEST[dtype]
    reach = (symbols + 2) * unit, 1 + (symbols + 10) * unit, smallest * (symbols + 10)
    return torch.tensor([*reach, smallest, 8 * unit, 16 * smallest], dtype=dtype, device=device)


def _kernel() -> Any:
    return kernel(_kernels, "relu", "tiltproof.kernels.triton.relu")
