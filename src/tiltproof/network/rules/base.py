"""What a rule is: how one operation treats bounds going forward and coefficients going backward.

Forward: affine forms in, an affine form out that contains every output. Backward: a linear lower bound ``a . y`` of
the margin in terms of the operation's output y becomes one in terms of its inputs: ``a . y >= sum_i a_i . x_i +
constant - error`` for every x inside the forward bounds; ``error`` pays for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.rounding import SMALLEST, gamma, widen
from tiltproof.network.graph import Operation


@dataclass
class Pullback:
    """Result of a backward rule; ``constant`` and ``error`` are float64 [Q], one per (box, class) pair."""

    inputs: list[Tensor]
    constant: Tensor | float = 0.0
    error: Tensor | float = 0.0


class Rule(Protocol):
    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm: ...

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm], pairs: Tensor) -> Pullback:
        """``a`` [Q, ...]; ``inputs`` are the forward forms of the boxes; ``pairs`` [Q] says which box a pair
        belongs to."""
        ...


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Row-wise sum of products, summed in float64 so that only the products round (relatively, once each)."""
    return (a * b).flatten(1).sum(1, dtype=torch.float64)


def backward_gamma(count: int, entries: int, unit: float) -> float:
    """Relative error of a backward step: ``count`` roundings in the bounds' dtype, and the float64 sums of `dot`.

    A sum of ``entries`` products in float64 is off by at most gamma_entries(2^-53) of their sizes, in any order; 1024 more
    cover the additions of up to that many steps' constants.
    """
    return gamma(count, unit) + gamma(entries + 1024, 2.0**-53) if unit else 0.0


def farthest(form: AffineForm) -> Tensor:
    """A bound of |x| over the form."""
    return form.center.abs() + form.reach()


class LinearRule:
    """y = L x + shift. Subclasses give L, |L| (entrywise absolute values), the transpose and the length of its sums."""

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        raise NotImplementedError

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        """How many products an output sums up, going forward and going backward."""
        raise NotImplementedError

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        return None

    def shift_size(self, operation: Operation, shift: Tensor) -> Tensor:
        """What the roundings of the shift itself are relative to."""
        return shift.abs()

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """Center and slopes through L, radius through |L|. Roundings (method, section 7): every entry of L c and L
        G_k is off by at most gamma_n |L| (|c| + sum_k |G_k|), so that magnitude joins the radius before the |L|
        product that is made anyway.
        """
        (form,) = inputs
        rows = self.signed(operation, form.stack.flatten(0, 1))
        stack = rows.view(len(form.stack), len(form), *rows.shape[1:])
        count = self.terms(operation, form.shape)[0]
        radius = form.radius
        if form.unit:
            radius = radius + form.magnitude() * (gamma(count, form.unit) * (1 + 8 * form.unit)) + SMALLEST[stack.dtype]
        radius = self.absolute(operation, radius)
        shift = self.shift(operation, stack)
        if shift is not None:
            stack[0] += shift
        if form.unit:
            # the |L| product and its inputs round too (all terms >= 0, so relatively); the shift rounds once
            radius = radius * (1 + 2 * gamma(count + len(stack) + 8, form.unit)) + count * 4 * SMALLEST[stack.dtype]
            if shift is not None:
                radius = widen(radius, stack[0].abs() + self.shift_size(operation, shift), 8, form.unit)
        return AffineForm(stack, radius, form.unit)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm], pairs: Tensor) -> Pullback:
        """a . (L x + s) = (L^T a) . x + a . s; the computed L^T a is off by at most gamma |L^T| |a|, times |x|."""
        (form,) = inputs
        result = Pullback([self.transposed(operation, a, form.shape[1:])])
        shift = self.shift(operation, a)
        if shift is not None:
            result.constant = dot(a, shift.expand_as(a))
        if form.unit:
            count = backward_gamma(2 * sum(self.terms(operation, form.shape)) + 16, a[0].numel(), form.unit)
            size = self.absolute(operation, farthest(form))
            if shift is not None:
                size = size + self.shift_size(operation, shift)
            result.error = dot(a.abs(), size[pairs]) * count + SMALLEST[a.dtype] * a[0].numel()
        return result


class MoveRule:
    """Entries only change place: nothing rounds, and the transpose is the same move backwards."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        return inputs[0].exactly(lambda x: self.move(operation, x))

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm], pairs: Tensor) -> Pullback:
        zeros = a.new_zeros(len(a), *inputs[0].shape[1:])
        pull = torch.func.vjp(lambda x: self.move(operation, x), zeros)[1]
        return Pullback([pull(a.contiguous())[0]])


REGISTRY: dict[str, Any] = {}
"""Operation kind -> its rule."""


def rule(kind: str) -> Any:
    """Class decorator: one instance of the class serves operations of this kind."""

    def register(cls: type) -> type:
        REGISTRY[kind] = cls()
        return cls

    return register
