"""Quadratic forms, c + s e + b (2 e^2 - 1) + k h(e) + [-r, r], against exact images: one e and one hinge value h(e) for all pixels."""

from __future__ import annotations

import operator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from tests.support.cases import make_transform
from tests.support.oracle import transformed
from tests.support.planted import fractions
from tests.support.quadratic_check import POINTS, REACH, assert_joint
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels.api import pair_bounds


@pytest.mark.parametrize("padding", ["zeros", "border", "reflect"])
@pytest.mark.parametrize("letter", REACH)
def test_pixels(letter, padding):
    rng, hinges = np.random.default_rng([ord(x) for x in letter + padding]), 0
    transform = make_transform([letter], padding, None)
    for trial in range(20):
        image = rng.random((1, *rng.integers(2, 9, 2)))
        image = image.round() if trial % 2 else image
        half = REACH[letter] * 10 ** (rng.uniform(-2.3, -1.3) if trial % 4 else rng.uniform(-7, -3))
        center = rng.uniform(-REACH[letter], REACH[letter]) * 0.9 if trial % 3 else float(rng.integers(-2, 3))
        low, high = center - half, center + half
        if trial == 5:  # a box as narrow as a few floats, where rounding dominates
            high = np.nextafter(np.nextafter(low, 1e9), 1e9)
        box = [torch.tensor([[end]], dtype=torch.float64) for end in (low, high)]
        form = pair_bounds(torch.tensor(image)[None], torch.tensor([0]), transform, "affine", *box, quadratic=True)
        middle = (Fraction(low) + Fraction(high)) / 2
        for e in POINTS:
            truth = transformed(image, [letter], [middle + e * (Fraction(high) - middle)], padding)
            # e belongs to the form's own center and half width, whose rounding the radius covers
            hinges += assert_joint(form, truth.fractions(), truth.error, e)
    assert hinges, "no kink was met: the test says nothing about hinges"


def random_form(rng: np.random.Generator, positive: bool = False) -> AffineForm:
    size = 10.0 ** rng.uniform(-6, 2, 40)
    center = size * (rng.uniform(0.5, 1, 40) if positive else rng.normal(size=40))
    share = 10.0 ** rng.uniform(-17, -0.5, 40)
    slopes = size * share * rng.uniform(-0.4, 0.4, (2, 40)) * (rng.random((2, 40)) > 0.2)
    radius = size * share * rng.random(40) * 0.3 * (rng.random(40) > 0.4)
    return AffineForm(torch.tensor(np.stack([center, *slopes]))[:, None], torch.tensor(radius)[None], quadratic=True)


def member(form: AffineForm, e: Fraction, sign: int) -> np.ndarray:
    c, s, b = (fractions(plane[0].numpy()) for plane in form.stack)
    return c + s * e + b * (2 * e * e - 1) + fractions(form.radius[0].numpy()) * sign


def assert_holds(result: AffineForm, truth: np.ndarray, e: Fraction) -> None:
    assert result.quadratic
    beside = abs(truth - member(AffineForm(result.stack, result.radius * 0), e, 0))
    assert (beside <= fractions(result.radius[0].numpy())).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_two_forms(name):
    function = getattr(operator, name)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        first, second = random_form(rng), random_form(rng)
        second.quadratic = seed % 2 == 0  # one quadratic operand is enough
        for e in POINTS:
            for signs in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
                truth = function(member(first, e, signs[0]), member(second, e, signs[1]))
                assert_holds(function(first, second), truth, e)


@pytest.mark.parametrize("name", ["sin", "cos", "reciprocal"])
def test_functions(name):
    exact = {"sin": mpmath.sin, "cos": mpmath.cos, "reciprocal": lambda x: 1 / x}[name]
    with mpmath.workdps(60):
        for seed in range(6):
            form = random_form(np.random.default_rng(seed), positive=name == "reciprocal")
            for e in POINTS:
                for sign in (-1, 1):
                    x = [mpmath.mpf(value.numerator) / value.denominator for value in member(form, e, sign)]
                    truth = [Fraction(str(mpmath.nstr(exact(value), 50))) for value in x]
                    assert_holds(getattr(form, name)(), np.array(truth, dtype=object), e)


def test_the_second_order_is_gone():
    """On a smooth path the radius shrinks with the third power of the box, not with the second."""
    image, transform = torch.rand(1, 1, 8, 8, dtype=torch.float64), make_transform(["R"], "zeros", None)
    radii = []
    for half in (1.0, 0.1):
        box = [torch.tensor([[7.3 + sign * half]], dtype=torch.float64) for sign in (-1, 1)]
        radii.append(pair_bounds(image, torch.tensor([0]), transform, "affine", *box, quadratic=True).radius.median())
    assert radii[1] < radii[0] / 500
