"""Quadratic relaxation of ReLU: relu(x) for every x of a quadratic form lies in the resulting form; exactly, and backwards too."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.planted import fractions
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import least, quadratic_relaxation, relax_relu
from tiltproof.network import read_network, refine, run

pytestmark = pytest.mark.usefixtures("in_proof")

POINTS = sorted({Fraction(k, 24) for k in range(-24, 25)} | {Fraction(sign, n) for sign in (1, -1) for n in (3, 10**6)})


def kinked(rng: np.random.Generator, entries: int, hinge: bool = False) -> AffineForm:
    """Draw forms whose kinks lie anywhere in the box: at its ends, in the middle, where the formulas meet."""
    slope = 10.0 ** rng.uniform(-8, 3, entries) * rng.choice([-1, 1], entries)
    places = [0.0, 1 / 3, -1 / 3, 1.0, -1.0, np.nextafter(1.0, 0), 1 - 1e-9, 1e-300, -1e-17]
    at = np.where(rng.random(entries) < 0.3, rng.choice(places, entries), rng.uniform(-1.05, 1.05, entries))
    share = 10.0 ** rng.uniform(-18, 0, (3, entries)) * (rng.random((3, entries)) > 0.3)
    bend, third = (np.abs(slope) * share[k] * rng.uniform(-1, 1, entries) for k in (0, 1))
    stack = np.stack([-slope * at, slope, bend, third] if hinge else [-slope * at, slope, bend])
    return AffineForm(torch.tensor(stack)[:, None], torch.tensor(np.abs(slope) * share[2])[None], quadratic=True)


def extremes(form: AffineForm, e: Fraction) -> list[np.ndarray]:
    """Return the least and the largest x for this e; a third symbol is arbitrary."""
    c, g, b, *k = (fractions(plane[0].numpy()) for plane in form.stack)
    reach = fractions(form.radius[0].numpy()) + (abs(k[0]) if k else 0)
    return [c + g * e + b * (2 * e * e - 1) + sign * reach for sign in (-1, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_forward(seed):
    rng = np.random.default_rng(seed)
    form = kinked(rng, 200)
    form.stack[:, 0, -2:] = torch.tensor([[0.0, 4e306], [4e307, -3.6e307], [0.0, 4e289]], dtype=torch.float64)
    result, straight = relax_relu(form), relax_relu(AffineForm(form.stack, form.radius))
    assert result.quadratic
    assert (result.radius < 0.5 * straight.radius).sum() > 20, "hardly a parabola was taken"
    # roundings of the next operation are relative to the magnitude, which already covers its own few
    sizes = sum(abs(fractions(plane[0].numpy())) for plane in result.stack)
    assert (fractions(result.magnitude()[0].numpy()) >= sizes * (1 - Fraction(8, 2**53))).all()
    for e in POINTS:
        low, high = extremes(result, e)
        for x in extremes(form, e):
            y = np.where(x > 0, x, 0)
            assert ((low <= y) & (y <= high)).all(), float(e)


def test_parabolas_of_huge_slopes():
    """The zonotope relaxation would be infinite, as twice the width overflows; a backward pass may use the quadratic one."""
    stack = torch.tensor([[[0.0, 1e307]], [[1.6e308, -1.5e308]], [[0.0, 1e290]]], dtype=torch.float64)
    form = AffineForm(stack, torch.zeros_like(stack[0]), quadratic=True)
    found = quadratic_relaxation(form)
    assert found is not None
    shift, tilt, curvature, rest = (
        fractions(each.numpy()) for each in (found.shift, found.tilt, found.curvature, found.rest)
    )
    for e in POINTS:
        for x in extremes(form, e):
            apart = abs(np.where(x > 0, x, 0) - x / 2 - shift - tilt * e - curvature * (2 * e * e - 1))
            assert (apart <= rest).all(), float(e)


def test_forward_with_a_third_symbol():
    form = kinked(np.random.default_rng(7), 200, hinge=True)
    result = relax_relu(form)
    c, g, b, k = (fractions(plane[0].numpy()) for plane in form.stack)
    c2, g2, b2, k2 = (fractions(plane[0].numpy()) for plane in result.stack)
    r, r2 = fractions(form.radius[0].numpy()), fractions(result.radius[0].numpy())
    for e in POINTS[::4]:
        for third in (Fraction(-1), Fraction(1, 7), Fraction(1)):
            for sign in (-1, 1):
                x = c + g * e + b * (2 * e * e - 1) + k * third + sign * r
                y = np.where(x > 0, x, 0)
                assert (abs(y - (c2 + g2 * e + b2 * (2 * e * e - 1) + k2 * third)) <= r2).all()


def test_a_parabola_is_four_times_closer():
    form = AffineForm(
        torch.tensor([[[0.0]], [[1.0]], [[0.0]]], dtype=torch.float64), torch.zeros(1, 1).double(), quadratic=True
    )
    assert abs(relax_relu(form).radius.item() - 1 / 16) < 1e-12
    assert abs(relax_relu(AffineForm(form.stack, form.radius)).radius.item() - 1 / 4) < 1e-12


def test_only_quadratic_forms_get_a_quadratic_relaxation():
    form = kinked(np.random.default_rng(1), 50)
    assert quadratic_relaxation(AffineForm(form.stack, form.radius)) is None
    assert quadratic_relaxation(AffineForm(form.stack[:2], form.radius, quadratic=True)) is None


def test_what_is_not_a_number_proves_nothing():
    form = kinked(np.random.default_rng(2), 6)
    form.radius[0, :2] = torch.tensor([torch.inf, torch.nan])
    form.stack[0, 0, 2], form.stack[2, 0, 3] = torch.nan, torch.inf
    radius = relax_relu(form).radius[0, :4]
    assert not bool((radius < torch.inf).any())


def test_least_of_a_parabola():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal() * 10.0 ** rng.uniform(-3, 3), rng.normal()) for _ in range(300)]
    pairs += [(4.0, 1.0), (0.0, 0.0), (9e307, 2.3e307), (-1e308, 1.7e308), (1e308, -1e307)]
    first, second = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    found = least(first, second)
    for (a, b), value in zip(pairs, found.tolist(), strict=True):
        a, b = Fraction(a), Fraction(b)
        places = [Fraction(-1), Fraction(1), *([-a / (4 * b)] if b and abs(a) <= 4 * abs(b) else [])]
        true = min(a * e + b * (2 * e * e - 1) for e in places)
        assert abs(Fraction(value) - true) <= (abs(a) + abs(b)) / 2**50


@pytest.mark.parametrize("third", [False, True], ids=["", "third symbol"])
@pytest.mark.parametrize("seed", range(6))
def test_backward(seed, third):
    """Small networks along a path: the refined bound is below every margin, by exact arithmetic."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    layers = [nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers).double()
    stack = torch.tensor(rng.normal(size=(3 + third, 5, 6)))
    stack[1:] *= torch.tensor(10.0 ** rng.uniform(-2, 0.3, (1, 5, 1)))
    stack[2:] *= 0.1
    form = AffineForm(
        stack, torch.tensor(rng.random((5, 6))) * torch.tensor([0, 1e-3, 1e-2, 0, 1e-6])[:, None], quadratic=True
    )
    network = read_network(model, (6,), form.center).network_as()
    labels = torch.tensor([0, 1, 2, 0, 1])
    pairs, others = (torch.arange(3) != labels.unsqueeze(1)).nonzero(as_tuple=True)
    with torch.no_grad():
        forms = run(network, form)
        bounds = [refine(network, forms, labels, pairs, others)[0]]
        bounds += [refine(network, forms, labels, pairs, others, enough=level)[0] for level in (-torch.inf, 0.0)]
        plain = run(network, AffineForm(stack, form.radius))
        straight = refine(network, plain, labels, pairs, others)[0]
    assert (bounds[0] > straight + 1e-6).any(), "no parabola was taken"
    weights = [
        (fractions(layer.weight.detach().numpy()), fractions(layer.bias.detach().numpy())) for layer in layers[::2]
    ]
    highest = torch.stack(bounds).amax(0)
    for q, (row, other) in enumerate(zip(pairs.tolist(), others.tolist(), strict=True)):
        planes, radius = fractions(stack[:, row].numpy()), fractions(form.radius[row].numpy())
        for e in POINTS[::3]:
            for trial in range(3):
                sign = rng.choice([-1, 1], 6)
                x = planes[0] + planes[1] * e + planes[2] * (2 * e * e - 1) + radius * sign
                x = x + (planes[3] * Fraction(int(rng.integers(-4, 5)), 4) if third else 0)
                for depth, (weight, bias) in enumerate(weights):
                    x = weight @ x + bias
                    x = np.where(x > 0, x, 0) if depth < 2 else x
                margin = x[labels[row]] - x[other]
                assert Fraction(highest[q].item()) <= margin, (q, float(e), trial)
