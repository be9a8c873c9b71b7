"""Rules for softmax, products of matrices that both depend on the image, and attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import (
    READS_SCORES,
    TINY32,
    UNIT,
    Form,
    Scores,
    enclose,
    no_rule,
    plus,
    rule,
    times,
    unbounded,
)
from tiltproof.checker.operations import positive
from tiltproof.checker.statistics import SLACK, convex

MOST_DIFFERENCES = 2**25
"""Of one image, in one softmax."""


SOFTMAX = (torch.softmax, torch.Tensor.softmax, F.softmax, torch.special.softmax)
READS_SCORES.update(SOFTMAX)


@rule(*SOFTMAX)
def softmax(input: Form | Scores, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Form:
    form, taking = (input.form, input.taking) if isinstance(input, Scores) else (input, None)
    if dtype is not None:
        raise no_rule("softmax", "in another dtype")
    if dim is None:  # as torch chooses it
        dim = 0 if form.ndim in (1, 3) else 1
    place = positive(dim, form, "softmax")
    if taking is not None and not bool(taking.any(place).all()):
        raise no_rule("softmax", "with a mask that takes out every entry")
    return softmax_among(form, place, None if taking is None else taking.movedim(place, -1))


def softmax_among(input: Form, dim: int, taking: Tensor | None = None) -> Form:
    """Enclose y_i = 1 / S_i with S_i = sum_j exp(x_j - x_i), whose term j = i is 1, and exp and 1 / S are convex.

    A float32 evaluation computes exp(x - max) / sum, perhaps in blocks: relative to y an argument is off by 2 u |x_j - x_i|, an exponential
    by 64 u and the sum of T terms by (2 T + 8) u, and what it flushes to zero is less than T 2^-120.

    ``taking``: which entries take part, with dimension ``dim`` moved to the end. For another j, exp(x_j) counts as 0 in every S_i, and
    y_j is 0.
    """
    x = input.rows.movedim(dim + 1, -1)
    t = x.shape[-1]
    if x[0, 0].numel() * t > MOST_DIFFERENCES:
        raise no_rule("softmax", f"of {list(input.shape)}")
    data = x.unsqueeze(-2) - x.unsqueeze(-1)  # [..., i, j]: x_j - x_i
    data[-1] = x[-1].unsqueeze(-2) + x[-1].unsqueeze(-1)
    same = torch.eye(t, dtype=torch.bool, device=x.device)
    size = x.abs().sum(0)
    d = enclose(data, (size.unsqueeze(-2) + size.unsqueeze(-1)) * 2, 4, 0.0, 0)
    out = torch.zeros(t, dtype=torch.bool, device=x.device) if taking is None else ~taking.unsqueeze(-2) & ~same
    d.rows.masked_fill_(same | out, 0.0)
    low, high = (end.masked_fill(same | out, 0.0) for end in (d.lower(), d.upper()))
    terms = convex(d, low, high, torch.exp, torch.exp, torch.log)
    terms.rows.masked_fill_(out, 0.0)
    first, last = (each.exp().masked_fill(out, 0.0).sum(-1) for each in (low, high))
    first, last = first * (1 - SLACK * (t + 8)), last * (1 + SLACK * (t + 8))
    total = enclose(terms.rows.sum(-1), terms.magnitude.sum(-1), t + 4, 0.0, 0)
    low, high = torch.maximum(total.lower(), first).clamp(min=1), torch.minimum(total.upper(), last)
    result = convex(total, low, high, lambda s: 1 / s, lambda s: -1 / (s * s), lambda slope: (-slope).rsqrt())
    ends = [(1 - SLACK) / high, (1 + SLACK) / low]
    narrow = (ends[1] - ends[0]) / 2 < result.radius  # false for a NaN
    flat = torch.zeros_like(result.rows)
    flat[0], flat[-1] = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2 + 4 * UNIT
    result = Form(torch.where(narrow, flat, result.rows).movedim(-1, dim + 1).contiguous(), input.unit)
    if input.unit:
        share = input.unit * (16 * input.magnitude.amax(dim, keepdim=True) + 8 * t + 512)
        error = share * ends[1].movedim(-1, dim).clamp(max=1) * 1.001 + t * TINY32
        result.rows[-1] += torch.where(share < 2.0**-5, error, math.inf)
    result = unbounded(result)
    if taking is not None:
        result.rows.masked_fill_(~taking.movedim(-1, dim) & result.radius.isfinite(), 0.0)
    return result


def matrix_product(a: Form, b: Form) -> Form:
    """Enclose the products of two matrices: C_a C_b + C_a T_b + T_a C_b + T_a T_b, whose last part is worked out symbol by symbol.

    It is sum_k A_k B_k e_k^2, e_k^2 in [0, 1], and sum_(j < k) (A_j B_k + A_k B_j) e_j e_k, and products with the remainders.
    """
    if a.ndim < 3 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise no_rule("matmul", f"of {list(a.shape)} and {list(b.shape)}")
    n, g, h = a.shape[-1], a.slopes, b.slopes
    data = a.center @ b.rows + a.rows @ b.center
    data[0] = a.center @ b.center
    beside = h.abs().sum(0) + b.radius
    data[-1] = a.center.abs() @ b.radius + a.radius @ b.center.abs() + g.abs().sum(0) @ b.radius + a.radius @ beside
    for k in range(len(g)):
        own = g[k] @ h[k]
        data[0] += own / 2
        data[-1] += own.abs() / 2
        for j in range(k):
            data[-1] += (g[j] @ h[k] + g[k] @ h[j]).abs()
    return unbounded(enclose(data, a.magnitude @ b.magnitude, n + 2 * len(data) ** 2 + 8, a.unit, n + 24))


def split_mask(mask: Any, shape: torch.Size) -> tuple[Tensor, Tensor | None]:
    """Return which scores take part, and numbers to add to them; of a mask that is the same for every image."""
    if isinstance(mask, Form) or not isinstance(mask, Tensor) or (mask.ndim == len(shape) and mask.shape[0] != 1):
        raise no_rule("scaled_dot_product_attention", "with a mask that depends on the image")
    taking = mask if mask.dtype == torch.bool else mask > -math.inf
    if (
        mask.ndim > len(shape)
        or not taking.expand(shape).any(-1).all()
        or mask.isnan().any()
        or (mask == math.inf).any()
    ):
        raise no_rule("scaled_dot_product_attention", "with a mask that is no number or leaves nothing to attend to")
    return taking.expand(shape), None if mask.dtype == torch.bool else mask.masked_fill(~taking, 0.0)


@rule(F.scaled_dot_product_attention)
def attention(
    query: Form, key: Form, value: Form, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Form:  # fmt: skip
    """Enclose softmax(scale Q K^T + mask) V, step by step."""
    if dropout_p or enable_gqa or (is_causal and attn_mask is not None):
        raise no_rule("scaled_dot_product_attention", "with dropout, groups of heads or two masks")
    turned = Form(key.rows.transpose(-1, -2), key.unit)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores, taking = times(matrix_product(query, turned), factor), None
    if is_causal:
        taking = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.rows.device).tril().expand(scores.shape)
    elif attn_mask is not None:
        taking, more = split_mask(attn_mask, scores.shape)
        scores = scores if more is None else plus(scores, more)
    return matrix_product(softmax_among(scores, scores.ndim - 1, taking), value)
