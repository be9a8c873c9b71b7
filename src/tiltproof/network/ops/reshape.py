"""Operations that only rearrange entries."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import BackwardResult, Built, Input, MoveRule, Refused, Rule, converter, rule
from tiltproof.network.ops.gather import padded, with_constants


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
