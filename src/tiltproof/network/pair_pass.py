"""The forward pass for networks so deep that float64's roundings alone exceed their margins: the columns that round most, as pairs of
floats.

A rounding at the first layer is multiplied by the norms of all layers that follow. The center's roundings are the largest by far, then
those of the polynomial in the parameter; the columns of kinks are small and have few entries. So each form is split into a head, the
first columns of its stack as unevaluated sums of two floats (`enclosures.pairs`), and a tail: a form of the other symbols around zero.
The tail goes through the rules of `network.deep` and carries what the head's own roundings leave, some 2^-80 of its numbers. Operations
without a rule for heads get a whole form, whose low parts join the radii.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, absolute_sum, added_lengths, row_length
from tiltproof.enclosures.kinks import largest, place, with_symbols
from tiltproof.enclosures.pair_form import PairForm, with_errors
from tiltproof.enclosures.pairs import Pair, U, power_of_two, product_of_slices, slice_bits, sliced, summed, times
from tiltproof.enclosures.relu import relu_gap
from tiltproof.enclosures.rounding import SMALLEST, widen
from tiltproof.network import arithmetic
from tiltproof.network.deep import DeepPass, input_sensitivity
from tiltproof.network.graph import Network, Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.base import LinearRule, MoveRule
from tiltproof.network.pair_constants import Constants, constants_of

SLICES, MORE_SLICES = 4, 5
"""Of each factor: some 80 and 100 bits below its largest number."""
FAR_GROWTH = 1e20
"""From this growth on there are more slices."""
AVERAGE_BITS = 25
FLOATS_REACH = 1e13
"""Growth of a rounding of the pixels, by the layers' norms, up to which float64 is enough: 10^11.3 in a ResNet-20 costs a margin 0.07."""


def needs_pairs(network: Network) -> bool:
    """Whether float64's roundings may exceed the network's margins."""
    return input_sensitivity(network) >= FLOATS_REACH


class PairPass(DeepPass):
    """One forward pass; ``forms`` holds the tails."""

    @torch.no_grad()
    def run_pair(self, bounds: PairForm, input_symbols: int = 0) -> dict[str, AffineForm] | None:
        """As `run`, for pixels in pairs; the form that is returned has the head's columns first."""
        self.network.require_proof()
        self.heads: dict[str, Pair] = {}
        self.slices = SLICES if input_sensitivity(self.network) < FAR_GROWTH else MORE_SLICES
        tail = bounds.tail
        tail = AffineForm(tail.stack, tail.radius + SMALLEST[tail.radius.dtype], tail.unit)
        tail = with_symbols(tail, input_symbols, self.negligible[self.network.input])
        self.heads[self.network.input] = bounds.head
        self._keep(self.network.input, tail, self._fresh(tail.symbols), {})
        if self._walk() is None:
            return None
        return {self.wanted: PairForm(self.heads[self.wanted], self.forms[self.wanted]).whole()}

    def _drop(self, name: str) -> None:
        super()._drop(name)
        del self.heads[name]

    @torch.no_grad()
    def _step(self, operation: Operation) -> bool:
        tails, numbers = self._aligned(operation)
        forms = [PairForm(self.heads[name], tail) for name, tail in zip(operation.inputs, tails, strict=True)]
        columns, slices = len(forms[0].head.high), self.slices
        products = slices * (slices + 1) // 2 * columns
        self.columns += (1 + len(numbers) + products) * operation.products / self._products
        if operation.kind == "relu" and not operation.settings.get("negative_slope"):
            if len(numbers) > self.most:  # of two branches together
                return False
            result = relu_of_pair(forms[0], self.most - len(numbers) + 1, self.negligible[operation.name])
            if result.tail.symbols > self.most:
                return False
            numbers = torch.cat([numbers, self._fresh(result.tail.symbols - len(numbers))])
        else:
            result = forward(operation, forms, slices)
            if result.tail.symbols != len(numbers):
                numbers = self._fresh(result.tail.symbols)
        tail = result.tail
        self.heads[operation.name] = result.head
        tail = tail.with_ball(row_length(tail.radius) if tail.ball is None else tail.ball)
        self._keep(operation.name, tail, numbers, {})
        return True


def forward(operation: Operation, forms: list[PairForm], slices: int = SLICES) -> PairForm:
    """Apply an operation: by a rule for pairs, or to whole forms."""
    rule, constants = REGISTRY[operation.kind], None
    tails, heads = [form.tail for form in forms], [form.head for form in forms]
    if operation.kind in ("conv2d", "linear", "scale"):
        constants = constants_of(operation)
    if constants is not None:
        return _linear(operation, constants, forms[0], slices)
    if isinstance(rule, MoveRule):
        head = heads[0].apply(lambda x: _by_image(x, lambda rows: rule.move(operation, rows)))
        return PairForm(head, rule.forward(operation, tails))
    if operation.kind in ("add", "sub") and tails[0].shape == tails[1].shape:
        sign = 1 if operation.kind == "add" else -1
        head, off = summed([heads[0].high, sign * heads[1].high, heads[0].low, sign * heads[1].low])
        return PairForm(head, with_errors(rule.forward(operation, tails), off.sum(0) * (1 + 16 * U)))
    area = _window(operation, tails[0].shape)
    if area and area & (area - 1) == 0:
        return _average(operation, forms[0])
    columns = len(heads[0].high)
    expected = columns - 1 + tails[0].symbols
    whole = rule.forward(operation, [form.whole() for form in forms])
    if whole.symbols == expected:
        return PairForm.of(whole, columns)
    # other symbols than before: all of them go into the tail
    split = PairForm.of(whole, 1)
    rest = torch.zeros_like(split.head.high).expand(columns - 1, *split.head.high.shape[1:])
    return PairForm(split.head.apply(lambda x: torch.cat([x, rest])), split.tail)


def _by_image(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of images, of the images [k, P, ...]."""
    rows = function(x.flatten(0, 1))
    return rows.view(*x.shape[:2], *rows.shape[1:])


def _linear(operation: Operation, constants: Constants, form: PairForm, slices: int) -> PairForm:
    """The tail through the operation without its shift; the head, shift included, in pairs."""
    rule = REGISTRY[operation.kind]
    assert isinstance(rule, LinearRule)
    shift = "shift" if operation.kind == "scale" else "bias"
    linear = dataclasses.replace(operation, settings=operation.settings | {shift: None})
    tail = rule.forward(linear, [form.tail])
    if operation.kind == "scale":
        head, off = _scaled(constants, form.head)
    else:
        head, off = _product(operation, constants, form.head, slices)
    if constants.shift is not None:
        # added to the center alone
        own, own_off = constants.shift, constants.shift_off
        if operation.kind == "conv2d":
            own, own_off = own.apply(lambda x: x.view(-1, 1, 1)), own_off.expand(len(own.high)).view(-1, 1, 1)
        center, more = summed([head.high[0], *own, head.low[0]])
        head = Pair(*(torch.cat([part[None], rest[1:]]) for part, rest in zip(center, head, strict=True)))
        off = off + more + own_off
    return PairForm(head, with_errors(tail, off * (1 + 16 * U)))


def _product(operation: Operation, constants: Constants, head: Pair, slices: int) -> tuple[Pair, Tensor]:
    """W of the head's columns, by slices."""
    weight = constants.weight
    terms = weight.high[0].numel()
    bits = slice_bits(terms)
    parts = operation.once(f"{slices} slices", lambda: sliced(weight, bits, slices))
    count, pairs = head.high.shape[:2]
    x = sliced(head.apply(lambda part: part.flatten(0, 1)), bits, slices)

    def multiply(k: int, part: Tensor, rows: Tensor) -> Tensor:
        if operation.kind == "linear":
            return rows @ part.T
        return arithmetic.conv2d(rows, part, operation.settings["window"], operation.once, f"slice {k} of {slices} ")

    products, off = product_of_slices(parts, x, terms, multiply)
    # errors of the weights, times the largest entry of each row
    size = (head.high.abs() + head.low.abs()).flatten(2).amax(2).flatten() * (1 + 4 * U)
    off = off + size[:, None] * (constants.weight_off.flatten(1).sum(1) * (1 + 2.0**-30))
    result, more = summed(products)
    off = off.view(count, pairs, -1, *[1] * (result.high.ndim - 2)).sum(0)
    shape = (count, pairs, *result.high.shape[1:])
    return result.apply(lambda part: part.view(shape)), off + more.view(shape).sum(0)


def _scaled(constants: Constants, head: Pair) -> tuple[Pair, Tensor]:
    """The head's columns times a constant for each entry or channel."""
    result, off = times(head, constants.weight)
    size = (absolute_sum(head.high) + absolute_sum(head.low)) * (1 + 64 * U)
    return result, off.sum(0) + size * constants.weight_off


def _window(operation: Operation, shape: torch.Size) -> int:
    """How many numbers each average is of; 0 where they differ, or for other operations."""
    settings = operation.settings
    if operation.kind == "mean":
        return math.prod(shape[d] for d in settings["dim"])
    if operation.kind == "adaptive_avg_pool2d":
        sizes = [divmod(n, m) for n, m in zip(shape[-2:], settings["output_size"], strict=True)]
        return 0 if any(left for _, left in sizes) else math.prod(each for each, _ in sizes)
    if operation.kind == "avg_pool2d" and settings["padding"] == (0, 0) and not settings["ceil_mode"]:
        return 0 if settings["divisor"] else math.prod(settings["kernel_size"])
    return 0


def _average(operation: Operation, form: PairForm) -> PairForm:
    """Averages of 2^n numbers: sums of slices are exact, and so is their division."""
    rule, head = REGISTRY[operation.kind], form.head
    assert isinstance(rule, LinearRule)
    x = sliced(head.apply(lambda part: part.flatten(0, 1)), AVERAGE_BITS, SLICES)
    terms = []
    for k, part in enumerate(x.parts):
        sums = rule.signed(operation, part)
        terms.append(sums * power_of_two(x.exponent - AVERAGE_BITS * (k + 1)).view(-1, *[1] * (sums.ndim - 1)))
    result, off = summed(terms)
    shape = (*head.high.shape[:2], *result.high.shape[1:])
    # what is left of each number is at most 2^(e - slices bits)
    left = power_of_two(x.exponent - AVERAGE_BITS * SLICES) + x.off
    off = off + left.view(-1, *[1] * (off.ndim - 1))
    tail = rule.forward(operation, [form.tail])
    return PairForm(
        result.apply(lambda part: part.view(shape)), with_errors(tail, off.view(shape).sum(0) * (1 + 16 * U))
    )


def relu_of_pair(form: PairForm, most: int, negligible: float) -> PairForm:
    """`enclosures.kinks.relu_with_symbols` for pairs: nothing rounds where the sign is certain, because the slope is 0 or 1 there.

    Elsewhere, with F = s (|c| + sum |G_k| + r), low parts included: roundings of s x and of the sum 2 F + t, of t 3 t, of this very sum
    5 (F + t / 2), at most 8 units of h + 2 t.
    """
    head, tail = form.head, form.tail
    unit, center = tail.unit, head.high[0]
    deviation = absolute_sum(head.high[1:]) + absolute_sum(head.low) + tail.deviation()
    reach = widen(deviation, center.abs(), 2 * len(head.high) + 2, unit)
    above, below = (center + reach).clamp(min=0), (reach - center).clamp(min=0)
    certain = (above == 0) | (below == 0)
    chord = above / (above + below + SMALLEST[above.dtype])
    slope = torch.where(certain, (below == 0).to(chord), chord)
    half = torch.where(certain, 0.0, relu_gap(slope, above, below)) / 2
    values, index = largest(half.flatten(1), most, negligible)
    count, old = len(values[0]), len(tail.stack)
    stack = tail.stack.new_zeros(old + count, *tail.shape)
    torch.mul(tail.stack, slope, out=stack[:old])
    kept = half
    if count:
        place(stack[old:], values, index)
        kept = half.flatten(1).scatter(1, index, 0.0).view(half.shape)
    high, low = head.high * slope, head.low * slope
    high[0] += half
    size = torch.where(certain, 0.0, above + 4 * half)
    errors = torch.where(certain, 0.0, widen(kept, size, 8, unit)) + 16 * SMALLEST[half.dtype]
    moved = tail.radius * slope
    ball = row_length(moved)
    if tail.ball is not None:
        ball = torch.minimum(ball, tail.ball)
    ball = added_lengths(ball, row_length(errors), unit)
    radius = (moved + errors) * (1 + 4 * unit)
    return PairForm(Pair(high, low), AffineForm(stack, radius, unit).with_ball(ball))
