"""A short campaign of random cases, and proof that its check can fail."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.soundness.campaign import campaign, check_batch
from tests.soundness.quick_check import arrays, outside
from tests.support.exactly import symbols
from tests.support.oracle import transformed
from tiltproof import bound_pixels, parse
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels import api as resample
from tiltproof.pixels import coordinates


@pytest.mark.parametrize("seed", [101, 202, 303])
def test_no_random_case_leaves_its_bounds(seed):
    *_, total = campaign(500, seed)
    assert not total.violation, total.violation
    assert total.cases >= 500
    assert total.points >= 4 * 500
    assert total.comparisons > 50_000


def test_a_batch_can_be_repeated():
    first, second = check_batch(3, 7, 6), check_batch(3, 7, 6)
    assert first == second
    assert first.cases + first.single == 6
    assert first.comparisons >= 3 * first.points


def exact_shift():
    """Return a shift by a quarter of one of two pixels, and its bounds over a box of one ulp."""
    image, low = np.array([[[0.3, 0.7]]]), 0.25
    high = float(np.nextafter(low, 1))
    theta = (Fraction(low),)
    form = bound_pixels(torch.tensor(image)[None], parse("Tu(1)"), low=[low], high=[high])
    return transformed(image, ["Tu"], theta), symbols(theta, [low], [high]), form


def test_the_check_accepts_what_is_true_and_notices_a_bound_moved_by_a_few_units_in_the_last_place():
    truth, e, form = exact_shift()
    assert outside([truth], [0], [e], arrays(form)) == []
    for change in (1e-14, -1e-14):
        moved = form.stack.clone()
        moved[0] += change
        assert outside([truth], [0], [e], arrays(AffineForm(moved, form.radius)))
    assert outside([truth], [0], [e], arrays(AffineForm(form.stack, form.radius * 0)))
    assert outside([truth], [0], [e], arrays(AffineForm(form.stack * torch.nan, form.radius)))


def without_remainder(form, interval):
    """Return the coordinate box of the slopes alone."""
    size = form.slopes.abs().sum(0)
    return type(interval)(form.center - size, form.center + size)


def without_slack(radius, *_):
    return radius


@pytest.mark.parametrize(
    ("module", "name", "harmful"),
    [(coordinates, "_meet", without_remainder), (resample, "widen", without_slack)],
    ids=["coordinates without remainder", "pixels without rounding slack"],
)
def test_the_campaign_notices_a_defect(monkeypatch, module, name, harmful):
    monkeypatch.setattr(module, name, harmful)
    *_, total = campaign(1000, 1)
    assert total.violation
    assert "--seed 1 --batch" in total.violation
