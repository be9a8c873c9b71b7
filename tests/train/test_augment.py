"""Crops and flips against a plain loop, and what they are drawn from."""

import pytest
import torch

from tiltproof.train.augment import augment, draw


def plainly(images, drawn, padding, size):
    """The same, pixel by pixel; a picture's frame is what lies outside of it."""
    number, channels, height, width = images.shape
    result = torch.zeros(number, channels, size or height, size or width)
    rows, columns = result.shape[2:]
    for n, (top, left, flipped) in enumerate(drawn.T.tolist()):
        for row in range(rows):
            for column in range(columns):
                source_row = row + top - padding
                source_column = (columns - 1 - column if flipped else column) + left - padding
                if 0 <= source_row < height and 0 <= source_column < width:
                    result[n, :, row, column] = images[n, :, source_row, source_column]
    return result


@pytest.mark.parametrize(
    ("padding", "flip", "size"), [(0, True, 0), (2, False, 0), (4, True, 0), (0, False, 5), (0, True, 6), (3, True, 7)]
)
def test_crops_and_flips_agree_with_a_plain_loop(padding, flip, size):
    images = torch.rand(12, 3, 7, 9)
    room = (7 + 2 * padding - (size or 7), 9 + 2 * padding - (size or 9))
    drawn = draw(12, room, flip, seed=5, step=8)
    result = augment(images, padding=padding, flip=flip, seed=5, step=8, size=size)
    assert torch.equal(result, plainly(images, drawn, padding, size))
    assert bool(drawn[2].any()) == flip


def test_a_crop_of_the_pictures_own_size_is_the_picture():
    images = torch.rand(3, 1, 6, 6)
    assert augment(images, padding=0, flip=False, seed=0, step=0, size=6) is images


def test_nothing_to_do_changes_nothing():
    images = torch.rand(2, 1, 4, 4)
    assert augment(images, padding=0, flip=False, seed=0, step=0) is images


def test_every_offset_occurs():
    drawn = draw(4000, (8, 5), True, seed=0, step=0)
    assert [set(corner.tolist()) for corner in drawn[:2]] == [set(range(9)), set(range(6))]
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


@pytest.mark.parametrize("size", [0, 4])
def test_processes_take_their_rows_of_what_one_would_draw(size):
    images = torch.rand(8, 1, 6, 6)
    common = {"padding": 2, "flip": True, "seed": 1, "step": 3, "size": size}
    whole = augment(images, **common)
    parts = [augment(images[rank * 4 : rank * 4 + 4], share=(rank, 2), **common) for rank in (0, 1)]
    assert torch.equal(whole, torch.cat(parts))


def test_what_a_seed_draws_does_not_change():
    """A run that was begun before goes on with the same crops."""
    drawn = draw(6, (8, 8), True, seed=0, step=0)
    assert drawn.tolist() == [[0, 8, 7, 0, 6, 7], [6, 7, 8, 4, 5, 5], [1, 1, 1, 1, 0, 0]]
