"""The kernels for contrast, brightness and their clamp: tracing, launch and self-check. Two launches; the reference makes about eighty.

As in `pixels.py`, the first launch makes a table of what each pair's parameters do to a pixel (`matrix_program.py`). The second
(`triton/photometric.py`) reads the image's forms once and writes them once, in the dtype that is wanted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import accelerates
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import SMALLEST, UNIT
from tiltproof.kernels.matrix_program import OPERATIONS, Entries, Tape, Traced, constants
from tiltproof.kernels.relu import factors, relu
from tiltproof.kernels.triton.matrix_entries import entries as entries_kernel
from tiltproof.kernels.triton.photometric import values as values_kernel
from tiltproof.pixels.api import affine_pixelwise
from tiltproof.pixels.coordinates import symbols
from tiltproof.pixels.photometric import changed_form
from tiltproof.transforms.base import Transform

BLOCK = 128
"""Pixels of one program."""
WARPS = 4
"""Warps of one program."""
MOST_SYMBOLS = 8
"""Symbols of a form, at most."""
MOST_PARTS = 8
"""Changes of an image in one launch, at most."""
Changes = tuple[Entries, int]
"""The forms that a run needs, and a program of what each does to the image."""


def _possible(image: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor, *_: object) -> bool:
    """Whether shapes, dtypes and devices are those the kernels assume; blocks are counted in 32 bits."""
    tensors = (image.stack, image.radius, low, high)
    pairs, entries = len(image), image.radius[0].numel() if len(image) else 0
    return (
        all(tensor.dtype == torch.float64 and tensor.device == low.device for tensor in tensors)
        and not any(tensor.requires_grad for tensor in tensors)
        and bool(image.unit)
        and not image.quadratic
        and low.shape == high.shape == (pairs, image.symbols)
        and 0 < pairs * -(-entries // BLOCK) < 2**31
        and entries < 2**30
    )


def _plan(
    image: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor, dtype: torch.dtype
) -> tuple[Any, ...] | None:
    changes = changes_of(transform, tuple(run))
    return None if changes is None else (image, transform, run, changes, low, high, dtype)


class _Recorded:
    """Stands for an image and records each operation on it, with the place of the form it takes."""

    def __init__(self, steps: tuple[tuple[str, int], ...] = ()) -> None:
        self.steps = steps

    def __add__(self, other: object) -> _Recorded:
        return _Recorded((*self.steps, ("add", other.place))) if isinstance(other, Traced) else NotImplemented

    def __mul__(self, other: object) -> _Recorded:
        return _Recorded((*self.steps, ("times", other.place))) if isinstance(other, Traced) else NotImplemented


def changes_of(transform: Transform, run: tuple[int, ...]) -> tuple[Entries, int] | None:
    """The forms that a run of pixelwise parts needs, and how each changes the image; None for formulas that do anything else.

    Re-traced on every call: a user-defined part may hold state that does not distinguish it from other instances of its class, so results
    cannot be cached.
    """
    tape, image = Tape(len(run)), _Recorded()
    try:
        for place, k in enumerate(run):
            image = transform.parts[k].pixels(image, Traced(tape, place))
    except (AttributeError, TypeError):
        return None
    if not isinstance(image, _Recorded) or len(image.steps) > MOST_PARTS or len(transform.parts) > MOST_SYMBOLS:
        return None
    forms = tuple(place for _, place in image.steps)
    steps = tuple(tape.steps)
    entries = Entries(run[0], len(run), steps, 0, (), forms, (), len(transform.parts), False)
    return entries, sum(OPERATIONS.index(step) << 8 * k for k, (step, _) in enumerate(image.steps))


def _reference(
    image: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor, dtype: torch.dtype
) -> AffineForm:
    """The reference step by step, without another kernel or the CPU's steps in the clamp."""
    forms, zonotope_relu = symbols(low, high), relu.reference
    for k in run:
        value = forms[k].exactly(lambda entries: entries.view(-1, 1, 1, 1))
        image = changed_form(transform.parts[k], image, value, transform.padding)
    clamped: AffineForm = -zonotope_relu(-zonotope_relu(image) + 1.0) + 1.0
    return clamped.to(dtype)


def _agrees(transform: Transform, run: list[int], changes: Changes, dtype: torch.dtype, device: torch.device) -> bool:
    """Compare with the reference: pixels inside [0, 1], outside and across its ends, with forms of all widths and some that are not
    finite; boxes from the whole range down to a point."""
    generator = torch.Generator().manual_seed(0)
    pairs, size, parameters = 9, (2, 7, 2 * BLOCK // 7), len(transform.parts)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    half = torch.tensor([0.0, *(8.0**-k for k in range(pairs - 1))], dtype=torch.float64).unsqueeze(1)
    middle = low + (high - low) * torch.rand(pairs, parameters, dtype=torch.float64, generator=generator)
    below, above = ((middle + side * half * (high - low) / 2).clamp(low, high).to(device) for side in (-1, 1))
    stack = torch.rand(1 + parameters, pairs, *size, dtype=torch.float64, generator=generator)
    powers = 10.0 ** -torch.arange(stack[0].numel()).remainder(17).double().view_as(stack[0])
    stack[0], stack[1:] = 1.5 * stack[0] - 0.25, (stack[1:] - 0.5) * powers
    radius = torch.rand(stack[0].shape, dtype=torch.float64, generator=generator) * powers.flip(3)
    stack[:, 1], radius[2], stack[1:, 3] = 0.0, 0.0, 0.0
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    stack[0, 4, 0, 0, :3], stack[1, 5, 0, 0, :3], radius[6, 0, 0, :2] = odd, odd, odd[:2]
    image = AffineForm(stack.to(device), radius.to(device))
    found = _launch(image, changes, below, above, dtype)
    wanted = _reference(image, transform, run, below, above, dtype)
    unit = UNIT[dtype]
    near = torch.isclose(found.stack, wanted.stack, rtol=8 * unit, atol=16 * UNIT[torch.float64], equal_nan=True).all()
    # they may differ by a fused multiply-add in one of them and none in the other, and by the order of sums
    close = torch.isclose(found.radius, wanted.radius, rtol=8 * unit, atol=4 * UNIT[torch.float64], equal_nan=True)
    return bool(near and close.all())


def _check(
    image: AffineForm, transform: Transform, run: list[int], changes: Changes, low: Tensor, high: Tensor,
    dtype: torch.dtype,
) -> bool:  # fmt: skip
    return _agrees(transform, run, changes, dtype, image.device)


@accelerates(
    affine_pixelwise,
    when=_possible,
    plan=_plan,
    key=lambda image, transform, run, changes, low, high, dtype: (image.device, changes, dtype),
    check=_check,
    slows="pixel bounds",
)
def values(
    image: AffineForm, transform: Transform, run: list[int], changes: Changes, low: Tensor, high: Tensor,
    dtype: torch.dtype,
) -> AffineForm:  # fmt: skip
    """Bounds after a run of pixelwise parts and their clamp."""
    return _launch(image, changes, low, high, dtype)


def _launch(image: AffineForm, changes: Changes, low: Tensor, high: Tensor, dtype: torch.dtype) -> AffineForm:
    entries, program = changes
    table, _ = entries.table(entries_kernel, low, high)
    stack, radius = image.stack.contiguous(), image.radius.contiguous()
    new_stack, new_radius = torch.empty_like(stack, dtype=dtype), torch.empty_like(radius, dtype=dtype)
    pixels = radius[0].numel()
    arguments = (stack, radius, table, new_stack, new_radius, _factors(entries, low.device), len(low), pixels)
    special = (program, len(entries.forms), entries.symbols, dtype == torch.float32, BLOCK)
    grid = (len(low) * -(-pixels // BLOCK),)
    values_kernel[grid](*arguments, *special, enable_fp_fusion=False, num_warps=WARPS)
    return AffineForm(new_stack, new_radius)


@cache  # never dropped: recorded graphs read them
def _factors(entries: Entries, device: torch.device) -> Tensor:
    """The constants of the steps, in the order of `triton/photometric.py`; sent to a device once."""
    unit, single = UNIT[torch.float64], torch.float32
    rounded = torch.tensor([1 + 4 * UNIT[single], 8 * SMALLEST[single]], dtype=torch.float64, device=device)
    return torch.cat([constants(entries, device)[0], factors(entries.symbols, unit, torch.float64, device), rounded])
