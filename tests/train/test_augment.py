"""Crops and flips against a plain loop, and what they are drawn from."""

import pytest
import torch

from tiltproof.train.augment import augment, draw


def plainly(images, offsets):
    """The same, pixel by pixel; a picture's frame is what lies outside of it."""
    result = torch.zeros_like(images)
    _, _, height, width = images.shape
    padding = offsets["padding"]
    for n, (top, left, flipped) in enumerate(offsets["drawn"].T.tolist()):
        for row in range(height):
            for column in range(width):
                source_row = row + top - padding
                source_column = (width - 1 - column if flipped else column) + left - padding
                if 0 <= source_row < height and 0 <= source_column < width:
                    result[n, :, row, column] = images[n, :, source_row, source_column]
    return result


@pytest.mark.parametrize(("padding", "flip"), [(0, True), (2, False), (4, True)])
def test_crops_and_flips_agree_with_a_plain_loop(padding, flip):
    images = torch.rand(12, 3, 7, 9)
    drawn = draw(12, padding, flip, seed=5, step=8)
    result = augment(images, padding=padding, flip=flip, seed=5, step=8)
    assert torch.equal(result, plainly(images, {"drawn": drawn, "padding": padding}))
    assert drawn[:2].max() <= 2 * padding
    assert bool(drawn[2].any()) == flip


def test_nothing_to_do_changes_nothing():
    images = torch.rand(2, 1, 4, 4)
    assert augment(images, padding=0, flip=False, seed=0, step=0) is images


def test_every_offset_occurs():
    drawn = draw(4000, 4, True, seed=0, step=0)
    assert set(drawn[0].tolist()) == set(drawn[1].tolist()) == set(range(9))
    assert 1800 < int(drawn[2].sum()) < 2200


def test_seed_and_step_alone_decide():
    images = torch.rand(8, 1, 6, 6)

    def once(seed, step):
        return augment(images, padding=2, flip=True, seed=seed, step=step)

    first = once(1, 7)
    torch.rand(100)
    assert torch.equal(first, once(1, 7))
    assert not torch.equal(first, once(1, 8))
    assert not torch.equal(first, once(2, 7))


def test_processes_take_their_rows_of_what_one_would_draw():
    images = torch.rand(8, 1, 6, 6)
    whole = augment(images, padding=2, flip=True, seed=1, step=3)
    parts = [
        augment(images[rank * 4 : rank * 4 + 4], padding=2, flip=True, seed=1, step=3, share=(rank, 2))
        for rank in (0, 1)
    ]
    assert torch.equal(whole, torch.cat(parts))
