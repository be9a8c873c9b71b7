"""The largest of several entries of one value: over dimensions, and over windows that `pooling` does not know."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import gamma, widen
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import (
    BackwardResult,
    Built,
    Input,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    farthest,
    lengths,
    pair,
    row_size,
    rule,
)
from tiltproof.network.ops.contraction import in_one_row, row_pair
from tiltproof.network.ops.gather import places


@rule("largest")
class Largest(Rule):
    """y_j = max of x_i over the i in row j of ``index`` [outputs, entries], in which an entry may be named twice.

    With m the entry of the highest center and E >= max_i (x_i - x_m), E >= 0: x_m <= y <= x_m + E. The differences x_i - x_m are affine
    forms, so shared symbols cancel.
    """

    def _leader(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        """The number m of each output [P, outputs], and E."""
        index = operation.once("on device", lambda: operation.settings["index"].to(form.device))
        stack, radius = form.stack.reshape(len(form.stack), len(form), -1), form.radius.reshape(len(form), -1)
        found = stack[0][:, index].argmax(2, keepdim=True)
        leader = index.expand(len(form), *index.shape).gather(2, found)
        best = stack.gather(2, leader.squeeze(2).expand(len(stack), *leader.shape[:2])).unsqueeze(3)
        others = stack[:, :, index]
        difference = others - best
        best_radius = radius.gather(1, leader.squeeze(2)).unsqueeze(2)
        excess = difference[0] + difference[1:].abs().sum(0) + radius[:, index] + best_radius
        size = others.abs().sum(0) + best.abs().sum(0) + excess.abs()
        excess = excess + size * gamma(2 * len(stack) + 16, form.unit)
        return leader.squeeze(2), torch.where(index != leader, excess, 0.0).amax(2).clamp(min=0)

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        (form,) = inputs
        leader, excess = self._leader(operation, form)
        flat = form.stack.reshape(len(form.stack), len(form), -1)
        stack = flat.gather(2, leader.expand(len(flat), *leader.shape))
        stack = torch.cat([(stack[0] + excess / 2)[None], stack[1:]])
        radius = form.radius.reshape(len(form), -1).gather(1, leader) + excess / 2
        radius = torch.where(excess > 0, widen(radius, stack[0].abs() + excess, 4, form.unit), radius)
        shape = (len(form), *operation.shape)
        return AffineForm(stack.reshape(len(stack), *shape), radius.reshape(shape), form.unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a y >= a x_m for a >= 0, and a y >= a (x_m + E) for a < 0; one entry may lead as many outputs as name it."""
        (form,) = inputs
        leader, excess = self._leader(operation, form)
        flat = a.reshape(len(a), row_size(a))
        back = a.new_zeros(len(a), math.prod(form.shape[1:])).scatter_add(1, leader, flat)
        result = BackwardResult([back.view(len(a), *form.shape[1:])], constant=dot(flat.clamp(max=0), excess))
        if form.unit:
            copies = operation.once("copies", lambda: int(torch.bincount(operation.settings["index"].flatten()).max()))
            size = farthest(form).reshape(len(form), -1).gather(1, leader) + excess
            budget = lengths(size.view(len(form), *operation.shape))
            result.rounding_budget = budget * backward_gamma(copies + 9, row_size(a), form.unit)
        return result


def largest(x: Input | Built, index: Tensor) -> Built:
    return Built("largest", (x.name if isinstance(x, Input) else x,), {"index": index})


def over_dims(x: Input, dims: Any) -> Tensor:
    """For each output, the entries along these dimensions."""
    found = [d % (len(x.shape) + 1) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
    if not found or 0 in found:
        raise Refused("a maximum over the batch")
    numbers = torch.arange(math.prod(x.shape)).view(x.shape)
    rest = [d for d in range(len(x.shape)) if d + 1 not in found]
    return numbers.permute(*rest, *(d - 1 for d in found)).reshape(math.prod(x.shape[d] for d in rest), -1)


@converter("amax.default", "max.dim")
def amax(shape: Any, x: Any, dim: Any = (), keepdim: bool = False) -> Built:
    return largest(x, over_dims(x, dim))


@converter("amin.default", "min.dim")
def amin(shape: Any, x: Any, dim: Any = (), keepdim: bool = False) -> Built:
    """-max(-x)."""
    inner = largest(_negated(x.name, x.shape), over_dims(x, dim))
    inner.shape = shape
    return _negated(inner, shape)


def _negated(x: str | Built, shape: tuple[int, ...]) -> Built:
    return Built("scale", (x,), {"scale": torch.tensor(-1.0, dtype=torch.float64), "shift": None}, shape=shape)


def windows(x: Input, shape: tuple[int, ...], kernel: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The entries under each window, of which the last may reach over the edge; an entry of the window stands for those outside."""
    plane, size = places((1, *x.shape[1:]))[:1], math.prod(x.shape[1:])
    reach = [(shape[k + 1] - 1) * stride[k] + dilation[k] * (kernel[k] - 1) + 1 for k in (0, 1)]
    after = [max(0, reach[k] - x.shape[k + 1] - padding[k]) for k in (0, 1)]
    plane = F.pad(plane, (padding[1], after[1], padding[0], after[0]))[:, :, : reach[0], : reach[1]]
    found = F.unfold(plane, kernel, dilation, 0, stride)[0].T.long()
    found = torch.where(found == 0, found.amax(1, keepdim=True), found) - 1
    if bool((found < 0).any()) or len(found) != math.prod(shape[1:]):
        raise Refused("max pooling with windows that hold padding only")
    return (torch.arange(x.shape[0]).view(-1, 1, 1) * size + found).flatten(0, 1)


@converter("adaptive_max_pool2d.default")
def adaptive_max_pool2d(shape: Any, x: Any, output_size: Any) -> Built:
    """Cell i of n is the maximum from floor(i H / n) to ceil((i + 1) H / n)."""
    sides = [
        [range(i * size // n, -((i + 1) * size // -n)) for i in range(n)]
        for size, n in zip(x.shape[1:], shape[1:], strict=True)
    ]
    width, size = x.shape[2], math.prod(x.shape[1:])
    cells = [[row * width + column for row in rows for column in columns] for rows in sides[0] for columns in sides[1]]
    most = max(map(len, cells))
    plane = torch.tensor([cell + cell[:1] * (most - len(cell)) for cell in cells])
    return largest(x, (torch.arange(x.shape[0]).view(-1, 1, 1) * size + plane).flatten(0, 1))


@converter("max_pool1d.default")
def max_pool1d(
    shape: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Built:
    row = Input(x.name, (x.shape[0], 1, x.shape[1]))
    kernel, padding, dilation = row_pair(kernel, 1), row_pair(padding, 0), row_pair(dilation, 1)
    stride = row_pair(stride, 1) if stride else kernel
    result = (shape[0], 1, shape[1])
    return in_one_row(shape, x, largest(row, windows(row, result, kernel, stride, padding, dilation)))


@converter("avg_pool1d.default")
def avg_pool1d(
    shape: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, include: bool = True
) -> Built:
    kernel, padding = row_pair(kernel, 1), row_pair(padding, 0)
    settings = {"kernel_size": kernel, "stride": row_pair(stride, 1) if stride else kernel, "padding": padding}
    more = {"ceil_mode": ceil_mode, "count_include_pad": include, "divisor": None}
    return in_one_row(shape, x, Built("avg_pool2d", (), settings | more))


@converter("max_pool2d.default", "max_pool2d_with_indices.default")
def max_pool2d(
    shape: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Built:
    """Windows that may reach over the edge (ceil_mode), or hold padding between their entries, are listed entry by entry."""
    kernel, stride = pair(kernel), pair(stride) if stride else pair(kernel)
    padding, dilation = pair(padding), pair(dilation)
    if ceil_mode or (dilation != (1, 1) and padding != (0, 0)):
        return largest(x, windows(x, shape, kernel, stride, padding, dilation))
    settings = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    return Built("max_pool2d", (x.name,), settings)
