"""Fully connected layers and convolutions, and linear operations that only rearrange entries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, row_length
from tiltproof.enclosures.rounding import gamma
from tiltproof.network import arithmetic
from tiltproof.network.arithmetic import Window, product
from tiltproof.network.graph import Operation
from tiltproof.network.operator_norms import convolution_norm, matrix_norm
from tiltproof.network.ops.base import (
    FLOOR,
    UNDERFLOW,
    BackwardResult,
    Built,
    Input,
    LinearRule,
    MoveRule,
    Refused,
    Rule,
    backward_gamma,
    converter,
    form_lengths,
    form_norm,
    norm,
    pair,
    require_constants,
    row_norm,
    row_size,
    rule,
    same_padding,
    shape_of,
)
from tiltproof.network.ops.contraction import around, over_last
from tiltproof.network.ops.gather import padded, with_constants


def _absolute(operation: Operation) -> Tensor:
    return operation.once("absolute", lambda: operation.settings["weight"].abs())


@rule("linear")
class Linear(LinearRule):
    """y = W x + b."""

    expensive = True

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return product(x, operation.settings["weight"])

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return product(x, _absolute(operation))

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        weight = operation.settings["weight"]
        if operation.kept is None:
            return a @ weight
        return product(a, operation.once("transposed", lambda: weight.T.contiguous()))

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        outputs, inputs = operation.settings["weight"].shape
        more = operation.settings.get("roundings", 0)  # of computed weights
        return inputs + more, outputs + more

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        return operation.settings["bias"]

    def norm(self, operation: Operation, shape: torch.Size) -> float:
        return operation.once("norm", lambda: matrix_norm(operation.settings["weight"], self._computed(operation)))

    def local(self, operation: Operation, form: AffineForm) -> Tensor:
        """|w_i . x| <= |w_i|_2 |x|_2."""
        assert form.ball is not None
        rows = operation.once("rows", lambda: row_length(operation.settings["weight"]))
        length = torch.minimum(form.ball, row_length(form.radius)).unsqueeze(1)
        return (rows * length * (1 + gamma(self._computed(operation) + 16, form.unit))).to(form.radius.dtype)

    def _computed(self, operation: Operation) -> int:
        """Roundings of computed weights."""
        return int(operation.settings.get("roundings", 0))

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """Avoids a product with |W|: sum_j |a_j| sum_i |W_ji| |x_i| <= (sum_j |a_j| |W_j|_2) |x|_2, with one |x|_2 per box."""
        (form,) = inputs
        if not form.unit or operation.evaluation:
            return super().backward(operation, a, inputs)
        bias, terms = operation.settings["bias"], self.terms(operation, form.shape)
        count = backward_gamma(terms[1] + 8, row_size(a), form.unit)
        numbers = operation.once(f"sizes {count}", lambda: self._numbers(operation, count))
        wide = a.double()
        # sums of |a_j| times each column; the first is multiplied by |x|_2
        first, second = (wide.abs() @ numbers).unbind(1)
        norms = form_norm(form)
        return BackwardResult(
            [self.transposed(operation, a, form.shape[1:])],
            constant=0.0 if bias is None else wide @ operation.once("wide bias", bias.double),
            error=torch.addcmul(second, first, norms),
            # sum |x_i| <= sqrt(n) |x|_2
            size=norms * (math.sqrt(math.prod(form.shape[1:])) * (1 + 2.0**-20)),
        )

    def _numbers(self, operation: Operation, count: float) -> Tensor:
        """Rounding error per unit of |a_j|, for each output j: ``count`` |W_j|_2 per unit of |x|_2; and `FLOOR` + ``count`` |b_j|."""
        weight, bias = operation.settings["weight"].double(), operation.settings["bias"]
        least = torch.zeros_like(weight[:, 0]) if bias is None else bias.double().abs()
        return torch.stack(
            [row_norm(weight) * count, (least + UNDERFLOW) * count + FLOOR[operation.settings["weight"].dtype]], 1
        )


@converter("linear.default")
def linear(shape: Any, x: Any, weight: Any, bias: Any = None) -> Built:
    require_constants(x, weight, bias)
    if len(x.shape) != 1:
        return over_last(x, weight, bias)
    return Built("linear", (x.name,), {"weight": weight, "bias": bias})


class RowByRow(Linear):
    """y = W_p x + b_p: weights [P, outputs, inputs] and biases [P, outputs] that differ by row p."""

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        """``x``: a multiple of P rows."""
        weight = operation.settings["weight"]
        count = len(weight)
        return self._product(weight, x.unflatten(0, (len(x) // max(1, count), count))).flatten(0, 1)

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return self._product(_absolute(operation), x.unsqueeze(0)).squeeze(0)

    def _product(self, weight: Tensor, x: Tensor) -> Tensor:
        """[K, P, inputs] -> [K, P, outputs]."""
        return torch.bmm(weight, x.permute(1, 2, 0)).permute(2, 0, 1)

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        inputs = operation.settings["weight"].shape[-1] + operation.settings["roundings"]
        return inputs, inputs

    def norm(self, operation: Operation, shape: torch.Size) -> float:
        """One for each row is not worth its work: `local` is what counts in the last layer."""
        return math.inf

    def local(self, operation: Operation, form: AffineForm) -> Tensor:
        assert form.ball is not None
        rows = operation.once("rows", lambda: row_length(operation.settings["weight"].flatten(0, 1)))
        length = torch.minimum(form.ball, row_length(form.radius)).unsqueeze(1)
        rows = rows.view(operation.settings["weight"].shape[:2])
        return (rows * length * (1 + gamma(self._computed(operation) + 16, form.unit))).to(form.radius.dtype)


ROW_BY_ROW = RowByRow()
"""The forward rule of margins whose labels differ by row; no kind of operation uses it."""


@rule("conv2d")
class Conv2d(LinearRule):
    """Convolution with stride, padding, dilation and groups."""

    expensive = True

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return arithmetic.conv2d(x, operation.settings["weight"], operation.settings["window"], operation.once)

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return arithmetic.conv2d(x, _absolute(operation), operation.settings["window"], operation.once, "absolute ")

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        weight, window = operation.settings["weight"], operation.settings["window"]
        return arithmetic.conv2d_transposed(a, weight, window, (shape[-2], shape[-1]), operation.once)

    def shifted(self, operation: Operation, a: Tensor, shift: Tensor) -> Tensor:
        return a.sum((2, 3), dtype=torch.float64) @ operation.once("wide bias", operation.settings["bias"].double)

    def sizes(self, operation: Operation, form: AffineForm) -> Tensor:
        """A single-channel convolution instead of a product with |W|: with W_j the matrix at kernel position j,
        sum_k |a_k| sum_c |W_jkc| |x_c| <= |a|_2 |W_j|_F |x|_2; the largest over groups.
        """
        kernel = operation.once("kernel", lambda: self._kernel(operation))
        window = replace(operation.settings["window"], groups=1)
        values = form_lengths(form).to(kernel.dtype).unsqueeze(1)
        return arithmetic.conv2d(values, kernel, window, operation.once, "kernel ").squeeze(1)

    def _kernel(self, operation: Operation) -> Tensor:
        weight = operation.settings["weight"]
        parts = weight.double().unflatten(0, (operation.settings["window"].groups, -1))
        return (norm(parts, (1, 2)).amax(0) * (1 + 2.0**-20)).to(weight.dtype)[None, None]

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        outputs, inputs, height, width = operation.settings["weight"].shape
        more = operation.settings.get("roundings", 0)  # of computed weights
        window = operation.settings["window"]
        if window.dilation == (1, 1):  # with strides, an input meets this many kernel positions
            height_met, width_met = -(-height // window.stride[0]), -(-width // window.stride[1])
        else:
            height_met, width_met = height, width
        return inputs * height * width + more, outputs // window.groups * height_met * width_met + more

    def norm(self, operation: Operation, shape: torch.Size) -> float:
        settings = operation.settings
        size, result = (shape[2], shape[3]), (operation.shape[1], operation.shape[2])
        more = settings.get("roundings", 0)
        return operation.once(
            f"norm {size}", lambda: convolution_norm(settings["weight"], settings["window"], size, result, more)
        )

    def local(self, operation: Operation, form: AffineForm) -> Tensor:
        """|w_i . x| <= |w_i|_2 |x|_2 on the receptive field; the sum of squares there is a convolution with ones."""
        assert form.ball is not None
        weight, window = operation.settings["weight"], replace(operation.settings["window"], groups=1)
        rows = operation.once("rows", lambda: row_length(weight))
        squares = form.radius.double().square().sum(1, keepdim=True)
        ones = torch.ones(1, 1, *weight.shape[2:], dtype=torch.float64, device=squares.device)
        # a sum of n squares and its root; entries whose squares underflow are below 2^-510
        count = form.shape[1] * weight[0, 0].numel()
        slack = 1 + 2 * gamma(count + 8, 2.0**-53)
        field = arithmetic.conv2d(squares, ones, window).sqrt() * slack + count * 2.0**-510
        field = torch.minimum(field, form.ball.view(-1, 1, 1, 1))
        roundings = operation.settings.get("roundings", 0)
        return (rows.view(-1, 1, 1) * field * (1 + gamma(roundings + 16, form.unit))).to(form.radius.dtype)

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        bias = operation.settings["bias"]
        return None if bias is None else bias.view(-1, 1, 1)

    def shift_size(self, operation: Operation, shift: Tensor) -> Tensor:
        size = operation.settings.get("shift_size")
        return shift.abs() if size is None else size.view(-1, 1, 1)


@converter("conv2d.default", "conv2d.padding")
def conv2d(
    shape: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Built:
    require_constants(x, weight, bias)
    if len(x.shape) != 3:
        raise Refused("a convolution without a batch")
    sizes = same_padding(padding, shape_of(weight)[2:], pair(dilation))
    window = Window(pair(stride), (min(sizes[0]), min(sizes[1])), pair(dilation), groups)
    uneven = any(before != after for before, after in sizes)
    inputs = (around(x.name, x.shape, sizes),) if uneven else (x.name,)
    return Built("conv2d", inputs, {"weight": weight, "bias": bias, "window": window})


@rule("reshape")
class Reshape(MoveRule):
    """Any reshape that keeps the batch dimension first: flatten, view, squeeze, unsqueeze."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return x.reshape(len(x), *operation.shape)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        return BackwardResult([a.reshape(len(a), *inputs[0].shape[1:])])


@converter(
    "view.default",
    "reshape.default",
    "flatten.using_ints",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "_unsafe_view.default",
)
def reshape(shape: Any, x: Any, *_: Any) -> Built:
    if math.prod(shape) != math.prod(x.shape):
        raise Refused(f"a reshape from {x.shape} to {shape} that mixes images of the batch")
    return Built("reshape", (x.name,))


@rule("permute")
class Permute(MoveRule):
    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return x.permute(operation.settings["dims"])


@converter("permute.default")
def permute(shape: Any, x: Any, dims: Any) -> Built:
    dims = [d % (len(x.shape) + 1) for d in dims]
    if dims[0] != 0:
        raise Refused("a permutation that moves the batch dimension")
    return Built("permute", (x.name,), {"dims": dims})


@converter("transpose.int")
def transpose(shape: Any, x: Any, first: int, second: int) -> Built:
    dims = list(range(len(x.shape) + 1))
    dims[first], dims[second] = dims[second], dims[first]
    return permute(shape, x, dims)


@rule("slice")
class Slice(MoveRule):
    def move(self, operation: Operation, x: Tensor) -> Tensor:
        s = operation.settings
        index = [slice(None)] * x.ndim
        index[s["dim"]] = slice(s["start"], s["end"], s["step"])
        return x[tuple(index)]


@converter("slice.Tensor")
def slice_(shape: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Built:
    dim %= len(x.shape) + 1
    if dim == 0:
        if not start and (end is None or end > 2**31):
            return Built("identity", (x.name,))
        raise Refused("a slice of the batch")
    return Built("slice", (x.name,), {"dim": dim, "start": start, "end": end, "step": step})


@rule("pad")
class Pad(MoveRule):
    """Zeros around the image; center, slopes and radius there are zero."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return F.pad(x, operation.settings["pad"])


@converter("pad.default")
def pad(shape: Any, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Built:
    if mode != "constant" or value not in (None, 0) or any(not isinstance(n, int) or n < 0 for n in pad):
        return padded(x, pad, mode, value)
    if len(pad) > 2 * len(x.shape):
        raise Refused("padding of the batch")
    return Built("pad", (x.name,), {"pad": tuple(pad)})


@converter("constant_pad_nd.default")
def constant_pad(shape: Any, x: Any, sizes: Any, value: Any = 0) -> Built:
    return pad(shape, x, sizes, "constant", value)


@rule("concat")
class Concat(Rule):
    """Concatenation of branches."""

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        dim = operation.settings["dim"]
        radius = torch.cat([form.radius for form in inputs], dim)
        result = AffineForm(torch.cat([form.stack for form in inputs], dim + 1), radius, inputs[0].unit)
        if any(form.ball is None for form in inputs):
            return result
        balls = torch.stack([form.ball for form in inputs if form.ball is not None])
        # |x|^2 is the sum over the parts; 2^-500 covers squares that underflow
        return result.with_ball(balls.square().sum(0).sqrt() * (1 + (len(balls) + 8) * result.unit) + 2.0**-500)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        dim = operation.settings["dim"]
        return BackwardResult(list(a.split([form.shape[dim] for form in inputs], dim)))


@converter("cat.default")
def concat(shape: Any, parts: Any, dim: int = 0) -> Built:
    dim %= len(shape) + 1
    if dim == 0:
        raise Refused("a concatenation along the batch")
    if not all(isinstance(part, Input) for part in parts):
        return with_constants(shape, parts, dim)
    return Built("concat", tuple(part.name for part in parts), {"dim": dim})


@rule("identity")
class Identity(MoveRule):
    """Also dropout in eval mode, clone, contiguous."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return x


@converter(
    "clone.default",
    "contiguous.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
)
def identity(shape: Any, x: Any, *settings: Any, **options: Any) -> Built:
    return Built("identity", (x.name,))


@converter("dropout.default")
def dropout(shape: Any, x: Any, p: float, train: bool) -> Built:
    if train and p != 0:
        raise Refused("dropout in training mode")
    return Built("identity", (x.name,))
