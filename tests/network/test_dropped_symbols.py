"""Dropped symbols: the bounds hold, and hardly widen."""

import pytest
import torch
from torch import nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import read_network, run

pytestmark = pytest.mark.usefixtures("in_proof")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 20), nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, x):
        x = torch.relu(self.first(x.flatten(1)))
        return self.last(torch.relu(self.inner(x) + x))


def deep():
    layers = [module for _ in range(4) for module in (nn.Linear(20, 20), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 20), nn.ReLU(), *layers, nn.Linear(20, 3))


@pytest.mark.parametrize("make", [deep, Residual])
@pytest.mark.parametrize("size", [1e-5, 0.3])
def test_bounds_hold_and_hardly_widen(make, size):
    torch.manual_seed(0)
    model = make().double()
    center, slopes = torch.rand(5, 1, 2, 3).double(), torch.randn(3, 5, 1, 2, 3).double() * 0.05
    slopes[1:] *= size
    pixels = AffineForm(torch.cat([center[None], slopes]), torch.full_like(center, 1e-3), quadratic=True)
    network = read_network(model, (1, 2, 3), center[:1]).network_as(torch.float64)
    whole, part = run(network, pixels), run(network, pixels, lasting=1)
    dropped = part[network.output].symbols == 1
    assert dropped == (size < 1e-3)
    assert whole[network.output].symbols == 3
    assert (part[network.output].upper >= whole[network.output].upper - 1e-3).all()
    assert (part[network.output].width <= whole[network.output].width * 1.05 + 1e-12).all()
    for _ in range(200):
        e = torch.rand(3, 1, 1, 1, 1).double().mul(2).sub(1).sign()
        x = center + (e * slopes).sum(0) + pixels.radius * torch.rand_like(center).mul(2).sub(1).sign()
        answers = model(x)
        assert (part[network.output].lower <= answers).all()
        assert (answers <= part[network.output].upper).all()


def test_what_is_given_up_joins_the_radius():
    """One linear layer after the symbols are gone attains the extreme outputs, so nothing may be missing."""
    model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 4, bias=False)).double()
    model[2].weight.data = torch.eye(4).double()
    center = torch.full((1, 1, 2, 2), 5.0).double()
    stack = torch.stack([center, center * 0 + 1.0, center * 0 + 4e-4])
    pixels = AffineForm(stack, center * 0 + 1.0, quadratic=True)
    network = read_network(model, (1, 2, 2), center).network_as(torch.float64)
    form = run(network, pixels, lasting=1)[network.output]
    assert form.symbols == 1
    assert (form.upper >= 7.0004).all()
    assert (form.upper <= 7.0005).all()


def test_a_hinge_is_given_up_before_what_parabolas_need():
    torch.manual_seed(0)
    center, slopes = torch.rand(5, 1, 2, 3).double(), torch.randn(3, 5, 1, 2, 3).double() * 0.05
    slopes[2] *= 1e-3
    pixels = AffineForm(torch.cat([center[None], slopes]), torch.full_like(center, 1e-2), quadratic=True)
    network = read_network(deep().double(), (1, 2, 3), center[:1]).network_as(torch.float64)
    forms = run(network, pixels, lasting=1)
    relus = [forms[operation.name] for operation in network.operations if operation.kind == "relu"]
    assert [form.symbols for form in relus] == [3, 2, 2, 2, 2]
    assert all(form.quadratic for form in relus)
