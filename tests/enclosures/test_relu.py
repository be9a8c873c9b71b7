"""The fast CPU relaxation of ReLU: no value leaves it, and it is no looser than the step-by-step reference."""

from __future__ import annotations

import itertools

import pytest
import torch

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import relax_relu, zonotope_relu
from tiltproof.enclosures.rounding import SMALLEST

COUNT = 4000


def forms(dtype, symbols, seed):
    """Draw forms of many magnitudes: kinks in the middle and at the very ends, tiny widths, remainders of all proportions."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, dtype=torch.float64, generator=random)  # noqa: E731
    scale = 10 ** (draw(COUNT) * 12 - 8)
    slopes = (draw(symbols, COUNT) * 2 - 1) * scale * 10 ** (-6 * draw(symbols, COUNT))
    radius = scale * 10 ** (-8 * draw(COUNT)) * (draw(COUNT) > 0.2) + SMALLEST[dtype]
    deviation = slopes.abs().sum(0) + radius
    center = deviation * (draw(COUNT) * 3 - 1.5)
    at_an_end = draw(COUNT) < 0.3
    center = torch.where(at_an_end, deviation * (draw(COUNT) < 0.5).double().mul(2).sub(1), center)
    center = torch.where(draw(COUNT) < 0.1, center * 1e6, center)
    return AffineForm(torch.cat([center[None], slopes]).to(dtype), radius.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("symbols", [0, 1, 2, 3])
def test_no_value_leaves_it(dtype, symbols):
    form = forms(dtype, symbols, symbols)
    result = relax_relu(form)
    assert result.stack.shape == form.stack.shape
    center, radius = result.center.double(), result.radius.double()
    size = form.center.double().abs() + form.slopes.double().abs().sum(0) + form.radius.double()
    noise = 8 * 2.0**-53 * size + 4 * 2.0**-53 * (center.abs() + radius)  # of this test
    if dtype == torch.float64:
        noise = noise * 4  # no wider numbers to test with: only gross errors are found
    for signs in itertools.product((-1.0, 0.3, 1.0), repeat=symbols):
        e = torch.tensor(signs, dtype=torch.float64).view(-1, 1)
        first = form.center.double() + (form.slopes.double() * e).sum(0)
        line = center + (result.slopes.double() * e).sum(0)
        at_zero = (-first / form.radius.double()).clamp(-1, 1)  # as close to the kink as the remainder allows
        for share in (torch.ones(()), -torch.ones(()), at_zero):
            x = first + form.radius.double() * share
            assert bool(((x.clamp(min=0) - line).abs() <= radius + noise).all())
    assert bool((result.magnitude().double() * (1 + 1e-6) >= result.stack.double().abs().sum(0)).all())


@pytest.mark.parametrize("symbols", [1, 2, 3])
def test_it_is_no_looser_than_step_by_step(symbols):
    form = forms(torch.float32, symbols, 10 + symbols)
    known = zonotope_relu(form).radius.double()
    assert bool((relax_relu(form).radius.double() <= known * (1 + 1e-6)).all())


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
def test_what_is_no_number_proves_nothing(entry):
    for stack, radius in (([entry, 1.0], 1.0), ([1.0, entry], 1.0), ([1.0, 1.0], entry)):
        form = relax_relu(AffineForm(torch.tensor(stack).view(2, 1, 1), torch.tensor([[radius]])))
        finite = torch.isfinite(form.stack).all() & torch.isfinite(form.radius).all()
        assert not bool(finite)
