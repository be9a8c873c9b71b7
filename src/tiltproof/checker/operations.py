"""Rules for torch functions: sums of products, activations and maxima, reshapes.

Sums of products (linear layers, convolutions, batch norm, averages): y = W x + b is exact on center and slopes, and
|W rho| <= |W| r. A sum of n products and a bias has an error of at most gamma_(n+2) (|W| |x| + |b|) in any order of
summation. Convolutions are im2col (F.unfold) and a matrix product, because other algorithms (Winograd, FFT) do not obey
that inequality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import LARGE32, TINY, TINY32, UNIT, Form, enclose, gamma, no_rule, rule, tame

MOST_NUMBERS, MOST_NUMBERS_CUDA = 2**20, 2**28  # size limit of one im2col chunk; on a CPU it should fit the cache
Product = Callable[[Tensor, Tensor], Tensor]
"""(numbers [rows, P, ...], weights) -> numbers [rows, P, ...], linear in both."""


def sum_of_products(
    x: Form, product: Product, weight: Tensor, bias: Tensor, n: int, sizes: tuple[Tensor, Tensor] | None = None
) -> Form:
    """Return W x + b; ``sizes`` replaces (|W|, |b|) as the magnitudes that roundings are relative to, if those are larger."""
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
        # flushing such weights to zero loses up to 2^-126 |x|
        if bool(((absolute > 0) & (absolute < 2.0**-126)).any()):
            lost = x.magnitude.flatten(1).sum(1) * TINY32
            radius[0] += lost.view(-1, *[1] * (radius.ndim - 2))
    return Form(torch.cat([middle, radius]), x.unit)


def exact(tensor: Any, like: Form) -> Tensor:
    if isinstance(tensor, Form) or not tensor.dtype.is_floating_point:
        raise no_rule("a layer", "whose weights depend on the image or are not floating-point numbers")
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


def im2col(x: Tensor, kernel: Any, stride: Any, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """Copy the numbers under the kernel: [N, C, H, W] -> [N, C * kernel, output H, output W]."""
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
    if padding == "same":  # as many zeros as keep the size, the odd one behind
        whole = [d * (k - 1) for d, k in zip(pair(dilation, "conv2d"), weight.shape[2:], strict=True)]
        sizes = [n for total in reversed(whole) for n in (total // 2, total - total // 2)]
        x, padding = Form(F.pad(x.rows, sizes), x.unit), 0
    padding = 0 if padding == "valid" else padding
    bias = exact(bias, x) if bias is not None else weight.new_zeros(len(weight))
    n = weight[0].numel()

    def product(rows: Tensor, w: Tensor) -> Tensor:
        flat, outputs = rows.flatten(0, 1), []
        most = MOST_NUMBERS_CUDA if flat.is_cuda else MOST_NUMBERS
        step = max(1, most // (n * groups * flat[0, 0].numel()))
        for part in flat.split(step):
            columns = im2col(part, weight.shape[2:], stride, padding, dilation)
            grouped = columns.view(len(part), groups, n, -1)
            outputs.append((w.view(groups, -1, n) @ grouped).view(len(part), -1, *columns.shape[2:]))
        return torch.cat(outputs).unflatten(0, rows.shape[:2])

    return sum_of_products(x, product, weight, bias.view(-1, 1, 1), n)


@rule(F.batch_norm, torch.batch_norm)
def batch_norm(
    input: Form, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Form:  # fmt: skip
    """Compute (x - mean) / sqrt(variance + eps) weight + bias as (x - mean) scale + bias, where scale has 4 roundings."""
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
    data[0] = (x.center - mean) * scale + shift
    return enclose(data, size, 16, x.unit, 16)


@rule(torch.mean, torch.Tensor.mean)
def mean(x: Form, dim: Any = None, keepdim: bool = False) -> Form:
    """Return a sum of n numbers divided by n."""
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


def behind(n: int, window: Sequence[int], ceil_mode: bool) -> int:
    """How far the last window of a pooling reaches beyond a dimension of size n; with ceil_mode it must begin before the padding behind."""
    kernel, stride, padding, dilation = window
    span = n + 2 * padding - dilation * (kernel - 1) - 1
    count = (span // stride if not ceil_mode else -(-span // stride)) + 1
    if ceil_mode and (count - 1) * stride >= n + padding:
        count -= 1
    return max(padding, (count - 1) * stride + dilation * (kernel - 1) + 1 - n - padding)


def pool_sizes(
    x: Form, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Any, list[int]]:
    """The kernel, stride, no padding and dilation of a pooling, and the padding to add to the image before."""
    given = [pair(value, "pooling") for value in (kernel, stride or kernel, padding, dilation)]
    (high, wide), after = given[2], [behind(x.shape[k + 2], [v[k] for v in given], ceil_mode) for k in (0, 1)]
    return (given[0], given[1], 0, given[3]), [wide, after[1], high, after[0]]


@rule(F.avg_pool2d, torch._C._nn.avg_pool2d)
def avg_pool2d(
    input: Form, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Form:  # fmt: skip
    """A sum over each window, divided by the number of its entries, without those that ceil_mode adds beyond the padding."""
    x = input
    if x.ndim != 4 or not (divisor_override is None or (type(divisor_override) is int and divisor_override > 0)):
        raise no_rule("avg_pool2d", f"without a batch, or with divisor {divisor_override!r}")
    window, sizes = pool_sizes(x, kernel_size, stride, padding, 1, ceil_mode)
    columns = im2col(F.pad(x.rows, sizes).flatten(0, 2).unsqueeze(1), *window)
    columns = columns.unflatten(0, x.rows.shape[:3])  # [rows, P, C, entries, height, width]
    (high, wide), ones = pair(padding, "avg_pool2d"), torch.ones_like(x.center[:1, :1])
    inside = [wide, wide, high, high] if count_include_pad else [0, 0, 0, 0]
    rest = [all_of - counted for all_of, counted in zip(sizes, inside, strict=True)]
    counted = F.pad(F.pad(ones, inside, value=1.0), rest)
    n = divisor_override or im2col(counted, *window).sum(1)[0]
    total = columns.abs().sum((0, 3)) * (1 + (64 + 2 * len(columns) * columns.shape[3]) * UNIT)
    size = torch.where(total < LARGE32, total / n, math.inf) if x.unit else total / n
    entries = columns.shape[3]
    return enclose(columns.sum(3) / n, size, entries + 8, x.unit, entries + 8)


@rule(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(input: Form, output_size: Any) -> Form:
    """Average each output cell: cell i of n is the mean of rows floor(i H / n) to ceil((i + 1) H / n)."""
    x, wanted = input, [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    if x.ndim != 4:
        raise no_rule("adaptive_avg_pool2d", "without a batch")

    def cells(size: int, n: int | None) -> list[slice]:
        n = size if n is None else n
        return [slice(i * size // n, -((i + 1) * size // -n)) for i in range(n)]

    rows, columns = cells(x.shape[2], wanted[0]), cells(x.shape[3], wanted[1])
    lines = [torch.cat([mean(Form(x.rows[..., a, b], x.unit), (2, 3), True).rows for b in columns], -1) for a in rows]
    return Form(torch.cat(lines, -2), x.unit)


# Activations and maxima: y = s x + [low, high] for a slope s and the exact range of y - s x.


def lifted(x: Form, slope: Tensor, low: Tensor, high: Tensor, m: int = 0) -> Form:
    """Return the form of s x + [low, high], for s of either sign."""
    data = x.rows * slope
    data[0] += (low + high) / 2
    data[-1] = data[-1].abs() + (high - low) / 2
    return enclose(data, x.magnitude * slope.abs() + low.abs() + high.abs(), 8, x.unit, m)


def relax_leaky_relu(x: Form, a: float, m: int = 0) -> Form:
    """Relax y = max(x, a x) for 0 <= a <= 1 and x in [l, h] to a zonotope.

    For every s in [a, 1] the function y - s x is convex with its minimum 0 at x = 0, so over [l, h] it lies in [0, t] with
    t = max((a - s) l, (1 - s) h, 0), attained at an end. That holds for s as rounded. s = 1 gives t = 0 if l >= 0, and s = a
    if h <= 0; otherwise s is the chord's slope (h - a l) / (h - l), or a if that leaves a smaller radius.
    """
    low, high = x.lower(), x.upper()

    def top(s: Tensor) -> Tensor:
        return torch.maximum((a - s) * low, (1 - s) * high).clamp(min=0) * (1 + 8 * UNIT)

    chord = ((high - a * low) / (high - low)).clamp(a, 1.0)
    flat = torch.full_like(chord, a)
    chord = torch.where(flat * x.radius + top(flat) / 2 < chord * x.radius + top(chord) / 2, flat, chord)
    slope = torch.where(low >= 0, torch.ones_like(chord), torch.where(high <= 0, flat, chord))
    return lifted(x, slope, torch.zeros_like(low), top(slope), m)


@rule(F.relu, torch.relu, torch.Tensor.relu)
def relu(input: Form, inplace: bool = False) -> Form:
    result = relax_leaky_relu(input, 0.0)
    return input.become(result, "relu") if inplace else result


@rule(F.relu_, torch.relu_, torch.Tensor.relu_)
def relu_(input: Form) -> Form:
    return relu(input, inplace=True)


@rule(F.leaky_relu, torch._C._nn.leaky_relu)
def leaky_relu(input: Form, negative_slope: float = 0.01, inplace: bool = False) -> Form:
    if not 0 <= negative_slope <= 1:
        raise no_rule("leaky_relu", f"with slope {negative_slope}")
    result = relax_leaky_relu(input, float(negative_slope), 4)
    return input.become(result, "leaky_relu") if inplace else result


def clamp(input: Form, min: Any = None, max: Any = None) -> Form:
    """Relax y = min(max(x, a), b), a < b and x in [l, h], to a zonotope.

    For any s, y - s x is piecewise linear with kinks at a and b, so over [l, h] it lies between its least and its largest value at l, h
    and the kinks inside; kinks outside are replaced by the nearest end. A float32 evaluation rounds a and b, at most once each.
    """
    x, a, b = input, min, max
    if not all(type(bound) in (int, float) and abs(bound) < LARGE32 for bound in (a, b)) or not a < b:
        raise no_rule("clamp", f"to [{a}, {b}]")
    low, high = x.lower(), x.upper()
    rise = high.clamp(a, b) - low.clamp(a, b)
    slope = torch.where(2 * x.radius < rise, rise / (high - low), torch.zeros_like(rise)).clamp(0, 1)
    slope = torch.where((low >= a) & (high <= b), torch.ones_like(slope), slope)
    kinks = [torch.maximum(low, torch.minimum(high, torch.full_like(low, bound))) for bound in (a, b)]
    values = torch.stack([point.clamp(a, b) - slope * point for point in (low, high, *kinks)])
    slack = 16 * UNIT * (x.magnitude + abs(a) + abs(b))
    return lifted(x, slope, values.amin(0) - slack, values.amax(0) + slack, 2)


@rule(F.hardtanh)
def hardtanh(input: Form, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Form:
    result = clamp(input, min_val, max_val)
    return input.become(result, "hardtanh") if inplace else result


@rule(F.relu6)
def relu6(input: Form, inplace: bool = False) -> Form:
    return hardtanh(input, 0.0, 6.0, inplace)


def s_shaped(x: Form, value: Any, derivative: Any) -> Form:
    """Relax an S-shaped function.

    The derivative rises and then falls, so over [l, h] it is at least s = min(f'(l), f'(h)) >= 0. Hence f(x) - s x is
    nondecreasing and lies between its values at l and h. Library functions are accurate to 16 u.
    """
    low, high = x.lower(), x.upper()
    at_low, at_high = value(low), value(high)
    slope = (torch.minimum(derivative(at_low), derivative(at_high)) - 32 * UNIT).clamp(min=0)
    slack = 64 * UNIT * (1 + slope * x.magnitude)
    result = lifted(x, slope, at_low - slope * low - slack, at_high - slope * high + slack)
    result.rows[-1] += 2.0**-20 if x.unit else 0.0  # a float32 library function is accurate to 2^-20
    return result


@rule(torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid)
def sigmoid(x: Form) -> Form:
    return s_shaped(x, torch.sigmoid, lambda f: f * (1 - f))


@rule(torch.tanh, torch.Tensor.tanh, F.tanh)
def tanh(x: Form) -> Form:
    return s_shaped(x, torch.tanh, lambda f: (1 - f) * (1 + f))


def whole_numbers(
    x: Form,
    factor: Any,
    step: float,
    low: float,
    high: float,
    slack: Any,
    size: float,
    ends: tuple[Tensor, Tensor] | None = None,
) -> Form:
    """Relax y = step clip(n, low, high), n any whole number with |n - factor x| <= 1/2 + slack, for x in [l, h].

    As constants: n >= factor l - 1/2 - slack and is whole, n <= factor h + 1/2 + slack likewise, and clipping and a positive step keep
    the order; ``ends``: closer bounds of y itself, where they are known. As a band along s x: |n - t| <= h gives
    |clip(n) - clip(t)| <= h, and clip(factor x) step - s x is linear between the kinks.
    ``size``: at least every |n| that an evaluation clips, and what it adds before. A float32 evaluation is off by 2^-19 of all that.
    """
    Form.stepped = True
    low_x, high_x, largest = x.lower(), x.upper(), x.magnitude * factor + size + 1
    wide = 0.5 + slack + largest * (2.0**-45 + (2.0**-19 if x.unit else 0.0)) + (TINY32 * factor if x.unit else 0.0)
    if x.unit:
        wide = torch.where(largest < 2.0**60, wide, math.inf)
    least = torch.ceil(low_x * factor - wide).clamp(low, high) * step
    most = torch.floor(high_x * factor + wide).clamp(low, high) * step
    if ends is not None:
        least, most = ends

    def clipped(point: Tensor) -> Tensor:
        return (point * factor).clamp(low, high) * step

    slope = ((clipped(high_x) - clipped(low_x)) / (high_x - low_x)).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    kinks = [
        torch.maximum(low_x, torch.minimum(high_x, bound / factor + torch.zeros_like(low_x))) for bound in (low, high)
    ]
    values = torch.stack([clipped(point) - slope * point for point in (low_x, high_x, *kinks)])
    beside = step * wide + 2.0**-45 * (x.magnitude * (slope + step * factor) + step * size)
    below, above = values.amin(0) - beside, values.amax(0) + beside
    banded = ((most - least) / 2 > slope * x.radius + (above - below) / 2) & torch.isfinite(beside)
    slack_y = 2.0**-45 * step * size
    below, above = torch.where(banded, below, least - slack_y), torch.where(banded, above, most + slack_y)
    result = lifted(x, torch.where(banded, slope, torch.zeros_like(slope)), below, above, 0)
    if x.unit:  # the product with the step
        result.rows[-1] += 2.0**-22 * step * size + TINY32
    return result


@rule(torch.fake_quantize_per_tensor_affine)
def fake_quantize(input: Form, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Form:
    """(clip(round(x / scale) + zero, min, max) - zero) scale."""
    whole = all(type(n) is int and abs(n) <= 2**20 for n in (zero_point, quant_min, quant_max))
    if (
        not whole
        or type(scale) is not float
        or not 2.0**-60 < scale < 2.0**60
        or not quant_min <= zero_point <= quant_max
    ):
        raise no_rule(
            "fake_quantize_per_tensor_affine", f"with {scale!r}, {zero_point!r}, {quant_min!r}, {quant_max!r}"
        )
    low, high, size = quant_min - zero_point, quant_max - zero_point, abs(quant_min) + abs(quant_max)
    return whole_numbers(input, 1 / scale, scale, low, high, 0.0, 2 * size)


def largest(every: Form, dim: int) -> Form:
    """Relax max_j x_j, over a dimension, around any member x_i, as a line or as an interval.

    max_j x_j = x_i + max_j (x_j - x_i), and the second term lies in [0, max(0, max_j upper(x_j - x_i))], in which shared
    symbols cancel. The interval [max_j lower(x_j), max_j upper(x_j)] replaces it where it leaves a smaller radius.
    """
    best = every.center.argmax(dim, keepdim=True)
    chosen = Form(every.rows.gather(dim + 1, best.expand(len(every.rows), *best.shape)), every.unit)
    ahead = Form(every.rows - chosen.rows)
    ahead.rows[-1] = (every.radius + chosen.radius + 4 * UNIT * (every.magnitude + chosen.magnitude)) * (1 + 8 * UNIT)
    lead = ahead.upper().scatter(dim, best, 0.0).amax(dim).clamp(min=0)
    chosen = Form(chosen.rows.squeeze(dim + 1), every.unit)
    linear = lifted(chosen, torch.ones_like(lead), torch.zeros_like(lead), lead)
    interval = lifted(chosen, torch.zeros_like(lead), every.lower().amax(dim), every.upper().amax(dim))
    return Form(torch.where(interval.radius < linear.radius, interval.rows, linear.rows), every.unit)


@rule(F.max_pool2d, torch.max_pool2d)
def max_pool2d(
    input: Form, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Form:  # fmt: skip
    """The largest entry of each window."""
    x = input
    if return_indices or x.ndim != 4:
        raise no_rule("max_pool2d", "with return_indices or without a batch")
    window, sizes = pool_sizes(x, kernel_size, stride, padding, dilation, ceil_mode)
    data = F.pad(x.rows, sizes)
    if any(sizes):  # a padded entry must never win: give it the smallest lower bound
        outside = F.pad(torch.zeros_like(x.center[0, 0]), sizes, value=1.0) > 0
        if (im2col(outside.double()[None, None], *window).amin(1) > 0).any():
            raise no_rule("max_pool2d", "with windows that hold padding only")
        data[0] = torch.where(outside, x.lower().min(), data[0])
    columns = im2col(data.flatten(0, 1), *window)
    every = Form(columns.unflatten(1, (x.shape[1], -1)).unflatten(0, x.rows.shape[:2]), x.unit)
    return largest(every, 2)


# Operations that only rearrange numbers: exact, and never across the batch dimension, whose pairs must not mix.


def view_of(form: Form, data: Tensor, name: str) -> Form:
    if data.ndim < 2 or data.shape[:2] != form.rows.shape[:2]:
        raise no_rule(name, "across the batch dimension")
    result = Form(data, form.unit)
    form.shared = result.shared = Form.strided = True
    return result


def reshaped(form: Form, data: Tensor, name: str) -> Form:
    """Return the same numbers in the same order; as in torch, an in-place write through one is visible in the other."""
    if data.ndim < 2 or data.shape[:2] != form.rows.shape[:2]:
        raise no_rule(name, "across the batch dimension")
    result = Form(data, form.unit, store=form.store)
    result.shared = form.shared
    result.aliased = form.aliased = True
    return result


def positive(dim: int, form: Form, name: str) -> int:
    """Count a dimension from the front; refuse the batch dimension, 0."""
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
    position = dim if dim >= 0 else dim + x.ndim + 1
    return view_of(x, x.rows.unsqueeze(position + 1), "unsqueeze") if position > 0 else _refuse("unsqueeze")


@rule(torch.squeeze, torch.Tensor.squeeze)
def squeeze(x: Form, dim: int | None = None) -> Form:
    return (
        view_of(x, x.rows.squeeze(positive(dim, x, "squeeze") + 1), "squeeze")
        if dim is not None
        else _refuse("squeeze")
    )


def _refuse(name: str) -> Form:
    raise no_rule(name, "that may touch the batch dimension")


@rule(torch.Tensor.contiguous)
def contiguous(x: Form) -> Form:
    """Treat the result as a view: torch returns the tensor itself or a copy, so in-place writes to either are refused."""
    return view_of(x, x.rows, "contiguous")


@rule(torch.clone, torch.Tensor.clone)
def clone(x: Form) -> Form:
    return Form(x.rows, x.unit, x.made_by)


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, torch.dropout)
def dropout(x: Form, p: float = 0.5, training: bool = True, inplace: bool = False) -> Form:
    """Return the input: in eval mode dropout is the identity."""
    if training:
        raise no_rule("dropout", "in training mode")
    return x
