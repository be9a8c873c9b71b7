"""How good a network is: right answers or errors on a set, and what can be certified of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.training.dataset import as_floats
from tiltproof.training.recipe import CertifyPart
from tiltproof.transforms import Transform
from tiltproof.verify.api import certify
from tiltproof.verify.regression import certify_range
from tiltproof.verify.results import Budget

BATCH = 1000
BUDGET = Budget(boxes=2_000)
"""An image that resists costs no more than that: this is a measurement in passing."""


@dataclass(frozen=True)
class CertifiedShare:
    """What `certify` said about some images."""

    images: int
    certified: int
    unfalsified: int
    boxes: int  # bounded, of all images together

    @property
    def certified_percent(self) -> float:
        return 100 * self.certified / self.images

    @property
    def unfalsified_percent(self) -> float:
        return 100 * self.unfalsified / self.images

    @property
    def boxes_per_image(self) -> float:
        return self.boxes / self.images

    def figures(self) -> dict[str, float]:
        """As a card and a result name them."""
        names = ("certified_percent", "unfalsified_percent", "boxes_per_image")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class CertifiedRanges:
    """What `certify_range` said about some images, in the mean."""

    images: int
    certified_mean_absolute_error: float
    mean_width: float
    boxes_per_image: float

    def figures(self) -> dict[str, float]:
        """As a card and a result name them."""
        names = ("certified_mean_absolute_error", "mean_width", "boxes_per_image")
        return {name: getattr(self, name) for name in names}


CLASSES = ("clean_percent", "certified_percent", "unfalsified_percent", "boxes_per_image")
NUMBERS = ("mean_absolute_error", "certified_mean_absolute_error", "mean_width", "boxes_per_image")
"""The figures of a classifier and of a regression network, None where nothing was measured."""


def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor) -> float | None:
    """The share of right answers on untransformed images, 0 to 1; None for an empty set."""
    return _mean(model, pixels, labels, lambda outputs, right: outputs.argmax(1) == right)


def mean_absolute_error(model: nn.Module, pixels: Tensor, values: Tensor) -> float | None:
    """Of a regression network on untransformed images; None for an empty set."""
    return _mean(
        model, pixels, values, lambda outputs, right: (outputs - right.to(outputs).view_as(outputs)).abs().mean(1)
    )


@torch.no_grad()
def _mean(model: nn.Module, pixels: Tensor, answers: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> float | None:
    """The mean of ``score`` [n] over all images, by the network as it is in use; None for an empty set."""
    if not len(pixels):
        return None
    training = model.training
    model.eval()
    parts = zip(pixels.split(BATCH), answers.split(BATCH), strict=True)
    total = sum(score(model(as_floats(part)), right).sum() for part, right in parts)
    model.train(training)
    return float(total) / len(pixels)


def certified_figures(
    model: nn.Module, images: Tensor, labels: Tensor, transform: Transform, part: CertifyPart
) -> CertifiedShare | CertifiedRanges | None:
    """Certify the images as the recipe says, classes or numbers; None where there are none."""
    if not len(images):
        return None
    training = model.training
    model.eval()
    options: dict[str, Any] = {"method": part.method, "splits": part.splits, "budget": BUDGET}
    if labels.is_floating_point():
        figures = certify_range(model, images, transform, labels, **options).summary()
        result: CertifiedShare | CertifiedRanges = CertifiedRanges(
            figures["images"],
            figures["certified_mean_absolute_error"],
            figures["mean_width"],
            figures["boxes_per_image"],
        )
    else:
        summary = certify(model, images, labels, transform, **options).summary()
        result = CertifiedShare(summary["images"], summary["certified"], summary["unfalsified"], summary["boxes"])
    model.train(training)
    return result
