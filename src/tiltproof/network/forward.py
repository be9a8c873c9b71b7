"""Forward pass: affine forms of a network's outputs and margins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.device import batch_entries
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import SMALLEST, gamma, widen
from tiltproof.errors import InputError
from tiltproof.network.graph import Network, Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.base import OVERFLOW, UNDERFLOW, evaluated, farthest
from tiltproof.network.ops.linear import ROW_BY_ROW


def check_labels(labels: Tensor | None, count: int, network: Network) -> Tensor:
    """Labels as int64 [count], each one of the network's classes."""
    shape = network.output_shape()
    if len(shape) != 1:
        raise InputError("a classifier's output has shape [N, classes]", got=f"[N, {', '.join(map(str, shape))}]")
    if shape[0] < 2:
        raise InputError(
            "a classifier has at least two classes",
            got=f"{shape[0]} output",
            why="a regression network, or a classifier of two classes that returns one score",
            do="--task regression (certify_range in Python) bounds that output",
        )
    labels = torch.as_tensor(labels)
    if labels.shape != (count,):
        raise InputError(f"labels must have shape [{count}], one per image", got=tuple(labels.shape))
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise InputError("labels must be integers", got=labels.dtype, do="labels.long()")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= shape[0]:
        raise InputError(
            f"labels must lie between 0 and {shape[0] - 1}, the network's classes",
            got=f"{low} to {high}",
            why="labels that count from 1, or another data set than the network's",
        )
    return labels.long()


NEGLIGIBLE = {1: 1e-3, 2: 0.03}
"""Index of a symbol -> fraction of the radii below which it is pruned: 2 e^2 - 1, which quadratic ReLU uses, and the hinge."""


def run(
    network: Network, bounds: AffineForm, lasting: int | None = None, outputs: bool = True
) -> dict[str, AffineForm]:
    """Form of every operation's output, by name; ``network`` comes from `Network.network_as`.

    Without ``outputs`` the last linear layer is left out, which neither `margins` nor `refine` needs. ``lasting``: never prune the first
    ``lasting`` symbols; later ones are absorbed into the radii (|G_k e_k| <= |G_k|), the last first, once they are negligible.

    With float32 semantics the pixels are rounded to float32 first. No radius is below SMALLEST at the input or after any rule, so that
    products of radii with weights cover what flushing tiny numbers to zero may lose.
    """
    if bounds.unit:
        network.require_proof()
    bounds = evaluated(bounds, 2, network.evaluation)
    if bounds.unit:
        bounds = AffineForm(bounds.stack, bounds.radius + SMALLEST[bounds.radius.dtype], bounds.unit, bounds.quadratic)
    forms = {network.input: bounds}
    lasting = bounds.symbols if lasting is None else lasting
    kept = bounds.symbols
    for operation in network.operations if outputs or network.last_linear is None else network.operations[:-1]:
        inputs = [_without(forms[name], kept) for name in operation.inputs]
        form = forms[operation.name] = REGISTRY[operation.kind].forward(operation, inputs)
        if kept > lasting and REGISTRY[operation.kind].activation:
            kept = _mattering(form, lasting)
    return forms


def _mattering(form: AffineForm, lasting: int) -> int:
    """Number of the form's symbols to keep."""
    slopes, dims = form.slopes[lasting:], tuple(range(1, form.stack.ndim))
    *sizes, radius = torch.stack([*torch.linalg.vector_norm(slopes, 1, dims), form.radius.sum()]).tolist()
    kept = form.symbols
    while kept > lasting and sizes[kept - lasting - 1] < NEGLIGIBLE.get(kept - 1, 0.0) * radius:
        kept -= 1
    return kept


def _without(form: AffineForm, kept: int) -> AffineForm:
    """Absorb all but the first ``kept`` symbols into the radius."""
    if form.symbols <= kept:
        return form
    extra = form.slopes[kept:].abs().sum(0)
    radius = widen(form.radius + extra, 0.0, form.symbols + 2, form.unit)
    return AffineForm(form.stack[: 1 + kept], radius, form.unit, form.quadratic and kept > 1)


MOST_CLASSES = 32
"""Up to this many classes, compute all differences for every row and select the label's: more products, fewer steps."""
MOST_ENTRIES_GPU, MOST_ENTRIES_CPU = 2**24, 2**20
"""Entries of weight differences per batch of rows: few launches on a GPU, fits caches on a CPU."""


def margins(network: Network, forms: dict[str, AffineForm], labels: Tensor) -> AffineForm:
    """f_label - f_j for all j. Row differences replace a last linear layer, so that what two classes share cancels."""
    last = network.last_linear
    form = forms[network.output if last is None else last.inputs[0]]
    if form.unit:
        network.require_proof()
    if last is None:
        return _differences(form, labels)
    weight, bias = last.settings["weight"], last.settings["bias"]
    own, classes = labels.unsqueeze(1), len(weight)
    if classes <= MOST_CLASSES:
        part = REGISTRY["linear"].forward(last.once("differences", lambda: _row_differences(last)), [form])
        columns = own * classes + torch.arange(classes, device=own.device)
        stack, radius = part.stack.gather(2, columns.expand(len(part.stack), -1, -1)), part.radius.gather(1, columns)
    else:
        most = batch_entries(own, MOST_ENTRIES_CPU, MOST_ENTRIES_GPU)
        chunks = torch.arange(len(form), device=own.device).split(max(1, most // weight.numel()))
        parts = [ROW_BY_ROW.forward(_row_differences(last, labels[rows]), [form[rows]]) for rows in chunks]
        stack, radius = torch.cat([part.stack for part in parts], 1), torch.cat([part.radius for part in parts])
    if form.unit:  # a difference of weights that is flushed to zero; in an evaluation, either weight
        lost = 4 * UNDERFLOW if network.evaluation and last.vanishing else SMALLEST[radius.dtype]
        radius = radius + lost * farthest(form).sum(1, keepdim=True)
    if network.evaluation:
        # an evaluation rounds each output separately: subtract both errors
        size = F.linear(farthest(form) + UNDERFLOW, weight.abs(), None if bias is None else bias.abs())
        error = size * (gamma(weight.shape[1] + 8, network.evaluation) * (1 + 2.0**-10))
        largest = torch.maximum(size, size.gather(1, own))
        radius = torch.where(largest < OVERFLOW, radius + error + error.gather(1, own), torch.inf)
        radius = widen(radius, 0.0, 4, form.unit)
    return AffineForm(stack.scatter(2, own.expand(len(stack), -1, 1), 0.0), radius.scatter(1, own, 0.0), form.unit)


def _row_differences(last: Operation, labels: Tensor | None = None) -> Operation:
    """The operation f_label - f_j for all j: weights for each label, or, without ``labels``, of all classes in sequence."""
    weight, bias = last.settings["weight"], last.settings["bias"]
    mine = slice(None) if labels is None else labels
    weight = weight[mine].unsqueeze(1) - weight
    bias = None if bias is None else bias[mine].unsqueeze(1) - bias
    settings = {
        "weight": weight.flatten(0, 1) if labels is None else weight,
        "bias": bias.flatten() if labels is None and bias is not None else bias,
        "roundings": 2,  # of each difference of weights; the shift's slack covers the bias
    }
    kept: dict[str, Any] | None = None if last.kept is None else {}
    return Operation(last.name, "linear", last.inputs, settings, last.shape, vanishing=last.vanishing, kept=kept)


def _differences(form: AffineForm, labels: Tensor) -> AffineForm:
    own = labels.unsqueeze(1)
    stack = form.stack.gather(2, own.expand(len(form.stack), -1, 1)) - form.stack
    radius = form.radius.gather(1, own) + form.radius
    radius = widen(radius, stack.abs().sum(0), 2, form.unit)
    return AffineForm(stack, radius.scatter(1, own, 0.0), form.unit)


def over_rows(operation: Operation, form: AffineForm) -> AffineForm:
    """A linear operation whose weights [P, R, K] and biases [P, R] differ by row of the form."""
    return ROW_BY_ROW.forward(operation, [form])


def separate_margins(form: AffineForm, labels: Tensor) -> Tensor:
    """The FGV paper's criterion: lower bound of the label's output minus upper bound of each other output, [P, K] (label: infinity)."""
    lower, upper = form.lower, form.upper
    difference = lower.gather(1, labels.unsqueeze(1)) - upper
    difference = difference - difference.abs() * (2 * form.unit)
    return difference.scatter(1, labels.unsqueeze(1), torch.inf)
