"""Rules for normalization by an image's own statistics: layer, group, instance and RMS norm.

y = (x - m) / sqrt(v + eps) with m the mean and v the mean of (x - m)^2 over n numbers, step by step. A float32 evaluation may find m and v
by any of the usual algorithms (two passes, Welford, mean(x^2) - m^2) and normalize as (x - m) r w + b or x (r w) + (b - m r w). Then x - m
is off by at most gamma_(n + 16) (|x| + mean|x|), and v is taken to be off by at most gamma_(8 n + 64) mean(x^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import LARGE32, TINY32, Form, enclose, gamma, no_rule, plus, rule, times, unbounded
from tiltproof.checker.operations import batch_norm

SLACK = 2.0**-44
"""Relative to all numbers involved: float64 library functions are accurate to 2^-48."""


def means(data: Tensor, dims: list[int]) -> Tensor:
    """Average over dimensions of a form, which are one more in its rows."""
    return data.mean([d + 1 for d in dims], keepdim=True)


def centered(x: Form, dims: list[int], n: int) -> Form:
    """Return x - m. An entry's own remainder counts 1 - 1 / n times, those of the others 1 / n times."""
    data = x.rows - means(x.rows, dims)
    data[-1] = x.radius * (1 - 2 / n) + x.radius.mean(dims, keepdim=True)
    size = x.magnitude + x.magnitude.mean(dims, keepdim=True)
    size = torch.where(size * n < LARGE32, size, math.inf) if x.unit else size
    return enclose(data, size, n + 8, x.unit, n + 16)


def mean_of_squares(d: Form, x: Form, dims: list[int], n: int) -> tuple[Form, Tensor | float]:
    """Return the mean of d^2, where d is x or its centered part; and how far a float32 evaluation may be below 0."""
    real = Form(d.rows)  # whose evaluation counts below
    square = times(real, real)
    size = square.magnitude.mean(dims, keepdim=True)
    result = enclose(means(square.rows, dims), size, n + 4, x.unit, 0)
    if x.unit:
        largest = (x.magnitude * x.magnitude).mean(dims, keepdim=True)
        error = 1.001 * gamma(8 * n + 64, x.unit) * largest + TINY32
        error = torch.where(largest * n < LARGE32, error, math.inf)
        result.rows[-1] += error
        return result, error
    return result, 0.0


def convex(
    x: Form, low: Tensor, high: Tensor, value: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor],
    where: Callable[[Tensor], Tensor],
) -> Form:  # fmt: skip
    """Return s x + [least, most] for a convex f on [l, h], with a slope s near the chord's.

    f - s x is convex, so at most its value at l or h, and at least that of any tangent: with t = ``where``(s), f'(t) about s,
    f(x) - s x >= f(t) - s t - |f'(t) - s| (h - l).
    """
    first, last = value(low), value(high)
    slope = ((last - first) / (high - low).clamp(min=1e-300)).clamp(derivative(low), derivative(high))
    point = where(slope)
    point = torch.where(point.isfinite(), point, low).clamp(low, high)
    at, steep = value(point), derivative(point)
    slack = SLACK * (at.abs() + first.abs() + last.abs() + (slope.abs() + steep.abs()) * (low.abs() + high.abs()))
    least = at - slope * point - (steep - slope).abs() * (high - low) - slack
    most = torch.maximum(first - slope * low, last - slope * high) + slack
    data = x.rows * slope
    data[0] += (least + most) / 2
    data[-1] = x.radius * slope.abs() + (most - least) / 2
    return enclose(data, x.magnitude * slope.abs() + least.abs() + most.abs(), 8, x.unit, 0)


def inverse_root(v: Form, below: Tensor | float, eps: float) -> Form:
    """Return 1 / sqrt(v + eps) of a mean of squares: v >= 0, but for what a float32 evaluation may be below. f' = -f^3 / 2."""
    low, high = torch.maximum(v.lower(), -below + torch.zeros_like(v.center)), v.upper()
    good = (low + eps > 2.0**-60) & (high >= low) & (high < LARGE32)
    low, high = (torch.where(good, end, torch.ones_like(end)) for end in (low, high))
    result = convex(
        v,
        low,
        high,
        lambda t: (t + eps).rsqrt(),
        lambda t: -0.5 * (t + eps).rsqrt() ** 3,
        lambda s: (-2 * s) ** (-2 / 3) - eps,
    )
    if v.unit:
        result.rows[-1] += gamma(32, v.unit) * (low + eps).rsqrt()
    result.rows[-1] = torch.where(good, result.radius, math.inf)
    return unbounded(result)


def normalized(x: Form, dims: list[int], eps: Any, center: bool = True) -> Form:
    n = math.prod(x.shape[d] for d in dims)
    if n < 2 or type(eps) is not float or not 2.0**-40 <= eps <= 2.0**40:
        raise no_rule("a normalization", f"of {n} numbers with eps = {eps}")
    d = centered(x, dims, n) if center else x
    return times(d, inverse_root(*mean_of_squares(d, x, dims, n), eps))


def weighted(x: Form, weight: Any, bias: Any, shape: Sequence[int]) -> Form:
    x = x if weight is None else times(x, weight.view(shape))
    return x if bias is None else plus(x, bias.view(shape))


def last(x: Form, normalized_shape: Any) -> list[int]:
    """Return the dimensions of a layer norm; never the batch."""
    sizes = list(normalized_shape)
    if not 0 < len(sizes) < x.ndim or list(x.shape[-len(sizes) :]) != sizes:
        raise no_rule("a normalization", f"over {sizes} of {list(x.shape)}")
    return list(range(x.ndim - len(sizes), x.ndim))


@rule(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Form,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Form:
    result = normalized(input, last(input, normalized_shape), eps)
    return weighted(result, weight, bias, tuple(normalized_shape))


@rule(F.rms_norm, torch.rms_norm)
def rms_norm(input: Form, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Form:
    """Without eps it is the machine epsilon of the network's own type."""
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    result = normalized(input, last(input, normalized_shape), eps, center=False)
    return weighted(result, weight, None, tuple(normalized_shape))


@rule(F.group_norm, torch.group_norm)
def group_norm(
    input: Form, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Form:
    x = input
    if x.ndim < 2 or type(num_groups) is not int or num_groups < 1 or x.shape[1] % num_groups:
        raise no_rule("group_norm", f"of {list(x.shape)} in {num_groups} groups")
    rows = Form(x.rows.reshape(*x.rows.shape[:2], num_groups, -1), x.unit)
    result = normalized(rows, [2], eps)
    return weighted(Form(result.rows.reshape(x.rows.shape), x.unit), weight, bias, (-1, *[1] * (x.ndim - 2)))


@rule(F.instance_norm, torch.instance_norm)
def instance_norm(
    input: Form, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Form:  # fmt: skip
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return group_norm(input, input.shape[1], weight, bias, eps)
