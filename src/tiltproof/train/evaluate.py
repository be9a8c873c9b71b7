"""How good a network is: right answers on a set, and the share of images that is certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tiltproof.certify import Budget, Progress, certify
from tiltproof.train.dataset import as_floats
from tiltproof.train.recipe import CertifyPart
from tiltproof.transforms import Transform

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


def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor) -> float | None:
    """The share of right answers on untransformed images, 0 to 1; None for an empty set."""
    if not len(pixels):
        return None
    training = model.training
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(as_floats(part)).argmax(1) == answer).sum()
            for part, answer in zip(pixels.split(BATCH), labels.split(BATCH), strict=True)
        )
    model.train(training)
    return float(right) / len(pixels)


def certified_share(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Transform,
    part: CertifyPart,
    progress: Callable[[Progress], None] | None = None,
) -> CertifiedShare | None:
    """Certify the images as the recipe says; None where there are none."""
    if not len(images):
        return None
    training = model.training
    model.eval()
    certificate = certify(
        model, images, labels, transform, method=part.method, splits=part.splits, budget=BUDGET, progress=progress
    )
    model.train(training)
    summary = certificate.summary()
    return CertifiedShare(summary["images"], summary["certified"], summary["unfalsified"], summary["boxes"])
