"""Forward pass for deep networks that were not trained for proofs: a ball for what is left over, and a symbol for every kink.

A remainder goes through |W| in every layer, and through twenty layers of an ordinary ResNet that multiplies it by 10^23. Three things
together remove this wall, for boxes so small that few ReLUs have a kink: what is left over is bounded by its Euclidean length too, which
grows with the largest singular values (`AffineForm.ball`); each kink gets a symbol of its own (`enclosures.kinks`); and so
do the pixels with the largest remainders. While a symbol has reached few pixels, only a window of its column is computed
(`network.windows`). Symbols may end at a cut, an operation that all later ones read the image through: after it forms have
balls alone, which decide where ReLUs may have kinks, and a backward pass goes from the margin to the cut.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, absolute_sum, added_lengths, row_length
from tiltproof.enclosures.kinks import relu_with_kinks, with_columns, with_symbols
from tiltproof.enclosures.rounding import SMALLEST, widen
from tiltproof.network.arithmetic import convolutions_by_lines
from tiltproof.network.graph import Network, Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.base import evaluated
from tiltproof.network.windows import Windows

MOST_SYMBOLS = 1024
"""Symbols beyond which a box gets no bound: a smaller one costs less."""
MOST_BYTES = 2**28
"""The same, as bytes of the largest form of a box."""
TOLERANCE = 0.2
"""What errors that are too small for symbols of their own may cost a margin, in all layers together."""


WINDOW_PIXELS = 64
"""Pixels of the smallest image in which windows are worth their overhead."""


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


def cuts(network: Network) -> list[str]:
    """The ReLUs that all later operations read the image through, in order, without those behind the last convolution."""
    last = max((k for k, each in enumerate(network.operations) if each.kind == "conv2d"), default=0)
    found = []
    for k, operation in enumerate(network.operations[:last]):
        before = {network.input, *(each.name for each in network.operations[:k])}
        later = network.operations[k + 1 :]
        if operation.kind == "relu" and not any(before & set(each.inputs) for each in later):
            found.append(operation.name)
    return found


class DeepPass:
    """One forward pass; forms are dropped after their last reader."""

    def __init__(
        self,
        network: Network,
        most_symbols: int = MOST_SYMBOLS,
        tolerance: float = TOLERANCE,
        cut: str | None = None,
        window_pixels: int = WINDOW_PIXELS,
    ) -> None:
        """``cut``: one of `cuts`, where symbols end; ``window_pixels``: of the smallest image in which symbols have windows."""
        largest = max(math.prod(shape) for shape in (network.shape, *(each.shape for each in network.operations)))
        self.network, self.most = network, max(1, min(most_symbols, MOST_BYTES // (8 * largest)))
        last = network.last_linear
        self.wanted = network.output if last is None else last.inputs[0]
        self.operations = network.operations if last is None else network.operations[:-1]
        self.forms: dict[str, AffineForm] = {}
        self.numbers: dict[str, Tensor] = {}  # of the symbols of each form, ascending
        self.windows: dict[
            str, dict[int, Windows]
        ] = {}  # of its other symbols, by the number of the first in each group
        self.next_number, self.quadratic = 0, False
        self.cut, self.ended, self.window_pixels = cut, False, window_pixels
        activations = 1 + sum(operation.kind == "relu" for operation in self.operations)
        sensitivity = _known_sensitivities(network)
        self.negligible = {name: tolerance / activations / max(each, 1e-300) for name, each in sensitivity.items()}
        """Length that errors in an operation's output may have."""
        self.columns = 0.0
        """Columns that went through the whole network, or through parts of it that cost as much."""
        self._products = max(1, sum(operation.products for operation in network.operations))

    @torch.no_grad()
    def run(self, bounds: AffineForm, input_symbols: int = 0, lasting: int = 0) -> dict[str, AffineForm] | None:
        """The form that margins are computed from, by name; None where there are too many kinks. The ``input_symbols`` largest radii of
        the pixels get symbols too. With a cut: the forms of all operations from there on; behind the cut they have the first ``lasting``
        symbols alone."""
        network = self.network
        network.require_proof()
        self.quadratic = bounds.quadratic
        bounds = evaluated(bounds, 2, network.evaluation)
        bounds = AffineForm(bounds.stack, bounds.radius + SMALLEST[bounds.radius.dtype], bounds.unit)
        bounds = with_symbols(bounds, input_symbols)
        self._keep(network.input, bounds, self._fresh(bounds.symbols), {})
        found = self._walk(lasting)
        if found is None:
            return None
        self._whole(self.wanted)
        return found or {self.wanted: self.forms[self.wanted]}

    @torch.no_grad()
    def _walk(self, lasting: int = 0) -> dict[str, AffineForm] | None:
        """Apply all operations: the forms from the cut on, none without a cut; None where there are too many kinks."""
        found = dict[str, AffineForm]()
        readers = Counter(name for operation in self.operations for name in operation.inputs)
        readers[self.wanted] += 1
        with convolutions_by_lines():
            for operation in self.operations:
                if not self._step(operation):
                    return None
                if self.ended:
                    found[operation.name] = self.forms[operation.name]
                elif operation.name == self.cut:
                    found[self.cut] = self._end_symbols(lasting)
                for name in operation.inputs:
                    readers[name] -= 1
                    if not readers[name]:
                        self._drop(name)
        return found

    def _drop(self, name: str) -> None:
        del self.forms[name], self.numbers[name], self.windows[name]

    def _step(self, operation: Operation) -> bool:
        """Apply one operation; false where there are too many symbols."""
        self._make_alike(operation)
        inputs, numbers = self._aligned(operation)
        before = [self.windows[name] for name in operation.inputs]
        windows = _moved(operation, before)
        if windows:
            # a difference subtracts the second plane too, and the sizes must add up
            signs = (1, -1 if operation.kind == "sub" else 1)
            inputs = [_with_sizes(form, mine, sign) for form, mine, sign in zip(inputs, before, signs, strict=False)]
        self._count(operation, len(numbers), windows)
        if operation.kind == "relu" and not operation.settings.get("negative_slope"):
            known = len(numbers) + sum(map(len, windows.values()))
            if known > self.most and not self.ended:  # of two branches together
                return False
            room = 0 if self.ended else self.most + 1 - known
            relu = relu_with_kinks(inputs[0], room, self.negligible[operation.name])
            count, form = relu.values.shape[1], relu.form
            if 0 < room <= count:
                return False
            windows = {key: each.scaled(relu.slope[0]) for key, each in windows.items()}
            if count and len(form) == 1 and self._suits_windows(form.shape):
                fresh = self._fresh(count)
                found = Windows.of_entries(relu.values[0], relu.index[0], torch.Size(form.shape[1:]), fresh)
                windows[int(fresh[0])] = found
            elif count:
                form, numbers = with_columns(relu), torch.cat([numbers, self._fresh(count)])
        else:
            form = REGISTRY[operation.kind].forward(operation, inputs)
        planes = form.symbols - any(before)
        if planes != len(numbers):  # a rule that drops symbols, or makes its own
            numbers = self._fresh(planes)
        magnitude = form._magnitude  # of windows too
        ball = (
            row_length(form.radius) if form.ball is None else form.ball
        )  # the rules that do not know the ball drop it
        form = AffineForm(form.stack[: 1 + planes], form.radius, form.unit).with_ball(ball)
        if magnitude is not None:
            form = form.with_magnitude(magnitude)
        self._keep(operation.name, form, numbers, windows)
        return True

    def _suits_windows(self, shape: torch.Size) -> bool:
        return len(shape) == 4 and shape[2] * shape[3] >= self.window_pixels

    def _keep(self, name: str, form: AffineForm, numbers: Tensor, windows: dict[int, Windows]) -> None:
        form.quadratic = self.quadratic and numbers[:2].tolist() == [0, 1]
        self.forms[name], self.numbers[name], self.windows[name] = form, numbers, windows
        suits = self._suits_windows(form.shape)  # where new kinks get no windows, there are none
        for key in [key for key, each in windows.items() if not (suits and each.small(form.shape))]:
            self._whole(name, key)

    def _count(self, operation: Operation, columns: int, windows: dict[int, Windows]) -> None:
        """Add to the columns that went through the network."""
        pixels = math.prod(operation.shape[1:])
        reached = sum(len(each) * math.prod(each.values.shape[2:]) / pixels for each in windows.values())
        self.columns += (1 + columns + reached) * operation.products / self._products

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

    def _make_alike(self, operation: Operation) -> None:
        """Write symbols as whole columns where the operation has no rule for windows, or where another branch has them as columns."""
        names = set(operation.inputs)
        keeps = _keeps_windows(operation, [self.forms[name].shape[1:] for name in names])
        for name in names:
            for key in list(self.windows[name]):
                if not keeps or any(key in self.numbers[other] for other in names):
                    self._whole(name, key)

    def _whole(self, name: str, key: int | None = None) -> None:
        """Write the symbols of one group, or of all groups, as whole columns."""
        form, numbers, windows = self.forms[name], self.numbers[name], self.windows[name]
        groups = [windows.pop(each) for each in ([key] if key is not None else list(windows))]
        if groups:
            every = torch.cat([numbers, *(each.numbers for each in groups)]).sort().values
            whole = _over(form, numbers, every)
            for each in groups:
                whole.stack[1 + torch.searchsorted(every, each.numbers), 0] = each.columns(form.shape[1:])
            self.forms[name], self.numbers[name] = whole, every

    def _end_symbols(self, lasting: int) -> AffineForm:
        """The cut's form; all symbols but the first ``lasting`` join its radius and its ball afterwards: |G_k m_k| <= |G_k|."""
        assert self.cut is not None
        form, numbers = self.forms[self.cut], self.numbers[self.cut]
        kept, unit = int((numbers < lasting).sum()), form.unit
        extra = torch.zeros_like(form.radius)
        if form.symbols > kept:
            extra = widen(absolute_sum(form.slopes[kept:]), 0.0, form.symbols + 2, unit)
        extra = widen(extra + sizes_of(self.windows[self.cut], form), 0.0, 2, unit)
        self._whole(self.cut)
        full = self.forms[self.cut]
        full = full.with_magnitude(widen(absolute_sum(form.stack[: 1 + kept]) + extra, 0.0, kept + 4, unit))
        ball = full.ball if full.ball is not None else row_length(form.radius)
        radius = widen(form.radius + extra, 0.0, 2, unit)
        short = AffineForm(form.stack[: 1 + kept], radius, unit).with_ball(added_lengths(ball, row_length(extra), unit))
        self._keep(self.cut, short, numbers[:kept], {})
        self.ended = True
        return full


def _over(form: AffineForm, own: Tensor, every: Tensor) -> AffineForm:
    """The form over the symbols ``every``, of which it has those numbered ``own``."""
    if len(own) == len(every):
        return form
    stack = form.stack.new_zeros(1 + len(every), *form.shape)
    stack[0] = form.stack[0]
    stack[1 + torch.searchsorted(every, own)] = form.stack[1:]
    return AffineForm(stack, form.radius, form.unit, form.quadratic).with_ball(form.ball)


def _keeps_windows(operation: Operation, shapes: list[torch.Size]) -> bool:
    """Whether `_moved` has a rule for this operation on images of these shapes."""
    settings = operation.settings
    if operation.kind == "conv2d":
        return settings["window"].groups == 1 and settings["window"].dilation == (1, 1)
    if operation.kind == "pad":
        return len(operation.shape) == 3 and not any(settings["pad"][4:])
    if operation.kind in ("add", "sub"):
        return all(shape == operation.shape for shape in shapes)  # nothing is repeated
    return operation.kind == "relu" and not settings.get("negative_slope")


def _moved(operation: Operation, before: list[dict[int, Windows]]) -> dict[int, Windows]:
    """The windows of the operation's inputs through its linear part; ReLU's slopes are known only later."""
    if operation.kind == "conv2d":
        return {key: each.convolved(operation) for key, each in before[0].items()}
    if operation.kind == "pad":
        left, _, above, _ = (*operation.settings["pad"], 0, 0)[:4]
        return {key: each.moved(above, left) for key, each in before[0].items()}
    if operation.kind in ("add", "sub"):
        sign, (first, second) = 1 if operation.kind == "add" else -1, before
        result = {key: each if key not in second else each.plus(second[key], sign) for key, each in first.items()}
        return result | {key: each.times(sign) for key, each in second.items() if key not in first}
    return dict(before[0]) if before else {}


def sizes_of(windows: dict[int, Windows], form: AffineForm) -> Tensor:
    """At least the sum of |column| over these symbols of the form."""
    total = torch.zeros_like(form.radius)
    for each in windows.values():
        total = widen(total + each.sizes(form.shape[1:]), 0.0, 2, form.unit)
    return total


def _with_sizes(form: AffineForm, windows: dict[int, Windows], sign: int) -> AffineForm:
    """The form with one more plane, the sum of |column| over symbols in windows, or its negative: what rules need to know of them, for
    ranges and roundings. What becomes of that plane is of no use."""
    total = sign * sizes_of(windows, form)
    shown = AffineForm(torch.cat([form.stack, total[None]]), form.radius, form.unit, form.quadratic).with_ball(
        form.ball
    )
    return shown if form._magnitude is None else shown.with_magnitude(form._magnitude)
