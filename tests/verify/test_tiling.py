"""The boxes of a range share their edges to the last bit and reach past its ends."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltproof import parse
from tiltproof.transforms import Rotation, TranslationU
from tiltproof.verify.state import Boxes, Tiling

RANGES = [
    Rotation(30),
    Rotation(-10, 25),
    TranslationU(0.1),
    TranslationU(1e-300),
    TranslationU(-3, 1e17),
    TranslationU(5e-324),
]


@pytest.mark.parametrize("transform", RANGES, ids=str)
@pytest.mark.parametrize("base", [1, 3, 7, 240, 1000])
def test_uniform_grid_is_a_chain_from_end_to_end(transform, base):
    tiling = Tiling(transform, (base,))
    low, high = tiling.bounds(tiling.first())
    assert torch.equal(low[1:], high[:-1])  # neighbors share their edge
    assert float(low[0]) < transform.low[0]
    assert float(high[-1]) > transform.high[0]
    assert len(low) == base


@given(st.integers(1, 50), st.lists(st.booleans(), max_size=30), st.floats(-300, 0), st.floats(1e-9, 300))
@settings(max_examples=100, deadline=None)
def test_halves_cover_their_parent(base, path, start, width):
    """Follow a random path of bisections: both halves together are exactly the parent."""
    tiling = Tiling(TranslationU(start, start + width), (base,))
    box = Boxes(torch.tensor([[base // 2]]), torch.tensor([[0]]))
    for upper in path:
        halves = box.split(torch.tensor([0]))
        low, high = tiling.bounds(halves)
        parent_low, parent_high = tiling.bounds(box)
        assert float(low[0]) == float(parent_low)
        assert float(high[1]) == float(parent_high)
        assert float(high[0]) == float(low[1])
        box = halves[slice(1, 2)] if upper else halves[slice(0, 1)]


def test_decimal_ends_are_inside():
    low, high = Tiling(parse("R(0.3)"), (1,)).bounds(Tiling(parse("R(0.3)"), (1,)).first())
    assert Fraction(float(low)) < Fraction(-3, 10)
    assert Fraction(float(high)) > Fraction(3, 10)


def test_several_axes():
    tiling = Tiling(parse("R(2), Sh(2)"), (3, 2))
    low, high = tiling.bounds(tiling.first())
    assert len(low) == 6
    area = sum(float((b - a).prod()) for a, b in zip(low, high, strict=True))
    assert area == pytest.approx(16)
    for point in itertools.product((-2, -0.7, 0, 0.66, 2), (-2, 0, 1.3, 2)):
        assert any(
            all(a <= p <= b for a, p, b in zip(lo, point, hi, strict=True))
            for lo, hi in zip(low.tolist(), high.tolist(), strict=True)
        )
