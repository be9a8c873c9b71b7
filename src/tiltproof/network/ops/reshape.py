"""Rules of operations that only move entries about, and of branches that join."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import gamma
from tiltproof.network.graph import Operation
from tiltproof.network.ops.base import UNDERFLOW, BackwardResult, MoveRule, evaluated, form_lengths, ones_length, rule


@rule("reshape")
class Reshape(MoveRule):
    """Any reshape that keeps the batch dimension first: flatten, view, squeeze, unsqueeze."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return x.reshape(len(x), *operation.shape)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        return BackwardResult([a.reshape(len(a), *inputs[0].shape[1:])])


@rule("permute")
class Permute(MoveRule):
    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return x.permute(operation.settings["dims"])


@rule("slice")
class Slice(MoveRule):
    def move(self, operation: Operation, x: Tensor) -> Tensor:
        s = operation.settings
        index = [slice(None)] * x.ndim
        index[s["dim"]] = slice(s["start"], s["end"], s["step"])
        return x[tuple(index)]


@rule("pad")
class Pad(MoveRule):
    """Zeros around the picture: of the center, the slopes and the radius alike."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return F.pad(x, operation.settings["pad"])


@rule("identity")
class Identity(MoveRule):
    """Also dropout in eval mode, clone, contiguous."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        return x


@rule("concat")
class Concat:
    """Branches side by side."""

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        dim = operation.settings["dim"]
        radius = torch.cat([form.radius for form in inputs], dim)
        return AffineForm(torch.cat([form.stack for form in inputs], dim + 1), radius, inputs[0].unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        dim = operation.settings["dim"]
        return BackwardResult(list(a.split([form.shape[dim] for form in inputs], dim)))


@rule("add")
class Add:
    """Sum of two branches of equal shape: the shared symbols add up or cancel as they should."""

    sign = 1

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        first, second = inputs
        return evaluated(first + second if self.sign > 0 else first - second, 2, operation.evaluation)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        result = BackwardResult([a, self.sign * a])
        if operation.evaluation:
            size = form_lengths(inputs[0]) + form_lengths(inputs[1]) + UNDERFLOW * ones_length(a)
            result.allowance = size * gamma(4, operation.evaluation)
        return result


@rule("sub")
class Sub(Add):
    """Difference of two branches."""

    sign = -1
