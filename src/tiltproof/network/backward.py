"""CROWN back-substitution: linear lower bounds of single margins, from the output back to the pixels.

The forward form loses a little at every layer because its radius r goes through |W|. Backward, the coefficients of the margin go through
W itself, and only at the pixels are they concretized with the affine form: a.c - sum_k |a.G_k| - |a|.r (method, section 5). Most margins
are proved long before that, by concretizing with the form of a layer in between: the pass exits early.

Every rounding is accounted for. What each term absorbs stands next to it; the inequalities of single operations are in `network.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiltproof.device import has_kernel, launch_bound
from tiltproof.enclosures.affine_form import AffineForm, GatheredForms
from tiltproof.enclosures.relu import least
from tiltproof.enclosures.rounding import gamma
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
    """Fraction of the network's multiplications that each margin's pass went through; [Q]."""

    passes: Tensor = field(default_factory=lambda: torch.zeros(0))


def shallow_share(network: Network) -> float:
    """Fraction of the network's entries that a pass visits before its first early-exit test (`refine`, ``shallow``)."""
    entries = {network.input: math.prod(network.shape)}
    entries |= {operation.name: math.prod(operation.shape) for operation in network.operations}
    operations, active = network.operations, {network.output}
    if network.last_linear is not None:
        operations, active = operations[:-1], {network.last.inputs[0]}
    expensive = [operation.name for operation in operations if REGISTRY[operation.kind].expensive]
    visited = set(active)
    for operation in reversed(operations):
        if operation.name in active:
            active = (active - {operation.name}) | set(operation.inputs)
            visited |= active
            if len(active) == 1 and operation.name in expensive[1:]:
                break
    return sum(entries[name] for name in visited) / sum(entries.values())


class BackwardPass:
    """Q linear lower bounds: ``coefficients`` . (outputs of some operations) + ``constant`` - ``error``, substituted back step by step."""

    def __init__(
        self,
        network: Network,
        forms: GatheredForms,
        coefficients: dict[str, Tensor],
        constant: Tensor,
        error: Tensor,
        enough: float | None,
        shared: bool,
        source: str | None = None,
    ) -> None:
        """``source``: the operation at which the pass ends, that all later ones read the image through; by default the input."""
        self.network, self.forms, self.coefficients = network, forms, coefficients
        self.constant, self.error, self.enough = constant, error, enough
        self.source = network.input if source is None else source
        start = forms[self.source]
        self.unit, self.with_scores = start.unit, shared and start.symbols > 1 and not start.quadratic
        self.quadratic = start.quadratic and start.symbols > 1
        self.best = torch.full_like(constant, -torch.inf)
        self.quadratic_terms = constant.new_zeros(2, len(constant))  # see `BackwardResult`
        self.shares = constant.new_zeros(len(constant), start.symbols)
        self.accounted: set[str] = set()
        self.steps = 2  # that may underflow; 2 for the products of concretizing
        self.sums: list[Tensor] = []  # sum of |x| for each operation that coefficients were multiplied with
        self.largest_sum = math.inf
        self._lengths: tuple[Tensor, Tensor] | None = None
        # indices of the rows not yet proved
        self.active = torch.arange(len(constant), device=constant.device)

    def run(
        self, operations: list[Operation], cost: BackwardCost | None = None, shallow: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Substitute back through ``operations``, last first; returns the bounds and the branching scores."""
        shares, passes, done = self.shares.clone(), torch.zeros_like(self.constant), 0
        whole = max(1, sum(operation.products for operation in operations))
        expensive = [operation.name for operation in operations if REGISTRY[operation.kind].expensive]
        for operation in reversed(operations):
            if operation.name == self.source:
                break
            if operation.name in self.coefficients:
                done += operation.products
                self.step(operation)
                if self.enough is not None and len(self.coefficients) == 1 and operation.name in expensive[1:]:
                    passes.index_fill_(0, self.active, done / whole)
                    self._drop_proved(self.enough)
                    if shallow or not len(self.active):
                        break
        if self.source in self.coefficients and len(self.active):
            bound, by_symbol = self._concretize(self.source)
            if self.enough is None:
                self.best = bound
            else:
                self.best[self.active] = better(self.best[self.active], bound)
            if self.with_scores:
                start, a = self.forms[self.source], self.coefficients[self.source]
                self.shares += by_symbol.T + relaxation_shares(a, start, None)
            shares[self.active] = self.shares
        if cost is not None:
            cost.passes = passes.index_fill_(0, self.active, done / whole)
        if any(operation.fragile for operation in self.network.operations):
            self.best = torch.full_like(self.best, -torch.inf)
        return self.best, shares

    def step(self, operation: Operation) -> None:
        """Substitute one operation."""
        a_out = self.coefficients.pop(operation.name)
        inputs = [self.forms[name] for name in operation.inputs]
        if REGISTRY[operation.kind].activation and self.with_scores:
            self.shares = self.shares + relaxation_shares(a_out, inputs[0], self.forms[operation.name])
        result = REGISTRY[operation.kind].backward(operation, a_out, inputs)
        if not isinstance(result.constant, float):
            self.constant = self.constant + result.constant
        if result.quadratic_terms is not None:
            assert self.quadratic, "no form is quadratic where the pixels' are not"
            self.quadratic_terms = self.quadratic_terms + result.quadratic_terms
        if result.error is not None:
            self.account_underflow(a_out, list(operation.inputs), result.size)
            self.error = self.error + result.error
        elif self.unit and (
            result.rounding_budget is not None or len(inputs) > 1
        ):  # otherwise coefficients are only rearranged
            self.account_underflow(a_out, list(operation.inputs))
        if self.unit and result.rounding_budget is not None:
            self.error = self.error + dot(self.lengths(a_out), result.rounding_budget + FLOOR[a_out.dtype])
        for name, a in zip(operation.inputs, result.inputs, strict=True):
            if name in self.coefficients:
                a = self.coefficients[name] + a
                if self.unit:
                    allowance = form_lengths(self.forms[name]) * backward_gamma(3, row_size(a), self.unit)
                    self.account_underflow(a, [name])
                    self.error = self.error + dot(self.lengths(a), allowance + FLOOR[a.dtype])
            self.coefficients[name] = a

    def account_underflow(self, like: Tensor, names: list[str], size: Tensor | None = None) -> None:
        """Account for underflows of a step that turned coefficients ``like`` into those of the outputs ``names`` (`largest_sum`).

        ``size``: the sum of |x| over the one output, if it is known.
        """
        self.steps += 1
        for name in names if self.unit else ():
            form = self.forms[name]
            self.largest_sum = min(self.largest_sum, largest_sum(like, form, len(names)))
            if name not in self.accounted:
                self.accounted.add(name)
                self.sums.append(total(form_lengths(form)) if size is None else size)

    def lengths(self, a: Tensor) -> Tensor:
        """`lengths`, cached: the same coefficients are concretized and substituted."""
        if self._lengths is None or self._lengths[0] is not a:
            self._lengths = a, lengths(a)
        return self._lengths[1]

    def _concretize(self, name: str) -> tuple[Tensor, Tensor]:
        """Concretize the coefficients of one operation with its form: the bounds, and what each symbol takes from them."""
        a, form = self.coefficients[name], self.forms[name]
        planes, spread, crossed = concretized(a, form)
        if form.ball is not None:  # |a . x| <= |a|_2 |x|_2; `row_norm` rounds as `MORE` says
            spread = torch.minimum(spread, row_norm(a) * form.ball * MORE)
        by_symbol = planes[1:]
        bound, error = self.constant + planes[0] - spread, self.error
        if self.quadratic:
            # symbols pruned in the forward pass are in the radius
            second = self.quadratic_terms[1] + by_symbol[1] if len(by_symbol) > 1 else self.quadratic_terms[1]
            first, by_symbol = self.quadratic_terms[0] + by_symbol[0], by_symbol[2:]
            bound, error = bound + least(first, second), error + (first.abs() + second.abs()) * 2.0**-48
        by_symbol = by_symbol.abs()
        bound = bound - by_symbol.sum(0)
        if self.unit:
            # the sum over symbols rounds as often as there are some; a few are among the nine
            count = 9 + max(0, form.symbols - 4)
            error = torch.add(error, crossed, alpha=backward_gamma(count, row_size(a), self.unit))
            # One FLOOR per step covers its underflows as long as no sum of |x| exceeds `largest_sum`; beyond that, the whole error, which
            # includes every FLOOR, is scaled by the ratio.
            error = error.add_(self.steps * FLOOR[a.dtype])
            error = error.mul_((self._largest() * (MORE / self.largest_sum)).clamp_(min=MORE))
            # the subtraction below rounds once more
            bound = bound - error.add_(bound.abs(), alpha=2.0**-50)
        return bound, by_symbol

    def _largest(self) -> Tensor:
        """The largest of the sums, [Q]; NaN propagates."""
        if len(self.sums) > 1:
            self.sums = [torch.stack(self.sums).amax(0)]
        return self.sums[0]

    def _drop_proved(self, enough: float) -> None:
        """Early exit: concretize with the form of the current operation, and keep only rows whose bound is not above ``enough``."""
        (name,) = self.coefficients
        bound, _ = self._concretize(name)
        self.best[self.active] = better(self.best[self.active], bound)
        rows = (~(bound > enough)).nonzero().flatten()
        if len(rows) < len(bound):
            self.coefficients, self.forms = {name: self.coefficients[name][rows]}, self.forms.rest(rows)
            self.quadratic_terms = self.quadratic_terms[:, rows]
            self.sums = [self._largest()[rows]] if self.unit else []
            self.constant, self.error, self.shares, self.active = (
                each[rows] for each in (self.constant, self.error, self.shares, self.active)
            )


def better(first: Tensor, second: Tensor) -> Tensor:
    """The larger of two proved lower bounds; a NaN never replaces a number."""
    return torch.where(second > first, second, first)


@has_kernel("backward:relaxation_shares", on=1)
def relaxation_shares(a: Tensor | None, before: AffineForm, after: AffineForm | None) -> Tensor:
    """Branching scores of one relaxation, [Q, d]: |a| (or 1) times the radius it adds, attributed to parameters by their slopes.

    Without ``after``: the radius of ``before`` itself. Scores choose the axis to split; they are not part of the bound.
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


MANY_PLANES = 16
"""Planes beyond which those that all rows share are multiplied as a matrix."""


def _sums(a: Tensor, planes: Tensor) -> Tensor:
    """`dot` of a with each of the planes [K, Q, ...], float64 [K, Q]: one by one on a CPU, or as a matrix product where there are many and
    all rows share them."""
    if len(planes) > MANY_PLANES and planes.shape[1] > 0 and planes.stride(1) == 0 and planes.dtype == torch.float64:
        return planes[:, 0].flatten(1) @ a.flatten(1).T
    if launch_bound(a):
        return (a * planes).sum(tuple(range(2, planes.ndim)), dtype=torch.float64)
    return (
        torch.stack([dot(a, plane) for plane in planes]) if len(planes) else a.new_zeros(0, len(a), dtype=torch.float64)
    )


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
    """Lower bounds (float64 [Q]) of f_label - f_class for pairs (box ``pairs[q]``, class ``classes[q]``), and branching scores [Q, d].

    The pass exits early for a bound above ``enough``, and with ``shallow`` for all bounds at the first test (see `shallow_share`);
    ``cost`` receives how far each went. Scores, the part of the slack that each parameter causes, are zero if not ``shared`` and for
    rows that exited early.
    """
    pairs = pairs % len(forms[network.input])
    return refine_between(network, forms, pairs, labels[pairs], classes, enough, shared, cost, shallow)


def refine_between(
    network: Network,
    forms: Mapping[str, AffineForm],
    pairs: Tensor,
    own: Tensor,
    other: Tensor,
    enough: float | None = None,
    shared: bool = True,
    cost: BackwardCost | None = None,
    shallow: bool = False,
    source: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for f_own - f_other, two classes [Q] for each of the boxes ``pairs`` [Q], none of them negative; ``source`` as in
    `BackwardPass`."""
    start = forms[network.input if source is None else source]
    unit, device = start.unit, start.like.device
    if unit:
        network.require_proof()
    last = network.last_linear
    if last is None:
        a = torch.zeros(len(other), *forms[network.output].shape[1:], dtype=start.like.dtype, device=device)
        a.scatter_(1, own.unsqueeze(1), 1.0).scatter_add_(1, other.unsqueeze(1), torch.full_like(a[:, :1], -1.0))
        return refine_outputs(network, forms, pairs, a, enough, shared, cost, shallow)
    weight, bias = last.settings["weight"], last.settings["bias"]
    a, numbers = _differences(last, own, other)
    chosen = GatheredForms(forms, pairs)
    before = chosen[last.inputs[0]]
    length, constant, shifts = numbers.unbind(1)
    error = torch.zeros_like(constant)
    if unit:
        # sum |a_i| |x_i| <= |a|_2 |x|_2; the difference of the biases rounds
        error = torch.addcmul(
            shifts * (backward_gamma(0, 1, unit) * (1 + 2.0**-10)),
            length,
            form_norm(before) + UNDERFLOW * math.sqrt(weight.shape[1]),
            value=backward_gamma(4, weight.shape[1], unit),
        )
    # float32 semantics: an evaluation rounds both outputs separately
    theirs = gamma(weight.shape[1] + 8, network.evaluation)
    if theirs:
        reachable = before.extent() + UNDERFLOW
        size = dot(weight[own].abs() + weight[other].abs(), reachable) * (1 + 2.0**-10)
        if bias is not None:
            size = size + bias[own].abs() + bias[other].abs()
        error += torch.where(size < OVERFLOW, size * theirs, torch.inf)
        if last.vanishing:  # weights of either output that are flushed to zero
            error += 4 * UNDERFLOW * reachable.sum(1, dtype=torch.float64)
    backward = BackwardPass(network, chosen, {last.inputs[0]: a}, constant, error, enough, shared, source)
    backward.account_underflow(a, [last.inputs[0]])
    return backward.run(network.operations[:-1], cost, shallow)


def _differences(last: Operation, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of row ``own`` minus row ``other``, [Q, n]; and, float64 [Q, 3], an upper bound of their norm, the difference of the biases
    and the sum of their sizes. For up to MOST_CLASSES classes all pairs are computed once and cached."""
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
    """Lower bounds (float64 [Q]) of ``directions[q]`` . f over box ``pairs[q]``; otherwise like `refine`.

    Directions are coefficients as they are, in the bounds' dtype; nothing about them is rounded.
    """
    if forms[network.input].unit:
        network.require_proof()
    constant = torch.zeros(len(directions), dtype=torch.float64, device=directions.device)
    error = torch.zeros_like(constant)
    pairs = pairs % len(forms[network.input])  # negative indices count from the end
    backward = BackwardPass(
        network, GatheredForms(forms, pairs), {network.output: directions}, constant, error, enough, shared
    )
    # an output whose forward bound is infinite (an evaluation may overflow there) has no finite bound
    backward.account_underflow(directions, [network.output])
    return backward.run(network.operations, cost, shallow)


def forward_shares(network: Network, forms: Mapping[str, AffineForm] | GatheredForms) -> Tensor:
    """Branching scores without a backward pass: the radii that all relaxations add, unweighted, [P, d]."""
    shares = relaxation_shares(None, forms[network.input], None)
    for operation in network.operations:
        if REGISTRY[operation.kind].activation:
            shares += relaxation_shares(None, forms[operation.inputs[0]], forms[operation.name])
    return shares
