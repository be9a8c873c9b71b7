"""The backward pass alone: a refined bound is below every margin, for every operation and to the last digit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.forms import candidates, climb, in_float64, make_form, margins, points, run_rows
from tests.soundness.noise_networks import FAMILIES, evaluate, exactly
from tests.support.small_networks import ACTIVATIONS, SHAPE, SUPPORTED, build
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import read_network, refine, run

pytestmark = pytest.mark.usefixtures("in_proof")

ROWS, FEW = 16, 6
SETS = [(2, 0.5), (0, 0.3), (1, 1e-4)]
"""Number of symbols, size of the set."""


def refined(model: nn.Module, form: AffineForm, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Return bounds of every margin [P, K], infinite for the label itself: the best of those at the pixels and on the way there."""
    network = read_network(model, tuple(form.shape[1:]), form.center).network_as()
    with torch.no_grad():
        forms = run(network, form)
        pairs, others = (torch.arange(classes) != labels.unsqueeze(1)).nonzero(as_tuple=True)
        bound, _ = refine(network, forms, labels, pairs, others)
        for enough in (-torch.inf, float(bound.median())):
            sooner, _ = refine(network, forms, labels, pairs, others, enough=enough)
            bound = torch.maximum(bound, sooner)
    result = torch.full((len(form), classes), torch.inf, dtype=torch.float64)
    result[pairs, others] = bound
    return result


NAMES = [name for name in SUPPORTED if name.split()[-1] not in ("functional", "method", "torch")]


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "many"])
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_backward(name, many):
    labels = torch.tensor([0, 2, 1])
    for seed, (symbols, scale) in enumerate(SETS if many else [SETS[len(name) % 2]]):
        model, form = build(SUPPORTED[name], seed), make_form(SHAPE, symbols, seed, scale=scale)
        exact = in_float64(model)
        e, s = (
            torch.cat(parts) for parts in zip(candidates(form, seed), climb(exact, form, labels, seed), strict=True)
        )
        with torch.no_grad():
            least = margins(run_rows(exact, points(form, e, s)), labels).amin(0)
        bound = refined(model, form, labels, 3)
        own = torch.nn.functional.one_hot(labels, 3).bool()
        excess = torch.where(own, -torch.inf, bound - least).max().item()
        assert excess <= 1e-12 * (1 + least.abs().max().item()), f"above a true margin by {excess:.3g}"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_one_neuron_backward(name):
    """Every value between the bounds is attained, so a line on the wrong side of the activation shows at once."""
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(1, 1), ACTIVATIONS[name](), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor([0.0, 1.0][: parameter.numel()]).view_as(parameter))
        model[0].weight.fill_(1)
    center, half = torch.tensor(rng.normal(size=(40, 1))), torch.tensor(rng.uniform(0, 3, (40, 1)))
    form = AffineForm(torch.stack([center, half * 0.3]).float(), (half * 0.7).float())
    t = torch.linspace(-1, 1, 41, dtype=torch.float64).view(-1, 1, 1)
    for labels in (torch.zeros(40, dtype=torch.int64), torch.ones(40, dtype=torch.int64)):
        with torch.no_grad():
            x = form.center.double() + t * form.slopes[0].double().abs() + t * form.radius.double()
            least = margins(run_rows(in_float64(model), x), labels).amin(0)
        bound = refined(model, form, labels, 2)
        assert (bound.gather(1, 1 - labels[:, None]) <= least.gather(1, 1 - labels[:, None]) + 1e-9).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_rounding_of_the_backward_pass_is_absorbed_exactly(family, dtype):
    """Single points: the bound is the margin minus its rounding, and the margin is known as a rational number."""
    for seed in range(2):
        rng = np.random.default_rng([seed, 5])
        model = nn.Sequential(*FAMILIES[family](rng, 6)).to(dtype).eval()
        center = torch.tensor(rng.random((ROWS, 6)), dtype=dtype)
        labels = torch.arange(ROWS) % 2
        bound = refined(model, AffineForm(center[None], torch.zeros_like(center)), labels, 2)
        for row, label in enumerate(labels.tolist()):
            logits = evaluate(model, exactly(center[row]))
            assert Fraction(bound[row, 1 - label].item()) <= logits[label] - logits[1 - label], (seed, row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_rounding_of_convolutions_is_absorbed_exactly(groups, dtype):
    """The same for convolutions in which two channels nearly cancel on the way back."""
    for seed in range(2):
        rng = np.random.default_rng([seed, groups])
        first = nn.Conv2d(2, 4, 3, padding=1, groups=groups, bias=False)
        second = nn.Conv2d(4, 4, 3, stride=2, groups=groups, bias=False)
        model = nn.Sequential(first, second, nn.Flatten(), nn.Linear(16, 2)).to(dtype).eval()
        with torch.no_grad():
            half = torch.tensor(rng.normal(size=(2, *first.weight.shape[1:]))) * 1000
            first.weight.copy_(torch.stack([half, -half * (1 + 1e-6)], 1).flatten(0, 1))
            second.weight[:, 1::2] = second.weight[:, ::2]
        center = torch.tensor(rng.random((FEW, 2, 5, 5)), dtype=dtype)
        labels = torch.arange(FEW) % 2
        bound = refined(model, AffineForm(center[None], torch.zeros_like(center)), labels, 2)
        for row, label in enumerate(labels.tolist()):
            logits = evaluate(model[3:], convolved(second, convolved(first, exactly(center[row]))).ravel())
            assert Fraction(bound[row, 1 - label].item()) <= logits[label] - logits[1 - label], (seed, row)


def test_an_entry_may_lie_in_more_windows_than_there_are_entries():
    """Going backwards its coefficient is a sum over all windows, here of one large term and many that are rounded up next to it."""
    unit, size = 2.0**-24, 24
    model = nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Flatten(), nn.Linear(size * size, 2)).eval()
    with torch.no_grad():
        model[2].weight[0] = unit * (1 + 2.0**-10)
        model[2].weight[0, 0], model[2].weight[1], model[2].bias[0] = 1, 0, 0
        true = exactly(model[2].weight[0]).sum()
        model[2].bias[1] = float(true) + size * size * unit / 8
    image = torch.ones(1, 1, 1, 1)
    bound = refined(model, AffineForm(image[None], torch.zeros_like(image)), torch.tensor([0]), 2)
    assert Fraction(bound[0, 1].item()) <= true - exactly(model[2].bias)[1]


def convolved(layer, image):
    """Apply a convolution without bias in rational arithmetic."""
    weight, (edge, _), (stride, _) = exactly(layer.weight), layer.padding, layer.stride
    image = np.pad(image, ((0, 0), (edge, edge), (edge, edge)), constant_values=Fraction(0))
    outputs, inputs, height, width = weight.shape
    size = (image.shape[1] - height) // stride + 1
    result = np.empty((outputs, size, size), dtype=object)
    for k in range(outputs):
        begin = k // (outputs // layer.groups) * inputs
        for i, j in np.ndindex(size, size):
            window = image[begin : begin + inputs, i * stride : i * stride + height, j * stride : j * stride + width]
            result[k, i, j] = (weight[k] * window).sum()
    return result


def test_margins_stay_behind_one_by_one():
    """A margin that is already proved keeps its row, and any other gets the bound it would have got alone."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.ReLU(),
        nn.Linear(8, 5),
    )
    network = read_network(
        nn.Sequential(*layers).double().eval(), (1, 7, 7), torch.rand(1, 1, 7, 7).double()
    ).network_as()
    stack = torch.rand(2, 12, 1, 7, 7, dtype=torch.float64) * torch.tensor([1.0, 0.05]).view(2, 1, 1, 1, 1)
    forms, labels = run(network, AffineForm(stack, torch.full_like(stack[0], 0.01))), torch.zeros(12, dtype=torch.int64)
    pairs, others = torch.arange(12).repeat_interleave(4), torch.arange(1, 5).repeat(12)
    whole, _ = refine(network, forms, labels, pairs, others)
    enough = float(whole.detach().median())
    bound, _ = refine(network, forms, labels, pairs, others, enough=enough)
    assert (bound > enough).any()
    assert (whole - bound > 1e-6).any(), "no margin stayed behind"
    alone = [refine(network, forms, labels, pairs[[k]], others[[k]], enough=enough)[0] for k in range(len(pairs))]
    assert torch.allclose(bound, torch.cat(alone), rtol=0, atol=1e-12)
