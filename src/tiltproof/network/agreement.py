"""A network is used only if what was read from its graph agrees with what the module computes.

Tracing freezes whatever the module decided while it was traced: a branch on the batch size, a random draw, a constant. Here the operations
are run as bounds of single points, and the module itself on the same points alone and in batches; should they differ by more than
float arithmetic explains, the module is refused.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tiltproof.bounds.affine import AffineForm
from tiltproof.errors import InputError
from tiltproof.network.arithmetic import no_autocast, proof_arithmetic
from tiltproof.network.evaluation import eval_mode
from tiltproof.network.export import export_network
from tiltproof.network.forward import run
from tiltproof.network.graph import Network

TOLERANCE = 2.0**-7
"""Relative to the outputs' size. This catches a graph that was read wrongly; it has no part in any bound."""

ENTRIES_AT_ONCE = 2**22


def read_network(model: nn.Module, shape: tuple[int, ...], like: Tensor) -> Network:
    """`export_network`, and a check that the operations compute what the module does, on ``like`` and on random points."""
    with no_autocast():  # the module itself, not what autocast makes of it
        network = export_network(model, shape, like)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, *shape, generator=generator, dtype=torch.float64).to(like.device, like.dtype)
    points = torch.cat([like[:3].view(-1, *shape), noise.clamp(0, 1), 3 * noise])
    with eval_mode(model), torch.no_grad(), proof_arithmetic(like.device):
        live = network.live(network.dtype())
        form = _values(live, points.to(network.dtype()))
        answers = [model(points), torch.cat([model(point[None]) for point in points]), model(points)]
    allowed = (form.reach() + TOLERANCE * (1 + form.center.abs().amax())).nan_to_num(nan=torch.inf)
    for answer in answers:
        if answer.shape != form.shape or not bool(((answer - form.center).abs() <= allowed).all()):
            if not bool(torch.isfinite(form.center).all()):
                continue  # overflow: bounds will be infinite and prove nothing
            raise InputError(
                "the model does not compute the same function every time, or not the one that tracing saw",
                got=f"outputs that differ by {float((answer - form.center).abs().max()):.2g}"
                if answer.shape == form.shape
                else answer.shape,
                why="randomness in forward, or code that depends on the batch size or on values",
                do="make forward a fixed function of each picture by itself",
            )
    return network


def _values(network: Network, points: Tensor) -> AffineForm:
    """The operations run on points, so few at a time that large networks take no more memory than they need."""
    entries = sum(math.prod(operation.shape) for operation in network.operations) + points[0].numel()
    size = max(1, ENTRIES_AT_ONCE // entries)
    forms = [run(network, AffineForm.constant(part))[network.output] for part in points.split(size)]
    return AffineForm(torch.cat([form.stack for form in forms], 1), torch.cat([form.radius for form in forms]))
