"""A counterexample in a sliver of the range, wherever boxes might leave a gap: it must never be certified."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.certificate_check import check_not_certified
from tests.soundness.slivers import all_slivers
from tiltproof import Attack, BranchAndBound, Verdict, certify
from tiltproof.verify.options import BOUNDS, search_for

SLIVERS = list(all_slivers())
METHODS = ("affine", "hull", "affine", "fgv")


def check(sliver, method, boxes):
    transform, model, image = sliver.build()
    for splits in {None, sliver.splits}:
        certificate = certify(
            model,
            image[None],
            torch.tensor([0]),
            transform,
            bounds=BOUNDS[method],
            search=search_for(splits, max_boxes=boxes),
            attack=Attack(samples=1),
        )
        # weights of 1e6 make the reported margin, an upper bound, a little larger than the true one
        check_not_certified(certificate, transform, model, image, within=1e-3)


def test_there_are_enough():
    assert len(SLIVERS) >= 200


@pytest.mark.parametrize("sliver", SLIVERS[3::13], ids=str)
def test_a_sliver_is_never_certified(sliver):
    check(sliver, METHODS[sliver.number % 4], 150)


@pytest.mark.slow
@pytest.mark.parametrize("sliver", SLIVERS, ids=str)
def test_no_sliver_is_certified(sliver):
    check(sliver, METHODS[sliver.number % 4], 600)


@pytest.mark.parametrize("sliver", [SLIVERS[0], SLIVERS[60]], ids=str)
def test_a_shallow_sliver_is_certified(sliver):
    """The same networks with a dip that stays positive: the tests above do not pass merely because proofs fail."""
    transform, model, image = sliver.build()
    with torch.no_grad():
        model[5].weight[0, 0] = -0.5  # the margin falls from 1 to 0.5
    certificate = certify(model, image[None], torch.tensor([0]), transform, search=BranchAndBound(max_boxes=4000))
    assert certificate.verdicts == [Verdict.CERTIFIED]
    assert certificate.margins[0] <= 1
