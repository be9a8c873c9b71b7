"""Bounds of rounded pixels, and pixels that are called alike."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch

import tiltproof
from tests.support import oracle
from tests.support.repeating_images import KINDS, MOVES, PADDINGS, repeating
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels.chosen import ChosenPixels
from tiltproof.pixels.eight_bits import rounded_form


def test_rounded_pixels_are_in_their_form_with_ties_either_way():
    """Pixels at ties, at whole numbers and anywhere, in forms from points to ones as wide as a picture."""
    generator = torch.Generator().manual_seed(0)
    count = 4000
    width = 10.0 ** -(torch.rand(count, generator=generator, dtype=torch.float64) * 8)
    slopes = (torch.rand(2, count, generator=generator, dtype=torch.float64) - 0.5) * width
    e = 2 * torch.rand(2, count, generator=generator, dtype=torch.float64) - 1
    steps = torch.randint(0, 511, (count,), generator=generator).double() / 510  # ties and whole numbers
    anywhere = torch.rand(count, generator=generator, dtype=torch.float64)
    pixel = torch.where(torch.arange(count) % 2 == 0, steps, anywhere)
    moved = (slopes * e).sum(0)
    center = pixel - moved
    radius = (pixel - center - moved).abs() + 2.0**-50 + width * (torch.arange(count) % 3 == 0)
    form = AffineForm(torch.cat([center[None], slopes]).view(3, count, 1, 1), radius.view(count, 1, 1))
    found = rounded_form(form)
    narrow = (found.stack[1:] == 0).all(0).flatten()
    assert 0.2 < float(narrow.double().mean()) < 0.95
    for k in range(count):
        exact = Fraction(float(pixel[k]))
        at = Fraction(float(found.stack[0].flatten()[k]))
        at += sum(Fraction(float(found.stack[1 + d].flatten()[k])) * Fraction(float(e[d, k])) for d in (0, 1))
        room = Fraction(float(found.radius.flatten()[k]))
        for number in (math.floor(255 * exact + Fraction(1, 2)), math.ceil(255 * exact - Fraction(1, 2))):
            assert abs(Fraction(number, 255) - at) <= room


def test_known_pixels_are_exact_and_unknown_ones_prove_nothing():
    form = AffineForm.between(torch.tensor([0.0, 0.2, math.nan]).double(), torch.tensor([0.001, 0.2001, 0.5]).double())
    found = rounded_form(form)
    assert found.radius[:2].max() < 1e-14
    assert (found.center[:2] * 255).round().tolist() == [0, 51]
    assert not bool(found.upper[2] <= 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("letter", "text"), MOVES)
def test_pixels_that_are_alike_have_the_same_value(kind, letter, text):
    random = np.random.default_rng(len(kind))
    for padding in PADDINGS:
        transform = tiltproof.parse(f"{text}; padding={padding}")
        image = repeating(kind)
        pixels = ChosenPixels(image, transform)
        channels, count = image.shape[0], pixels.count
        numbers = torch.arange(count).repeat(channels), torch.arange(channels).repeat_interleave(count)
        value = random.uniform(transform.low[0], transform.high[0])
        keys = pixels.alike(value - 1e-7, value + 1e-7, *numbers)
        groups = defaultdict(list)
        for place, key in enumerate(keys):
            groups[key].append(place)
        for at in (value - 1e-7, value, value + 1e-7):
            truth = oracle.transformed(image.numpy(), [letter], [at], padding)
            values = truth.fractions().ravel()
            for members in groups.values():
                assert max(values[members]) - min(values[members]) <= 2 * Fraction(truth.error)


@pytest.mark.parametrize(
    ("kind", "text", "most"),
    [
        ("point", "R(0.31:0.32)", 15), ("mirrors", "Sc(3.1:3.11)", 9), ("edge", "Tu(0.31:0.32)", 8),
        ("edge", "Sc(3.1:3.11); padding=border", 6),
        ("stripes", "Tv(0.31:0.32)", 7), ("gray", "R(0.31:0.32)", 30), ("gray", "Bl(0.5:0.6)", 30),
        ("constant", "Tu(0.31:0.32); padding=border", 1),
    ],
)  # fmt: skip
def test_pixels_that_are_alike_are_found(kind, text, most):
    image, transform = repeating(kind), tiltproof.parse(text)
    pixels = ChosenPixels(image, transform)
    count = pixels.count
    numbers = torch.arange(count).repeat(len(image)), torch.arange(len(image)).repeat_interleave(count)
    assert len(set(pixels.alike(transform.low[0], transform.high[0], *numbers))) <= most
