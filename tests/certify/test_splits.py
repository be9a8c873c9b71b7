"""Halved boxes that were noted in any order, and the tilings made of them, against one image's tree box by box."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltproof.certify import splits as splits_module
from tiltproof.certify.splits import Splits
from tiltproof.certify.tiling import Boxes
from tiltproof.certify.tree import halves, leaves, tree_text


def halved(grid, cuts, luck):
    """Some boxes of a tiling that are halved, from any cells on: node -> axis."""
    found, todo = {}, [tuple(luck.randrange(size) for size in grid) + (0,) * len(grid) for _ in range(2)]
    for _ in range(cuts):
        node = todo.pop(luck.randrange(len(todo)))
        if node not in found:
            found[node] = luck.randrange(len(grid))
            todo += halves(node, found[node])
        todo.append(tuple(luck.randrange(size) for size in grid) + (0,) * len(grid))
    return found


@pytest.mark.parametrize("most", [2**60, 0])  # all images at once, or one by one
@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3), st.lists(st.integers(0, 30), max_size=5), st.integers(0, 999)
)
def test_tilings_of_many_images(most, grid, cuts, seed):
    luck, grid = random.Random(seed), tuple(grid)
    wanted = [halved(grid, count, luck) for count in cuts]
    notes = [(image, *node, axis) for image, each in enumerate(wanted) for node, axis in each.items()]
    luck.shuffle(notes)
    splits, d = Splits(len(cuts)), len(grid)
    for part in (notes[::2], notes[1::2]):
        if part:
            table = torch.tensor(part)
            splits.note(table[:, 0], Boxes(table[:, 1 : 1 + d], table[:, 1 + d : -1]), table[:, -1])
    kept, splits_module.MOST = splits_module.MOST, most
    try:
        trees, counts = splits.trees(grid)
    finally:
        splits_module.MOST = kept
    assert trees == [tree_text(grid, each) for each in wanted]
    assert counts == [len(each) for each in wanted]
    for tree, each in zip(trees, wanted, strict=True):
        boxes = torch.tensor(grid).prod().item() + len(each)
        assert len(leaves(grid, tree, boxes)) == boxes


def test_a_deep_tiling_of_one_parameter():
    """As deep as boxes get."""
    splits, node = Splits(1), (2, 0)
    wanted = {}
    for _ in range(40):
        wanted[node] = 0
        splits.note(
            torch.tensor([0]), Boxes(torch.tensor([[node[0]]]), torch.tensor([[node[1]]])), torch.zeros(1).long()
        )
        node = halves(node, 0)[1]
    assert splits.trees((3,))[0] == [tree_text((3,), wanted)]


def test_splits_of_forgotten_images_are_thrown_away(monkeypatch):
    monkeypatch.setattr(splits_module, "MANY", 4)
    splits = Splits(3)
    splits.many = 4
    zero = torch.zeros(3, 1, dtype=torch.int64)
    for index in range(4):
        splits.note(torch.arange(3), Boxes(zero + index, zero), torch.zeros(3, dtype=torch.int64))
        splits.forget(torch.tensor([1]))
    assert splits.trees((4,)) == (["aaaa".replace("a", "a2."), "4.", "a2.a2.a2.a2."], [4, 0, 4])
    assert sum(map(len, splits.notes)) < 12
