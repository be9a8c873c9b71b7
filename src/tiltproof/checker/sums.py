"""Rules for torch functions that sum products with constants: matrices, transposed and one-dimensional convolutions, interpolation;
and for those that sum, or take the largest of, the entries along a dimension.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.attention import matrix_product
from tiltproof.checker.form import Form, enclose, no_rule, rule
from tiltproof.checker.operations import (
    Product,
    adaptive_avg_pool2d,
    avg_pool2d,
    conv2d,
    exact,
    largest,
    max_pool2d,
    pair,
    positive,
    sum_of_products,
)
from tiltproof.checker.piecewise import maximum, minimum
from tiltproof.checker.rearranging import expand, nearest


def each_image(function: Any) -> Product:
    """A function of (images [N, ...], weights) as one of (numbers [rows, P, ...], weights)."""
    return lambda rows, weights: function(rows.flatten(0, 1), weights).unflatten(0, rows.shape[:2])


def none_of(weight: Tensor) -> Tensor:
    return weight.new_zeros(())


@rule(
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm
)
def matmul(a: Any, b: Any) -> Form:
    """Two forms, perhaps with one matrix for several of the other's; or a form and constants, the same for every image."""
    if isinstance(a, Form) and isinstance(b, Form):
        if a.ndim == b.ndim >= 3:
            many = torch.broadcast_shapes(a.shape[1:-2], b.shape[1:-2])
            a, b = (each if each.shape[1:-2] == many else expand(each, -1, *many, -1, -1) for each in (a, b))
        return matrix_product(a, b)
    x, weight, before = (a, exact(b, a), False) if isinstance(a, Form) else (b, exact(a, b), True)
    if weight.ndim == x.ndim > 2 and weight.shape[0] == 1:
        weight = weight[0]
    if weight.ndim >= max(x.ndim, 3) or x.ndim < (3 if before else 2) or (before and weight.ndim < 2):
        raise no_rule("matmul", f"of {list(x.shape)} with a constant of shape {list(weight.shape)}")
    product = each_image((lambda data, w: w @ data) if before else (lambda data, w: data @ w))
    return sum_of_products(x, product, weight, none_of(weight), x.shape[-2] if before else x.shape[-1])


@rule(torch.Tensor.__rmatmul__)
def matmul_from(b: Form, a: Any) -> Form:
    return matmul(a, b)


@rule(torch.addmm, torch.Tensor.addmm)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Form:
    if not isinstance(mat1, Form) or beta != 1 or alpha != 1:
        raise no_rule("addmm", "with factors, or weights that depend on the image")
    weight, bias = exact(mat2, mat1), exact(input, mat1)
    if bias.ndim > 1 and bias.shape[0] != 1:
        raise no_rule("addmm", "with a row for each image")
    bias = bias[0] if bias.ndim > 1 else bias
    return sum_of_products(mat1, each_image(lambda data, w: data @ w), weight, bias, len(weight))


@rule(torch.einsum)
def einsum(equation: str, *operands: Any) -> Form:
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    left, _, out = equation.replace(" ", "").partition("->")
    names = left.split(",")
    form = [k for k, entry in enumerate(given) if isinstance(entry, Form)]
    if len(form) == 2 and len(given) == 2 and "." not in equation:
        return einsum_of_two(equation, (names[0], names[1], out), *given)
    if len(given) != 2 or len(form) != 1 or not out or "." in equation or len(names) != 2:
        raise no_rule("einsum", f"{equation!r} of other than one value and one constant")
    x, weight = given[form[0]], given[1 - form[0]]
    name, other = names[form[0]], names[1 - form[0]]
    if name[0] != out[0] or name[0] in other or {*name[1:], *other} & {"Z"}:
        raise no_rule("einsum", f"{equation!r}, which does not keep the batch first")
    weight = exact(weight, x)
    sizes = dict(zip(other, weight.shape, strict=True)) | dict(zip(name, x.shape, strict=True))
    n = math.prod(size for letter, size in sizes.items() if letter not in out)
    product = each_image(lambda data, w: torch.einsum(f"{name},{other}->{out}", data, w))
    return sum_of_products(x, product, weight, none_of(weight), n)


def einsum_of_two(equation: str, names: tuple[str, str, str], a: Form, b: Form) -> Form:
    """Products of matrices, one for each value of the letters that both forms and the result have."""
    one, two, out = names
    meant = [[*one], [*two], [*out]]
    both = [k for k in one if k in two]
    if any(len({*each}) < len(each) for each in meant) or not one[0] == two[0] == out[:1]:
        raise no_rule("einsum", f"{equation!r}, which does not keep the batch first")
    sizes = dict(zip(two, b.shape, strict=True)) | dict(zip(one, a.shape, strict=True))
    if sorted(out) != sorted([k for k in out if k in both] + [k for k in one + two if k not in both]):
        raise no_rule("einsum", f"{equation!r}, which sums up a dimension of one form")
    if [sizes[k] for k in two] != [*b.shape]:
        raise no_rule("einsum", f"{equation!r} of {list(a.shape)} and {list(b.shape)}")
    kept, summed = [k for k in both if k in out], [k for k in both if k not in out]
    left, right = [k for k in one if k not in both], [k for k in two if k not in both]

    def arranged(x: Form, letters: str, *groups: list[str]) -> Form:
        rows = x.rows.permute(0, *(letters.index(k) + 1 for group in groups for k in group))
        return Form(rows.reshape(len(x.rows), *(math.prod(sizes[k] for k in group) for group in groups)), x.unit)

    keep = ([kept[0]], kept[1:])
    product = matrix_product(arranged(a, one, *keep, left, summed), arranged(b, two, *keep, summed, right))
    order = [*kept, *left, *right]
    rows = product.rows.reshape(len(product.rows), *(sizes[k] for k in order))
    return Form(rows.permute(0, *(order.index(k) + 1 for k in out)).contiguous(), product.unit)


@rule(torch.tensordot)
def tensordot(a: Any, b: Any, dims: Any = 2, out: None = None) -> Form:
    if not isinstance(a, Form) or out is not None or not isinstance(dims, (list, tuple)):
        raise no_rule("tensordot", "of other than a value with a constant, along named dimensions")
    mine, others = [positive(d, a, "tensordot") for d in dims[0]], list(dims[1])
    n = math.prod(a.shape[d] for d in mine)
    weight = exact(b, a)
    product = each_image(lambda data, w: torch.tensordot(data, w, (mine, others)))
    return sum_of_products(a, product, weight, none_of(weight), n)


@rule(torch.cumsum, torch.Tensor.cumsum)
def cumsum(x: Form, dim: int) -> Form:
    place = positive(dim, x, "cumsum") + 1
    return enclose(
        x.rows.cumsum(place), x.magnitude.cumsum(place - 1), x.shape[place - 1] + 4, x.unit, x.shape[place - 1]
    )


@rule(torch.sum, torch.Tensor.sum)
def sum_(x: Form, dim: Any = None, keepdim: bool = False) -> Form:
    if dim is None:
        raise no_rule("sum", "over the batch dimension")
    dims = [positive(d, x, "sum") for d in ([dim] if isinstance(dim, int) else dim)]
    n = math.prod(x.shape[d] for d in dims)
    return enclose(x.rows.sum([d + 1 for d in dims], keepdim), x.magnitude.sum(dims, keepdim), n + 4, x.unit, n + 4)


@rule(F.conv_transpose2d, torch.conv_transpose2d)
def conv_transpose2d(
    input: Form, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Form:  # fmt: skip
    """Spread every entry over its window and add what meets: a matrix product, then plain sums (F.fold). The padding is cut off."""
    x, weight = input, exact(weight, input)
    if x.ndim != 4 or weight.ndim != 4:
        raise no_rule("conv_transpose2d", f"on a tensor of shape {list(x.shape)}")
    steps, cut, more, holes = (pair(v, "conv_transpose2d") for v in (stride, padding, output_padding, dilation))
    kernel = tuple(weight.shape[2:])
    full = [(x.shape[k + 2] - 1) * steps[k] + holes[k] * (kernel[k] - 1) + 1 for k in (0, 1)]
    bias = exact(bias, x) if bias is not None else weight.new_zeros(weight.shape[1] * groups)

    def product(data: Tensor, w: Tensor) -> Tensor:
        matrix = w.flatten(1).unflatten(0, (groups, -1)).transpose(1, 2)  # [groups, outputs * kernel, inputs]
        columns = (matrix @ data.flatten(2).unflatten(1, (groups, -1))).flatten(1, 2)
        result = F.fold(columns, (full[0], full[1]), kernel, holes, 0, steps)
        return F.pad(result, (-cut[1], more[1] - cut[1], -cut[0], more[0] - cut[0]))

    n = weight.shape[0] // groups * math.prod(kernel)
    return sum_of_products(x, each_image(product), weight, bias.view(-1, 1, 1), n)


def row_of(x: Form, name: str) -> Form:
    if x.ndim != 3:
        raise no_rule(name, f"on a tensor of shape {list(x.shape)}")
    return Form(x.rows.unsqueeze(-2), x.unit)


def one(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else value[0]


@rule(F.conv_transpose1d, torch.conv_transpose1d)
def conv_transpose1d(
    input: Form, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Form:  # fmt: skip
    wide = [(1, one(stride)), (0, one(padding)), (0, one(output_padding))]
    result = conv_transpose2d(row_of(input, "conv1d"), weight.unsqueeze(2), bias, *wide, groups, (1, one(dilation)))
    return Form(result.rows.squeeze(-2), input.unit)


@rule(F.conv1d, torch.conv1d)
def conv1d(
    input: Form, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Form:
    width = one(padding)
    across = width if isinstance(width, str) else (0, width)
    steps = (1, one(stride)), across, (1, one(dilation))
    result = conv2d(row_of(input, "conv1d"), weight.unsqueeze(2), bias, *steps, groups)
    return Form(result.rows.squeeze(-2), input.unit)


def between(x: Form, place: int, size: int, factor: Any, align: bool) -> Form:
    """Interpolate linearly along one dimension: (1 - t) x_k + t x_(k + 1) at the place k + t.

    A place is worked out with a few roundings of numbers up to the dimension's size n, so it is off by at most 8 n u, here and in a
    float32 evaluation, and so are both weights; if it moves past an entry, the neighbors of these two count.
    """
    n = x.shape[place]
    steps = torch.arange(size, dtype=torch.float64, device=x.device)
    if align:
        places = steps * ((n - 1) / (size - 1) if size > 1 else 0.0)
    else:
        places = (steps + 0.5) * (n / size if factor is None else 1 / float(factor)) - 0.5
    places = places.clamp(0, n - 1)
    low = places.floor().long().clamp(max=n - 1)
    high = (low + 1).clamp(max=n - 1)
    t = (places - low).view(-1, *[1] * (x.ndim - place - 1))
    rows, size_of = x.rows, x.magnitude
    data = (1 - t) * rows.index_select(place + 1, low) + t * rows.index_select(place + 1, high)
    outer = [(low - 1).clamp(min=0), low, high, (high + 1).clamp(max=n - 1)]
    around = sum((size_of.index_select(place, index) for index in outer), torch.zeros_like(data[0]))
    count = 16 * (n + size + 8)
    return enclose(data, around, count, x.unit, count)


@rule(F.interpolate)
def interpolate(
    input: Form, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None, antialias: bool = False,
) -> Form:  # fmt: skip
    x, spatial = input, input.ndim - 2
    if not 1 <= spatial <= 2 or antialias or recompute_scale_factor:
        raise no_rule("interpolate", f"of {list(x.shape)}, with antialias or another scale")
    factors = [None] * spatial if scale_factor is None else _each(scale_factor, spatial)
    sizes = (
        [math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True)] if size is None else _each(size, spatial)
    )
    if mode in ("nearest", "nearest-exact"):
        return nearest(x, sizes, factors, mode)
    if mode == "area" and spatial == 2:
        return adaptive_avg_pool2d(x, sizes)
    if mode not in ("linear", "bilinear"):
        raise no_rule("interpolate", f"with mode {mode!r}")
    for k in reversed(range(spatial)):
        x = between(x, 2 + k, sizes[k], factors[k], bool(align_corners))
    return x


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


class Extreme(NamedTuple):
    """What max(dim) returns; the indices depend on values."""

    values: Form
    indices: None = None


def _dims(x: Form, dim: Any, name: str) -> list[int]:
    if dim is None or dim == ():
        raise no_rule(name, "over the batch dimension")
    return [positive(d, x, name) for d in ([dim] if isinstance(dim, int) else dim)]


@rule(torch.amax, torch.Tensor.amax)
def amax(x: Form, dim: Any = None, keepdim: bool = False) -> Form:
    dims = _dims(x, dim, "amax")
    rest = [d for d in range(x.ndim) if d not in dims]
    order = [0, *(d + 1 for d in rest), *(d + 1 for d in dims)]
    flat = x.rows.permute(order).flatten(len(rest) + 1)
    result = largest(Form(flat, x.unit), len(rest))
    shape = [1 if d in dims else x.shape[d] for d in range(x.ndim)] if keepdim else [x.shape[d] for d in rest]
    return Form(result.rows.reshape(len(x.rows), *shape), x.unit)


@rule(torch.amin, torch.Tensor.amin)
def amin(x: Form, dim: Any = None, keepdim: bool = False) -> Form:
    return -amax(-x, dim, keepdim)


@rule(torch.max, torch.Tensor.max)
def max_(x: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Extreme | Form:
    """max(x, dim) over a dimension, and max(x, other) of two branches."""
    second = dim if other is None else other
    if isinstance(second, (Form, Tensor)):
        return maximum(x, second)
    return Extreme(amax(x, dim, keepdim))


@rule(torch.min, torch.Tensor.min)
def min_(x: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Extreme | Form:
    second = dim if other is None else other
    if isinstance(second, (Form, Tensor)):
        return minimum(x, second)
    return Extreme(amin(x, dim, keepdim))


@rule(F.adaptive_max_pool2d)
def adaptive_max_pool2d(input: Form, output_size: Any, return_indices: bool = False) -> Form:
    """Cell i of n is the largest of rows floor(i H / n) to ceil((i + 1) H / n)."""
    wanted = [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    if input.ndim != 4 or return_indices:
        raise no_rule("adaptive_max_pool2d", "with return_indices or without a batch")
    lines = []
    for i in range(wanted[0] or input.shape[2]):
        cells = []
        for j in range(wanted[1] or input.shape[3]):
            parts = [
                slice(k * n // m, -((k + 1) * n // -m))
                for k, n, m in zip(
                    (i, j), input.shape[2:], (wanted[0] or input.shape[2], wanted[1] or input.shape[3]), strict=True
                )
            ]
            cells.append(largest(Form(input.rows[..., parts[0], parts[1]].flatten(3), input.unit), 2).rows)
        lines.append(torch.stack(cells, -1))
    return Form(torch.stack(lines, -2), input.unit)


@rule(F.max_pool1d, torch.max_pool1d)
def max_pool1d(
    input: Form, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Form:  # fmt: skip
    kernel, step = (1, one(kernel_size)), (1, one(stride or kernel_size))
    along = (0, one(padding)), (1, one(dilation)), ceil_mode, return_indices
    return Form(max_pool2d(row_of(input, "max_pool1d"), kernel, step, *along).rows.squeeze(-2), input.unit)


@rule(F.avg_pool1d, torch.avg_pool1d)
def avg_pool1d(
    input: Form, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Form:  # fmt: skip
    kernel, step = (1, one(kernel_size)), (1, one(stride or kernel_size))
    result = avg_pool2d(row_of(input, "avg_pool1d"), kernel, step, (0, one(padding)), ceil_mode, count_include_pad)
    return Form(result.rows.squeeze(-2), input.unit)
