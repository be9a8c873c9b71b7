"""Checks on certificates of planted networks and on their counterexamples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.cases import letters_of
from tests.support.planted import clean_margin, margin_at, plant
from tiltproof import Verdict, parse

METHODS = ("affine", "hull", "fgv")


def planted_case(text, seed, **options):
    """Return a transformation, parameters drawn from it, and a network that is wrong on an image there but not at rest."""
    transform = parse(text)
    letters = letters_of(transform)
    rng = np.random.default_rng(seed)
    for attempt in range(50):
        theta = [float(a + (b - a) * rng.random()) for a, b in zip(transform.low, transform.high, strict=True)]
        model, image = plant(
            letters, transform.low, transform.high, theta, padding=transform.padding, seed=seed + attempt, **options
        )
        if clean_margin(model, image) > 0 and margin_at(model, image, letters, theta, transform.padding) < 0:
            return transform, letters, theta, model, image
    raise AssertionError("could not plant")


def assert_confirmed(certificate, index, transform, model, image, label=0, within=1e-6):
    """Assert that a falsified verdict has parameters in the range at which the exact network is wrong on the exact image."""
    theta = certificate.counterexamples[index]
    assert len(theta) == len(transform.parts)
    assert all(a <= t <= b for a, t, b in zip(transform.low, theta, transform.high, strict=True))
    margin = margin_at(model, image, letters_of(transform), theta, transform.padding, label)
    assert margin <= 0, f"counterexample {theta} has margin {float(margin)}"
    assert certificate.margins[index] <= 0
    assert certificate.margins[index] == pytest.approx(float(margin), abs=within)


def check_not_certified(certificate, transform, model, image, within=1e-6):
    (verdict,) = certificate.verdicts
    assert verdict in (Verdict.FALSIFIED, Verdict.UNKNOWN)
    if verdict is Verdict.FALSIFIED:
        assert_confirmed(certificate, 0, transform, model, image, within=within)
        assert certificate.open_boxes[0] is None
    else:
        assert certificate.counterexamples[0] is None
        assert certificate.margins[0] <= 0


class Plus(nn.Module):
    def __init__(self, constant):
        super().__init__()
        self.constant = constant

    def forward(self, x):
        return x + self.constant


def random_network(seed, pixels=25, classes=3):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, classes)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1.5 / layer.weight.shape[1] ** 0.5)
    return model.eval()
