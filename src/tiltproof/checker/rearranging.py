"""Rules for torch functions that only rearrange numbers, repeat them or put constants between them: exact, never across the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import TINY32, Form, no_rule, rule
from tiltproof.checker.operations import numbers, positive, view_of


def moved(x: Form, function: Callable[[Tensor], Tensor], name: str) -> Form:
    """Apply a function of a batch, [N, ...] -> [N, ...], to center, slopes and radius alike; the result is a copy."""
    data = function(x.rows.flatten(0, 1))
    if data.ndim < 1 or data.shape[0] != x.rows.shape[0] * x.rows.shape[1]:
        raise no_rule(name, "across the batch dimension")
    return Form(data.unflatten(0, x.rows.shape[:2]).clone(), x.unit)


@rule(torch.select, torch.Tensor.select)
def select(x: Form, dim: int, index: int) -> Form:
    return view_of(x, x.rows.select(positive(dim, x, "select") + 1, index), "select")


@rule(torch.narrow, torch.Tensor.narrow)
def narrow(x: Form, dim: int, start: int, length: int) -> Form:
    return view_of(x, x.rows.narrow(positive(dim, x, "narrow") + 1, start, length), "narrow")


@rule(torch.split, torch.Tensor.split)
def split(x: Form, split_size_or_sections: Any, dim: int = 0) -> tuple[Form, ...]:
    parts = x.rows.split(split_size_or_sections, positive(dim, x, "split") + 1)
    return tuple(view_of(x, part, "split") for part in parts)


@rule(torch.chunk, torch.Tensor.chunk)
def chunk(x: Form, chunks: int, dim: int = 0) -> tuple[Form, ...]:
    return tuple(view_of(x, part, "chunk") for part in x.rows.chunk(chunks, positive(dim, x, "chunk") + 1))


@rule(torch.unbind, torch.Tensor.unbind)
def unbind(x: Form, dim: int = 0) -> tuple[Form, ...]:
    return tuple(view_of(x, part, "unbind") for part in x.rows.unbind(positive(dim, x, "unbind") + 1))


@rule(torch.stack)
def stack(tensors: Sequence[Any], dim: int = 0) -> Form:
    if not all(isinstance(form, Form) for form in tensors):
        raise no_rule("stack", "with constants")
    place = dim if dim >= 0 else dim + tensors[0].ndim + 1
    if place <= 0:
        raise no_rule("stack", "along the batch dimension")
    return Form(torch.stack([form.rows for form in tensors], place + 1), tensors[0].unit)


@rule(torch.movedim, torch.Tensor.movedim, torch.moveaxis, torch.Tensor.moveaxis)
def movedim(x: Form, source: Any, destination: Any) -> Form:
    lists = [[dims] if isinstance(dims, int) else list(dims) for dims in (source, destination)]
    first, second = ([positive(d, x, "movedim") + 1 for d in dims] for dims in lists)
    return view_of(x, x.rows.movedim(first, second), "movedim")


@rule(torch.swapaxes, torch.Tensor.swapaxes, torch.swapdims, torch.Tensor.swapdims)
def swapaxes(x: Form, axis0: int, axis1: int) -> Form:
    a, b = positive(axis0, x, "swapaxes"), positive(axis1, x, "swapaxes")
    return view_of(x, x.rows.transpose(a + 1, b + 1), "swapaxes")


@rule(torch.unflatten, torch.Tensor.unflatten)
def unflatten(x: Form, dim: int, sizes: Any) -> Form:
    return view_of(x, x.rows.unflatten(positive(dim, x, "unflatten") + 1, list(sizes)), "unflatten")


@rule(torch.Tensor.expand)
def expand(x: Form, *sizes: Any) -> Form:
    wanted = numbers(sizes)
    if len(wanted) != x.ndim or wanted[0] not in (-1, x.shape[0]):
        raise no_rule("expand", f"from {list(x.shape)} to {wanted}")
    return view_of(x, x.rows.expand(-1, -1, *wanted[1:]), "expand")


@rule(torch.Tensor.expand_as)
def expand_as(x: Form, other: Any) -> Form:
    return expand(x, *other.shape)


@rule(torch.Tensor.repeat)
def repeat(x: Form, *sizes: Any) -> Form:
    wanted = numbers(sizes)
    if len(wanted) != x.ndim or wanted[0] != 1:
        raise no_rule("repeat", f"of {list(x.shape)} by {wanted}")
    return moved(x, lambda data: data.repeat(*wanted), "repeat")


@rule(torch.tile, torch.Tensor.tile)
def tile(x: Form, *dims: Any) -> Form:
    wanted = numbers(dims)
    return repeat(x, [1] * (x.ndim - len(wanted)) + wanted)


@rule(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def repeat_interleave(x: Form, repeats: Any, dim: int | None = None) -> Form:
    if dim is None or type(repeats) is not int:
        raise no_rule("repeat_interleave", f"by {repeats} along {dim}")
    place = positive(dim, x, "repeat_interleave")
    return moved(x, lambda data: data.repeat_interleave(repeats, place), "repeat_interleave")


@rule(torch.flip, torch.Tensor.flip)
def flip(x: Form, *dims: Any) -> Form:
    places = [positive(d, x, "flip") for d in numbers(dims)]
    return moved(x, lambda data: data.flip(places), "flip")


@rule(torch.roll, torch.Tensor.roll)
def roll(x: Form, shifts: Any, dims: Any = None) -> Form:
    if dims is None:
        raise no_rule("roll", "of the flat tensor")
    places = [positive(d, x, "roll") for d in ([dims] if isinstance(dims, int) else dims)]
    return moved(x, lambda data: data.roll(shifts, places), "roll")


@rule(torch.rot90, torch.Tensor.rot90)
def rot90(x: Form, k: int = 1, dims: Sequence[int] = (0, 1)) -> Form:
    places = [positive(d, x, "rot90") for d in dims]
    return moved(x, lambda data: data.rot90(k, places), "rot90")


@rule(torch.index_select, torch.Tensor.index_select)
def index_select(x: Form, dim: int, index: Tensor) -> Form:
    place = positive(dim, x, "index_select")
    return moved(x, lambda data: data.index_select(place, index), "index_select")


@rule(torch.gather, torch.Tensor.gather)
def gather(x: Form, dim: int, index: Tensor) -> Form:
    place = positive(dim, x, "gather")
    if not isinstance(index, Tensor) or not torch.equal(index, index[:1].expand_as(index)):
        raise no_rule("gather", "with an index that differs by image")
    each = index[:1]
    return moved(x, lambda data: data.gather(place, each.expand(len(data), *each.shape[1:])), "gather")


@rule(torch.pixel_shuffle, F.pixel_shuffle)
def pixel_shuffle(x: Form, upscale_factor: int) -> Form:
    return moved(x, lambda data: F.pixel_shuffle(data, upscale_factor), "pixel_shuffle")


@rule(torch.pixel_unshuffle, F.pixel_unshuffle)
def pixel_unshuffle(x: Form, downscale_factor: int) -> Form:
    return moved(x, lambda data: F.pixel_unshuffle(data, downscale_factor), "pixel_unshuffle")


@rule(torch.channel_shuffle, F.channel_shuffle, torch.native_channel_shuffle)
def channel_shuffle(x: Form, groups: int) -> Form:
    """Channel c = g C' + k goes to k G + g."""
    if x.ndim < 3 or x.shape[1] % groups:
        raise no_rule("channel_shuffle", f"of {list(x.shape)}")
    return moved(x, lambda data: data.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2), "channel_shuffle")


@rule(F.unfold)
def unfold(input: Form, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Form:
    if input.ndim != 4:
        raise no_rule("unfold", "without a batch")
    return moved(input, lambda data: F.unfold(data, kernel_size, dilation, padding, stride), "unfold")


@rule(torch.zeros_like)
def zeros_like(input: Form, **_options: Any) -> Form:
    return Form(torch.zeros_like(input.rows), input.unit)


@rule(F.pad)
def pad(input: Form, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Form:
    """Pad, or cut off, every dimension but the batch. A constant is a center; slopes and radius are 0 there."""
    sizes = list(pad)
    if mode not in ("constant", "reflect", "replicate", "circular") or any(type(n) is not int for n in sizes):
        raise no_rule("pad", f"by {sizes} with mode {mode!r}")
    if len(sizes) % 2 or len(sizes) > 2 * (input.ndim - 1):
        raise no_rule("pad", "of the batch dimension")
    if mode != "constant":
        return moved(input, lambda data: F.pad(data, sizes, mode), "pad")
    number = 0.0 if value is None else float(value)
    result = Form(F.pad(input.rows, sizes), input.unit)
    if number:
        if not abs(number) < 2.0**120:
            raise no_rule("pad", f"with {value}")
        inside = F.pad(torch.ones_like(input.center), sizes) > 0
        result.rows[0].masked_fill_(~inside, number)
        # a network in float32 has the rounded number
        rounded = abs(float(torch.tensor(number, dtype=torch.float32)) - number)
        result.rows[-1].masked_fill_(~inside, rounded + (TINY32 if input.unit else 0.0))
    return result


@rule(torch.cat, torch.concat)
def cat(tensors: Sequence[Any], dim: int = 0) -> Form:
    forms = [entry for entry in tensors if isinstance(entry, Form)]
    place = positive(dim, forms[0], "cat")
    return Form(torch.cat([_rows(entry, forms[0]) for entry in tensors], place + 1), forms[0].unit)


def _rows(entry: Any, like: Form) -> Tensor:
    """The rows of a form, or of a constant that is the same for every image."""
    if isinstance(entry, Form):
        return entry.rows
    same = isinstance(entry, Tensor) and entry.is_floating_point() and entry.ndim == like.ndim
    if not same or len(entry) != like.shape[0] or not torch.equal(entry, entry[:1].expand_as(entry)):
        raise no_rule("cat", "with a constant that is not one row of numbers, the same for every image")
    center = entry.detach().to(like.device, torch.float64)
    rows = torch.zeros(len(like.rows), *center.shape, dtype=torch.float64, device=like.device)
    rows[0] = center
    if like.unit:  # a subnormal number may be flushed to zero
        rows[-1] = torch.where((center != 0) & (center.abs() < 2.0**-126), TINY32, 0.0)
    return rows


@rule(torch.Tensor.__getitem__)
def item(x: Form, index: Any) -> Form:
    """Slices, numbers, None and at most one list or tensor of indices, behind the batch."""
    index = index if isinstance(index, tuple) else (index,)
    first = index[0] if index else None
    lists = [i for i in index if isinstance(i, (list, Tensor))]
    known = all(i is None or type(i) in (slice, int, type(...)) or isinstance(i, (list, Tensor)) for i in index)
    whole = first is Ellipsis or (isinstance(first, slice) and first == slice(None))
    if not known or not whole or len(lists) > 1 or (lists and any(type(i) is int for i in index)):
        raise no_rule("indexing", f"with {index}")
    taken = sum(1 for i in index if i is not None and i is not Ellipsis)
    taken += sum(i.ndim - 1 for i in lists if isinstance(i, Tensor) and i.dtype == torch.bool)
    if first is Ellipsis and taken >= x.ndim:
        raise no_rule("indexing", "into the batch dimension")
    return view_of(x, x.rows[(slice(None), *index)], "indexing")


def nearest(x: Form, sizes: list[int], factors: list[Any], mode: str) -> Form:
    """torch's own choice of neighbors, which must not depend on the precision that it is worked out in."""
    options: dict[str, Any] = {"size": sizes} if factors[0] is None else {"scale_factor": factors}
    plane = torch.arange(math.prod(x.shape[2:]), dtype=torch.float64).view(1, 1, *x.shape[2:])
    chosen = F.interpolate(plane, mode=mode, **options).long()
    if plane.numel() > 2**24 or not torch.equal(chosen, F.interpolate(plane.float(), mode=mode, **options).long()):
        raise no_rule("interpolate", f"to {sizes} with mode {mode!r}, where rounding decides")
    flat = chosen.flatten().to(x.device)
    return moved(x, lambda data: data.flatten(2)[:, :, flat].unflatten(2, chosen.shape[2:]), "interpolate")
