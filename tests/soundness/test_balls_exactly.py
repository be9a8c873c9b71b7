"""Balls, symbols and degrees 1 to 4 against rational arithmetic: no claim is refuted, and there were claims to refute."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from tests.soundness.exact_balls import campaign
from tiltproof.enclosures.affine_form import AffineForm

pytestmark = pytest.mark.usefixtures("in_proof")


def test_no_claim_is_refuted():
    tally = campaign(400, seed=0)
    assert not tally.violation
    assert min(tally.degrees[1:]) > 20
    assert tally.symbols > 400
    assert tally.windows > 8
    assert tally.cuts > 20


@pytest.mark.slow
def test_no_claim_is_refuted_in_twenty_thousand_cases():
    tally = campaign(20_000, seed=1)
    assert not tally.violation
    assert tally.cases >= 20_000
    assert tally.symbols > 20_000
    assert min(tally.windows, tally.cuts) > 300


def test_what_a_sum_rounds_is_left_over():
    """Of two exact numbers nothing else is."""
    torch.manual_seed(0)
    first, second = (
        AffineForm(torch.rand(1, 1, 50).double() / n, torch.zeros(1, 50).double()).with_ball(torch.zeros(1).double())
        for n in (3, 700)
    )
    result = first + second
    terms = zip(result.center[0].tolist(), first.center[0].tolist(), second.center[0].tolist(), strict=True)
    off = [Fraction(x) - Fraction(a) - Fraction(b) for x, a, b in terms]
    assert any(off)
    assert result.ball is not None
    assert sum(x * x for x in off) <= Fraction(result.ball.item()) ** 2
