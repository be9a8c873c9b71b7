"""Margins of more classes than one chunk holds: every row has its own weight differences."""

import importlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, read_network, run
from tiltproof.network.ops import REGISTRY

pytestmark = pytest.mark.usefixtures("in_proof")

CLASSES, INPUTS = 37, 5
forward = importlib.import_module("tiltproof.network.forward")
fractions = np.vectorize(Fraction, otypes=[object])


def last_layer(weights: str, bias: bool, dtype: torch.dtype) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    layer = nn.Linear(INPUTS, CLASSES, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(CLASSES, INPUTS, generator=generator))
        if bias:
            layer.bias.copy_(torch.randn(CLASSES, generator=generator))
        if weights == "alike":  # differences round in full
            layer.weight.copy_(layer.weight[:1] * 1000 + layer.weight / 3)
    return nn.Sequential(layer).to(dtype).eval()


def make(dtype: torch.dtype, size: float) -> tuple[AffineForm, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    stack = torch.randn(3, 6, INPUTS, generator=generator, dtype=torch.float64)
    stack[1:] *= size
    radius = size * torch.rand(6, INPUTS, generator=generator, dtype=torch.float64)
    return AffineForm(stack.to(dtype), radius.to(dtype)), torch.tensor([7, 0, 36, 7, 7, 12])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [0.3, 1e-7, 0.0])
@pytest.mark.parametrize("weights", ["plain", "alike"])
@torch.no_grad()
def test_exact_differences_are_inside(weights, size, dtype, monkeypatch):
    """Weights, members and margins as rational numbers, at the corners where a margin is least and largest: no tolerance."""
    monkeypatch.setattr(forward, "MOST_ENTRIES_CPU", 4 * CLASSES * INPUTS)  # two chunks
    model, (form, labels) = last_layer(weights, True, dtype), make(dtype, size)
    network = read_network(model, (INPUTS,), form.center[:1]).network_as(dtype)
    result = margins(network, {network.input: form}, labels)
    weight, bias = (fractions(tensor.double().numpy()) for tensor in (model[0].weight, model[0].bias))
    stack, radius = (fractions(tensor.double().numpy()) for tensor in (form.stack, form.radius))
    planes, slack, low, high = (
        fractions(tensor.double().numpy()) for tensor in (result.stack, result.radius, result.lower, result.upper)
    )
    for row, label in enumerate(labels.tolist()):
        difference = weight[label] - weight
        center = difference @ stack[0, row] + bias[label] - bias
        slopes = [difference @ stack[k, row] for k in (1, 2)]
        spread = abs(difference) @ radius[row]
        # |slopes - their planes| for any symbols, and the center's, leave room for the remainder: that is the whole form
        off = abs(center - planes[0, row]) + sum(abs(slopes[k] - planes[1 + k, row]) for k in (0, 1)) + spread
        others = np.arange(CLASSES) != label
        assert (off[others] <= slack[row][others]).all()
        least, largest = (center + sign * (sum(abs(slope) for slope in slopes) + spread) for sign in (-1, 1))
        assert (low[row] <= least).all()
        assert (high[row] >= largest).all()
        assert (planes[:, row, label] == 0).all()
        assert slack[row, label] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("semantics", [0.0, 2.0**-24])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_as_tight_as_label_by_label(bias, semantics, dtype):
    """The rule of a linear layer on one label's differences after the other gives the same, up to the order of its sums."""
    model, (form, labels) = last_layer("plain", bias, dtype), make(dtype, 0.1)
    network = read_network(model, (INPUTS,), form.center[:1]).network_as(dtype, semantics)
    forms = run(network, form)
    result = margins(network, forms, labels)
    for row, label in enumerate(labels.tolist()):
        one = last_layer("plain", bias, dtype)
        weight = one[0].weight
        one[0].weight.copy_(weight[label] - weight)
        if bias:
            one[0].bias.copy_(one[0].bias[label] - one[0].bias)
        alone = read_network(one, (INPUTS,), form.center[:1]).network_as(dtype)
        expected = REGISTRY["linear"].forward(alone.last, [forms[network.last.inputs[0]][row : row + 1]])
        near = 2000 * form.unit
        others = torch.arange(CLASSES) != label
        assert torch.allclose(result.stack[:, row, others], expected.stack[:, 0, others], rtol=near, atol=near)
        more = 1e-4 if semantics else near  # in an evaluation both outputs round
        assert (result.radius[row, others] <= expected.radius[0, others] * (1 + near) + more).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@torch.no_grad()
def test_float32_evaluations_are_inside(dtype):
    """Each output is evaluated separately in float32, in a random order of its terms."""
    model, (form, labels) = last_layer("alike", True, torch.float32), make(torch.float32, 0.0)
    network = read_network(model, (INPUTS,), form.center[:1]).network_as(dtype, 2.0**-24)
    result = margins(network, run(network, form.to(dtype)), labels)
    weight, bias, x = (tensor.numpy() for tensor in (model[0].weight, model[0].bias, form.center))
    rng = np.random.default_rng(0)
    for _ in range(50):
        terms = np.concatenate([x[:, None] * weight, np.broadcast_to(bias[:, None], (6, CLASSES, 1))], 2)
        outputs = np.zeros((6, CLASSES), np.float32)
        for k in rng.permutation(terms.shape[2]):
            outputs += terms[..., k]
        outputs = outputs.astype(np.float64)
        difference = np.take_along_axis(outputs, labels[:, None].numpy(), 1) - outputs
        assert (difference >= result.lower.double().numpy()).all()
        assert (difference <= result.upper.double().numpy()).all()


@torch.no_grad()
def test_no_rows():
    model, (form, labels) = last_layer("plain", True, torch.float32), make(torch.float32, 0.1)
    network = read_network(model, (INPUTS,), form.center[:1]).network_as(torch.float32)
    assert margins(network, {network.input: form[:0]}, labels[:0]).stack.shape == (3, 0, CLASSES)


def test_gradients_flow_to_the_weights():
    """As in training, without rounding allowances."""
    model, (form, labels) = last_layer("plain", True, torch.float32), make(torch.float32, 0.1)
    network = read_network(model, (INPUTS,), form.center[:1]).network_as()
    plain = AffineForm(form.stack, form.radius, unit=0.0)
    margins(network, {network.input: plain}, labels).lower.sum().backward()
    assert model[0].weight.grad is not None
    assert model[0].weight.grad.abs().sum() > 0
