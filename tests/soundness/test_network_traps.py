# ruff: noqa: ARG005 - the networks are lambdas of (modules, x), and many need no modules
"""Networks that a careless verifier gets wrong: each is bounded soundly or refused with an InputError, nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.forms import assert_inside, make_form
from tests.soundness.trap_networks import TRAPS
from tests.support.small_networks import SHAPE, Function, head, settle
from tiltproof import InputError, bound_network, certify


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "many"])
@pytest.mark.parametrize("name", TRAPS)
def test_sound_or_refused(name, many):
    for seed, (symbols, scale) in enumerate([(2, 0.3), (0, 0.8), (1, 1e-4)] if many else [(2, 0.3)]):
        torch.manual_seed(seed)
        model = settle(TRAPS[name](), seed)
        form = make_form(SHAPE, symbols, seed, scale=scale)
        try:
            bound = bound_network(model, form)
        except InputError:
            continue
        if (bound.lower.isnan() | bound.upper.isnan()).any():  # NaN claims nothing, and nothing can be proved with it
            continue
        assert_inside(model, form, bound, seed=seed, one_by_one=True)


@pytest.mark.parametrize(
    "body", [lambda m, x: (x.flatten(1), x), lambda m, x: {"logits": x.flatten(1)}, lambda m, x: 3, lambda m, x: x]
)
def test_outputs_that_are_not_logits_are_refused(body):
    with pytest.raises(InputError):
        bound_network(Function(body).eval(), make_form(SHAPE, 1, 0), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Dropout(0.5), nn.Flatten()), nn.Sequential(nn.BatchNorm2d(2), nn.Flatten())]
)
def test_training_mode_is_refused_or_taken_as_evaluation(model):
    form = make_form(SHAPE, 1, 0)
    settle(model)
    expected = bound_network(model, form)
    model.train()
    try:
        bound = bound_network(model, form)
    except InputError:
        return
    assert torch.equal(bound.lower, expected.lower)
    assert torch.equal(bound.upper, expected.upper)


@pytest.mark.parametrize(
    "labels",
    [torch.tensor([0, 1]), torch.tensor([0, 1, 3]), torch.tensor([-1, 0, 0]), torch.tensor([0.0, 1.0, 2.0])],
    ids=str,
)
def test_bad_labels_are_refused(labels):
    with pytest.raises(InputError):
        bound_network(nn.Sequential(nn.Flatten(), head(60)).eval(), make_form(SHAPE, 1, 0), labels)


def test_an_input_of_the_wrong_size_is_refused():
    with pytest.raises(InputError):
        bound_network(nn.Sequential(nn.Flatten(), head(61)).eval(), make_form(SHAPE, 1, 0))


def test_one_output_is_no_classifier():
    """With a single class there is no margin, so there is nothing to prove: refuse it, do not certify it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval()
    with pytest.raises(InputError):
        certify(model, torch.rand(1, 1, 2, 2), torch.tensor([0]), "R(1)")
