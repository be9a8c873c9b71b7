"""Sums of products: linear layers, convolutions, batch norm, averages.

y = W x + b is exact on centre and slopes; |W rho| <= |W| r. A sum of n products and a bias is computed with an error of
at most gamma_(n+2) (|W| |x| + |b|) in any order of summation. Convolutions are written as a copy (F.unfold) and a matrix
product, because other algorithms (Winograd, FFT) do not obey that inequality.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import LARGE32, TINY, TINY32, UNIT, Form, enclose, gamma, no_rule, rule, tame
from tiltproof.checker.moves import cat, positive

MOST_NUMBERS, MOST_NUMBERS_CUDA = 2**24, 2**28  # in a convolution's copy at a time
Product = Callable[[Tensor, Tensor], Tensor]
"""(numbers [rows, P, ...], weights) -> numbers [rows, P, ...], linear in both."""


def sum_of_products(
    x: Form, product: Product, weight: Tensor, bias: Tensor, n: int, sizes: tuple[Tensor, Tensor] | None = None
) -> Form:
    """W x + b; ``sizes`` are the magnitudes that roundings are relative to, where they are more than |W| and |b|."""
    absolute = weight.abs()
    weight_size, bias_size = sizes or (absolute, bias.abs())
    middle = product(x.rows[:-1], weight)
    middle[0] += bias
    size = product((x.magnitude + (TINY32 if x.unit else TINY))[None], weight_size)[0] + bias_size
    radius = product(x.radius[None], absolute)
    radius[0] += gamma(n + 4, UNIT) * size + TINY
    radius *= 1 + gamma(2 * n + 64, UNIT)
    if x.unit:
        radius[0] += torch.where(size < LARGE32, 1.001 * gamma(n + 2, x.unit) * size + TINY32, math.inf)
        # flushed to zero, weights take up to 2^-126 |x| with them
        if bool(((absolute > 0) & (absolute < 2.0**-126)).any()):
            lost = x.magnitude.flatten(1).sum(1) * TINY32
            radius[0] += lost.view(-1, *[1] * (radius.ndim - 2))
    return Form(torch.cat([middle, radius]), x.unit)


def exact(tensor: Any, like: Form) -> Tensor:
    if isinstance(tensor, Form) or not tensor.dtype.is_floating_point:
        raise no_rule("a layer", "whose weights depend on the picture or are no floating-point numbers")
    return tensor.detach().to(like.device, torch.float64)


def pair(value: Any, name: str) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
    if type(first) is not int or type(second) is not int:
        raise no_rule(name, f"with {value!r}")
    return first, second


@rule(F.linear)
def linear(x: Form, weight: Tensor, bias: Tensor | None = None) -> Form:
    weight = exact(weight, x)
    bias = exact(bias, x) if bias is not None else weight.new_zeros(len(weight))
    result = sum_of_products(x, lambda rows, w: rows @ w.T, weight, bias, weight.shape[1])
    return Form(result.rows, x.unit, (Form(x.rows, x.unit), weight, bias) if x.ndim == 2 else None)


def windows(x: Tensor, kernel: Any, stride: Any, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """[N, C, H, W] -> [N, C * kernel, output H, output W]: the numbers under the kernel at each place."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (pair(v, "a window") for v in (kernel, stride, padding, dilation))
    high = (x.shape[2] + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    wide = (x.shape[3] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    return F.unfold(x, (kh, kw), (dh, dw), (ph, pw), (sh, sw)).unflatten(-1, (high, wide))


@rule(torch.conv2d, F.conv2d)
def conv2d(
    input: Form, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Form:
    x, weight = input, exact(weight, input)
    if x.ndim != 4 or weight.ndim != 4:
        raise no_rule("conv2d", f"on a tensor of shape {list(x.shape)}")
    padding = 0 if padding == "valid" else padding
    bias = exact(bias, x) if bias is not None else weight.new_zeros(len(weight))
    n = weight[0].numel()

    def product(rows: Tensor, w: Tensor) -> Tensor:
        flat, outputs = rows.flatten(0, 1), []
        most = MOST_NUMBERS_CUDA if flat.is_cuda else MOST_NUMBERS
        step = max(1, most // (n * groups * flat[0, 0].numel()))
        for part in flat.split(step):
            columns = windows(part, weight.shape[2:], stride, padding, dilation)
            grouped = columns.view(len(part), groups, n, -1)
            outputs.append((w.view(groups, -1, n) @ grouped).view(len(part), -1, *columns.shape[2:]))
        return torch.cat(outputs).unflatten(0, rows.shape[:2])

    return sum_of_products(x, product, weight, bias.view(-1, 1, 1), n)


@rule(F.batch_norm, torch.batch_norm)
def batch_norm(
    input: Form, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Form:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) weight + bias, written as (x - mean) scale + bias; scale has 4 roundings."""
    x = input
    if training or running_mean is None or running_var is None:
        raise no_rule("batch_norm", "in training mode or without running statistics")
    column = [1, -1, *[1] * (x.ndim - 2)]
    mean, variance = exact(running_mean, x).view(column), exact(running_var, x).view(column)
    scale = (variance + eps).rsqrt() * (1 if weight is None else exact(weight, x).view(column))
    shift = torch.zeros_like(mean) if bias is None else exact(bias, x).view(column)
    spread = variance + eps
    factors = [spread, spread.rsqrt() * 2.0**20, shift, mean]  # 1 / sqrt(spread) at most 2^20
    factors += [] if weight is None else [exact(weight, x)]
    size = torch.where(tame(x, *factors), (x.magnitude + mean.abs()) * scale.abs() + shift.abs(), math.inf)
    data = x.rows * scale
    data[0] = (x.centre - mean) * scale + shift
    return enclose(data, size, 16, x.unit, 16)


@rule(torch.mean, torch.Tensor.mean)
def mean(x: Form, dim: Any = None, keepdim: bool = False) -> Form:
    """A sum of n numbers over n."""
    if dim is None:
        raise no_rule("mean", "over the batch dimension")
    dims = [positive(d, x, "mean") for d in ([dim] if isinstance(dim, int) else dim)]
    n = math.prod(x.shape[d] for d in dims)
    data = x.rows.sum([d + 1 for d in dims], keepdim) / n
    total = x.magnitude.sum(dims, keepdim)
    size = (
        torch.where(total < LARGE32, total / n, math.inf) if x.unit else total / n
    )  # the sum may overflow before it is divided
    return enclose(data, size, n + 4, x.unit, n + 4)


@rule(F.avg_pool2d, torch._C._nn.avg_pool2d)
def avg_pool2d(
    input: Form, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Form:  # fmt: skip
    x, padded = input, pair(padding, "avg_pool2d") != (0, 0)
    if ceil_mode or divisor_override is not None or (padded and not count_include_pad) or x.ndim != 4:
        raise no_rule("avg_pool2d", "with ceil_mode, divisor_override, count_include_pad=False or without a batch")
    columns = windows(x.rows.flatten(0, 1), kernel_size, stride or kernel_size, padding)
    return mean(Form(columns.unflatten(1, (x.shape[1], -1)).unflatten(0, x.rows.shape[:2]), x.unit), dim=2)


@rule(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(input: Form, output_size: Any) -> Form:
    """Output cell i of n is the mean of rows floor(i H / n) to ceil((i + 1) H / n)."""
    x, wanted = input, [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    if x.ndim != 4:
        raise no_rule("adaptive_avg_pool2d", "without a batch")

    def cells(size: int, n: int | None) -> list[slice]:
        n = size if n is None else n
        return [slice(i * size // n, -((i + 1) * size // -n)) for i in range(n)]

    rows, columns = cells(x.shape[2], wanted[0]), cells(x.shape[3], wanted[1])
    return cat([cat([mean(x[:, :, a, b], (2, 3), True) for b in columns], 3) for a in rows], 2)
