"""`bound_network`: bounds of a module's outputs or margins in one call."""

from __future__ import annotations

from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.network.agreement import read_network
from tiltproof.network.arithmetic import proof_arithmetic
from tiltproof.network.forward import check_labels, margins, run


def bound_network(model: nn.Module, bounds: AffineForm, labels: Tensor | None = None) -> AffineForm:
    """Bound a network's outputs over everything that ``bounds`` (from `bound_pixels`) contains, [P, K].

    With ``labels`` [P] the margins f_label - f_j are bounded instead, as differences; center, slopes and
    radius of entry j = label are exactly 0.
    A model in training mode is bounded in eval mode and handed back as it was.
    """
    if not isinstance(bounds, AffineForm):
        raise InputError(
            "the bounds must be an AffineForm", got=type(bounds).__name__, do="take them from bound_pixels"
        )
    with proof_arithmetic(bounds.radius.device):
        network = read_network(model, tuple(bounds.shape[1:]), bounds.center.detach())
        bounds = bounds.to(network.dtype())
        live = network.network_as(network.dtype())
        if labels is None:
            return run(live, bounds)[live.output]
        return margins(live, run(live, bounds), check_labels(labels, len(bounds), live))
