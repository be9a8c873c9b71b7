"""Averages over windows or dimensions, and max pooling."""

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
    LinearRule,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    farthest,
    lengths,
    pair,
    rule,
)


class Average(LinearRule):
    """Averages: weights are positive, so |L| = L; automatic differentiation gives the transpose."""

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        return self.signed(operation, x)

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        transpose = torch.func.vjp(lambda x: self.signed(operation, x), a.new_zeros(len(a), *shape))[1]
        return transpose(a.contiguous())[0]

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        """A window is no larger than the image, and an entry lies in at most all windows, of which there may be more than entries."""
        return math.prod(shape[-2:]) + 4, math.prod(operation.shape[-2:]) + 4

    def norm(self, operation: Operation, shape: torch.Size) -> float:
        """sigma <= sqrt(largest row sum times largest column sum): of windows that do not overlap, sigma itself."""
        return operation.once(f"norm {tuple(shape[1:])}", lambda: self._norm(operation, shape))

    def _norm(self, operation: Operation, shape: torch.Size) -> float:
        ones = torch.ones(1, *shape[1:], dtype=torch.float64)
        rows = self.signed(operation, ones)
        columns = self.transposed(operation, torch.ones_like(rows), shape[1:])
        slack = 1 + 4 * gamma(sum(self.terms(operation, shape)) + 16, 2.0**-53)
        return math.sqrt(float(rows.max()) * float(columns.max())) * slack

    def divisor(self, operation: Operation, shape: torch.Size) -> int:
        return max(self.terms(operation, shape)[0], operation.settings.get("divisor") or 1)


@rule("avg_pool2d")
class AvgPool2d(Average):
    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        s = operation.settings
        return F.avg_pool2d(
            x, s["kernel_size"], s["stride"], s["padding"], s["ceil_mode"], s["count_include_pad"], s["divisor"]
        )


@converter("avg_pool2d.default")
def avg_pool2d(
    shape: Any,
    x: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    include: bool = True,
    divisor: Any = None,
) -> Built:
    if divisor is not None and divisor <= 0:
        raise Refused(f"average pooling with divisor {divisor}")
    kernel = pair(kernel_size)
    settings = {"kernel_size": kernel, "stride": pair(stride) if stride else kernel, "padding": pair(padding)}
    return Built(
        "avg_pool2d", (x.name,), settings | {"ceil_mode": ceil_mode, "count_include_pad": include, "divisor": divisor}
    )


@rule("adaptive_avg_pool2d")
class AdaptiveAvgPool2d(Average):
    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, operation.settings["output_size"])


@converter("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(shape: Any, x: Any, output_size: Any) -> Built:
    return Built("adaptive_avg_pool2d", (x.name,), {"output_size": pair(output_size)})


@rule("mean")
class Mean(Average):
    """Mean over some dimensions, such as global average pooling."""

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        return x.mean(operation.settings["dim"], keepdim=operation.settings["keepdim"])

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        length = math.prod(shape[1:]) + 4
        return length, length


@converter("mean.dim")
def mean(shape: Any, x: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Built:
    dims = [d % (len(x.shape) + 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    if 0 in dims or dtype is not None:
        raise Refused("a mean over the batch or in another dtype")
    return Built("mean", (x.name,), {"dim": dims, "keepdim": keepdim})


@rule("max_pool2d")
class MaxPool2d(Rule):
    """y = max_i x_i over a window. With m the entry of the highest center and E >= max_i (x_i - x_m), E >= 0:
    x_m <= y <= x_m + E. The differences x_i - x_m are affine forms, so shared symbols cancel.
    """

    def _leader(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        """Flat index of m in each channel's image [P, C, windows], and E [P, C, windows]."""
        s = operation.settings
        geometry = {"stride": s["stride"], "padding": s["padding"], "dilation": s["dilation"]}
        _, index = F.max_pool2d(form.center, s["kernel_size"], **geometry, return_indices=True)
        index = index.flatten(2)
        count, channels = form.shape[:2]
        best = form.stack.flatten(3).gather(3, index.expand(len(form.stack), *index.shape))
        best_radius = form.radius.flatten(2).gather(2, index)

        def windows(x: Tensor, outside: float) -> Tensor:
            """[N, C, H, W] -> [N, C, entries, windows]; padding has the value ``outside``."""
            (top, left), (kh, kw) = s["padding"], s["kernel_size"]
            x = F.pad(x, (left, left, top, top), value=outside)
            x = F.unfold(x, (kh, kw), s["dilation"], 0, s["stride"])
            return x.view(len(x), channels, kh * kw, -1)

        height, width = form.shape[-2:]
        places = torch.arange(height * width, dtype=torch.float64, device=index.device).view(1, 1, height, width)
        places = windows(places.expand(1, channels, height, width), -1.0)
        counts = (places >= 0) & (places != index.unsqueeze(2))  # neither padding nor the leader itself
        others = windows(form.stack.flatten(0, 1), 0.0).view(len(form.stack), count, channels, -1, index.shape[-1])
        difference = others - best.unsqueeze(3)
        excess = difference[0] + difference[1:].abs().sum(0) + windows(form.radius, 0.0) + best_radius.unsqueeze(2)
        size = others.abs().sum(0) + best.abs().sum(0).unsqueeze(2) + excess.abs()
        excess = excess + size * gamma(2 * len(form.stack) + 16, form.unit)
        excess = torch.where(counts, excess, 0.0).amax(2).clamp(min=0)
        return index, excess

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        (form,) = inputs
        index, excess = self._leader(operation, form)
        stack = form.stack.flatten(3).gather(3, index.expand(len(form.stack), *index.shape)).clone()
        stack[0] += excess / 2
        radius = form.radius.flatten(2).gather(2, index) + excess / 2
        radius = torch.where(excess > 0, widen(radius, stack[0].abs() + excess, 4, form.unit), radius)
        shape = (len(form), *operation.shape)
        return AffineForm(stack.view(len(stack), *shape), radius.view(shape), form.unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a y >= a x_m for a >= 0, and a y >= a (x_m + E) for a < 0."""
        (form,) = inputs
        index, excess = self._leader(operation, form)
        a = a.flatten(2)
        target = a.new_zeros(len(a), form.shape[1], form.shape[2] * form.shape[3])
        target.scatter_add_(2, index, a)
        result = BackwardResult([target.view(len(a), *form.shape[1:])], constant=dot(a.clamp(max=0), excess))
        if form.unit:
            entries = operation.settings["kernel_size"][0] * operation.settings["kernel_size"][1]
            size = lengths(farthest(form).flatten(2).gather(2, index) + excess).view(len(form), *operation.shape[1:])
            result.rounding_budget = size * backward_gamma(entries + 9, a[0].numel(), form.unit)
        return result
