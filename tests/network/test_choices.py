"""Choices by constant masks and of constants; minus infinity, which a softmax alone reads, in the prover and in the checker."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.support.building_blocks import SHAPE, Function
from tiltproof.checker.form import UNIT32, Form, Scores
from tiltproof.checker.head import KIND
from tiltproof.checker.network import evaluation
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.network import read_network

BOARD = torch.arange(30).view(6, 5) % 3 == 0
MASKED = {
    "relu": lambda x: F.relu(x.masked_fill(BOARD, -math.inf)),
    "a sum": lambda x: x + x.masked_fill(BOARD, -math.inf).amax(1, keepdim=True),
    "parts": lambda x: x.masked_fill(BOARD, -math.inf).chunk(2, 2)[0].softmax(-1),
    "another order": lambda x: x.masked_fill(BOARD, -math.inf).flatten(1).softmax(-1),
    "a sigmoid": lambda x: torch.where(BOARD, -math.inf, x).sigmoid(),
    "twice": lambda x: x.masked_fill(BOARD, -math.inf).masked_fill(BOARD, 0.0),
    "the end": lambda x: x.masked_fill(BOARD, -math.inf),
    "a tensor of infinity": lambda x: torch.where(BOARD, x, torch.tensor(-math.inf)).softmax(-1),
    "nothing left": lambda x: x.masked_fill(torch.ones(5) > 0, -math.inf).softmax(-1),
    "a mask for each image": lambda x: torch.where((torch.ones(len(x), 2, 6, 5) > 0), x, -math.inf).softmax(-1),
    "infinity by a comparison": lambda x: x.masked_fill(x < 0, -math.inf).softmax(-1),
    "plus infinity": lambda x: x.masked_fill(BOARD, math.inf).sigmoid(),
    "a choice that spreads": lambda x: torch.where(BOARD, x.amax((2, 3), keepdim=True), x).softmax(-1),
}


@pytest.mark.parametrize("name", MASKED)
def test_minus_infinity_elsewhere_is_refused(name):
    model = Function(lambda _, x: MASKED[name](x).flatten(1))
    why = {"nothing left": "takes out every entry", "a tensor of infinity": "NaN or infinity"}.get(name, "")
    with pytest.raises(InputError, match=why):
        read_network(model.eval(), SHAPE, torch.rand(1, *SHAPE))
    rows = torch.zeros(3, 2, *SHAPE, dtype=torch.float64)
    with (
        evaluation(model, torch.device("cpu")),
        pytest.raises((UnsupportedOperation, AttributeError), match="checker|forward pass"),
    ):
        model(Form(rows))


def test_a_masked_softmax_is_no_head_of_the_checker():
    """What it was computed from is not kept: the scores that a mask takes out are no scores."""
    form = Form(torch.zeros(3, 1, 4, dtype=torch.float64))
    mask = torch.tensor([True, False, False, False])
    assert F.softmax in KIND
    assert hasattr(F.softmax(form, 1), "call")
    scores = form.masked_fill(mask, -math.inf)
    assert isinstance(scores, Scores)
    with pytest.raises(UnsupportedOperation, match="softmax alone"):
        F.relu(scores)
    result = F.softmax(scores, 1)
    assert not hasattr(result, "call")
    assert result.rows[0, 0, 0] == 0
    assert result.radius[0, 0] == 0


def test_the_checker_rounds_chosen_constants():
    form = Form(torch.zeros(3, 1, 30, dtype=torch.float64), UNIT32)
    chosen = torch.where(BOARD.flatten(), 0.1, form)
    off = abs(float(torch.tensor(0.1)) - 0.1)
    assert bool((chosen.radius[0, BOARD.flatten()] >= off).all())
    assert bool((chosen.center[0, BOARD.flatten()] == 0.1).all())
    assert bool((chosen.rows[:, 0, ~BOARD.flatten()] == 0).all())


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_masked_entries_are_exactly_zero_along_any_dimension(dim):
    mask = torch.rand(2, 6, 5, generator=torch.Generator().manual_seed(dim)) < 0.4
    mask = mask & ~(mask.all(dim - 1, keepdim=True))
    model = Function(lambda _, x: x.masked_fill(mask, -math.inf).softmax(dim).flatten(1))
    network = read_network(model.eval(), SHAPE, torch.rand(1, *SHAPE))
    assert [operation.kind for operation in network.operations] == ["softmax", "reshape"]
    rows = 0.1 * torch.rand(3, 2, *SHAPE, dtype=torch.float64)
    with evaluation(model, torch.device("cpu")):
        result = model(Form(rows))
    assert bool((result.rows[:, :, mask.flatten()] == 0).all())
    exact = model(rows[0])
    assert bool((exact >= result.lower()).all())
    assert bool((exact <= result.upper()).all())


def test_masks_of_the_checker_are_those_of_every_image():
    form = Form(torch.zeros(3, 2, 4, dtype=torch.float64))
    with pytest.raises(UnsupportedOperation):
        form.masked_fill(torch.tensor([[True] * 4, [False] * 4]), 0.0)
    with pytest.raises(UnsupportedOperation):
        torch.where(torch.ones(4), form, 0.0)
