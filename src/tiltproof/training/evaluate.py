"""Figures of a network during training: accuracy or errors on a set, and certified figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.training.data import as_floats
from tiltproof.training.recipe import CertifyPart
from tiltproof.transforms import Transform
from tiltproof.verify.api import certify, certify_range
from tiltproof.verify.options import BOUNDS, search_for

BATCH = 1000
"""Images evaluated at once."""
MAX_BOXES = 2_000
"""Boxes per image, to keep the measurement short."""


CLASSES = ("clean_percent", "certified_percent", "unfalsified_percent", "boxes_per_image")
"""Names of the figures of a classifier."""
NUMBERS = ("mean_absolute_error", "certified_mean_absolute_error", "mean_width", "boxes_per_image")
"""Names of the figures of a regression network."""


def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor) -> float | None:
    """Return the fraction of untransformed images classified correctly; None for an empty set."""
    return _mean(model, pixels, labels, lambda outputs, right: outputs.argmax(1) == right)


def mean_absolute_error(model: nn.Module, pixels: Tensor, values: Tensor) -> float | None:
    """Return the mean absolute error on untransformed images; None for an empty set."""
    return _mean(
        model, pixels, values, lambda outputs, right: (outputs - right.to(outputs).view_as(outputs)).abs().mean(1)
    )


@torch.no_grad()
def _mean(model: nn.Module, pixels: Tensor, answers: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> float | None:
    """Return the mean of ``score`` [n] over all images, in eval mode; None for an empty set."""
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
) -> dict[str, float]:
    """Certify classes or ranges as the recipe says, and return the figures by their names in a card."""
    training = model.training
    model.eval()
    options: dict[str, Any] = {"bounds": BOUNDS[part.method], "search": search_for(part.splits, max_boxes=MAX_BOXES)}
    if labels.is_floating_point():
        summary = certify_range(model, images, labels, transform, **options).summary()
        figures = {name: summary[name] for name in NUMBERS[1:]}
    else:
        summary = certify(model, images, labels, transform, **options).summary()
        figures = {f"{name}_percent": 100 * summary[name] / len(images) for name in ("certified", "unfalsified")}
        figures["boxes_per_image"] = summary["boxes"] / len(images)
    model.train(training)
    return figures
