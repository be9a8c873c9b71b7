"""Bounds of a network's outputs for pairs of images and parameter boxes: forward, and backward from either end of each output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import Network, forward_shares, refine_outputs, run
from tiltproof.pixels.api import pair_bounds
from tiltproof.verify.inputs import Inputs


@dataclass
class RangeOutcome:
    """For each pair: bounds of all outputs, and slack per parameter."""

    lower: Tensor  # [P, K], float64; -inf where nothing is proved
    upper: Tensor  # [P, K]; inf where nothing is proved
    shares: Tensor  # [P, d]

    def cpu(self) -> RangeOutcome:
        return RangeOutcome(self.lower.cpu(), self.upper.cpu(), self.shares.cpu())


class RangeProver:
    """Bounds outputs of one network over boxes of one transform, in float64: the roundings a float32 bound has to absorb, harmless
    where only a sign is asked for, would be part of every range."""

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.transform, self.method, self.pictures = inputs.transform, method, inputs.pictures
        self.device = inputs.images.device
        self.network = inputs.network_as(torch.float64, inputs.semantics)

    @torch.no_grad()
    def bound(self, images: Tensor, low: Tensor, high: Tensor) -> RangeOutcome:
        """``images`` [P] are indices; ``low`` and ``high`` [P, d] float64."""
        network = self.network
        pixels = pair_bounds(self.pictures, images, self.transform, self.method, low, high, quadratic=True)
        forms = run(network, pixels, lasting=low.shape[1])
        output = forms[network.output]
        lower, upper = output.lower, output.upper
        shares = torch.zeros(len(images), low.shape[1], dtype=torch.float64, device=low.device)
        if self.method != "fgv":  # the paper's verifier knows the forward pass alone
            more, less, shares = self._backward(network, forms, shares)
            # the better of two proved bounds; a NaN never replaces a number
            lower = torch.where(more > lower, more, lower)
            upper = torch.where(less < upper, less, upper)
        # a negative radius can only come from a wrong rule: such a bound proves nothing
        sound = output.radius >= 0
        lower = torch.where(sound & ~lower.isnan(), lower, -torch.inf)
        return RangeOutcome(lower, torch.where(sound & ~upper.isnan(), upper, torch.inf), shares)

    def _backward(
        self, network: Network, forms: dict[str, AffineForm], shares: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Lower bounds of f_k and of -f_k for every output k, one after the other, and shares of the parameters."""
        count, outputs = forms[network.output].shape
        units = torch.eye(outputs, dtype=torch.float64, device=shares.device)
        pairs = torch.arange(count, device=shares.device)
        if shares.shape[1] > 1 and forms[network.input].symbols > 1:
            shares = forward_shares(network, forms)
        ends = []
        for directions in (units, -units):
            bounds = [
                refine_outputs(network, forms, pairs, row.expand(count, -1).contiguous())[0] for row in directions
            ]
            ends.append(torch.stack(bounds, 1))
        return ends[0], -ends[1], shares
