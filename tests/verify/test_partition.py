"""Bisected boxes recorded in any order, and the tilings made from them, against one image's tree box by box."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltproof.verify import state as splits_module
from tiltproof.verify.state import AXES, Boxes, SplitLog, halves, leaves

DEEPEST = 40  # bisections along one parameter


def plain_text(grid, splits):
    """Write the tree of one image, box by box; ``splits``: node -> parameter."""
    letters, waiting, done, uncut = [], 0, 0, (0,) * len(grid)
    for cell in sorted(node[: len(grid)] for node in splits if node[len(grid) :] == uncut):
        number = 0
        for index, size in zip(cell, grid, strict=True):
            number = number * size + index
        waiting += number - done  # cells that were not bisected
        done = number + 1
        todo = [cell + uncut]
        while todo:
            node = todo.pop()
            if node not in splits:
                waiting += 1
                continue
            letters.append(repeated(waiting) + AXES[splits[node]])
            waiting = 0
            todo += reversed(halves(node, splits[node]))
    return "".join(letters) + repeated(waiting + math.prod(grid) - done)


def repeated(count):
    return "" if count == 0 else "." if count == 1 else f"{count}."


def halved(grid, cuts, lean, luck):
    """Choose boxes of a tiling to bisect, starting from any cells: node -> axis.

    ``lean``: how often the newest box is next, along one parameter if possible, which makes trees deep.
    """
    found, todo = {}, []
    for _ in range(cuts):
        if not todo or luck.random() < 0.1:
            todo.insert(0, tuple(luck.randrange(size) for size in grid) + (0,) * len(grid))
        leaning = luck.random() < lean
        node = todo.pop(-1 if leaning else luck.randrange(len(todo)))
        axes = [axis for axis in range(len(grid)) if node[len(grid) + axis] < DEEPEST]
        if node in found or not axes:
            continue
        found[node] = axes[0] if leaning and luck.random() < 0.5 else luck.choice(axes)
        both = list(halves(node, found[node]))
        luck.shuffle(both)
        todo += both
    return found


def noted(grid, wanted, luck):
    """Record the boxes of each image in random order."""
    notes = [(image, *node, axis) for image, each in enumerate(wanted) for node, axis in each.items()]
    luck.shuffle(notes)
    splits, d = SplitLog.of(len(wanted)), len(grid)
    for part in (notes[::2], notes[1::2]):
        if part:
            table = torch.tensor(part)
            splits.note(table[:, 0], Boxes(table[:, 1 : 1 + d], table[:, 1 + d : -1]), table[:, -1])
    return splits


def written(grid, *wanted):
    return noted(grid, wanted, random.Random(0)).trees(grid)[0]


def test_the_text_of_a_tree():
    assert written((2, 3), {}) == ["6."]
    assert written((1,), {(0, 0): 0}) == ["a2."]
    assert written((16,), {(3, 0): 0}) == ["3.a14."]
    # cell (0, 1) bisected along b, its upper half along a
    assert written((1, 2), {(0, 1, 0, 0): 1, (0, 3, 0, 1): 0}) == [".b.a2."]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.lists(st.integers(0, 60), max_size=5),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.integers(0, 999),
)
def test_tilings_of_many_images(grid, cuts, lean, seed):
    luck, grid = random.Random(seed), tuple(grid)
    wanted = [halved(grid, count, lean, luck) for count in cuts]
    trees, counts = noted(grid, wanted, luck).trees(grid)
    assert trees == [plain_text(grid, each) for each in wanted]
    assert counts == [len(each) for each in wanted]
    for tree, each in zip(trees, wanted, strict=True):
        boxes = math.prod(grid) + len(each)
        assert len(leaves(grid, tree, boxes)) == boxes


@pytest.mark.parametrize("grid", [(3,), (2, 3), (3, 1, 2), (1, 2, 3, 4), (5, 4, 3, 2, 1)])
@pytest.mark.parametrize("lean", [0.98, 1.0])
def test_deep_tilings(grid, lean):
    """At the greatest depth there could be more boxes than a single 64-bit number distinguishes."""
    luck = random.Random(7)
    wanted = [halved(grid, 60 * len(grid), lean, luck) for _ in range(20)]
    assert max(sum(node[len(grid) :]) for each in wanted for node in each) >= min(39, 20 * len(grid))
    assert noted(grid, wanted, luck).trees(grid)[0] == [plain_text(grid, each) for each in wanted]


@pytest.mark.parametrize("grid", [(100_000,), (999, 1000), (10, 1, 101)])
def test_many_cells(grid):
    luck = random.Random(3)
    wanted = [halved(grid, count, 0.3, luck) for count in (0, 1, 2, 9, 400)]
    assert written(grid, *wanted) == [plain_text(grid, each) for each in wanted]


@pytest.mark.parametrize(
    "notes",
    {
        "half of a box that is not halved": [((4, 0, 1, 0), 0)],
        "half of a box that is halved otherwise": [((0, 0, 0, 0), 0), ((0, 1, 0, 1), 0)],
        "halves of halves of nothing": [((0, 0, 0, 0), 0), ((3, 0, 2, 0), 1)],
        "a cell twice": [((1, 1, 0, 0), 0), ((1, 1, 0, 0), 0)],
        "a half twice": [((1, 1, 0, 0), 0), ((3, 1, 1, 0), 0), ((3, 1, 1, 0), 1)],
        "half of two": [((0, 0, 0, 0), 0), ((0, 0, 1, 0), 1), ((0, 0, 0, 1), 0), ((0, 0, 1, 1), 0)],
    }.items(),
    ids=lambda each: each[0],
)
def test_boxes_that_are_no_tree(notes):
    table = torch.tensor([(*node, axis) for node, axis in notes[1]])
    splits = SplitLog.of(2)
    splits.note(torch.ones(len(table), dtype=torch.int64), Boxes(table[:, :2], table[:, 2:4]), table[:, 4])
    with pytest.raises(RuntimeError, match="no tree"):
        splits.trees((3, 2))


def test_too_fine_to_be_counted():
    zero, fine = torch.zeros(1, dtype=torch.int64), (2**31, 2**31)
    for grid, level in ((fine, (0, 0)), ((1, 1), (60, 0))):
        splits = SplitLog.of(1)
        splits.note(zero, Boxes(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([level])), zero)
        with pytest.raises(RuntimeError, match="too fine"):
            splits.trees(grid)
    assert SplitLog.of(1).trees(fine) == ([f"{2**62}."], [0])


def test_splits_of_forgotten_images_are_thrown_away(monkeypatch):
    monkeypatch.setattr(splits_module, "MANY", 4)
    splits = SplitLog.of(3)
    splits.many = 4
    zero = torch.zeros(3, 1, dtype=torch.int64)
    for index in range(4):
        splits.note(torch.arange(3), Boxes(zero + index, zero), torch.zeros(3, dtype=torch.int64))
        splits.forget(torch.tensor([1]))
    assert splits.trees((4,)) == (["aaaa".replace("a", "a2."), "4.", "a2.a2.a2.a2."], [4, 0, 4])
    assert sum(note.shape[1] for note in splits.notes) < 12
