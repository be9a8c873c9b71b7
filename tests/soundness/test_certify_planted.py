"""`certify` against networks that are wrong where sampling would never look: it must never say certified."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.soundness.certificate_check import METHODS, assert_confirmed, check_not_certified, planted_case
from tests.support.cases import letters_of
from tests.support.oracle import transformed
from tests.support.planted import clean_margin, margin_at, plant
from tiltproof import Attack, BranchAndBound, UniformGrid, Verdict, certify, parse
from tiltproof.verify.options import BOUNDS, search_for

TEXTS = {
    "Tu(2)": (2.0,),
    "Tv(-1:0.3)": (0.3,),
    "R(30)": (30.0,),
    "R(-10:25)": (25.0,),
    "Sc(-20:30)": (30.0,),
    "Sh(40)": (40.0,),
    "C(20)": (20.0,),
    "B(0.2)": (0.2,),
    "R(20); padding=border": (20.0,),
    "Tu(1.7); padding=reflect": (1.7,),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_sliver_is_never_certified(text, method):
    for seed in (len(text) + len(method),):
        transform, _, _, model, image = planted_case(text, seed)
        images, labels = image[None], torch.tensor([0])
        certificate = certify(
            model,
            images,
            labels,
            transform,
            bounds=BOUNDS[method],
            search=BranchAndBound(max_boxes=700),
            attack=Attack(samples=5),
            seed=seed,
        )
        check_not_certified(certificate, transform, model, image)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("splits", [1, 3, 7, 300])
@pytest.mark.parametrize("text", ["Tu(-0.1:0.7)", "R(-10:25)"])
def test_a_sliver_is_never_certified_by_uniform_splits(text, splits, method):
    """This holds even if the number of splits does not divide the range."""
    transform, _, _, model, image = planted_case(text, splits)
    certificate = certify(
        model,
        image[None],
        torch.tensor([0]),
        transform,
        bounds=BOUNDS[method],
        search=search_for(splits),
        attack=Attack(samples=1),
    )
    check_not_certified(certificate, transform, model, image)


@pytest.mark.parametrize("splits", [2, 3, 10, 77])
@pytest.mark.parametrize("method", ["affine", "hull"])
def test_a_sliver_on_the_boundary_between_two_splits(splits, method):
    transform = parse("Tu(-0.1:0.7)")
    low, high = transform.low[0], transform.high[0]
    for k in (1, splits // 2, splits - 1, splits):
        theta = min(low + (high - low) * k / splits, high)
        for seed in range(20):
            model, image = plant(["Tu"], [low], [high], [theta], share=1e-6, seed=seed, dtype=torch.float64)
            if clean_margin(model, image) > 0:
                break
        assert margin_at(model, image, ["Tu"], [theta]) < 0
        certificate = certify(
            model,
            image[None],
            torch.tensor([0]),
            transform,
            bounds=BOUNDS[method],
            search=search_for(splits),
            attack=Attack(samples=1),
        )
        check_not_certified(certificate, transform, model, image)


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("text", ["Tu(-0.1:0.7)", "R(5:30)", "Sc(3:9)", "B(0.1)"])
def test_a_sliver_at_the_very_end_of_the_range(text, end):
    transform = parse(text)
    letters, theta = letters_of(transform), [(transform.low, transform.high)[end][0]]
    for seed in range(20):
        model, image = plant(letters, transform.low, transform.high, theta, seed=seed)
        if clean_margin(model, image) > 0 and margin_at(model, image, letters, theta) < 0:
            break
    for samples in (1, 200):
        certificate = certify(
            model,
            image[None],
            torch.tensor([0]),
            text,
            search=BranchAndBound(max_boxes=1500),
            attack=Attack(samples=samples),
        )
        check_not_certified(certificate, transform, model, image)


@pytest.mark.parametrize(
    "text",
    [
        "Tu(1), Tv(1)",
        "R(10), Sh(10)",
        "Sc(5), R(5), C(5), B(0.05)",
        "C(10), R(10)",
        "Sh(5), R(5), Sc(5), C(5), B(0.05)",
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_point_like_hole_in_many_parameters(text, method):
    """The hole is a hundredth of the range in every parameter: its volume is 1e-4 to 1e-10 of the box."""
    transform, _, _, model, image = planted_case(text, 3, share=1e-2)
    certificate = certify(
        model,
        image[None],
        torch.tensor([0]),
        transform,
        bounds=BOUNDS[method],
        search=BranchAndBound(max_boxes=1500),
        attack=Attack(samples=10),
    )
    check_not_certified(certificate, transform, model, image)


def test_splits_per_parameter():
    transform, _, _, model, image = planted_case("R(10), Tu(1)", 1, share=1e-2)
    certificate = certify(
        model, image[None], torch.tensor([0]), transform, search=UniformGrid((7, 3)), attack=Attack(samples=1)
    )
    check_not_certified(certificate, transform, model, image)
    assert certificate.boxes[0] <= 21


@pytest.mark.parametrize(
    "budget",
    [
        BranchAndBound(max_boxes=1),
        BranchAndBound(max_boxes=2),
        BranchAndBound(max_boxes=17),
        BranchAndBound(max_seconds=0.2),
        BranchAndBound(max_boxes=5000),
    ],
    ids=str,
)
def test_no_budget_makes_it_certified(budget):
    for text in ("Tu(2)", "R(10), Sh(10)"):
        transform, _, _, model, image = planted_case(text, 5)
        certificate = certify(model, image[None], torch.tensor([0]), transform, search=budget, attack=Attack(samples=2))
        check_not_certified(certificate, transform, model, image)


@pytest.mark.parametrize("excess", [3e-7, 1e-4, 0.0])
@pytest.mark.parametrize("text", ["Tu(2)", "R(10)", "Sh(30)"])
def test_a_dip_to_just_below_zero_or_exactly_zero(text, excess):
    """The margin falls from 1 to -excess at a single point: rounding must not carry the bound back above zero.

    The tip is where the reading crosses the hat's middle, between two parameters of opposite sign.
    """
    transform = parse(text)
    letters = letters_of(transform)
    rng = np.random.default_rng(17)
    planted = 0
    for seed in range(30):
        theta = float(rng.uniform(transform.low[0], transform.high[0]))
        model, image = plant(letters, transform.low, transform.high, [theta], share=0.3, drop=1 + excess, seed=seed)
        row, offset = model[1].weight[0].detach().double().numpy(), model[1].bias[0].item()
        signs = set()
        for near in np.linspace(max(theta - 0.2, transform.low[0]), min(theta + 0.2, transform.high[0]), 9):
            pixels = transformed(image.double().numpy(), letters, [Fraction(near)]).fractions().ravel()
            signs.add(sum((Fraction(w) * x for w, x in zip(row, pixels, strict=True)), Fraction(offset)) > 0)
        if clean_margin(model, image) <= 0 or len(signs) < 2:
            continue
        assert model[5].weight[0, 0].item() + 1 <= 0
        planted += 1
        for method in ("affine", "hull"):
            certificate = certify(
                model,
                image[None],
                torch.tensor([0]),
                transform,
                bounds=BOUNDS[method],
                search=BranchAndBound(max_boxes=300),
                attack=Attack(samples=3),
            )
            assert certificate.verdicts[0] in (Verdict.UNKNOWN, Verdict.FALSIFIED)
            if certificate.verdicts[0] is Verdict.FALSIFIED:
                assert_confirmed(certificate, 0, transform, model, image)
        if planted == 2:
            break
    assert planted == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", TEXTS)
def test_many_slivers(text, method):
    for seed in range(100, 115):
        for share in (1e-2, 1e-4):
            transform, _, _, model, image = planted_case(text, seed, share=share, dtype=torch.float64)
            certificate = certify(
                model,
                image[None],
                torch.tensor([0]),
                transform,
                bounds=BOUNDS[method],
                search=BranchAndBound(max_boxes=5000),
                attack=Attack(samples=3),
            )
            check_not_certified(certificate, transform, model, image)
