"""The tiling in exact arithmetic: whatever the range and the splitting, its boxes leave no gap."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from tiltproof import parse
from tiltproof.transforms import Brightness, Compose, TranslationU
from tiltproof.verify.state import Boxes, Tiling

SMALLEST = 5e-324
RANGES = {
    "decimal": ("-0.1", "0.7"),
    "thirds": ("-0.3333333333333333333333", "0.6666666666666666666"),
    "one sided": ("0.1", "0.3"),
    "far from zero": ("1e15", "1000000000000001.3"),
    "huge": ("-1e300", "3e300"),
    "tiny": ("1e-300", "3.7e-300"),
    "denormal": ("-1e-320", "7e-321"),
    "smallest number": ("0", "5e-324"),
    "below the smallest number": ("-1e-330", "1"),
    "one ulp at one": (repr(1.0), repr(float(np.nextafter(1, 2)))),
    "one ulp at zero": ("-5e-324", "0"),
    "one ulp at a thousand": (repr(1000.0), repr(float(np.nextafter(1000, 2000)))),
    "across sixteen powers": ("-1e-8", "1e8"),
}
BASES = (1, 2, 3, 7, 240)


def make(name: str, base: int) -> tuple[Tiling, Fraction, Fraction]:
    """Return the tiling of a range given as text, and the exact values of that text."""
    low, high = RANGES[name]
    tiling = Tiling(parse(f"Tu({low}:{high})"), (base,))
    return tiling, Fraction(low), Fraction(high)


def random_splits(boxes: Boxes, tiling: Tiling, rng: np.random.Generator, rounds: int) -> Boxes:
    """Bisect a random choice of the boxes along random axes, repeatedly."""
    for _ in range(rounds):
        chosen = torch.tensor(rng.random(len(boxes)) < rng.choice([0.05, 0.5]))
        axis = torch.tensor(rng.integers(0, boxes.index.shape[1], len(boxes)))
        chosen &= tiling.can_split(boxes).gather(1, axis[:, None]).flatten()
        if bool(chosen.any()):
            boxes = Boxes.join([boxes[~chosen], boxes[chosen].split(axis[chosen])])
    return boxes


def assert_chain(intervals: list[tuple[float, float]], low: Fraction, high: Fraction) -> None:
    """Assert that, sorted by lower end, each begins at or before the end of what was covered so far, in exact numbers."""
    intervals = sorted(intervals)
    assert Fraction(intervals[0][0]) < low
    covered = Fraction(intervals[0][0])
    for begin, end in intervals:
        assert begin <= end
        assert Fraction(begin) <= covered, f"nothing between {float(covered)!r} and {begin!r}"
        covered = max(covered, Fraction(end))
    assert covered > high


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", RANGES)
def test_boxes_cover_the_text_after_random_splits(name, base):
    tiling, low, high = make(name, base)
    for seed in range(3):
        boxes = random_splits(tiling.first(), tiling, np.random.default_rng(seed), 5 if base > 100 else 12)
        first, second = tiling.bounds(boxes)
        assert bool(torch.isfinite(first).all() & torch.isfinite(second).all())
        assert_chain(list(zip(first[:, 0].tolist(), second[:, 0].tolist(), strict=True)), low, high)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", RANGES)
def test_neighbors_of_different_levels_share_their_edge(name, base):
    """In the order of their fractions of the range, one box's end is the next one's beginning, to the last bit."""
    tiling, _, _ = make(name, base)
    boxes = random_splits(tiling.first(), tiling, np.random.default_rng(base), 8)
    pieces = [base * 2 ** int(level) for level in boxes.level]
    order = sorted(range(len(boxes)), key=lambda k: Fraction(int(boxes.index[k]), pieces[k]))
    edges = [(tiling._edge(boxes.index + step, boxes.level)[:, 0]).tolist() for step in (0, 1)]
    for one, next_one in itertools.pairwise(order):
        assert Fraction(int(boxes.index[one]) + 1, pieces[one]) == Fraction(
            int(boxes.index[next_one]), pieces[next_one]
        )
        assert edges[1][one] == edges[0][next_one]
    low, high = (end[:, 0].tolist() for end in tiling.bounds(boxes))
    assert all({low[k], high[k]} == {edges[0][k], edges[1][k]} for k in range(len(boxes)))
    assert edges[0][order[0]] < float(tiling.low)
    assert edges[1][order[-1]] > float(tiling.high)


def test_the_deepest_boxes_still_meet():
    tiling = Tiling(TranslationU(-0.1, 0.7), (3,))
    box = Boxes(torch.tensor([[1]]), torch.tensor([[0]]))
    rng, beside = np.random.default_rng(0), []
    while bool(tiling.can_split(box).all()):
        halves = box.split(torch.tensor([0]))
        pick = int(rng.integers(2))
        beside.append(halves[slice(1 - pick, 2 - pick)])
        box = halves[slice(pick, pick + 1)]
    assert int(box.level) > 40
    everything = Boxes.join([box, *beside, tiling.first()[slice(0, 1)], tiling.first()[slice(2, 3)]])
    low, high = tiling.bounds(everything)
    assert_chain(list(zip(low[:, 0].tolist(), high[:, 0].tolist(), strict=True)), Fraction(-1, 10), Fraction(7, 10))


@pytest.mark.parametrize("base", [(1, 1), (3, 2), (7, 5)])
def test_two_axes_cover_every_point_after_random_splits(base):
    """Points on the grid of all edges, between them, and one float to either side."""
    tiling = Tiling(Compose(TranslationU(-0.1, 0.7), Brightness(1e-300, 0.3)), base)
    rng = np.random.default_rng(sum(base))
    boxes = random_splits(tiling.first(), tiling, rng, 7)
    low, high = (end.numpy() for end in tiling.bounds(boxes))
    axes = []
    for k, (a, b) in enumerate(((-0.1, 0.7), (1e-300, 0.3))):
        edges = np.unique(np.concatenate([low[:, k], high[:, k]]))
        near = np.concatenate([edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf), rng.uniform(a, b, 50)])
        inside = near[(near >= a) & (near <= b)]
        axes.append(np.append(rng.choice(inside, min(60, len(inside)), replace=False), [a, b]))
    points = np.array(list(itertools.product(*axes)))
    covered = np.zeros(len(points), dtype=bool)
    for a, b in zip(low, high, strict=True):
        covered |= ((points >= a) & (points <= b)).all(1)
    assert covered.all(), points[~covered][:3]
    volume = sum(
        (Fraction(b[0]) - Fraction(a[0])) * (Fraction(b[1]) - Fraction(a[1])) for a, b in zip(low, high, strict=True)
    )
    whole = (Fraction(7, 10) + Fraction(1, 10)) * Fraction(3, 10)
    assert abs(float(volume / whole) - 1) < 1e-9  # and no part lies in two boxes
