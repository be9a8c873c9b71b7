"""Products with constant tensors along any dimensions, sums over dimensions, transposed convolutions and resizing: all linear."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import gamma, widen
from tiltproof.network import arithmetic
from tiltproof.network.arithmetic import Window
from tiltproof.network.graph import Operation, Reference
from tiltproof.network.operator_norms import convolution_norm
from tiltproof.network.ops.base import (
    UNDERFLOW,
    BackwardResult,
    Built,
    Input,
    LinearRule,
    Refused,
    converter,
    farthest,
    lengths,
    pair,
    require_constants,
    rule,
    same_padding,
    shape_of,
)
from tiltproof.network.ops.pooling import Average

LETTERS = "abcdefghijklmnopqrstuvwxy"
BATCH = "z"


def _transposed(function: Any, a: Tensor, shape: torch.Size) -> Tensor:
    """The transpose of a linear function of images of this shape, by automatic differentiation."""
    transpose = torch.func.vjp(function, a.new_zeros(len(a), *shape))[1]
    result: Tensor = transpose(a.contiguous())[0]
    return result


@rule("contraction")
class Contraction(LinearRule):
    """y_(out) = sum x_(given) w_(constant) + b, the sum over all letters that the output lacks (Einstein's notation).

    Each y is a sum of as many products as those letters have values, and a coefficient of x is one of as many as the letters of y have
    that x lacks.
    """

    expensive = True

    def _product(self, operation: Operation, x: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum(operation.settings["equation"], x, weight)

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return self._product(operation, x, operation.settings["weight"])

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return self._product(operation, x, operation.once("absolute", lambda: operation.settings["weight"].abs()))

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        return _transposed(lambda x: self.signed(operation, x), a, shape)

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        terms: tuple[int, int] = operation.settings["terms"]
        return terms

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        bias = operation.settings["bias"]
        return None if bias is None else operation.once("shift", lambda: bias.expand(operation.shape).contiguous())


def contraction(
    x: Input | Built, weight: Reference, given: str, inner: str, out: str, bias: Any = None, shape: Any = None
) -> Built:
    """``given``, ``inner`` and ``out``: the letters of x, of the constant and of the result, without the batch."""
    sizes = dict(zip(inner, shape_of(weight), strict=True)) | dict(zip(given, x.shape or (), strict=True))
    if any(len({*letters}) != len(letters) for letters in (given, inner, out)) or not {*inner} - {*given} <= {*out}:
        raise Refused(f"a product {given}, {inner} -> {out} with a letter that occurs twice or in the constant alone")
    if [sizes[letter] for letter in inner] != [*shape_of(weight)] or not {*out} <= {*sizes}:
        raise Refused(f"a product of sizes {x.shape} and {shape_of(weight)}")
    terms = [math.prod(sizes[k] for k in one if k not in other) for one, other in ((given, out), (out, given))]
    equation = f"{BATCH}{given},{inner}->{BATCH}{out}"
    settings = {"weight": weight, "bias": bias, "equation": equation, "terms": (terms[0], terms[1])}
    return Built("contraction", (x.name if isinstance(x, Input) else x,), settings, shape=shape)


def over_last(x: Input, weight: Reference, bias: Any = None) -> Built:
    """A fully connected layer over the last dimension, such as of tokens."""
    rest = LETTERS[: len(x.shape) - 1]
    return contraction(x, weight, f"{rest}x", "yx", f"{rest}y", bias)


def times_constant(x: Input, weight: Any) -> Built:
    """x @ W."""
    size, rest = shape_of(weight), LETTERS[: len(x.shape) - 1]
    if not x.shape:
        raise Refused("a product of a number for each image")
    if len(size) == 2 and not rest:
        return Built("linear", (x.name,), {"bias": None}, {"weight": lambda c: c[weight.name].t()})
    if len(size) < 3:
        return contraction(x, weight, f"{rest}x", "xy"[: len(size)], f"{rest}y" if len(size) == 2 else rest)
    *many, _, _ = _without_batch(size, len(x.shape))
    first = rest[len(rest) - 1 - len(many) : -1]
    return contraction(x, _sliced(weight, size, len(x.shape)), f"{rest}x", f"{first}xy", f"{rest}y")


def constant_times(weight: Any, x: Input) -> Built:
    """W @ x."""
    size = shape_of(weight)
    if len(x.shape) < 2 or len(size) < 2:
        raise Refused(f"a product of a matrix {size} with {x.shape}, which mixes the images of a batch")
    rest = LETTERS[: len(x.shape) - 2]
    if len(size) == 2:
        return contraction(x, weight, f"{rest}xw", "yx", f"{rest}yw")
    *many, _, _ = _without_batch(size, len(x.shape))
    first = rest[len(rest) - len(many) :]
    return contraction(x, _sliced(weight, size, len(x.shape)), f"{rest}xw", f"{first}yx", f"{rest}yw")


def _without_batch(size: tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    if len(size) > dimensions + 1 or (len(size) == dimensions + 1 and size[0] != 1):
        raise Refused(f"a constant of shape {size}, with a matrix for each image of a batch")
    return size[1:] if len(size) == dimensions + 1 else size


def _sliced(weight: Reference, size: tuple[int, ...], dimensions: int) -> Reference:
    if len(size) == dimensions + 1:
        raise Refused(f"a product with a constant of shape {size}; take weight[0], of {len(size) - 1} dimensions")
    return weight


@converter("mm.default")
def mm(shape: Any, x: Any, weight: Any) -> Built:
    require_constants(x, weight)
    return times_constant(x, weight)


@converter("addmm.default")
def addmm(shape: Any, bias: Any, x: Any, weight: Any, beta: float = 1, alpha: float = 1) -> Built:
    require_constants(x, bias, weight)
    if (beta, alpha) != (1, 1) or shape_of(bias)[:-1] not in ((), (1,)):
        raise Refused(f"addmm with beta = {beta}, alpha = {alpha} and a bias of shape {shape_of(bias)}")
    outputs = shape_of(weight)[1]
    derived = {
        "weight": lambda c: c[weight.name].t(),
        "bias": lambda c: c[bias.name].reshape(-1).expand(outputs).clone(),
    }
    return Built("linear", (x.name,), {}, derived)


@converter("einsum.default")
def einsum(shape: Any, equation: str, operands: Any, path: Any = None) -> Built:
    if len(operands) != 2 or not any(isinstance(entry, Input) for entry in operands):
        raise Refused("an einsum of other than two factors")
    left, arrow, out = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise Refused(f"einsum {equation!r}; write all dimensions and the result as letters")
    first, second = left.split(",")
    if all(isinstance(entry, Input) for entry in operands):
        return of_branches(equation, (first, second, out), *operands)
    x, weight = operands
    if isinstance(weight, Input):
        x, weight, first, second = weight, x, second, first
    if first[:1] != out[:1] or first[0] in second:
        raise Refused(f"einsum {equation!r}, which does not keep the batch dimension first")
    return contraction(x, weight, first[1:], second, out[1:])


def of_branches(equation: str, letters: tuple[str, str, str], x: Input, other: Input) -> Built:
    """An einsum of two branches: a product of matrices [many, rows, inner] @ [many, inner, columns], and dimensions put in order."""
    first, second, out = letters
    batch = out[:1]
    if batch != first[:1] or batch != second[:1] or any(len({*each}) != len(each) for each in letters):
        raise Refused(f"einsum {equation!r}, which does not keep the batch dimension first, or names a dimension twice")
    if not {*first} ^ {*second} <= {*out} <= {*first} | {*second}:
        raise Refused(f"einsum {equation!r}, which sums up a dimension of one branch")
    sizes = dict(zip(first[1:], x.shape, strict=True)) | dict(zip(second[1:], other.shape, strict=True))
    if any(sizes[k] != size for k, size in zip(first[1:], x.shape, strict=True)):
        raise Refused(f"einsum {equation!r} of shapes {x.shape} and {other.shape}")
    inner = [k for k in first if k in second and k not in out]
    many = [k for k in out[1:] if k in first and k in second]
    rows, columns = ([k for k in out if k in one and k not in two] for one, two in ((first, second), (second, first)))

    def matrices(given: Input, names: str, groups: tuple[list[str], list[str]]) -> Built:
        order = [*many, *groups[0], *groups[1]]
        turned = tuple(sizes[k] for k in order)
        moved = Built("permute", (given.name,), {"dims": [0, *(names.index(k) for k in order)]}, shape=turned)
        return Built("reshape", (moved,), shape=tuple(math.prod(sizes[k] for k in part) for part in (many, *groups)))

    left, right = matrices(x, first, (rows, inner)), matrices(other, second, (inner, columns))
    assert left.shape is not None
    assert right.shape is not None
    product = Built("matmul", (left, right), shape=(*left.shape[:2], right.shape[2]))
    order = [*many, *rows, *columns]
    apart = Built("reshape", (product,), shape=tuple(sizes[k] for k in order))
    return Built("permute", (apart,), {"dims": [0, *(order.index(k) + 1 for k in out[1:])]})


@converter("tensordot.default")
def tensordot(shape: Any, x: Any, weight: Any, dims: Any, others: Any) -> Built:
    require_constants(x, weight)
    size = shape_of(weight)
    dims, others = [d % (len(x.shape) + 1) for d in dims], [d % len(size) for d in others]
    if 0 in dims:
        raise Refused("a product over the batch")
    given = LETTERS[: len(x.shape)]
    inner = [*LETTERS[len(given) : len(given) + len(size)]]
    for dim, other in zip(dims, others, strict=True):
        inner[other] = given[dim - 1]
    out = [k for k in given if k not in inner] + [k for k in inner if k not in given]
    return contraction(x, weight, given, "".join(inner), "".join(out))


@converter("cumsum.default")
def cumsum(shape: Any, x: Any, dim: int, dtype: Any = None) -> Built:
    """A product with a triangle of ones."""
    dim %= len(x.shape) + 1
    if dim == 0 or dtype is not None:
        raise Refused("a running sum over the batch or in another dtype")
    size, given = x.shape[dim - 1], LETTERS[: len(x.shape)]
    triangle = Reference("", (size, size))
    built = contraction(x, triangle, given, given[dim - 1] + "y", given[: dim - 1] + "y" + given[dim:])
    del built.settings["weight"]
    built.derived["weight"] = lambda constants: torch.ones(size, size).triu().to(_device(constants))
    return built


def _device(constants: dict[str, Tensor]) -> torch.device | None:
    return next((value.device for value in constants.values() if isinstance(value, Tensor)), None)


@rule("sum")
class Sum(Average):
    """Sum over some dimensions."""

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return x.sum(operation.settings["dim"], keepdim=operation.settings["keepdim"])

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        length = math.prod(shape[1:]) + 4
        return length, length

    def divisor(self, operation: Operation, shape: torch.Size) -> int:
        return 1


@converter("sum.dim_IntList")
def sum_(shape: Any, x: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Built:
    dims = [d % (len(x.shape) + 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    if not dims or 0 in dims or dtype is not None:
        raise Refused("a sum over the batch or in another dtype")
    return Built("sum", (x.name,), {"dim": dims, "keepdim": keepdim})


@rule("conv_transpose2d")
class ConvTranspose2d(LinearRule):
    """The transpose of a convolution, as a layer: y = C^T x + b, where C is the convolution with these weights [inputs, outputs, h, w]."""

    expensive = True

    def _spread(self, operation: Operation, x: Tensor, weight: Tensor) -> Tensor:
        height, width = operation.shape[1:]
        return arithmetic.conv2d_transposed(x, weight, operation.settings["window"], (height, width))

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return self._spread(operation, x, operation.settings["weight"])

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return self._spread(operation, x, operation.once("absolute", lambda: operation.settings["weight"].abs()))

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        """With output padding of a stride or more, the convolution has windows beyond those that were spread."""
        back = arithmetic.conv2d(a, operation.settings["weight"], operation.settings["window"], operation.once)
        return back[:, :, : shape[-2], : shape[-1]]

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        inputs, outputs, height, width = operation.settings["weight"].shape
        return inputs // operation.settings["window"].groups * height * width, outputs * height * width

    def norm(self, operation: Operation, shape: torch.Size) -> float:
        """That of its transpose, the convolution; outputs of padding that no window reaches do not count."""
        settings, size, result = operation.settings, (operation.shape[1], operation.shape[2]), (shape[2], shape[3])
        return operation.once(
            f"norm {result}", lambda: convolution_norm(settings["weight"], settings["window"], size, result)
        )

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        bias = operation.settings["bias"]
        return None if bias is None else bias.view(-1, 1, 1)


@converter("conv_transpose2d.input")
def conv_transpose2d(
    shape: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, more: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Built:  # fmt: skip
    require_constants(x, weight, bias)
    if len(x.shape) != 3:
        raise Refused("a transposed convolution without a batch")
    window = Window(pair(stride), pair(padding), pair(dilation), groups)
    return Built("conv_transpose2d", (x.name,), {"weight": weight, "bias": bias, "window": window})


def in_one_row(shape: tuple[int, ...], x: Input, built: Built) -> Built:
    """An operation on images [C, 1, L] for inputs [C, L]; it reads what it is given as a reshape."""
    row = Built("reshape", (x.name,), shape=(x.shape[0], 1, x.shape[1]))
    built.inputs, built.shape = (row,), (shape[0], 1, shape[1])
    return Built("reshape", (built,))


def row_pair(value: Any, across: int) -> tuple[int, int]:
    (along,) = value if isinstance(value, (list, tuple)) else (value,)
    return across, along


@converter("conv_transpose1d.default")
def conv_transpose1d(
    shape: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, more: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Built:  # fmt: skip
    require_constants(x, weight, bias)
    if len(x.shape) != 2:
        raise Refused("a transposed convolution without a batch")
    window = Window(row_pair(stride, 1), row_pair(padding, 0), row_pair(dilation, 1), groups)
    built = Built("conv_transpose2d", (), {"bias": bias, "window": window})
    built.derived["weight"] = lambda constants: constants[weight.name].unsqueeze(2)
    return in_one_row(shape, x, built)


@rule("resize")
class Resize(LinearRule):
    """Bilinear interpolation at fixed places: y = A x B^T for each channel, with weights >= 0 that are at most 1.

    A float32 evaluation finds each place c in float32, with a few roundings of numbers of at most the size n, so it is off by at most
    8 n u; the weights of an entry are hat functions of c, whose slope is at most 1, and vanish a unit or more away from it. So weights
    are off by at most that, for entries less than 2 away from c, and the result by gamma_count times the sum of |x| over all those.
    """

    def _weights(self, operation: Operation, name: str, like: Tensor) -> tuple[Tensor, Tensor]:
        def make() -> tuple[Tensor, Tensor]:
            rows, columns = (operation.settings[f"{name}{side}"] for side in ("rows", "columns"))
            return rows.to(like.device, like.dtype), columns.to(like.device, like.dtype)

        return operation.once(f"{name}{like.dtype}", make)

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        rows, columns = self._weights(operation, "", x)
        return torch.matmul(rows, torch.matmul(x, columns.T))

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return self.signed(operation, x)

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        return _transposed(lambda x: self.signed(operation, x), a, shape)

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        """Of both products, and the roundings of either weight."""
        return sum(shape[-2:]) + 8, sum(operation.shape[-2:]) + 8

    def _near(self, operation: Operation, x: Tensor) -> Tensor:
        """The rounding of places by an evaluation."""
        rows, columns = self._weights(operation, "near ", x)
        size = torch.matmul(rows, torch.matmul(x + UNDERFLOW, columns.T))
        count = 16 * (sum(x.shape[-2:]) + sum(operation.shape[-2:]) + 8)
        return size * (gamma(count, operation.evaluation) * (1 + 2.0**-16))

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        result = super().forward(operation, inputs)
        if operation.evaluation:
            error = self._near(operation, farthest(inputs[0]))
            result.radius = widen(result.radius + error, error, 4, result.unit)
        return result

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        result = super().backward(operation, a, inputs)
        if operation.evaluation and result.rounding_budget is not None:
            result.rounding_budget = result.rounding_budget + lengths(self._near(operation, farthest(inputs[0])))
        return result


def hats(size: int, result: int, align: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """The weights [result, size] of linear interpolation, in exact fractions, and which entries are less than 2 away."""
    weights, near = torch.zeros(result, size, dtype=torch.float64), torch.zeros(result, size, dtype=torch.float64)
    for p in range(result):
        if align:
            place = Fraction(p * (size - 1), result - 1) if result > 1 else Fraction(0)
        else:
            step = Fraction(size, result) if scale is None or scale <= 0 else 1 / Fraction(scale)
            place = max((p + Fraction(1, 2)) * step - Fraction(1, 2), Fraction(0))
        place = min(place, Fraction(size - 1))
        for k in range(max(0, math.floor(place) - 1), min(size, math.floor(place) + 3)):
            weights[p, k] = float(max(1 - abs(place - k), Fraction(0)))
            near[p, k] = 1.0
    return weights, near


@converter("upsample_bilinear2d.vec")
def upsample_bilinear2d(shape: Any, x: Any, size: Any, align: bool, scales: Any = None) -> Built:
    if len(x.shape) != 3:
        raise Refused("an interpolation without a batch")
    each = scales if scales is not None else (None, None)
    sides = zip(x.shape[1:], shape[1:], each, strict=True)
    (rows, near_rows), (columns, near_columns) = (hats(a, b, align, s) for a, b, s in sides)
    return Built(
        "resize",
        (x.name,),
        {"rows": rows, "columns": columns, "near rows": near_rows, "near columns": near_columns},
    )


@converter("upsample_linear1d.vec")
def upsample_linear1d(shape: Any, x: Any, size: Any, align: bool, scales: Any = None) -> Built:
    rows = torch.ones(1, 1, dtype=torch.float64)
    columns, near = hats(x.shape[1], shape[1], align, scales[0] if scales is not None else None)
    settings = {"rows": rows, "columns": columns, "near rows": rows, "near columns": near}
    return in_one_row(shape, x, Built("resize", (), settings))


@converter("conv1d.default", "conv1d.padding")
def conv1d(
    shape: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Built:  # fmt: skip
    require_constants(x, weight, bias)
    if len(x.shape) != 2:
        raise Refused("a convolution without a batch")
    before, after = same_padding(padding, shape_of(weight)[2:], (dilation,))[0]
    window = Window(row_pair(stride, 1), (0, min(before, after)), row_pair(dilation, 1), groups)
    built = Built("conv2d", (), {"bias": bias, "window": window})
    built.derived["weight"] = lambda constants: constants[weight.name].unsqueeze(2)
    result = in_one_row(shape, x, built)
    if before != after:
        built.inputs = (around(built.inputs[0], (x.shape[0], 1, x.shape[1]), [(0, 0), (before, after)]),)
    return result


def around(x: str | Built, shape: tuple[int, ...], sizes: list[tuple[int, int]]) -> Built:
    """As many zeros as make the padding that torch's convolution adds to both sides uneven."""
    more = [(before - min(before, after), after - min(before, after)) for before, after in sizes]
    bigger = (*shape[:-2], *(size + sum(extra) for size, extra in zip(shape[-2:], more, strict=True)))
    flat = [n for extra in reversed(more) for n in extra]
    return Built("pad", (x,), {"pad": tuple(flat)}, shape=bigger)
