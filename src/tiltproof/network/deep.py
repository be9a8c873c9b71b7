"""Forward pass for deep networks that were not trained for proofs: a ball for what is left over, and a symbol for every kink.

A remainder goes through |W| in every layer, and through twenty layers of an ordinary ResNet that multiplies it by 10^23. Three things
together remove this wall, for boxes so small that few ReLUs have a kink: what is left over is bounded by its Euclidean length too, which
grows with the largest singular values (`AffineForm.ball`); each kink gets a symbol of its own (`enclosures.kinks`); and so
do the pixels with the largest remainders.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, row_length
from tiltproof.enclosures.kinks import relu_with_symbols, with_symbols
from tiltproof.enclosures.rounding import SMALLEST
from tiltproof.network.arithmetic import convolutions_by_lines
from tiltproof.network.graph import Network, Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.base import evaluated

MOST_SYMBOLS = 1024
"""Symbols beyond which a box gets no bound: a smaller one costs less."""
MOST_BYTES = 2**28
"""The same, as bytes of the largest form of a box."""
TOLERANCE = 0.2
"""What errors that are too small for symbols of their own may cost a margin, in all layers together."""


def sensitivities(network: Network) -> dict[str, float]:
    """By name: how much a margin may change for each unit of length of an error in an operation's output, by the layers' norms.

    Steers which errors deserve a symbol; no bound depends on it.
    """
    shapes = {network.input: network.shape} | {operation.name: operation.shape for operation in network.operations}
    found = dict.fromkeys(shapes, 0.0)
    found[network.output] = 2.0
    for operation in reversed(network.operations):
        rule = REGISTRY[operation.kind]
        sigma = rule.norm(operation, torch.Size((1, *shapes[operation.inputs[0]]))) if operation.inputs else None
        for name in operation.inputs:
            found[name] += found[operation.name] * (1.0 if sigma is None else sigma)
    return found


def _known_sensitivities(network: Network) -> dict[str, float]:
    found: dict[str, float] = network.operations[-1].once("sensitivities", lambda: sensitivities(network))
    return found


def input_sensitivity(network: Network) -> float:
    """That of the pixels."""
    return _known_sensitivities(network)[network.input]


class DeepPass:
    """One forward pass; forms are dropped after their last reader."""

    def __init__(self, network: Network, most_symbols: int = MOST_SYMBOLS, tolerance: float = TOLERANCE) -> None:
        largest = max(math.prod(shape) for shape in (network.shape, *(each.shape for each in network.operations)))
        self.network, self.most = network, max(1, min(most_symbols, MOST_BYTES // (8 * largest)))
        last = network.last_linear
        self.wanted = network.output if last is None else last.inputs[0]
        self.operations = network.operations if last is None else network.operations[:-1]
        self.forms: dict[str, AffineForm] = {}
        self.numbers: dict[str, Tensor] = {}  # of the symbols of each form, ascending
        self.next_number = 0
        activations = 1 + sum(operation.kind == "relu" for operation in self.operations)
        sensitivity = _known_sensitivities(network)
        self.negligible = {name: tolerance / activations / max(each, 1e-300) for name, each in sensitivity.items()}
        """Length that errors in an operation's output may have."""
        self.columns = 0.0
        """Columns that went through the whole network, or through parts of it that cost as much."""
        self._products = max(1, sum(operation.products for operation in network.operations))

    @torch.no_grad()
    def run(self, bounds: AffineForm, input_symbols: int = 0) -> dict[str, AffineForm] | None:
        """The form that margins are computed from, by name; None where there are too many kinks. The ``input_symbols`` largest radii of
        the pixels get symbols too."""
        network = self.network
        network.require_proof()
        bounds = evaluated(bounds, 2, network.evaluation)
        bounds = AffineForm(bounds.stack, bounds.radius + SMALLEST[bounds.radius.dtype], bounds.unit)
        bounds = with_symbols(bounds, input_symbols)
        self._keep(network.input, bounds, self._fresh(bounds.symbols))
        return {self.wanted: self.forms[self.wanted]} if self._walk() else None

    @torch.no_grad()
    def _walk(self) -> bool:
        """Apply all operations; false where there are too many kinks."""
        readers = Counter(name for operation in self.operations for name in operation.inputs)
        readers[self.wanted] += 1
        with convolutions_by_lines():
            for operation in self.operations:
                if not self._step(operation):
                    return False
                for name in operation.inputs:
                    readers[name] -= 1
                    if not readers[name]:
                        self._drop(name)
        return True

    def _drop(self, name: str) -> None:
        del self.forms[name], self.numbers[name]

    def _step(self, operation: Operation) -> bool:
        """Apply one operation; false where there are too many symbols."""
        inputs, numbers = self._aligned(operation)
        self.columns += (1 + len(numbers)) * operation.products / self._products
        if operation.kind == "relu" and not operation.settings.get("negative_slope"):
            room = self.most - len(numbers)
            form = relu_with_symbols(inputs[0], room + 1, self.negligible[operation.name])
            if form.symbols > self.most:
                return False
            numbers = torch.cat([numbers, self._fresh(form.symbols - len(numbers))])
        else:
            form = REGISTRY[operation.kind].forward(operation, inputs)
            if form.symbols != len(numbers):  # a rule that drops symbols, or makes its own
                numbers = self._fresh(form.symbols)
        # the rules that do not know the ball drop it
        self._keep(operation.name, form.with_ball(row_length(form.radius) if form.ball is None else form.ball), numbers)
        return True

    def _keep(self, name: str, form: AffineForm, numbers: Tensor) -> None:
        self.forms[name], self.numbers[name] = form, numbers

    def _fresh(self, count: int) -> Tensor:
        """Numbers of symbols that no form has yet."""
        self.next_number += count
        return torch.arange(self.next_number - count, self.next_number)

    def _aligned(self, operation: Operation) -> tuple[list[AffineForm], Tensor]:
        """The operation's inputs, written over the same symbols, and their numbers."""
        forms = [self.forms[name] for name in operation.inputs]
        numbers = [self.numbers[name] for name in operation.inputs]
        every = numbers[0]
        for other in numbers[1:]:
            every = torch.cat([every, other]).unique()
        return [_over(form, own, every) for form, own in zip(forms, numbers, strict=True)], every


def _over(form: AffineForm, own: Tensor, every: Tensor) -> AffineForm:
    """The form over the symbols ``every``, of which it has those numbered ``own``."""
    if len(own) == len(every):
        return form
    stack = form.stack.new_zeros(1 + len(every), *form.shape)
    stack[0] = form.stack[0]
    stack[1 + torch.searchsorted(every, own)] = form.stack[1:]
    return AffineForm(stack, form.radius, form.unit).with_ball(form.ball)
