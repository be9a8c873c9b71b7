"""Bounds for pairs of images and parameter boxes: pixels, forward, and CROWN back-substitution where forward fails."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, GatheredForms
from tiltproof.network import Network, forward_shares, margins, refine_outputs, run, separate_margins
from tiltproof.pixels.api import pair_bounds
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.refinement import BackwardPolicy, ClassRefinement, CostModel

BACKWARD_LOSS = 0.5
"""Share of a margin's remainder that a backward pass does not win back: 0.3 to 0.6 on the way to a bound near zero. Orders classes."""

MARGINS_PER_PASS = 64
"""Bounds of outputs per backward pass, where there are fewer pairs than that."""


@dataclass
class Outcome:
    """For each pair: lower bounds [P, C] of the objectives, and the branching score of each parameter [P, d]."""

    bound: Tensor
    shares: Tensor


@dataclass
class MarginOutcome:
    """For each pair: a lower bound of the margin [P], the bound of the forward pass alone, the number of backward
    passes in units of whole ones (most margins are proved after a fraction of one), and branching scores [P, d],
    zero where the forward pass was enough."""

    bound: Tensor
    forward: Tensor
    passes: Tensor
    shares: Tensor


class Prover:
    """Lower bounds of classification margins, in the model's own precision or in float64.

    The rounding errors that a float32 bound must absorb grow with the length of sums and can reach a few hundredths
    of a margin. A box that is open only because of them is bounded again in float64, where they vanish. Float64 forms
    are quadratic if there is a single parameter: the second order of pixels is the other reason why bounds of deep
    networks are wide.
    """

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.labels, self.transform, self.method = inputs.labels, inputs.transform, method
        self.images64 = inputs.images64
        self.dtype = inputs.images.dtype
        self.networks = {dtype: inputs.network_as(dtype, inputs.semantics) for dtype in {self.dtype, torch.float64}}
        self.quadratic = True  # benchmarks switch it off to compare
        self.cost = CostModel.of(inputs, self.networks[self.dtype])

    @torch.no_grad()
    def bound(
        self,
        images: Tensor,
        low: Tensor,
        high: Tensor,
        policy: BackwardPolicy,
        dtype: torch.dtype | None = None,
        network: Network | None = None,
    ) -> MarginOutcome:
        """``images`` [P] are indices; ``low`` and ``high`` [P, d] float64, on the prover's device. ``policy`` learns from the outcome.
        ``network``: in ``dtype``; by default that of the certified semantics."""
        dtype, cost = dtype or self.dtype, self.cost
        network = network or self.networks[dtype]
        quadratic = self.quadratic and dtype == torch.float64
        pixels = pair_bounds(
            self.images64, images, self.transform, self.method, low, high, quadratic=quadratic, dtype=dtype
        )
        several = low.shape[1] > 1 and pixels.symbols > 1  # parameters to choose from, and known by their slopes
        labels = self.labels[images]
        forms = run(network, pixels, lasting=low.shape[1], outputs=self.method == "fgv")
        shares = torch.zeros(len(images), low.shape[1], dtype=torch.float64, device=low.device)
        if self.method == "fgv":
            bound = _least(separate_margins(forms[network.output], labels).double())
            return MarginOutcome(bound, bound, torch.zeros_like(bound), shares)
        form = margins(network, forms, labels)
        # a negative radius can only come from a wrong rule: such a bound proves nothing
        lower = torch.where(form.radius >= 0, form.lower.double(), torch.nan).scatter(1, labels.unsqueeze(1), torch.inf)
        forward = _proved(lower).amin(1, keepdim=True)
        first_order = form.center - form.slopes.abs().sum(0)
        likely = (first_order - BACKWARD_LOSS * form.radius).double()
        worst = torch.where(lower > 0, torch.inf, _proved(likely)).argmin(1, keepdim=True)
        forward, first_order, radius = (
            each.flatten() for each in (forward, first_order.gather(1, worst), form.radius.gather(1, worst))
        )
        promising = policy.promising(~(forward > 0), first_order, radius)
        rows, passes = promising.chosen, torch.zeros_like(forward)
        if len(rows):
            refinement = ClassRefinement(network, forms, labels, rows, lower[rows], likely[rows])
            # as many margins as pairs take no more memory than the forward pass did
            share = refinement.work(
                max(cost.least_margins, len(pixels)), cost.speculative_margins, cost.first_test_share
            )
            lower[rows], passes[rows] = refinement.best, refinement.passes
            policy.learn(promising, _least(lower[rows]) > 0)
            if several:
                shares[rows] = share
        bound = _least(lower)
        if several:  # boxes without a backward pass, or whose worst class is proved and another is not
            rows = (~(bound > 0) & (shares.sum(1) == 0)).nonzero().flatten()
            if len(rows):
                shares[rows] = forward_shares(network, GatheredForms(forms, rows))
        return MarginOutcome(bound, forward, passes, shares)


class RangeProver:
    """Bounds of a network's outputs, in float64: unlike margins, of which only the sign counts, the rounding errors
    of float32 would widen every range."""

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.transform, self.method, self.images64 = inputs.transform, method, inputs.images64
        self.device = inputs.images.device
        self.network = inputs.network_as(torch.float64, inputs.semantics)

    @torch.no_grad()
    def bound(self, images: Tensor, low: Tensor, high: Tensor) -> Outcome:
        """Return lower bounds [P, 2 K] of outputs and negated outputs. ``images`` [P] are indices; ``low``, ``high``
        [P, d] float64."""
        network = self.network
        pixels = pair_bounds(self.images64, images, self.transform, self.method, low, high, quadratic=True)
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
        upper = torch.where(sound & ~upper.isnan(), upper, torch.inf)
        return Outcome(torch.cat([lower, -upper], 1), shares)

    def _backward(
        self, network: Network, forms: dict[str, AffineForm], shares: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return lower and upper bounds of every output, several per pass if pairs are few, and branching scores."""
        count, outputs = forms[network.output].shape
        units = torch.eye(outputs, dtype=torch.float64, device=shares.device)
        pairs = torch.arange(count, device=shares.device)
        if shares.shape[1] > 1 and forms[network.input].symbols > 1:
            shares = forward_shares(network, forms)
        ends = []
        for directions in (units, -units):
            bounds = []
            for some in directions.split(max(1, MARGINS_PER_PASS // count)):
                rows, each = pairs.repeat(len(some)), some.repeat_interleave(count, 0)
                bounds.append(refine_outputs(network, forms, rows, each)[0].view(len(some), count).mT)
            ends.append(torch.cat(bounds, 1))
        return ends[0], -ends[1], shares


def _least(lower: Tensor) -> Tensor:
    """Return the minimum of each row; NaN counts as minus infinity: never proved."""
    return _proved(lower).amin(1)


def _proved(lower: Tensor) -> Tensor:
    return lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
