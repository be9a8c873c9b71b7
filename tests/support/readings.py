"""Three readings of one network at single pictures: the prover's graph, the checker's forms, and what evaluations really give.

Every evaluation in float32 must lie in what each reading says of such evaluations, output by output; and the real-valued network, which a
copy in float64 gives up to 2^-40, in what each says of real numbers. A reading that confuses two values is off by far more.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tiltproof import AffineForm, InputError
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation, outputs
from tiltproof.checker.pixels import as_float32
from tiltproof.network import proof_arithmetic, read_network, run

LIBRARY = 4
"""How many times the half width of its bounds an evaluation by another library may take."""


def enclosures(model: nn.Module, pictures: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """By name: lower and upper ends [P, K] of evaluations in float32, and of real numbers; the checker has fewer rules than the prover."""
    found = {}
    with proof_arithmetic(pictures.device), torch.no_grad():
        network = read_network(model, tuple(pictures.shape[1:]), pictures)
        for name, unit in (("real, by the prover", 0.0), ("float32, by the prover", 2.0**-24)):
            live = network.network_as(torch.float64, unit)
            form = run(live, AffineForm.constant(pictures.double()))[live.output]
            found[name] = form.lower, form.upper
    with evaluation(model, pictures.device):
        exact = Form(torch.stack([pictures.double(), torch.zeros_like(pictures, dtype=torch.float64)]))
        for name, form in (("real, by the checker", exact), ("float32, by the checker", as_float32(exact))):
            try:
                output = outputs(model, form)
            except InputError as error:
                if "has no rule" not in str(error):
                    raise
                continue  # refused by name; never read as something else
            found[name] = output.lower(), output.upper()
    return found


def assert_same_network(model: nn.Module, pictures: Tensor, others: Tensor | None = None) -> float:
    """``others``: what another library's evaluation gives. Returns the largest half width of a bound, relative to its output."""
    with torch.no_grad():
        own, real = model(pictures).double(), copy.deepcopy(model).double()(pictures.double())
    widths = [0.0]
    for name, (low, high) in enclosures(model, pictures).items():
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
