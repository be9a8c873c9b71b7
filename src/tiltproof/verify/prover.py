"""Lower bounds of the margin for pairs of images and parameter boxes: pixels, forward, and backward where forward
fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tiltproof.enclosures.gathered import GatheredForms
from tiltproof.network import forward_shares, margins, run, separate_margins, shallow_share
from tiltproof.pixels.api import pair_bounds
from tiltproof.runtime.batch_size import Changing, fewest_together
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.refinement import BackwardPolicy, ClassRefinement

BACKWARD_LOSS = 0.5
"""Share of a margin's remainder that a backward pass does not win back: 0.3 to 0.6 on the way to a bound near zero. Orders classes."""

STEP, MOST_FEW = 2**36, 16_384
"""Products of a network's evaluations that a GPU makes in about the time of one round of the search; and boxes at most."""


@dataclass
class Outcome:
    """For each pair: a proved lower bound of the margin, the same from the forward pass alone, how many whole backward passes it took,
    and slack per parameter.
    """

    bound: Tensor  # [P]
    forward: Tensor  # [P]
    passes: Tensor  # [P]; most margins are proved after a small part of one
    shares: Tensor  # [P, d], zero where the forward pass was enough

    def to(self, device: torch.device) -> Outcome:
        return Outcome(*(column.to(device) for column in vars(self).values()))

    def put(self, rows: Tensor, other: Outcome) -> None:
        for mine, others in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[rows] = others


class Prover:
    """Bounds margins of one network over boxes of one transform, in the model's own precision or in float64.

    In float32 the rounding errors that a bound must absorb grow with the length of sums and can reach a few
    hundredths of a margin; a box that only they keep open is worth a second look in float64, where they vanish. With them goes
    what else keeps deep networks' bounds wide, the pixels' second order in a single parameter: there forms are quadratic.
    """

    STATE: ClassVar[tuple[str, ...]] = ("refined",)

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.labels, self.transform, self.method = inputs.labels, inputs.transform, method
        self.pictures = inputs.pictures
        self.dtype = inputs.images.dtype
        self.networks = {dtype: inputs.network_as(dtype, inputs.semantics) for dtype in {self.dtype, torch.float64}}
        self.quadratic = True  # what a benchmark compares with is switched off here
        # margins to refine at once, at least
        self.fewest = fewest_together(inputs.network, len(inputs.transform.parts))
        # of a network's entries that margins meet before it is looked whether they are proved
        self.shallow = shallow_share(self.networks[self.dtype])
        # on a GPU, where steps are dear, open margins to refine at once though some may turn out to be of no use
        self.together = 2048 if inputs.images.is_cuda else 0
        # likewise, boxes left up to which the search halves them more than once at a time: what the device does while the host takes a step
        self.products = sum(operation.products for operation in self.networks[self.dtype].operations)
        self.few = min(MOST_FEW, STEP // max(1, self.products)) if inputs.images.is_cuda else 0
        self.gate = BackwardPolicy(inputs.images.device)
        self.pilots: dict[
            Any, Any
        ] = {}  # how grids fared that were tried, kept for whoever asks again (`certify.start`)
        self.refined = 0  # single margins taken through a backward pass so far

    def changes(self) -> tuple[Changing, ...]:
        """What `bound` changes."""
        return self, self.gate

    @torch.no_grad()
    def bound(self, images: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype | None = None) -> Outcome:
        """``images`` [P] are indices; ``low`` and ``high`` [P, d] float64, on the prover's device."""
        dtype = dtype or self.dtype
        network = self.networks[dtype]
        quadratic = self.quadratic and dtype == torch.float64
        pixels = pair_bounds(
            self.pictures, images, self.transform, self.method, low, high, quadratic=quadratic, dtype=dtype
        )
        several = low.shape[1] > 1 and pixels.symbols > 1  # parameters to choose from, and known by their slopes
        labels = self.labels[images]
        forms = run(network, pixels, lasting=low.shape[1], outputs=self.method == "fgv")
        shares = torch.zeros(len(images), low.shape[1], dtype=torch.float64, device=low.device)
        if self.method == "fgv":
            bound = _least(separate_margins(forms[network.output], labels).double())
            return Outcome(bound, bound, torch.zeros_like(bound), shares)
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
        promising = self.gate.promising(~(forward > 0), first_order, radius)
        rows, passes = promising.chosen, torch.zeros_like(forward)
        if len(rows):
            rounds = ClassRefinement(network, forms, labels, rows, lower[rows], likely[rows])
            # so many need no more memory than the forward pass did
            share = rounds.work(max(self.fewest, len(pixels)), self.together, self.shallow)
            lower[rows], passes[rows] = rounds.best, rounds.passes
            self.refined += rounds.refined
            self.gate.learn(promising, _least(lower[rows]) > 0)
            if several:
                shares[rows] = share
        bound = _least(lower)
        if several:  # boxes not looked at backward, or whose worst class is proved and another is not
            rows = (~(bound > 0) & (shares.sum(1) == 0)).nonzero().flatten()
            if len(rows):
                shares[rows] = forward_shares(network, GatheredForms(forms, rows))
        return Outcome(bound, forward, passes, shares)


def _least(lower: Tensor) -> Tensor:
    """Row minimum in which a NaN counts as minus infinity: never proved."""
    return _proved(lower).amin(1)


def _proved(lower: Tensor) -> Tensor:
    return lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
