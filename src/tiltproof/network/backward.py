"""Backward refinement (CROWN): linear lower bounds of single margins, pulled back from the output to the pixels.

The forward form loses a little at every layer because its remainder r goes through |W|. Going backward, the
coefficients of the margin go through W itself, and only at the pixels are they met with the affine form: a.c - sum_k
|a.G_k| - |a|.r (method, section 5). Most margins are above zero long before that, met with the form of a layer on the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.chosen import ChosenForms
from tiltproof.bounds.rounding import gamma
from tiltproof.network.effort import Effort
from tiltproof.network.forward import MOST_CLASSES
from tiltproof.network.graph import Network, Operation
from tiltproof.network.pull import Pull, relaxation_shares
from tiltproof.network.rules.base import OVERFLOW, RELAXED, UNDERFLOW, backward_gamma, dot, form_norm, row_norm


def refine(
    network: Network,
    forms: Mapping[str, AffineForm],
    labels: Tensor,
    pairs: Tensor,
    classes: Tensor,
    enough: float | None = None,
    shared: bool = True,
    effort: Effort | None = None,
    shallow: bool = False,
) -> tuple[Tensor, Tensor]:
    """Lower bounds (float64 [Q]) of f_label - f_class for pairs (box ``pairs[q]``, class ``classes[q]``).

    A bound above ``enough`` is not pulled back any further, and with ``shallow`` none is from where that is looked at first (see
    `shallow_share`); ``effort`` is told how far they all were. Also returns, per pair and parameter [Q, d], how much of the bound's
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
        return refine_outputs(network, forms, pairs, a, enough, shared, effort, shallow)
    weight, bias = last.settings["weight"], last.settings["bias"]
    a, numbers = _differences(last, own, other)
    chosen = ChosenForms(forms, pairs)
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
    pull = Pull(network, chosen, {last.inputs[0]: a}, constant, error, enough, shared)
    pull.mind(a, [last.inputs[0]])
    return pull.through(network.operations[:-1], effort, shallow)


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
    effort: Effort | None = None,
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
    pull = Pull(network, ChosenForms(forms, pairs), {network.output: directions}, constant, error, enough, shared)
    # an output whose forward bound is infinite (an evaluation may overflow there) has no finite bound
    pull.mind(directions, [network.output])
    return pull.through(network.operations, effort, shallow)


def forward_shares(network: Network, forms: Mapping[str, AffineForm] | ChosenForms) -> Tensor:
    """A cheaper measure for boxes that are split without a backward pass: what all relaxations add, unweighted, [P,
    d].
    """
    shares = relaxation_shares(None, forms[network.input], None)
    for operation in network.operations:
        if operation.kind in RELAXED:
            shares += relaxation_shares(None, forms[operation.inputs[0]], forms[operation.name])
    return shares
