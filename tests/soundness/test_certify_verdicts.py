"""Verdicts, margins and counterexamples are what they claim to be, and nothing is certified by accident."""

from __future__ import annotations

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.certificate_check import METHODS, Plus, assert_confirmed, planted_case, random_network
from tests.support.cases import letters_of, make_thetas
from tests.support.oracle import transformed
from tests.support.planted import clean_margin, dip, exact_margin, margin_at
from tiltproof import Attack, BranchAndBound, Execution, InputError, Verdict, attack, certify, parse
from tiltproof.transforms import Brightness
from tiltproof.verify.options import BOUNDS


@pytest.mark.parametrize("text", ["R(15)", "Tu(1), Tv(1)", "Sc(10), C(10), B(0.1)", "B(0.1), R(10); padding=border"])
@pytest.mark.parametrize("method", METHODS)
def test_proved_margins_are_lower_bounds_everywhere(text, method):
    """Random networks: no sampled parameter has a margin below the proved one, and falsified ones really are."""
    transform = parse(text)
    letters = letters_of(transform)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(6, 1, 5, 5, generator=generator)
    for seed in (len(method),):
        model = random_network(seed)
        labels = model(images).argmax(1)
        labels[5] = (labels[5] + 1) % 3
        certificate = certify(
            model,
            images,
            labels,
            transform,
            bounds=BOUNDS[method],
            search=BranchAndBound(max_boxes=200),
            attack=Attack(samples=20),
        )
        assert len(certificate.verdicts) == len(certificate.margins) == len(certificate.boxes) == 6
        rng = np.random.default_rng(seed)
        for n, verdict in enumerate(certificate.verdicts):
            margin, label = certificate.margins[n], int(labels[n])
            assert (certificate.counterexamples[n] is not None) == (verdict is Verdict.FALSIFIED)
            assert (certificate.open_boxes[n] is not None) == (verdict is Verdict.UNKNOWN)
            if verdict is Verdict.MISCLASSIFIED:
                assert n == 5 or margin <= 0
                assert margin == pytest.approx(float(clean_margin(model, images[n], label)), abs=1e-5)
                assert margin <= 0
            elif verdict is Verdict.FALSIFIED:
                assert_confirmed(certificate, n, transform, model, images[n], label)
            else:
                assert (margin > 0) == (verdict is Verdict.CERTIFIED)
                for theta in make_thetas(transform.low, transform.high, rng, 10):
                    truth = margin_at(model, images[n], letters, theta, transform.padding, label)
                    assert truth >= Fraction(margin), (n, verdict)
        assert certificate.verdicts[5] is Verdict.MISCLASSIFIED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", ["R(30)", "Tu(2), Tv(2)", "Sc(5), R(5), C(5), B(0.01)"])
def test_a_constant_margin_is_certified(text, method):
    """The image has no weight at all: margin 0.5 everywhere, proved as such."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[3].bias.copy_(torch.tensor([0.0, 0.5, -1.0]) - model[3].weight @ model[1].bias.clamp(min=0))
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    certificate = certify(model.eval(), images, torch.tensor([1, 1, 1]), text, bounds=BOUNDS[method])
    assert certificate.verdicts == [Verdict.CERTIFIED] * 3
    assert certificate.margins == pytest.approx([0.5] * 3, abs=1e-3)
    assert all(margin <= 0.5 for margin in certificate.margins)
    wrong = certify(model, images, torch.tensor([0, 2, 1]), text, bounds=BOUNDS[method])
    assert wrong.verdicts == [Verdict.MISCLASSIFIED, Verdict.MISCLASSIFIED, Verdict.CERTIFIED]


@pytest.mark.parametrize("method", ["affine", "hull"])
@pytest.mark.parametrize("text", ["Tu(1)", "R(10)", "Tu(-0.3:0.4), B(0.05)"])
def test_a_dip_that_stays_positive_is_certified(text, method):
    """The same networks with a shallow dip: refinement proves them, and the proved margin is below the dip's floor."""
    transform, letters, theta, model, image = planted_case(text, 2, share=0.2)
    with torch.no_grad():
        model[5].weight[0, 0] = -0.5  # the margin's floor is now 0.5
    certificate = certify(model, image[None], torch.tensor([0]), transform, bounds=BOUNDS[method])
    assert certificate.verdicts == [Verdict.CERTIFIED]
    assert 0 < certificate.margins[0] <= margin_at(model, image, letters, theta, transform.padding)


def test_images_are_not_mixed_up():
    """Six images in one call, every other one with its own hole."""
    transform = parse("Tu(2)")
    rng = np.random.default_rng(0)
    pixels = np.zeros((6, 1, 1, 9), dtype=np.float32)
    pixels[:, 0, 0, 4] = 1  # one bright pixel: sum_j (j - 4) x_j is the shift itself
    row = np.stack([(np.arange(9) - 4) * 100.0])
    model = dip(row, [-133.0], 1.0, 2.0, torch.float32)  # the hole is at shift 1.33, 0.01 wide
    for n in (1, 3, 5):
        pixels[n, 0, 0, 4] = float(rng.uniform(0.3, 0.6))  # a darker pixel never reaches the hole: 0.6 * 2 < 1.32
    images, labels = torch.tensor(pixels), torch.zeros(6, dtype=torch.int64)
    assert exact_margin(model, transformed(pixels[0], ["Tu"], [Fraction(133, 100)]), 0) < 0
    for method in METHODS:
        certificate = certify(
            model,
            images,
            labels,
            transform,
            bounds=BOUNDS[method],
            search=BranchAndBound(max_boxes=3000),
            attack=Attack(samples=4),
        )
        for n in range(6):
            if n % 2:
                assert certificate.verdicts[n] is not Verdict.FALSIFIED
                assert method == "fgv" or certificate.verdicts[n] is Verdict.CERTIFIED
            else:
                assert certificate.verdicts[n] in (Verdict.FALSIFIED, Verdict.UNKNOWN)
                if certificate.verdicts[n] is Verdict.FALSIFIED:
                    assert certificate.counterexamples[n][0] == pytest.approx(1.33, abs=0.01)


def test_attack_only_reports_what_is_true():
    for text in ("R(20)", "Tu(1), B(0.1)"):
        transform, letters, _, model, image = planted_case(text, 1, share=0.2)
        images = torch.stack([image, image])
        result = attack(model, images, torch.tensor([0, 1]), transform, samples=400, seed=3)
        assert result.correct == [True, False]
        assert result.parameters[1] is None
        assert result.parameters[0] is not None, "a fifth of the range is wrong; 400 samples must find it"
        assert all(a <= t <= b for a, t, b in zip(transform.low, result.parameters[0], transform.high, strict=True))
        margin = margin_at(model, image, letters, result.parameters[0], transform.padding)
        assert margin <= 0
        assert result.margins[0] == pytest.approx(float(margin), abs=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_certify_nothing(value):
    model = random_network(0)
    images = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    with torch.no_grad():
        model[3].weight[0, 0] = value
    try:
        certificate = certify(model, images, labels, "R(1)", search=BranchAndBound(max_boxes=50))
    except InputError:
        return
    assert Verdict.CERTIFIED not in certificate.verdicts


def test_overflow_certifies_nothing():
    """Finite weights, infinite activations: inf - inf is not a margin."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        for layer in (model[1], model[3]):
            layer.weight.copy_(torch.rand_like(layer.weight) * 3e38)
    images = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    try:
        certificate = certify(model.eval(), images, torch.tensor([0, 1]), "R(1)", search=BranchAndBound(max_boxes=50))
    except InputError:
        return
    assert Verdict.CERTIFIED not in certificate.verdicts


def test_a_decimal_constant_in_a_float64_network():
    """Logits (0.1 - x, 0): wrong as soon as the pixel passes 0.1. The float32 nearest to 0.1 is 1.5e-9 higher."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1), Plus(0.1), nn.Linear(1, 2)).double().eval()
    with torch.no_grad():
        for layer, weight in ((model[1], [[-1.0]]), (model[3], [[1.0], [0.0]])):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.zero_()
    image = torch.tensor([[[[0.1 - 1e-9]]]], dtype=torch.float64)
    assert model(image)[0, 0] > 0 > model(image + 1.4e-9)[0, 0]
    certificate = certify(model, image, torch.tensor([0]), Brightness(0, 1.4e-9))
    assert certificate.verdicts[0] in (Verdict.UNKNOWN, Verdict.FALSIFIED)


def test_the_model_and_the_images_are_left_alone():
    model = random_network(0)
    images = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    before, pixels = copy.deepcopy(model.state_dict()), images.clone()
    model.train()
    certify(model, images, torch.tensor([0, 1, 2]), "R(3)", search=BranchAndBound(max_boxes=50))
    attack(model, images, torch.tensor([0, 1, 2]), "R(3)", samples=5)
    assert model.training
    assert torch.equal(images, pixels)
    assert all(tensor.dtype == torch.float32 for tensor in model.state_dict().values())
    assert all(map(torch.equal, before.values(), model.state_dict().values()))


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_the_batch_size_changes_no_verdict(batch_size):
    model = random_network(1)
    images = torch.rand(5, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    labels = model(images).argmax(1)
    one, other = (
        certify(model, images, labels, "R(8), B(0.02)", execution=Execution(batch_size=size))
        for size in (None, batch_size)
    )
    assert one.verdicts == other.verdicts


def test_a_tie_is_not_certified():
    """Two classes with the very same logit: whatever argmax says, nothing is proved."""
    model = random_network(0, classes=3)
    with torch.no_grad():
        model[5].weight[1] = model[5].weight[0]
        model[5].bias[1] = model[5].bias[0]
        model[5].bias[2] = -50
    images = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    for method in METHODS:
        certificate = certify(
            model, images, torch.tensor([0, 0]), "R(1)", bounds=BOUNDS[method], search=BranchAndBound(max_boxes=50)
        )
        assert Verdict.CERTIFIED not in certificate.verdicts


def test_the_values_of_a_verdict():
    assert {verdict.value for verdict in Verdict} == {"certified", "falsified", "unknown", "misclassified"}
