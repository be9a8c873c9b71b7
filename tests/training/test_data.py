"""Crops and flips against a plain loop, and their random draws."""

import pytest
import torch

from tiltproof.errors import InputError
from tiltproof.training.data import GRAY, augment, draw, erase

CLASSES = torch.arange(12)


def plainly(images, drawn, padding, size):
    """Crop and flip pixel by pixel, with the padding around each image."""
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
    result, labels = augment(images, CLASSES, padding=padding, flip=flip, seed=5, step=8, size=size)
    assert labels is CLASSES
    assert torch.equal(result, plainly(images, drawn, padding, size))
    assert bool(drawn[2].any()) == flip


def test_a_crop_of_the_images_own_size_is_the_image():
    images = torch.rand(3, 1, 6, 6)
    assert augment(images, CLASSES, padding=0, flip=False, seed=0, step=0, size=6)[0] is images


def test_nothing_to_do_changes_nothing():
    images = torch.rand(2, 1, 4, 4)
    assert augment(images, CLASSES, padding=0, flip=False, seed=0, step=0)[0] is images


def test_every_offset_occurs():
    drawn = draw(4000, (8, 5), True, seed=0, step=0)
    assert [set(corner.tolist()) for corner in drawn[:2]] == [set(range(9)), set(range(6))]
    assert 1800 < int(drawn[2].sum()) < 2200


def test_seed_and_step_alone_decide():
    images = torch.rand(8, 1, 6, 6)

    def once(seed, step):
        return augment(images, CLASSES, padding=2, flip=True, seed=seed, step=step)[0]

    first = once(1, 7)
    torch.rand(100)
    assert torch.equal(first, once(1, 7))
    assert not torch.equal(first, once(1, 8))
    assert not torch.equal(first, once(2, 7))


@pytest.mark.parametrize("size", [0, 4])
def test_processes_take_their_rows_of_what_one_would_draw(size):
    images = torch.rand(8, 1, 6, 6)
    common = {"padding": 2, "flip": True, "seed": 1, "step": 3, "size": size}
    angles = torch.arange(1.0, 9.0)
    whole = augment(images, angles, signed=True, **common)
    halves = [slice(0, 4), slice(4, 8)]
    parts = [augment(images[own], angles[own], shard=(k, 2), signed=True, **common) for k, own in enumerate(halves)]
    for one, two in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(one, torch.cat(two))


def test_signed_labels_are_flipped_with_their_images():
    images = torch.zeros(64, 1, 6, 6)
    images[..., 0] = 1  # the left edge
    angles = torch.linspace(-1, 1, 64)
    crops, turned = augment(images, angles, padding=0, flip=True, seed=0, step=0, signed=True)
    at_right = crops[:, 0, 0, -1] == 1
    assert 16 < int(at_right.sum()) < 48
    assert torch.equal(turned, torch.where(at_right, -angles, angles))
    kept = augment(images, angles, padding=0, flip=True, seed=0, step=0)[1]
    assert torch.equal(kept, angles)
    unflipped = augment(images, angles, padding=2, flip=False, seed=0, step=0, signed=True)[1]
    assert torch.equal(unflipped, angles)


def test_what_a_seed_draws_does_not_change():
    """A run begun with an older version continues with the same crops."""
    drawn = draw(6, (8, 8), True, seed=0, step=0)
    assert drawn.tolist() == [[0, 8, 7, 0, 6, 7], [6, 7, 8, 4, 5, 5], [1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize("side", [1, 3, 7, 8])
def test_a_grey_square_anywhere_in_the_image(side):
    images = torch.rand(400, 3, 7, 9)
    result = erase(images, side, seed=3, step=4)
    changed = (result != images).all(1)
    assert torch.equal(result.permute(0, 2, 3, 1)[changed], torch.full_like(result.permute(0, 2, 3, 1)[changed], GRAY))
    assert torch.equal(result.permute(0, 2, 3, 1)[~changed], images.permute(0, 2, 3, 1)[~changed])
    rows, columns = changed.any(2).sum(1), changed.any(1).sum(1)
    assert torch.equal(changed.sum((1, 2)), rows * columns)  # a rectangle, if it has no gaps:
    assert set(rows.tolist()) == {min(side, 7)}
    assert set(columns.tolist()) == {min(side, 9)}
    assert bool(changed.any(0).all())  # every pixel in some image
    halves = [erase(images[k * 200 : (k + 1) * 200], side, seed=3, step=4, shard=(k, 2)) for k in range(2)]
    assert torch.equal(torch.cat(halves), result)


@pytest.mark.parametrize("side", [9, 20])
def test_a_grey_square_as_large_as_the_image_is_refused(side):
    with pytest.raises(InputError, match=f"squares of {side} pixels, images of 7 x 9"):
        erase(torch.rand(4, 3, 7, 9), side, seed=3, step=4)
