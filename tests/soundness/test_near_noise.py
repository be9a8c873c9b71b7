"""Margins near the rounding noise: what floating point gets wrong must never be certified."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.noise_check import METHODS, check_family
from tests.soundness.noise_networks import FAMILIES, UNDERFLOW, linear, margin_of
from tests.support.oracle import transformed
from tiltproof import Attack, UnsupportedOperation, Verdict, certify
from tiltproof.verify.options import BOUNDS, search_for

DTYPES = [torch.float32, torch.float64]
BELOW_THE_NOISE = ("near_underflow", "cancelling_shift")
"""Families whose whole margin is no larger than the rounding allowance: unknown, and rightly so."""


@pytest.mark.parametrize("name", FAMILIES)
def test_no_verdict_is_contradicted(name):
    count = check_family(FAMILIES[name], range(1), thorough=False)
    assert count.unsafe >= 4  # or the test says nothing
    assert count.fooled >= 2
    assert count.certified == count.healthy or name in BELOW_THE_NOISE


@pytest.mark.parametrize("name", UNDERFLOW)
def test_no_verdict_is_contradicted_where_numbers_vanish(name):
    check_family(UNDERFLOW[name], range(2))


def test_a_slope_that_float32_cannot_hold_is_refused():
    model = nn.Sequential(nn.Flatten(), linear([[-1e38]]), nn.LeakyReLU(1e-46), linear([[1.0], [0.0]], [0.495e-8, 0.0]))
    with pytest.raises(UnsupportedOperation, match="negative slope"):
        certify(model.eval(), torch.full((1, 1, 1, 1), 0.4), torch.tensor([0]), "B(-0.1:0.2)")


@pytest.mark.parametrize("splits", [None, 1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_overflow_inside_the_box_proves_nothing(method, splits):
    """Finite on the image itself; over the range float32 overflows, bounds are NaN, and the margin is -1/2."""
    layers = linear([[3e38]], [2.5e38]), nn.ReLU(), linear([[-1e-38], [0.0]], [5.0, 0.0])
    model = nn.Sequential(nn.Flatten(), *layers).eval()
    image = torch.full((1, 1, 1, 1), 0.1)
    margins = [margin_of(model, transformed(image[0].numpy(), ["B"], [shift])) for shift in (0, 0.9)]
    assert margins[0] > 2
    assert margins[1] < -0.4
    options = {"bounds": BOUNDS[method], "search": search_for(splits, max_boxes=30), "attack": Attack(samples=1)}
    certificate = certify(model, image, torch.tensor([0]), "B(0:0.9)", **options)
    assert certificate.verdicts[0] in (Verdict.UNKNOWN, Verdict.FALSIFIED)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_verdict_is_contradicted_at_length(name, dtype, record_property):
    count = check_family(FAMILIES[name], range(10, 14), dtype)
    record_property("count", str(count))
    assert count.unsafe >= 4 * 4
    assert count.fooled >= 4
    assert count.certified >= 0.6 * count.healthy or name in BELOW_THE_NOISE


@pytest.mark.slow
@pytest.mark.parametrize("name", UNDERFLOW)
def test_no_verdict_is_contradicted_where_numbers_vanish_at_length(name):
    check_family(UNDERFLOW[name], range(10, 20))
