"""Three readings of one network at single images: the prover's graph, the checker's forms, and actual evaluations.

Every float32 evaluation must lie inside each reading's float32 bounds, output by output; the real-valued network, which a
float64 copy approximates to 2^-40, must lie inside each reading's real bounds. A reading that confuses two values is off
by far more.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tiltproof import InputError
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation, outputs
from tiltproof.checker.pixels import as_float32
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import proof_arithmetic, read_network, run

LIBRARY = 4
"""How many half widths of its bounds another library's evaluation may be off by."""


def enclosures(model: nn.Module, images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return by name the ends [P, K] of float32 evaluations and of real numbers; the checker has fewer rules than the prover."""
    found = {}
    with proof_arithmetic(images.device), torch.no_grad():
        network = read_network(model, tuple(images.shape[1:]), images)
        for name, unit in (("real, by the prover", 0.0), ("float32, by the prover", 2.0**-24)):
            live = network.network_as(torch.float64, unit)
            form = run(live, AffineForm.constant(images.double()))[live.output]
            found[name] = form.lower, form.upper
    with evaluation(model, images.device):
        exact = Form(torch.stack([images.double(), torch.zeros_like(images, dtype=torch.float64)]))
        for name, form in (("real, by the checker", exact), ("float32, by the checker", as_float32(exact))):
            try:
                output = outputs(model, form)
            except InputError as error:
                if "has no rule" not in str(error):
                    raise
                continue  # refused by name, never misread
            found[name] = output.lower(), output.upper()
    return found


def assert_same_network(model: nn.Module, images: Tensor, others: Tensor | None = None) -> float:
    """Check all readings against each other, and against ``others``, another library's evaluation, if given.

    Returns the largest half width of a bound, relative to its output.
    """
    with torch.no_grad():
        own, real = model(images).double(), copy.deepcopy(model).double()(images.double())
    widths = [0.0]
    for name, (low, high) in enclosures(model, images).items():
        truth = real if name.startswith("real") else own
        slack = 2.0**-40 * (1 + real.abs()) if truth is real else 0 * real
        assert truth.shape == low.shape, name
        assert bool(((truth >= low - slack) & (truth <= high + slack)).all()), (name, truth, low, high)
        if others is not None and truth is own:
            more = (LIBRARY - 1) * (high - low) / 2
            assert bool(((others.double() >= low - more) & (others.double() <= high + more)).all()), (
                name,
                others,
                low,
                high,
            )
        widths.append(float(((high - low) / 2 / (1e-3 + real.abs())).max()))
    return max(widths)
