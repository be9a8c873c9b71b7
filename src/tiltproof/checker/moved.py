"""Forms as a forward pass shows them while their batch dimension stands elsewhere, and torch's multi-head attention, which puts it there.

`Elsewhere` holds a form, with its batch first, and numbers its entries in the order shown. Functions that only rearrange are applied to
the numbers; once the batch is first again, the form is. A function along the last dimensions, of which the batch is none, is applied to
forms with the batch moved to the front, and its result is moved back. Nothing else has a rule, so no function can mix (image, box) pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.attention import attention
from tiltproof.checker.form import TURNS, Form, no_rule, rule
from tiltproof.checker.operations import linear

NAMES = {
    *TURNS,
    *("unsqueeze", "squeeze", "contiguous", "clone", "unflatten", "chunk", "split", "narrow"),
}


ALONG_LAST = {
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "relu", "gelu", "silu", "sigmoid", "tanh", "dropout"), 0),
    **dict.fromkeys(("linear", "layer_norm", "softmax"), 1),
    "matmul": 2,
}
"""Functions that keep all but this many of the last dimensions apart."""
WEIGHTED = ("linear", "layer_norm")
"""Functions whose constants belong to the last dimensions alone."""


class Elsewhere:
    """A form whose entries are shown in the order of ``place``, in which entry e of pair p has the number p n + e."""

    is_nested = False
    shape = property(lambda self: self.place.shape)
    ndim = property(lambda self: self.place.ndim)
    device = property(lambda self: self.form.device)
    dtype = property(lambda self: self.form.dtype)
    is_cuda = property(lambda self: self.form.is_cuda)

    def __init__(self, form: Form, place: Tensor) -> None:
        self.form, self.place = form, place

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.place.ndim

    def __getitem__(self, index: Any) -> Any:
        return shown(self.form, self.place[index])

    def __getattr__(self, name: str) -> Any:
        if name not in NAMES and name not in ALONG_LAST:
            raise AttributeError(
                f"the checker has no rule for Tensor.{name} where the batch dimension is not the first"
            )
        return functools.partial(elsewhere, getattr(torch.Tensor, name), self)

    def __add__(self, other: Any) -> Any:
        return elsewhere(torch.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return elsewhere(torch.sub, self, other)

    def __mul__(self, other: Any) -> Any:
        return elsewhere(torch.mul, self, other)

    def __truediv__(self, other: Any) -> Any:
        return elsewhere(torch.div, self, other)

    def __matmul__(self, other: Any) -> Any:
        return elsewhere(torch.matmul, self, other)

    def __neg__(self) -> Any:
        return elsewhere(torch.neg, self)

    __radd__, __rmul__ = __add__, __mul__

    def _in_place(self, other: Any) -> Any:
        """Refuse: other names of these numbers would not see the change."""
        raise no_rule("in-place arithmetic", "where the batch dimension is not the first")

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __imatmul__ = _in_place

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.multi_head_attention_forward:
            return multi_head_attention(*args, **(kwargs or {}))
        return elsewhere(function, *args, **(kwargs or {}))


def numbered(form: Form) -> Tensor:
    return torch.arange(math.prod(form.shape)).view(form.shape)


def shown(form: Form, found: Any) -> Any:
    """The form itself if its batch is first again."""
    if isinstance(found, (tuple, list)):
        return tuple(shown(form, part) for part in found)
    pairs, n = form.shape[0], math.prod(form.shape[1:])
    if found.ndim and found.shape[0] == pairs:
        begins = torch.arange(pairs).view(-1, *[1] * (found.ndim - 1)) * n
        if torch.equal(found, found[:1] + begins):
            rows = form.rows.flatten(2)[:, :, found[0].flatten().to(form.device)]
            result = Form(rows.view(*form.rows.shape[:2], *found.shape[1:]), form.unit)
            form.shared = result.shared = Form.strided = True
            return result
    return Elsewhere(form, found)


@rule("elsewhere")
def elsewhere(function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    name = getattr(function, "__name__", str(function))
    if name in ALONG_LAST:
        return _along_last(name, function, (x, *args), kwargs)
    if name not in NAMES or any(isinstance(entry, (Form, Elsewhere)) for entry in (*args, *kwargs.values())):
        raise no_rule(name, "where the batch dimension is not the first")
    form, place = (x.form, x.place) if isinstance(x, Elsewhere) else (x, numbered(x))
    form.shared = Form.strided = True
    return shown(form, function(place, *args, **kwargs))


def _along_last(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of values whose batch stands in the same place, before the dimensions that it goes along."""
    batch = _common_batch(name, args, kwargs)
    if batch is None:
        raise no_rule(name, "where the batch dimension is not the first")
    given = [
        shown(entry.form, entry.place.movedim(batch, 0)) if isinstance(entry, Elsewhere) else entry for entry in args
    ]
    result = Form.__torch_function__(function, (), tuple(given), kwargs)
    return elsewhere(torch.movedim, result, 0, batch)


def _common_batch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the dimension of the batch in all values, or None if the function may not be applied to them."""
    values = [entry for entry in args if isinstance(entry, Elsewhere)]
    ndim = values[0].ndim if values else 0
    if any(isinstance(entry, Form) for entry in args) or any(value.ndim != ndim for value in values):
        return None
    if not values or kwargs.get("inplace") or any(isinstance(entry, (Form, Elsewhere)) for entry in kwargs.values()):
        return None
    places = set.intersection(*({*_batches(value)} for value in values))
    batch = min((place for place in places if place < ndim - ALONG_LAST[name]), default=ndim)
    # from the batch on, dimensions stand where they stood; those before it move behind it
    if name not in WEIGHTED and any(isinstance(entry, Tensor) and entry.ndim > ndim - batch - 1 for entry in args):
        return None
    if name == "layer_norm" and len(args[1]) != 1:
        return None
    if name == "softmax" and (args[1] if len(args) > 1 else kwargs.get("dim")) not in (-1, ndim - 1):
        return None
    return batch if batch < ndim else None


def _batches(value: Elsewhere) -> list[int]:
    """Where the batch may stand: of a single pair, several dimensions of size 1."""
    return [dim for dim in range(value.ndim) if isinstance(shown(value.form, value.place.movedim(dim, 0)), Form)]


def batch_first(x: Any) -> Form:
    """[L, P, E] as torch's attention reads it, or a form that has the batch in second place by chance."""
    found = elsewhere(torch.transpose, x, 0, 1)
    if not isinstance(found, Form) or found.ndim != 3:
        raise no_rule("multi_head_attention_forward", f"of {list(x.shape)}")
    return found


@rule(F.multi_head_attention_forward)
def multi_head_attention(
    query: Any, key: Any, value: Any, _size: int, num_heads: int, in_proj_weight: Any, in_proj_bias: Any,
    bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any, out_proj_bias: Any,
    training: bool = True, key_padding_mask: Any = None, attn_mask: Any = None, use_separate_proj_weight: bool = False,
    static_k: Any = None, static_v: Any = None, is_causal: bool = False, **weights_too: Any,
) -> Any:  # fmt: skip
    """Project to queries, keys and values, attend head by head, and project again. The weights of attention are not followed."""
    extra = (bias_k, bias_v, key_padding_mask, static_k, static_v)
    if any(entry is not None for entry in extra) or add_zero_attn or use_separate_proj_weight:
        raise no_rule("multi_head_attention_forward", "with padding masks, added keys or keys of another size")
    if attn_mask is not None and (attn_mask.ndim != 2 or attn_mask.dtype not in (torch.bool, torch.float32)):
        raise no_rule("multi_head_attention_forward", "with a mask for each image or of another type")
    if is_causal and (attn_mask is None or weights_too.get("need_weights", True)):
        raise no_rule("multi_head_attention_forward", "with is_causal and need_weights")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask  # there it says which scores are left out
    if training and dropout_p:
        raise no_rule("multi_head_attention_forward", "in training mode")
    weights = in_proj_weight.chunk(3)
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    parts = []
    for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
        projected = linear(batch_first(x), weight, bias).rows
        parts.append(Form(projected.unflatten(-1, (num_heads, -1)).transpose(-3, -2), query.form.unit))
    heads = attention(*parts, None if is_causal else attn_mask, is_causal=is_causal)
    joined = Form(heads.rows.transpose(-3, -2).flatten(-2), heads.unit)
    result = linear(joined, out_proj_weight, out_proj_bias)
    return elsewhere(torch.transpose, result, 0, 1), None
