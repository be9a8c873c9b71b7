"""Margins of deep networks over boxes of one parameter: polynomials of the pixels, and `network.deep`, one box at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import BackwardCost, Network, better, margins, refine_between
from tiltproof.network.deep import DeepPass
from tiltproof.network.pair_pass import PairPass, needs_pairs
from tiltproof.pixels.noise import pushed_form
from tiltproof.pixels.pair_polynomial import pair_form
from tiltproof.pixels.polynomial import polynomial_form, supported
from tiltproof.transforms import Transform

PIXEL_SYMBOLS = 64
"""Most symbols for pixels that cross a grid line inside a box."""
DEGREE = 4
PIXELS_AT_ONCE = 8
"""Boxes whose pixels are bounded at once."""
BACKWARD_COLUMNS = 2.0
"""Cost of a backward pass of one margin through the whole network, in columns."""


Row = tuple[float, float, float, float]
NOTHING = (-torch.inf, torch.inf, torch.nan)


@dataclass
class DeepOutcome:
    """For each pair [P]: a lower and an upper bound of the margin, the margin in the middle of the box (NaN for boxes that were abandoned),
    and how many columns went through the network, backward passes included."""

    bound: Tensor
    upper: Tensor
    center: Tensor
    columns: Tensor


class DeepProver:
    """Bounds of margins, in float64."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Transform) -> None:
        self.images, self.labels, self.transform = images, labels, transform
        self.cut: str | None = None
        """Where symbols end and backward passes begin (`network.deep.cuts`)."""

    @staticmethod
    def suits(transform: Transform) -> bool:
        """Whether pixels are polynomials under this transformation."""
        return supported(
            transform, *(torch.tensor([end], dtype=torch.float64) for end in (transform.low, transform.high))
        )

    @torch.no_grad()
    def bound(
        self,
        images: Tensor,
        low: Tensor,
        high: Tensor,
        network: Network,
        push: tuple[float, Tensor] | None = None,
    ) -> DeepOutcome:
        """Bound pairs, one after the other: each has its own kinks. ``push``: epsilon and which pixels [P, C, H, W] it moves up; the
        others it moves down."""
        if push is None and needs_pairs(network):
            each = [slice(k, k + 1) for k in range(len(images))]
            rows = [self._pair_of_floats(images[k], low[k], high[k], network) for k in each]
            return _outcome(rows, low)
        rows = []
        for some in torch.arange(len(images)).split(PIXELS_AT_ONCE):
            image, below, above = images[some], low[some], high[some]
            pixels = polynomial_form(self.images, image, self.transform, below, above, DEGREE, PIXEL_SYMBOLS)
            for k, pair in enumerate(some.tolist()):
                form = _alone(pixels, k)
                if push is not None:
                    form = pushed_form(form, push[0], push[1][pair : pair + 1])
                # a point has no kinks, and its upper bound counts too
                cut = self.cut if bool((low[pair] < high[pair]).any()) else None
                rows.append(self._pair(image[k : k + 1], form, network, cut))
        return _outcome(rows, low)

    def _pair_of_floats(self, image: Tensor, low: Tensor, high: Tensor, network: Network) -> Row:
        """One pair, where float64 alone rounds too much: no cut, because its backward pass would round as much."""
        walk = PairPass(network)
        pixels = pair_form(self.images, image, self.transform, low, high, symbols=PIXEL_SYMBOLS)
        forms = walk.run_pair(pixels, PIXEL_SYMBOLS)
        if forms is None:
            return *NOTHING, walk.columns
        lower, upper, center = _ends(margins(network, forms, self.labels[image]), self.labels[image])
        return float(lower.min()), float(upper.min()), float(center.min()), walk.columns

    def _pair(self, image: Tensor, pixels: AffineForm, network: Network, cut: str | None) -> Row:
        walk, label = DeepPass(network, cut=cut), self.labels[image]
        forms = walk.run(pixels, lasting=DEGREE)
        if forms is None:
            return *NOTHING, walk.columns
        form, columns = margins(network, forms, label), walk.columns
        lower, upper, center = _ends(form, label)
        opened = (~(lower[0] > 0)).nonzero().flatten()
        # what the first-order part of a margin takes from it, no backward pass wins back
        first_order = (form.center - form.slopes.abs().sum(0))[0, opened]
        if cut is not None and len(opened) and bool((first_order > 0).all()):
            cost, pairs = BackwardCost(), torch.zeros_like(opened)
            found, _ = refine_between(
                network, forms, pairs, label.expand(len(opened)), opened, 0.0, False, cost, source=cut
            )
            lower[0, opened] = better(lower[0, opened], found)
            columns += float(cost.passes.sum()) * BACKWARD_COLUMNS
        return float(lower.min()), float(upper.min()), float(center.min()), columns


def _ends(form: AffineForm, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper bounds of the margins of all classes [1, K], and those in the middle of the box; infinite for the label.

    A negative radius can only come from a wrong rule: such a bound proves nothing.
    """
    own = label.unsqueeze(1)
    lower = torch.where(form.radius >= 0, form.lower, torch.nan).scatter(1, own, torch.inf)
    lower = lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    upper = torch.where(form.radius >= 0, form.upper, torch.inf).scatter(1, own, torch.inf)
    return lower, upper, form.center.scatter(1, own, torch.inf)


def _outcome(rows: list[Row], like: Tensor) -> DeepOutcome:
    return DeepOutcome(*torch.tensor(rows, dtype=torch.float64, device=like.device).view(-1, 4).unbind(1))


def _alone(form: AffineForm, row: int) -> AffineForm:
    """One row of a form, without the kinks that only others have."""
    stack = form.stack[:, row : row + 1]
    used = stack.flatten(1).any(1)
    used[: 1 + DEGREE] = True
    return AffineForm(stack[used], form.radius[row : row + 1], form.unit, form.quadratic)
