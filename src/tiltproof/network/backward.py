"""What backward passes cost: how far they went, and how much of a network the first part of one has to do with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.gathered import GatheredForms
from tiltproof.enclosures.quadratic_relu import least
from tiltproof.enclosures.rounding import gamma
from tiltproof.kernels.registry import has_kernel
from tiltproof.network.forward import MOST_CLASSES
from tiltproof.network.graph import Network, Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.base import (
    FLOOR,
    MORE,
    OVERFLOW,
    UNDERFLOW,
    backward_gamma,
    dot,
    form_lengths,
    form_norm,
    largest_sum,
    lengths,
    row_norm,
    row_size,
    total,
)


@dataclass
class BackwardCost:
    """How far each margin was taken, by multiplications: 1 is through the whole network; [Q]."""

    passes: Tensor = field(default_factory=lambda: torch.zeros(0))


def shallow_share(network: Network) -> float:
    """Share of all entries of the network's operations that a margin meets up to the first look (`refine`, ``shallow``)."""
    entries = {network.input: math.prod(network.shape)}
    entries |= {operation.name: math.prod(operation.shape) for operation in network.operations}
    operations, left = network.operations, {network.output}
    if network.last_linear is not None:
        operations, left = operations[:-1], {network.last.inputs[0]}
    dear, met = [operation.name for operation in operations if REGISTRY[operation.kind].expensive], set(left)
    for operation in reversed(operations):
        if operation.name in left:
            left = (left - {operation.name}) | set(operation.inputs)
            met |= left
            if len(left) == 1 and operation.name in dear[1:]:
                break
    return sum(entries[name] for name in met) / sum(entries.values())


# One backward pass on its way: linear lower bounds, pulled from operation to operation, with every rounding counted.
#
# What each term of the bound absorbs stands beside it; the inequalities of single operations are in `network.ops`.


class BackwardPass:
    """Linear lower bounds on their way to the pixels: ``coefficients`` . some operations' outputs + ``constant`` - ``error``."""

    def __init__(
        self,
        network: Network,
        forms: GatheredForms,
        coefficients: dict[str, Tensor],
        constant: Tensor,
        error: Tensor,
        enough: float | None,
        shared: bool,
    ) -> None:
        self.network, self.forms, self.coefficients = network, forms, coefficients
        self.constant, self.error, self.enough = constant, error, enough
        start = forms[network.input]
        self.unit, self.several = start.unit, shared and start.symbols > 1 and not start.quadratic
        self.quadratic = start.quadratic and start.symbols > 1
        self.best = torch.full_like(constant, -torch.inf)
        self.moves = constant.new_zeros(2, len(constant))  # in the symbols of quadratic forms, see `BackwardResult`
        self.shares = constant.new_zeros(len(constant), start.symbols)
        self.minded: set[str] = set()
        self.steps = 2  # those at which something may underflow, and the products of a meeting
        self.sums: list[Tensor] = []  # of the sizes of what coefficients were met with
        self.largest_sum = math.inf
        self._lengths: tuple[Tensor, Tensor] | None = None
        # those of the first rows that are still on their way
        self.left = torch.arange(len(constant), device=constant.device)

    def through(
        self, operations: list[Operation], cost: BackwardCost | None = None, shallow: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Through ``operations`` in reverse: the bounds and the shares of the parameters."""
        shares, passes, done = self.shares.clone(), torch.zeros_like(self.constant), 0
        whole = max(1, sum(operation.products for operation in operations))
        dear = [operation.name for operation in operations if REGISTRY[operation.kind].expensive]
        for operation in reversed(operations):
            if operation.name in self.coefficients:
                done += operation.products
                self.step(operation)
                if self.enough is not None and len(self.coefficients) == 1 and operation.name in dear[1:]:
                    passes.index_fill_(0, self.left, done / whole)
                    self._look(self.enough)
                    if shallow or not len(self.left):
                        break
        if self.network.input in self.coefficients and len(self.left):
            bound, moves = self._met(self.network.input)
            if self.enough is None:
                self.best = bound
            else:
                self.best[self.left] = better(self.best[self.left], bound)
            if self.several:
                start, a = self.forms[self.network.input], self.coefficients[self.network.input]
                self.shares += moves.T + relaxation_shares(a, start, None)
            shares[self.left] = self.shares
        if cost is not None:
            cost.passes = passes.index_fill_(0, self.left, done / whole)
        if any(operation.fragile for operation in self.network.operations):
            self.best = torch.full_like(self.best, -torch.inf)
        return self.best, shares

    def step(self, operation: Operation) -> None:
        """Through one operation."""
        a_out = self.coefficients.pop(operation.name)
        inputs = [self.forms[name] for name in operation.inputs]
        if REGISTRY[operation.kind].activation and self.several:
            self.shares = self.shares + relaxation_shares(a_out, inputs[0], self.forms[operation.name])
        pulled = REGISTRY[operation.kind].backward(operation, a_out, inputs)
        if not isinstance(pulled.constant, float):
            self.constant = self.constant + pulled.constant
        if pulled.moves is not None:
            assert self.quadratic, "no form is quadratic where the pixels' are not"
            self.moves = self.moves + pulled.moves
        if pulled.error is not None:
            self.mind(a_out, list(operation.inputs), pulled.size)
            self.error = self.error + pulled.error
        elif self.unit and (pulled.allowance is not None or len(inputs) > 1):  # else coefficients only change place
            self.mind(a_out, list(operation.inputs))
        if self.unit and pulled.allowance is not None:
            self.error = self.error + dot(self.lengths(a_out), pulled.allowance + FLOOR[a_out.dtype])
        for name, a in zip(operation.inputs, pulled.inputs, strict=True):
            if name in self.coefficients:
                a = self.coefficients[name] + a
                if self.unit:
                    allowance = form_lengths(self.forms[name]) * backward_gamma(3, row_size(a), self.unit)
                    self.mind(a, [name])
                    self.error = self.error + dot(self.lengths(a), allowance + FLOOR[a.dtype])
            self.coefficients[name] = a

    def mind(self, like: Tensor, names: list[str], size: Tensor | None = None) -> None:
        """Coefficients ``like`` became ones of these operations' outputs: underflows on the way count (`largest_sum`).

        ``size``: the sum of the one output's sizes, if it is known.
        """
        self.steps += 1
        for name in names if self.unit else ():
            form = self.forms[name]
            self.largest_sum = min(self.largest_sum, largest_sum(like, form, len(names)))
            if name not in self.minded:
                self.minded.add(name)
                self.sums.append(total(form_lengths(form)) if size is None else size)

    def lengths(self, a: Tensor) -> Tensor:
        """`lengths`, remembered: coefficients that are met with a form go through the next operation too."""
        if self._lengths is None or self._lengths[0] is not a:
            self._lengths = a, lengths(a)
        return self._lengths[1]

    def _met(self, name: str) -> tuple[Tensor, Tensor]:
        """The bounds if the one operation left is met with its form, and each symbol's part in them."""
        a, form = self.coefficients[name], self.forms[name]
        met = concretized(a, form)
        moves, spread, crossed = met[0][1:], *met[1:]
        bound, error = self.constant + met[0][0] - spread, self.error
        if self.quadratic:
            # symbols that were given up on the way forward count for nothing here
            second = self.moves[1] + moves[1] if len(moves) > 1 else self.moves[1]
            first, moves = self.moves[0] + moves[0], moves[2:]
            bound, error = bound + least(first, second), error + (first.abs() + second.abs()) * 2.0**-48
        moves = moves.abs()
        bound = bound - moves.sum(0)
        if self.unit:
            error = torch.add(error, crossed, alpha=backward_gamma(9, row_size(a), self.unit))
            # one FLOOR for each step and for the products just made; they pay for underflows so long as sums are no larger than they
            # were made for, else so many times them does, and the errors hold them all
            error = error.add_(self.steps * FLOOR[a.dtype])
            error = error.mul_((self._largest() * (MORE / self.largest_sum)).clamp_(min=MORE))
            # this subtraction rounds once more
            bound = bound - error.add_(bound.abs(), alpha=2.0**-50)
        return bound, moves

    def _largest(self) -> Tensor:
        """Of the sums; a NaN counts."""
        if len(self.sums) > 1:
            self.sums = [torch.stack(self.sums).amax(0)]
        return self.sums[0]

    def _look(self, enough: float) -> None:
        """Every form holds what its operation can give, not only the pixels': rows whose bound is good enough here stay behind."""
        (name,) = self.coefficients
        bound, _ = self._met(name)
        self.best[self.left] = better(self.best[self.left], bound)
        rows = (~(bound > enough)).nonzero().flatten()
        if len(rows) < len(bound):
            self.coefficients, self.forms = {name: self.coefficients[name][rows]}, self.forms.rest(rows)
            self.moves = self.moves[:, rows]
            self.sums = [self._largest()[rows]] if self.unit else []
            self.constant, self.error, self.shares, self.left = (
                each[rows] for each in (self.constant, self.error, self.shares, self.left)
            )


def better(first: Tensor, second: Tensor) -> Tensor:
    """The better of two proved bounds; a NaN never replaces a number."""
    return torch.where(second > first, second, first)


@has_kernel("backward:relaxation_shares", on=1)
def relaxation_shares(a: Tensor | None, before: AffineForm, after: AffineForm | None) -> Tensor:
    """What an activation's relaxation costs, laid on the parameters that move its input, [Q, d]: |a|, or 1, times the remainder it adds;
    or, where nothing comes ``after`` the form, its own remainder. A choice of split axis, not part of the bound.
    """
    cost, sizes = before.radius, before.slopes.abs()
    if after is not None:
        cost = (after.radius - cost).clamp(min=0)
    if a is not None:
        cost = cost * a.abs()
    return _sums(cost / sizes.sum(0).clamp(min=1e-30), sizes).T


@has_kernel("backward:concretized")
def concretized(a: Tensor, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
    """a . each plane of the form [1 + d, Q], |a| . radius and at least |a| . |x| (0 without roundings), [Q], in float64."""
    sums = _sums(a, form.stack)
    # |a| . |x| <= |a|_2 |x|_2
    crossed = row_norm(a) * form_norm(form) if form.unit else torch.zeros_like(sums[0])
    return sums, dot(a.abs(), form.radius), crossed


def _sums(a: Tensor, planes: Tensor) -> Tensor:
    """`dot` of a with each of the planes [K, Q, ...], float64 [K, Q]: one by one on a CPU."""
    if launch_bound(a):
        return (a * planes).sum(tuple(range(2, planes.ndim)), dtype=torch.float64)
    return (
        torch.stack([dot(a, plane) for plane in planes]) if len(planes) else a.new_zeros(0, len(a), dtype=torch.float64)
    )


# Backward refinement (CROWN): linear lower bounds of single margins, pulled back from the output to the pixels.
#
# The forward form loses a little at every layer because its remainder r goes through |W|. Going backward, the
# coefficients of the margin go through W itself, and only at the pixels are they met with the affine form: a.c - sum_k
# |a.G_k| - |a|.r (method, section 5). Most margins are above zero long before that, met with the form of a layer on the way.


def refine(
    network: Network,
    forms: Mapping[str, AffineForm],
    labels: Tensor,
    pairs: Tensor,
    classes: Tensor,
    enough: float | None = None,
    shared: bool = True,
    cost: BackwardCost | None = None,
    shallow: bool = False,
) -> tuple[Tensor, Tensor]:
    """Lower bounds (float64 [Q]) of f_label - f_class for pairs (box ``pairs[q]``, class ``classes[q]``).

    A bound above ``enough`` is not pulled back any further, and with ``shallow`` none is from where that is looked at first (see
    `shallow_share`); ``cost`` is told how far they all were. Also returns, per pair and parameter [Q, d], how much of the bound's
    slack that parameter is responsible for (zeros if not ``shared``, and where the bound was good enough on the way).
    """
    start = forms[network.input]
    unit, device, pairs = start.unit, start.like.device, pairs % len(start)
    if unit:
        network.require_proof()
    own, other = labels[pairs], classes
    last = network.last_linear
    if last is None:
        a = torch.zeros(len(classes), *forms[network.output].shape[1:], dtype=start.like.dtype, device=device)
        a.scatter_(1, own.unsqueeze(1), 1.0).scatter_add_(1, other.unsqueeze(1), torch.full_like(a[:, :1], -1.0))
        return refine_outputs(network, forms, pairs, a, enough, shared, cost, shallow)
    weight, bias = last.settings["weight"], last.settings["bias"]
    a, numbers = _differences(last, own, other)
    chosen = GatheredForms(forms, pairs)
    before = chosen[last.inputs[0]]
    length, constant, shifts = numbers.unbind(1)
    error = torch.zeros_like(constant)
    if unit:
        # sum |a_i| |x_i| <= |a|_2 |x|_2, and both biases were rounded on their way to their difference
        error = torch.addcmul(
            shifts * (backward_gamma(0, 1, unit) * (1 + 2.0**-10)),
            length,
            form_norm(before) + UNDERFLOW * math.sqrt(weight.shape[1]),
            value=backward_gamma(4, weight.shape[1], unit),
        )
    # where float32 evaluations are spoken of: both outputs are evaluated by themselves
    theirs = gamma(weight.shape[1] + 8, network.evaluation)
    if theirs:
        reachable = before.extent() + UNDERFLOW
        size = dot(weight[own].abs() + weight[other].abs(), reachable) * (1 + 2.0**-10)
        if bias is not None:
            size = size + bias[own].abs() + bias[other].abs()
        error += torch.where(size < OVERFLOW, size * theirs, torch.inf)
        if last.vanishing:  # weights of either output that are flushed to zero
            error += 4 * UNDERFLOW * reachable.sum(1, dtype=torch.float64)
    pull = BackwardPass(network, chosen, {last.inputs[0]: a}, constant, error, enough, shared)
    pull.mind(a, [last.inputs[0]])
    return pull.through(network.operations[:-1], cost, shallow)


def _differences(last: Operation, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Row ``own`` less row ``other`` of the weights, [Q, n]; and of each pair, in float64 [Q, 3], at least the Euclidean norm of that, the
    biases' difference and the sum of their sizes. Of few classes all pairs are looked at once."""
    classes = len(last.settings["weight"])
    if last.kept is None or classes > MOST_CLASSES:
        return _difference(last, own, other)
    every = torch.arange(classes, device=own.device)
    weights, numbers = last.once(
        "pairs of rows", lambda: _difference(last, every.repeat_interleave(classes), every.repeat(classes))
    )
    chosen = torch.add(other, own, alpha=classes)
    return weights.index_select(0, chosen), numbers.index_select(0, chosen)


def _difference(last: Operation, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    weight, bias = last.settings["weight"], last.settings["bias"]
    a = weight[own] - weight[other]
    first, second = (weight.new_zeros(len(own)) if bias is None else bias[row] for row in (own, other))
    first, second = first.double(), second.double()
    return a, torch.stack([row_norm(a.detach()), first - second, first.abs() + second.abs()], 1)


def refine_outputs(
    network: Network,
    forms: Mapping[str, AffineForm],
    pairs: Tensor,
    directions: Tensor,
    enough: float | None = None,
    shared: bool = True,
    cost: BackwardCost | None = None,
    shallow: bool = False,
) -> tuple[Tensor, Tensor]:
    """Lower bounds (float64 [Q]) of ``directions[q]`` . f over box ``pairs[q]``; the rest as in `refine`.

    A direction holds whole numbers such as 1, -1 and 0, which no rounding touches.
    """
    if forms[network.input].unit:
        network.require_proof()
    constant = torch.zeros(len(directions), dtype=torch.float64, device=directions.device)
    error = torch.zeros_like(constant)
    pairs = pairs % len(forms[network.input])  # counted from the end, perhaps
    pull = BackwardPass(
        network, GatheredForms(forms, pairs), {network.output: directions}, constant, error, enough, shared
    )
    # an output whose forward bound is infinite (an evaluation may overflow there) has no finite bound
    pull.mind(directions, [network.output])
    return pull.through(network.operations, cost, shallow)


def forward_shares(network: Network, forms: Mapping[str, AffineForm] | GatheredForms) -> Tensor:
    """A cheaper measure for boxes that are split without a backward pass: what all relaxations add, unweighted, [P,
    d].
    """
    shares = relaxation_shares(None, forms[network.input], None)
    for operation in network.operations:
        if REGISTRY[operation.kind].activation:
            shares += relaxation_shares(None, forms[operation.inputs[0]], forms[operation.name])
    return shares
