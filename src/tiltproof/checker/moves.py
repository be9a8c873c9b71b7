"""Operations that only move numbers about: exact, and never across the batch dimension, whose pairs must not mix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import Form, no_rule, rule


def view_of(form: Form, data: Tensor, name: str) -> Form:
    if data.ndim < 2 or data.shape[:2] != form.rows.shape[:2]:
        raise no_rule(name, "across the batch dimension")
    result = Form(data, form.unit)
    form.shared = result.shared = Form.strided = True
    return result


def reshaped(form: Form, data: Tensor, name: str) -> Form:
    """The same numbers in the same order: what is written in place through one is seen in the other, as in torch."""
    if data.ndim < 2 or data.shape[:2] != form.rows.shape[:2]:
        raise no_rule(name, "across the batch dimension")
    result = Form(data, form.unit, store=form.store)
    result.shared = form.shared
    result.aliased = form.aliased = True
    return result


def positive(dim: int, form: Form, name: str) -> int:
    """A dimension counted from the front; the batch dimension, 0, is refused."""
    if not isinstance(dim, int) or not -form.ndim < dim < form.ndim or dim == 0:
        raise no_rule(name, f"along dimension {dim} of {list(form.shape)}")
    return dim % form.ndim


def numbers(sizes: Sequence[Any]) -> list[int]:
    return list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)


@rule(torch.Tensor.size)
def size(x: Form, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


@rule(torch.Tensor.dim)
def dim(x: Form) -> int:
    return x.ndim


@rule(torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
def reshape(x: Form, *sizes: Any, shape: Any = None) -> Form:
    wanted = numbers(sizes if shape is None else (shape,))
    if -1 in wanted:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = math.prod(x.shape) // rest if rest > 0 else 0
    if not wanted or wanted[0] != x.shape[0] or math.prod(wanted) != math.prod(x.shape):
        raise no_rule("reshape", f"to {wanted} from {list(x.shape)}: the batch dimension must stay")
    return reshaped(x, x.rows.reshape(len(x.rows), *wanted), "reshape")


@rule(torch.flatten, torch.Tensor.flatten)
def flatten(x: Form, start_dim: int = 0, end_dim: int = -1) -> Form:
    first = positive(start_dim, x, "flatten")
    return reshaped(x, x.rows.flatten(first + 1, end_dim % x.ndim + 1), "flatten")


@rule(torch.transpose, torch.Tensor.transpose)
def transpose(x: Form, dim0: int, dim1: int) -> Form:
    a, b = positive(dim0, x, "transpose"), positive(dim1, x, "transpose")
    return view_of(x, x.rows.transpose(a + 1, b + 1), "transpose")


@rule(torch.permute, torch.Tensor.permute)
def permute(x: Form, *dims: Any) -> Form:
    order = [d % x.ndim for d in numbers(dims)]
    if order[:1] != [0]:
        raise no_rule("permute", "of the batch dimension")
    return view_of(x, x.rows.permute(0, *(d + 1 for d in order)), "permute")


@rule(torch.unsqueeze, torch.Tensor.unsqueeze)
def unsqueeze(x: Form, dim: int) -> Form:
    place = dim if dim >= 0 else dim + x.ndim + 1
    return view_of(x, x.rows.unsqueeze(place + 1), "unsqueeze") if place > 0 else _refuse("unsqueeze")


@rule(torch.squeeze, torch.Tensor.squeeze)
def squeeze(x: Form, dim: int | None = None) -> Form:
    return (
        view_of(x, x.rows.squeeze(positive(dim, x, "squeeze") + 1), "squeeze")
        if dim is not None
        else _refuse("squeeze")
    )


def _refuse(name: str) -> Form:
    raise no_rule(name, "that may touch the batch dimension")


@rule(torch.Tensor.__getitem__)
def item(x: Form, index: Any) -> Form:
    index = index if isinstance(index, tuple) else (index,)
    if index[:1] not in ((Ellipsis,), (slice(None),)) or any(type(i) not in (slice, int, type(...)) for i in index):
        raise no_rule("indexing", f"with {index}")
    if index[0] is Ellipsis and len(index) - 1 >= x.ndim:
        raise no_rule("indexing", "into the batch dimension")
    return view_of(x, x.rows[(slice(None), *index)], "indexing")


@rule(F.pad)
def pad(input: Form, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Form:
    """Zeros around the picture: centre, slopes and radius there are 0."""
    sizes = list(pad)
    if mode != "constant" or value not in (None, 0) or any(type(n) is not int or n < 0 for n in sizes):
        raise no_rule("pad", f"by {sizes} with mode {mode!r} and value {value}")
    if len(sizes) % 2 or len(sizes) > 2 * (input.ndim - 1):
        raise no_rule("pad", "of the batch dimension")
    return Form(F.pad(input.rows, sizes), input.unit)


@rule(torch.cat, torch.concat)
def cat(forms: Sequence[Any], dim: int = 0) -> Form:
    if not all(isinstance(form, Form) for form in forms):
        raise no_rule("cat", "with constants")
    return Form(torch.cat([form.rows for form in forms], positive(dim, forms[0], "cat") + 1), forms[0].unit)


@rule(torch.Tensor.contiguous)
def contiguous(x: Form) -> Form:
    """In torch the tensor itself or a copy, depending on its strides; so writing to either in place is refused."""
    return view_of(x, x.rows, "contiguous")


@rule(torch.clone, torch.Tensor.clone)
def clone(x: Form) -> Form:
    return Form(x.rows, x.unit, x.made_by)


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, torch.dropout)
def dropout(x: Form, p: float = 0.5, training: bool = True, inplace: bool = False) -> Form:
    """In eval mode dropout is the identity."""
    if training:
        raise no_rule("dropout", "in training mode")
    return x
