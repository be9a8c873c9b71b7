"""Contrast, brightness and their clamp in two passes, on a GPU: what `changed_form` and `clamp01` do in some eighty.

Like `fused_pixels.py`: the first makes a table of what each pair's parameters do to a pixel (`fused_entries.py`), the second
(`triton/photometric.py`) reads the picture's forms once and writes them once, already in the dtype that is wanted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import current
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import zonotope_relu
from tiltproof.enclosures.rounding import SMALLEST, UNIT
from tiltproof.kernels.matrix_program import OPERATIONS, Entries, Writer, Written, constants
from tiltproof.kernels.registry import given_up, kernel, trusted
from tiltproof.kernels.relu import factors
from tiltproof.pixels.coordinates import symbols
from tiltproof.pixels.photometric import changed_form
from tiltproof.transforms.base import Transform

BLOCK, WARPS = 128, 4
MOST_SYMBOLS, MOST_PARTS = 8, 8
_trust: dict[object, bool] = {}
_kernels: dict[str, Any] = {}


def fused_values(
    picture: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor, dtype: torch.dtype
) -> AffineForm | None:
    """Bounds after a run of pixelwise parts, in ``dtype``, or None where the reference has to make them."""
    if not (_on_gpu(low) and _possible(picture, low, high)) or _kernel("values") is None or _kernel("entries") is None:
        return None
    changes = changes_of(transform, tuple(run))
    if changes is None:
        return None
    try:
        with current(low.device):
            trust = _trusted(picture, transform, run, changes, dtype)
            return _launch(picture, changes, low, high, dtype) if trust else None
    except Exception as error:
        given_up(_kernels, "values", error, "pixel bounds")
        return None


def reference(
    picture: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor, dtype: torch.dtype
) -> AffineForm:
    """What the kernels are compared with: step by step, as `pair_bounds` does it, but for another kernel or a CPU's way in the clamp."""
    forms = symbols(low, high)
    for k in run:
        value = forms[k].exactly(lambda entries: entries.view(-1, 1, 1, 1))
        picture = changed_form(transform.parts[k], picture, value, transform.padding)
    return (-zonotope_relu(-zonotope_relu(picture) + 1.0) + 1.0).to(dtype)


class _Picture:
    """Stands for a picture; what is done to it is written down: how, and by which of the forms."""

    def __init__(self, steps: tuple[tuple[str, int], ...] = ()) -> None:
        self.steps = steps

    def __add__(self, other: object) -> _Picture:
        return _Picture((*self.steps, ("add", other.place))) if isinstance(other, Written) else NotImplemented

    def __mul__(self, other: object) -> _Picture:
        return _Picture((*self.steps, ("times", other.place))) if isinstance(other, Written) else NotImplemented


def changes_of(transform: Transform, run: tuple[int, ...]) -> tuple[Entries, int] | None:
    """The forms that a run of pixelwise parts needs, and how each changes the picture; None for formulas that do anything else.

    Written down anew each time: a part of one's own may hold numbers that do not tell it from another of its class.
    """
    writer, picture = Writer(len(run)), _Picture()
    try:
        for place, k in enumerate(run):
            picture = transform.parts[k].pixels(picture, Written(writer, place))
    except (AttributeError, TypeError):
        return None
    if not isinstance(picture, _Picture) or len(picture.steps) > MOST_PARTS or len(transform.parts) > MOST_SYMBOLS:
        return None
    forms = tuple(place for _, place in picture.steps)
    steps = tuple(writer.steps)
    entries = Entries(run[0], len(run), steps, 0, (), forms, (), len(transform.parts), False)
    return entries, sum(OPERATIONS.index(step) << 8 * k for k, (step, _) in enumerate(picture.steps))


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _possible(picture: AffineForm, low: Tensor, high: Tensor) -> bool:
    """Whether shapes, dtypes and devices are those the kernels take on trust; blocks are counted in 32 bits."""
    tensors = (picture.stack, picture.radius, low, high)
    pairs, entries = len(picture), picture.radius[0].numel() if len(picture) else 0
    return (
        all(tensor.dtype == torch.float64 and tensor.device == low.device for tensor in tensors)
        and not any(tensor.requires_grad for tensor in tensors)
        and bool(picture.unit)
        and not picture.quadratic
        and low.shape == high.shape == (pairs, picture.symbols)
        and 0 < pairs * -(-entries // BLOCK) < 2**31
        and entries < 2**30
    )


def _launch(
    picture: AffineForm, changes: tuple[Entries, int], low: Tensor, high: Tensor, dtype: torch.dtype
) -> AffineForm:
    entries, program = changes
    table, _ = entries.table(_kernel("entries"), low, high)
    stack, radius = picture.stack.contiguous(), picture.radius.contiguous()
    new_stack, new_radius = torch.empty_like(stack, dtype=dtype), torch.empty_like(radius, dtype=dtype)
    pixels = radius[0].numel()
    arguments = (stack, radius, table, new_stack, new_radius, _factors(entries, low.device), len(low), pixels)
    special = (program, len(entries.forms), entries.symbols, dtype == torch.float32, BLOCK)
    grid = (len(low) * -(-pixels // BLOCK),)
    _kernel("values")[grid](*arguments, *special, enable_fp_fusion=False, num_warps=WARPS)
    return AffineForm(new_stack, new_radius)


@cache  # for good: recorded graphs read them
def _factors(entries: Entries, device: torch.device) -> Tensor:
    """The numbers of the steps, in the order of `triton/photometric.py`; sent to a device once."""
    unit, single = UNIT[torch.float64], torch.float32
    rounded = torch.tensor([1 + 4 * UNIT[single], 8 * SMALLEST[single]], dtype=torch.float64, device=device)
    return torch.cat([constants(entries, device)[0], factors(entries.symbols, unit, torch.float64, device), rounded])


def _trusted(
    picture: AffineForm, transform: Transform, run: list[int], changes: tuple[Entries, int], dtype: torch.dtype
) -> bool:
    """Whether the kernels do on this device what the reference does: looked at once for whatever they are compiled for."""
    device = picture.radius.device
    key = device, changes, dtype
    if key not in _trust and picture.radius.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # nothing can be compiled or compared while a graph is recorded

    difference = f"Triton's kernels for {transform} and the reference differ"
    return trusted(_trust, key, lambda: _agrees(transform, run, changes, dtype, device), difference)


def _agrees(
    transform: Transform, run: list[int], changes: tuple[Entries, int], dtype: torch.dtype, device: torch.device
) -> bool:
    """Pixels inside [0, 1], beside it and across its ends, with forms of all widths and some that are not finite; boxes from the whole
    range down to a point."""
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
    picture = AffineForm(stack.to(device), radius.to(device))
    found = _launch(picture, changes, below, above, dtype)
    wanted = reference(picture, transform, run, below, above, dtype)
    unit = UNIT[dtype]
    near = torch.isclose(found.stack, wanted.stack, rtol=8 * unit, atol=16 * UNIT[torch.float64], equal_nan=True).all()
    # a fused multiply-add in one of them, and none in the other, and another order of sums, are all that may differ
    close = torch.isclose(found.radius, wanted.radius, rtol=8 * unit, atol=4 * UNIT[torch.float64], equal_nan=True)
    return bool(near and close.all())


def _kernel(name: str) -> Any:
    module = {"values": "tiltproof.kernels.triton.photometric", "entries": "tiltproof.kernels.triton.matrix_entries"}[
        name
    ]
    return kernel(_kernels, name, module)
