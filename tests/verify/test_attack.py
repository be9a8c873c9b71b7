"""The attack before a proof: few parameters where margins are far from zero, all of them elsewhere."""

import pytest
import torch
from torch import nn

from tiltproof import parse
from tiltproof.verify.attack import Attacker, candidates
from tiltproof.verify.inputs import check_inputs

BRIGHTNESS = parse("B(0.5)")


class Dip(nn.Module):
    """Has the mean's distance from 0.2, minus ``depth``, as its margin: wrong at the brightness that takes an image there."""

    def __init__(self, depth):
        super().__init__()
        self.depth = depth

    def forward(self, x):
        far = x.flatten(1).mean(1, keepdim=True) - 0.2
        far = torch.relu(far) + torch.relu(-far)
        return torch.cat([far - self.depth, 0.0 * far], 1)


def attacker(depth):
    images = torch.full((3, 1, 2, 2), 0.5)
    labels = torch.zeros(3, dtype=torch.int64)
    return Attacker(check_inputs(Dip(depth).eval(), images, labels, BRIGHTNESS), 0)


def tried(attack, hasty):
    """Return the number of evaluations of a search, and its result."""
    count, before = 0, attack.margins_of_each

    def spy(rows, parameters):
        nonlocal count
        count += len(rows) * len(parameters)
        return before(rows, parameters)

    attack.margins_of_each = spy
    known = attack.begin()
    attack.search(known, known.alive(), 24, steps=0, hasty=hasty)
    return count, known.found


def test_no_parameter_is_tried_twice():
    for d in (1, 2, 3):
        points = candidates(24, d, torch.Generator().manual_seed(0)).tolist()
        assert len(points) == len(set(map(tuple, points))) <= 24
        assert {(0.0,) * d, (1.0,) * d, (-1.0,) * d} <= set(map(tuple, points))


@pytest.mark.usefixtures("in_proof")
def test_where_margins_are_near_zero_the_hasty_attack_finds_what_the_other_finds():
    all_of_them, found = tried(attacker(0.01), hasty=False)
    hasty, same = tried(attacker(0.01), hasty=True)
    assert (hasty, same) == (all_of_them, found)
    assert None not in found


@pytest.mark.usefixtures("in_proof")
def test_where_margins_are_far_from_zero_few_parameters_are_tried():
    all_of_them, found = tried(attacker(-1.0), hasty=False)
    hasty, same = tried(attacker(-1.0), hasty=True)
    assert hasty < all_of_them / 2
    assert same == found == [None] * 3
