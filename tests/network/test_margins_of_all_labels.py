"""Margins of all labels at once equal those made label by label, and contain every sampled margin."""

import importlib

import pytest
import torch
from torch import nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, read_network, run

pytestmark = pytest.mark.usefixtures("in_proof")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("semantics", [0.0, 2.0**-24])
@pytest.mark.parametrize("bias", [True, False])
def test_all_labels_at_once(dtype, semantics, bias, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5, bias=bias)).to(dtype).eval()
    center, slopes = torch.rand(12, 6, dtype=dtype), torch.randn(2, 12, 6, dtype=dtype) * 0.1
    form = AffineForm(torch.cat([center[None], slopes]), torch.full_like(center, 0.02))
    labels = torch.arange(12) % 5
    network = read_network(model, (6,), center[:1]).network_as(dtype, semantics)
    with torch.no_grad():
        forms = run(network, form)
        together = margins(network, forms, labels)
        again = margins(network, forms, labels)  # from the cache
        monkeypatch.setattr(importlib.import_module("tiltproof.network.forward"), "MOST_CLASSES", 4)
        apart = margins(network, forms, labels)
        e = torch.rand(500, 2, 1, 1, dtype=torch.float64) * 2 - 1
        x = center.double() + (e * slopes.double()).sum(1) + 0.02 * (torch.rand(500, 12, 6) * 2 - 1)
        outputs = model.double()(x)
    assert torch.equal(together.stack, again.stack)
    assert torch.equal(together.radius, again.radius)
    near = 200 * form.unit
    assert torch.allclose(together.stack, apart.stack, rtol=near, atol=near)
    assert torch.allclose(together.radius, apart.radius, rtol=1e-3 if dtype == torch.float32 else 1e-9)
    values = outputs.gather(2, labels.view(1, -1, 1).expand(500, -1, 1)) - outputs
    assert (together.lower.double() <= values.amin(0)).all()
    assert (values.amax(0) <= together.upper.double()).all()
    own = labels.unsqueeze(1)
    assert (together.radius.gather(1, own) == 0).all()
    assert (together.stack.gather(2, own.expand(3, -1, 1)) == 0).all()


def test_what_is_kept_belongs_to_one_reading_of_the_weights():
    """If weights change between two readings, the second reading sees the change."""
    model = nn.Sequential(nn.Linear(3, 4)).eval()
    form = AffineForm(torch.rand(1, 2, 3), torch.rand(2, 3))
    network = read_network(model, (3,), form.center[:1])
    with torch.no_grad():
        first = margins(network.network_as(torch.float32), {network.input: form}, torch.tensor([0, 1]))
        model[0].weight.mul_(2)
        second = margins(network.network_as(torch.float32), {network.input: form}, torch.tensor([0, 1]))
    assert (second.radius > 1.5 * first.radius).any()
    assert network.network_as().operations[0].kept is None  # training: weights change on the way


def test_weights_changed_behind_a_proof():
    """Values derived from the weights stay consistent with them: both date from the moment at which the proof began."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5))
    x = torch.rand(3, 6)
    form = AffineForm(x[None], torch.full_like(x, 0.1))
    network = read_network(model, (6,), x[:1]).network_as(torch.float32)
    with torch.no_grad():
        before = run(network, form)[network.output]
        for weight in model.parameters():
            weight.mul_(1000)
        after = run(network, form)[network.output]
        assert torch.equal(before.stack, after.stack)
        assert torch.equal(before.radius, after.radius)
        anew = read_network(model, (6,), x[:1]).network_as(torch.float32)
        outputs = model(x + 0.1 * (2 * torch.rand(200, 3, 6) - 1))
        form = run(anew, form)[anew.output]
        assert (form.lower <= outputs.amin(0)).all()
        assert (outputs.amax(0) <= form.upper).all()
