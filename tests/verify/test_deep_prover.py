"""Margins of deep networks over boxes: never above those of sampled transformations, and chosen where radii are useless."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tiltproof
from tests.soundness.certificate_check import check_not_certified
from tests.soundness.slivers import all_slivers
from tests.support.small_networks import Function, settle
from tiltproof.network import deep, graph, is_deep
from tiltproof.network.pair_pass import PairPass
from tiltproof.pixels.pair_polynomial import pair_form
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify import batch, deep_plan
from tiltproof.verify.deep_prover import DeepProver
from tiltproof.verify.inputs import check_inputs
from tiltproof.verify.options import Settings, search_for
from tiltproof.verify.prover import Prover


def network(layers: int = 6) -> nn.Module:
    """Convolutions whose rows sum to a few each."""
    hidden = [module for _ in range(layers) for module in (nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), *hidden, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(150, 3)
    )
    return settle(model).double()


@pytest.mark.usefixtures("in_proof")
@pytest.mark.parametrize("transform", ["R(20)", "Tu(2)", "Sc(10)", "C(20)"])
@pytest.mark.parametrize("width", [0.2, 0.01, 1e-4])
def test_bounds_lie_below_sampled_margins(transform, width):
    torch.manual_seed(0)
    model, images = network(), torch.rand(3, 1, 10, 10).double()
    with torch.no_grad():
        labels = model(images).argmax(1)
    inputs = check_inputs(model, images, labels, transform)
    net, change = inputs.network_as(torch.float64), inputs.transform
    prover = DeepProver(inputs.images64, inputs.labels, change)
    rows = torch.arange(3).repeat(3)
    low = change.low[0] + (change.high[0] - change.low[0]) * (1 - width) * torch.rand(9, 1).double()
    high = low + (change.high[0] - change.low[0]) * width
    found = prover.bound(rows, low, high, net)
    tight = 0
    for k, row in enumerate(rows.tolist()):
        share = torch.linspace(0, 1, 41).double().unsqueeze(1)
        with torch.no_grad():
            moved = change.apply(images[row].expand(41, -1, -1, -1).contiguous(), low[k] + share * (high[k] - low[k]))
            answers = model(moved)
        margin = answers[:, labels[row], None] - answers
        margin[:, labels[row]] = torch.inf
        assert float(margin.min()) >= float(found.bound[k])
        tight += float(margin.min() - found.bound[k]) < 0.01 * float(margin.min().abs() + 1)
    assert width > 0.001 or tight == 9
    assert ((found.columns > 1) & (found.columns < 1026)).all()


@pytest.mark.usefixtures("in_proof")
def test_margins_at_points_are_known_almost_exactly():
    torch.manual_seed(1)
    model, images = network(20), torch.rand(3, 1, 10, 10).double()
    with torch.no_grad():
        labels = model(images).argmax(1)
    inputs = check_inputs(model, images, labels, "R(20)")
    net, change = inputs.network_as(torch.float64), inputs.transform
    rows, angles = torch.arange(3).repeat(4), torch.linspace(-20, 20, 12).double()[:, None]
    with torch.no_grad():
        answers = model(change.apply(images[rows], angles))
    margins = answers.gather(1, labels[rows][:, None]) - answers
    margins = margins.scatter(1, labels[rows][:, None], torch.inf).amin(1)
    found = DeepProver(inputs.images64, inputs.labels, change).bound(rows, angles, angles, net).upper
    assert (found >= margins - 1e-13 * (1 + answers.abs().amax())).all()
    assert (found <= margins + 1e-3).all()


def test_counterexamples_of_deep_networks_are_confirmed():
    """Radii alone grow to 10^15 and more, and confirm nothing."""
    torch.manual_seed(1)
    model, images = network(22), torch.rand(1, 1, 10, 10).double()
    with torch.no_grad():
        turned = tiltproof.parse("R(40)").apply(images, torch.tensor([[30.0]]).double())
        apart = (model(images) - model(turned)).abs().max()
        for number in model[-1].parameters():
            number /= apart
        model[-1].bias -= ((model(images) + model(turned)) / 2)[0]  # so that both answers are opposite
        label = model(images).argmax(1)
        assert model(turned).argmax(1) != label
    certificate = tiltproof.certify(model, images, label, "R(40)", search=tiltproof.BranchAndBound(max_boxes=2))
    assert str(certificate.verdicts[0]) == "falsified"


def test_which_networks_it_is_for(monkeypatch):
    model, images = network().float(), torch.rand(2, 1, 10, 10)
    with torch.no_grad():
        labels = model(images).argmax(1)
    with tiltproof.network.proof_arithmetic(images.device):
        inputs = check_inputs(model, images, labels, "R(1)")
        net = inputs.network_as(torch.float64)
        assert not is_deep(net)
        monkeypatch.setattr(graph, "DEEP", 2.0)
        assert is_deep(net)
        assert DeepProver.suits(inputs.transform)
        assert Prover(inputs, "affine").deep is not None
        assert Prover(inputs, "hull").deep is None
        assert not DeepProver.suits(tiltproof.parse("R(1), Sc(1)"))
        assert not is_deep(inputs.network_as(torch.float64, "float32"))
    monkeypatch.setattr(deep_plan, "plain_bounds_suffice", lambda *_: False)
    certificate = tiltproof.certify(model, images, labels, "R(0.5)")
    assert all(str(verdict) in ("certified", "falsified") for verdict in certificate.verdicts)
    monkeypatch.undo()
    assert tiltproof.certify(model, images, labels, "R(0.5)").verdicts == certificate.verdicts


@pytest.mark.parametrize("suffice", [True, False])
def test_networks_that_plain_bounds_prove_are_not_deep(monkeypatch, suffice):
    """Whatever their row sums: a last layer whose biases alone decide."""
    if not suffice:
        monkeypatch.setattr(deep_plan, "plain_bounds_suffice", lambda *_: False)
    model, images = network(2).float(), torch.rand(2, 1, 10, 10)
    with torch.no_grad():
        model[-1].weight.mul_(1e-3)
        model[-1].bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    monkeypatch.setattr(graph, "DEEP", -9.0)
    job = batch.Job(Settings(), 0)
    with tiltproof.network.proof_arithmetic(images.device):
        inputs = check_inputs(model, images, torch.zeros(2).long(), "R(0.5)")
        spec, _, pilots, _ = job._attacked(inputs, None, AdaptiveBatchSize(8))
    assert (spec.prover.deep is None) == suffice
    assert len(pilots.rows) == 2


@pytest.mark.usefixtures("in_proof")
def test_a_box_with_too_many_kinks_is_given_up():
    model, images = network(), torch.rand(1, 1, 10, 10).double()
    inputs = check_inputs(model, images, torch.tensor([0]), "R(90)")
    walk = deep.DeepPass(inputs.network_as(torch.float64), most_symbols=5)
    form = tiltproof.bound_pixels(images, "R(90)", low=[10.0], high=[20.0])
    with torch.no_grad():
        assert walk.run(form) is None


@pytest.mark.usefixtures("in_proof")
def test_branches_with_too_many_kinks_together():
    """Each has at most as many as a form may have, their sum more."""
    model = nn.Sequential(
        Function(lambda m, x: F.relu(m.a(x)) + F.relu(m.b(x)), a=nn.Conv2d(1, 2, 3), b=nn.Conv2d(1, 2, 3)),
        nn.ReLU(), nn.Flatten(), nn.Linear(2 * 64, 3),
    )  # fmt: skip
    settle(model, 0).double()
    images, ends = torch.rand(1, 1, 10, 10).double(), [torch.tensor([[each]]).double() for each in (10.0, 11.0)]
    network = check_inputs(model, images, torch.tensor([0]), "R(90)").network_as(torch.float64)
    with torch.no_grad():
        pixels = pair_form(images, torch.tensor([0]), tiltproof.transforms.parse("R(90)"), *ends, symbols=0)
        for kind, run in ((deep.DeepPass, lambda walk: walk.run(pixels.whole())),
                          (PairPass, lambda walk: walk.run_pair(pixels))):  # fmt: skip
            enough = kind(network, most_symbols=500)
            assert run(enough) is not None
            for most in range(1, enough.next_number, 3):
                assert run(kind(network, most_symbols=most)) is None


ONE_PARAMETER = [
    sliver for sliver in all_slivers() if sliver.text in ("R(-10:25)", "Tu(-0.1:0.7)", "Sc(-20:30)", "Sh(-10:40)")
]


def deepened(model: nn.Sequential, layers: int = 18) -> nn.Sequential:
    """The same function, with layers in front of the last one that change nothing."""
    size, more = model[-1].in_features, []
    for k in range(layers):
        layer = nn.Linear(size, size).to(model[-1].weight.dtype)
        layer.weight.data, layer.bias.data = (
            torch.eye(size).to(layer.weight) * (4.0 if k % 2 else 0.25),
            torch.zeros_like(layer.bias),
        )
        more += [layer, nn.ReLU()]
    return nn.Sequential(*model[:-1], *more, model[-1]).eval()


@pytest.mark.parametrize("sliver", ONE_PARAMETER[1::13], ids=str)
def test_a_sliver_in_twenty_layers_is_never_certified(monkeypatch, sliver):
    """A counterexample in a small part of the range, which the attack does not find."""
    transform, model, image = sliver.build()
    monkeypatch.setattr(graph, "DEEP", -9.0)
    monkeypatch.setattr(deep_plan, "plain_bounds_suffice", lambda *_: False)
    model, bounded = deepened(model), []
    bound = DeepProver.bound
    monkeypatch.setattr(DeepProver, "bound", lambda *arguments: bounded.append(0) or bound(*arguments))
    for splits in {None, sliver.splits}:
        certificate = tiltproof.certify(
            model,
            image[None],
            torch.tensor([0]),
            transform,
            search=search_for(splits, max_boxes=60),
            attack=tiltproof.Attack(samples=1),
        )
        check_not_certified(certificate, transform, model, image, within=1e-3)
    assert bounded
