"""Backward refinement (CROWN): linear lower bounds of single margins, pulled back from the output to the pixels.

The forward form loses a little at every layer because its remainder r goes through |W|. Going backward, the
coefficients of the margin go through W itself, and only at the pixels are they met with the affine form: a.c - sum_k
|a.G_k| - |a|.r (method, section 5).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.rounding import gamma
from tiltproof.network.graph import Network, Operation
from tiltproof.network.rules import REGISTRY
from tiltproof.network.rules.base import (
    OVERFLOW,
    RELAXED,
    UNDERFLOW,
    Pairs,
    backward_gamma,
    dot,
    farthest,
    form_lengths,
    lengths,
    underflow,
)


def refine(
    network: Network,
    forms: dict[str, AffineForm],
    labels: Tensor,
    pairs: Pairs,
    classes: Tensor,
    shared: bool = True,
) -> tuple[Tensor, Tensor]:
    """Lower bounds (float64 [Q]) of f_label - f_class for pairs (box ``pairs[q]``, class ``classes[q]``).

    Also returns, per pair and parameter [Q, d], how much of the bound's slack that parameter is responsible for (zeros if not
    ``shared``).
    """
    start = forms[network.input]
    unit, device = start.unit, start.radius.device
    constant = torch.zeros(len(classes), dtype=torch.float64, device=device)
    error = torch.zeros_like(constant)
    if not (network.operations and network.last.name == network.output and network.last.kind == "linear"):
        a = torch.zeros(len(classes), *forms[network.output].shape[1:], dtype=start.radius.dtype, device=device)
        a.scatter_(1, labels[pairs].unsqueeze(1), 1.0)
        return refine_outputs(
            network, forms, pairs, a.scatter_add_(1, classes.unsqueeze(1), torch.full_like(a[:, :1], -1.0)), shared
        )
    last = network.last
    weight, bias = last.settings["weight"], last.settings["bias"]
    a = weight[labels[pairs]] - weight[classes]
    reachable = (farthest(forms[last.inputs[0]]) + UNDERFLOW)[pairs]
    error += dot(a.abs(), reachable) * backward_gamma(4, a[0].numel(), unit)
    if unit:
        error += underflow(lengths(a), a, [forms[last.inputs[0]]], pairs)
    # where float32 evaluations are spoken of: both outputs are evaluated by themselves
    theirs = gamma(weight.shape[1] + 8, network.evaluation)
    own, other = labels[pairs], classes
    if theirs:
        size = dot(weight[own].abs() + weight[other].abs(), reachable) * (1 + 2.0**-10)
        if bias is not None:
            size = size + bias[own].abs() + bias[other].abs()
        error += torch.where(size < OVERFLOW, size * theirs, torch.inf)
    if bias is not None:
        constant += bias[own].double() - bias[other].double()
        error += (bias[own].abs() + bias[other].abs()).double() * (backward_gamma(0, 1, unit) * (1 + 2.0**-10))
    return _pulled_back(network, forms, pairs, network.operations[:-1], {last.inputs[0]: a}, constant, error, shared)


def refine_outputs(
    network: Network, forms: dict[str, AffineForm], pairs: Pairs, directions: Tensor, shared: bool = True
) -> tuple[Tensor, Tensor]:
    """Lower bounds (float64 [Q]) of ``directions[q]`` . f over box ``pairs[q]``; the rest as in `refine`.

    A direction holds whole numbers such as 1, -1 and 0, which no rounding touches.
    """
    constant = torch.zeros(len(directions), dtype=torch.float64, device=directions.device)
    error = torch.zeros_like(constant)
    # an output whose forward bound is infinite (an evaluation may overflow there) has no finite bound
    if forms[network.input].unit:
        error += underflow(lengths(directions), directions, [forms[network.output]], pairs)
    return _pulled_back(
        network, forms, pairs, network.operations, {network.output: directions}, constant, error, shared
    )


def _pulled_back(
    network: Network,
    forms: dict[str, AffineForm],
    pairs: Pairs,
    operations: list[Operation],
    coefficients: dict[str, Tensor],
    constant: Tensor,
    error: Tensor,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    """From coefficients of some operations' outputs, through ``operations`` in reverse, to the pixels."""
    start = forms[network.input]
    unit, several = start.unit, shared and start.symbols > 1 and not start.bent
    shares = torch.zeros(len(constant), start.symbols, dtype=torch.float64, device=constant.device)
    for operation in reversed(operations):
        a_out = coefficients.pop(operation.name, None)
        if a_out is None:
            continue
        inputs = [forms[name] for name in operation.inputs]
        if operation.kind in RELAXED and several:
            shares += _relaxation_shares(a_out, inputs[0], forms[operation.name], pairs)
        pulled = REGISTRY[operation.kind].backward(operation, a_out, inputs, pairs)
        constant = constant + pulled.constant
        if unit:
            weights = lengths(a_out)
            error = error + underflow(weights, a_out, inputs, pairs)
            if pulled.allowance is not None:
                error = error + dot(weights, pulled.allowance[pairs])
        for name, a in zip(operation.inputs, pulled.inputs, strict=True):
            if name in coefficients:
                a = coefficients[name] + a
                if unit:
                    allowance = form_lengths(forms[name]) * backward_gamma(3, a[0].numel(), unit)
                    error = error + dot(lengths(a), allowance[pairs])
            coefficients[name] = a
    a = coefficients[network.input]
    if unit:
        weights = lengths(a)
        error = error + underflow(weights, a, [start], pairs)
        error = error + dot(weights, form_lengths(start)[pairs]) * backward_gamma(9, a[0].numel(), unit)
    moves = (
        torch.stack([dot(a, slope[pairs]) for slope in start.slopes]).abs()
        if start.symbols
        else constant.new_zeros(0, len(constant))
    )
    remainder = dot(a.abs(), start.radius[pairs])
    bound = constant + dot(a, start.center[pairs]) - moves.sum(0) - remainder
    # the errors are themselves float64 sums of non-negative terms, and this subtraction rounds once more
    error = error * (1 + 2.0**-20) + bound.abs() * 2.0**-50
    if several:
        shares += moves.T + _proportions(start.slopes, start.radius, a.abs(), pairs)
    if unit:
        bound = bound - error
    if any(operation.fragile for operation in network.operations):
        bound = torch.full_like(bound, -torch.inf)
    return bound, shares


def forward_shares(network: Network, forms: dict[str, AffineForm]) -> Tensor:
    """A cheaper measure for boxes that are split without a backward pass: what all relaxations add, unweighted, [P,
    d].
    """
    start = forms[network.input]
    everything = slice(None)
    shares = _proportions(start.slopes, start.radius, torch.ones_like(start.radius), everything)
    for operation in network.operations:
        if operation.kind in RELAXED:
            before, after = forms[operation.inputs[0]], forms[operation.name]
            shares += _relaxation_shares(torch.ones_like(before.radius), before, after, everything)
    return shares


def _relaxation_shares(a: Tensor, before: AffineForm, after: AffineForm, pairs: Pairs) -> Tensor:
    """What an activation's relaxation costs (|a| times the remainder it adds), laid on the parameters that move its
    input.
    """
    added = (after.radius - before.radius).clamp(min=0)
    return _proportions(before.slopes, added, a.abs(), pairs)


def _proportions(slopes: Tensor, cost: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
    sizes = slopes.abs()
    share = cost / sizes.sum(0).clamp(min=1e-30)  # a choice of split axis, not part of the bound
    return torch.stack([dot(weight, (size * share)[pairs]) for size in sizes], 1)
