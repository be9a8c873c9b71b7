"""The zonotope relaxation of ReLU in one pass over memory; the reference makes about thirty.

The kernel takes the steps of `enclosures.relu.zonotope_relu` in their order, with their roundings.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tiltproof.device import accelerates
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import kinked, zonotope_relu
from tiltproof.enclosures.rounding import SMALLEST
from tiltproof.kernels.triton.relu import relu as relu_kernel

BLOCK = 1024
"""Entries of one program."""
MOST_SYMBOLS = 16
"""Symbols of a form, at most."""


def _possible(form: AffineForm, negative_slope: float = 0.0) -> bool:
    plain = bool(form.unit) and not negative_slope and form.symbols <= MOST_SYMBOLS
    return plain and not form.stack.requires_grad and bool(form.radius.numel())


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare with the reference on numbers of all kinds."""
    generator = torch.Generator().manual_seed(0)
    for symbols in (0, 1, 3):
        stack = torch.randn(1 + symbols, 3000, dtype=dtype, generator=generator)
        radius = torch.rand(3000, dtype=dtype, generator=generator) * 10.0 ** -torch.arange(3000).remainder(12)
        stack[0, :4], radius[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0]), 0.0
        radius[4:6] = torch.tensor([torch.inf, torch.nan])
        stack[:, 6:9] = 0.0
        form = AffineForm(stack.to(device), radius.to(dtype).to(device))
        wanted = relu.reference(form)
        *found, kinks = _launch(form.stack, form.radius, form.unit)
        if symbols and not bool((kinks == kinked(form)).all()):
            return False
        for mine, reference in zip(found, (wanted.stack, wanted.radius, wanted.magnitude()), strict=True):
            # they may differ by a fused multiply-add in one of them and none in the other
            near = torch.isclose(mine, reference, rtol=4 * form.unit, atol=0.0, equal_nan=True)
            if not bool(near.all()):
                return False
    return True


@accelerates(
    zonotope_relu,
    when=_possible,
    key=lambda form, _=0.0: (form.device, form.stack.dtype),
    check=lambda form, _=0.0: _agrees(form.device, form.stack.dtype),
)
def relu(form: AffineForm, _: float = 0.0) -> AffineForm:
    """ReLU's form; notes on a quadratic ``form`` where its kinks are."""
    stack, radius, magnitude, kinks = _launch(form.stack, form.radius, form.unit)
    form.kinks = kinks if form.quadratic and form.symbols else None
    return AffineForm(stack, radius, form.unit).with_magnitude(magnitude)


def _launch(stack: Tensor, radius: Tensor, unit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stack, radius and magnitude of ReLU's form, and where |center| < |first slope|."""
    if not _same_order(stack, radius):
        stack, radius = stack.contiguous(), radius.contiguous()
    new_stack, new_radius, size = torch.empty_like(stack), torch.empty_like(radius), torch.empty_like(radius)
    kinks = torch.empty_like(radius, dtype=torch.uint8)
    symbols, entries = len(stack) - 1, radius.numel()
    numbers = factors(symbols, unit, stack.dtype, stack.device)
    single = stack.dtype == torch.float32
    arguments = (stack, radius, new_stack, new_radius, size, kinks, numbers, entries, symbols, single, BLOCK)
    relu_kernel[(-(-entries // BLOCK),)](*arguments, enable_fp_fusion=False)
    return new_stack, new_radius, size, kinks.view(torch.bool)


def _same_order(stack: Tensor, radius: Tensor) -> bool:
    """Whether the planes follow each other, each without gaps and in the radius's memory order (channels last, for instance)."""
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
    """The constants of the steps, rounded to the dtype as torch rounds a Python number, and sent to a device once."""
    smallest = SMALLEST[dtype]
    reach = (symbols + 2) * unit, 1 + (symbols + 10) * unit, smallest * (symbols + 10)
    return torch.tensor([*reach, smallest, 8 * unit, 16 * smallest], dtype=dtype, device=device)
