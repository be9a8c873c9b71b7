"""`bound_network`: bounds of a module's outputs or margins in one call."""

from __future__ import annotations

from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.network.agreement import read_network
from tiltproof.network.arithmetic import proof_arithmetic
from tiltproof.network.forward import check_labels, margins, run


def bound_network(model: nn.Module, bounds: AffineForm, labels: Tensor | None = None) -> AffineForm:
    """Bound a network's outputs over all images that the pixel bounds contain.

    Parameters
    ----------
    model : torch.nn.Module
        The network; in training mode it is bounded in eval mode and returned to training mode.
    bounds : AffineForm
        Pixel bounds [P, C, H, W] of `bound_pixels`.
    labels : Tensor, optional
        Classes [P]: bound the margins f_label - f_j instead of the outputs.

    Returns
    -------
    AffineForm
        Bounds [P, K], with ``lower`` and ``upper``. In margins, center, slopes and radius of j = label are exactly 0.

    Raises
    ------
    InputError
        If an argument is invalid.
    UnsupportedOperation
        If an operation of the network has no bound rule.
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
