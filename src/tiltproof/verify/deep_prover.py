"""Margins of deep networks over boxes of one parameter: polynomials of the pixels, and `network.deep`, one box at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.network import Network, margins
from tiltproof.network.deep import DeepPass
from tiltproof.network.pair_pass import PairPass, needs_pairs
from tiltproof.pixels.noise import pushed_form
from tiltproof.pixels.pair_polynomial import pair_form
from tiltproof.pixels.polynomial import polynomial_form, supported
from tiltproof.transforms import Transform

PIXEL_SYMBOLS = 64
"""Most symbols for pixels that cross a grid line inside a box."""


@dataclass
class DeepOutcome:
    """For each pair [P]: a lower and an upper bound of the margin, the margin in the middle of the box (NaN for boxes that were abandoned),
    and how many columns went through the network."""

    bound: Tensor
    upper: Tensor
    center: Tensor
    columns: Tensor


class DeepProver:
    """Bounds of margins, in float64."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Transform) -> None:
        self.images, self.labels, self.transform = images, labels, transform

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
        each = [slice(k, k + 1) for k in range(len(images))]
        pushes = [None if push is None else (push[0], push[1][k]) for k in each]
        rows = [self._pair(images[k], low[k], high[k], network, one) for k, one in zip(each, pushes, strict=True)]
        numbers = torch.tensor(rows, dtype=torch.float64, device=low.device).view(-1, 4)
        return DeepOutcome(*numbers.unbind(1))

    def _pair(
        self, image: Tensor, low: Tensor, high: Tensor, network: Network, push: tuple[float, Tensor] | None
    ) -> tuple[float, float, float, float]:
        walk: DeepPass
        if push is None and needs_pairs(network):
            walk = PairPass(network)
            pair = pair_form(self.images, image, self.transform, low, high, symbols=PIXEL_SYMBOLS)
            forms = walk.run_pair(pair, PIXEL_SYMBOLS)
        else:
            pixels = polynomial_form(self.images, image, self.transform, low, high, symbols=PIXEL_SYMBOLS)
            if push is not None:
                pixels = pushed_form(pixels, *push)
            walk = DeepPass(network)
            forms = walk.run(pixels)
        label = self.labels[image]
        if forms is None:
            return -torch.inf, torch.inf, torch.nan, walk.columns
        form = margins(network, forms, label)
        # a negative radius can only come from a wrong rule: such a bound proves nothing
        lower = torch.where(form.radius >= 0, form.lower, torch.nan).scatter(1, label.unsqueeze(1), torch.inf)
        lower = lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        upper = torch.where(form.radius >= 0, form.upper, torch.inf).scatter(1, label.unsqueeze(1), torch.inf)
        center = form.center.scatter(1, label.unsqueeze(1), torch.inf)
        return float(lower.min()), float(upper.min()), float(center.min()), walk.columns
