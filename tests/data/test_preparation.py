"""Resizing and cropping: Pillow's antialiased bilinear filter and torchvision's rounding, stated as formulas; what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from tiltproof.data import load
from tiltproof.data.preparation import Preparation, parse_size
from tiltproof.errors import InputError


def image(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_nothing_to_do():
    assert not Preparation.parse()
    pixels = image(3, 4, 5)
    assert Preparation().apply(pixels, "x") is pixels
    assert np.array_equal(Preparation.parse(resize=4).apply(pixels, "x"), pixels)


@pytest.mark.parametrize(
    ("height", "width", "size", "expected"),
    [(10, 20, 5, (5, 10)), (20, 10, 5, (10, 5)), (10, 15, 7, (7, 10)), (3, 3, 9, (9, 9)), (500, 333, 256, (384, 256))],
)
def test_the_shorter_side(height, width, size, expected):
    """The longer side is int(size * longer / shorter), as in torchvision's Resize."""
    assert Preparation.parse(resize=size).apply(image(1, height, width), "x").shape[1:] == expected


@pytest.mark.parametrize("channels", [1, 3])
def test_the_filter_is_a_triangle_as_wide_as_the_scale(channels):
    """Each pixel of the result is a weighted mean over the pixels that a triangle of half width ``scale`` reaches."""
    pixels = image(channels, 12, 9)
    result = Preparation.parse(resize="5x4").apply(pixels, "x")
    assert result.shape == (channels, 5, 4)
    once = np.rint(np.einsum("wi,chi->chw", weights(9, 4), pixels))
    expected = np.einsum("hi,ciw->chw", weights(12, 5), once)
    assert np.abs(result - expected).max() <= 1


def weights(before, after):
    scale = before / after
    centers = (np.arange(after) + 0.5) * scale
    triangle = np.maximum(0, 1 - np.abs(np.arange(before) + 0.5 - centers[:, None]) / max(scale, 1))
    return triangle / triangle.sum(1, keepdims=True)


@pytest.mark.parametrize(("size", "crop", "first"), [(6, 4, 1), (5, 4, 0), (7, 4, 2), (9, 4, 2), (4, 4, 0)])
def test_the_center_is_torchvisions(size, crop, first):
    """CenterCrop begins at int(round((size - crop) / 2)), and Python rounds halves to even."""
    pixels = image(1, size, size + 2)
    result = Preparation.parse(crop=(crop, crop)).apply(pixels, "x")
    left = round((size + 2 - crop) / 2)
    assert np.array_equal(result, pixels[:, first : first + crop, left : left + crop])


def test_the_order_is_resize_then_crop(tmp_path):
    (tmp_path / "cat").mkdir()
    for k, size in enumerate([(40, 30), (30, 50)]):
        Image.fromarray(image(size[1], size[0], seed=k)).save(tmp_path / "cat" / f"{k}.png")
    images, _ = load(tmp_path, resize=20, crop="16x12", rgb=True)
    assert images.shape == (2, 3, 16, 12)
    assert torch.equal(images[:, 0], images[:, 2])
    with Image.open(tmp_path / "cat" / "0.png") as opened:
        reference = np.asarray(opened.resize((26, 20), Image.Resampling.BILINEAR))
    assert torch.equal(images[0, 0], torch.from_numpy(reference[2:18, 7:19].copy()) / 255)


@pytest.mark.parametrize(
    ("size", "parsed"), [("7", 7), ("7x8", (7, 8)), (7, 7), ((7, 8), (7, 8)), ([7], 7), ("65536", 65536)]
)
def test_sizes(size, parsed):
    assert parse_size(size, "resize") == parsed


@pytest.mark.parametrize(
    "size",
    ["", "0", "-1", "1x2x3", "a", "7x", "1e3", "٣", 0, -3, 2.5, True, (1, 2, 3), (), "70000", "9" * 5000, "7 x8"],
)
def test_sizes_that_are_none(size):
    with pytest.raises(InputError, match="length in pixels.*--crop 224x200"):
        parse_size(size, "crop")


def test_what_cannot_be_prepared():
    with pytest.raises(InputError, match="photo.png is smaller than the crop.*4 x 5, crop 5 x 5.*--resize"):
        Preparation.parse(crop=5).apply(image(1, 4, 5), "photo.png")
    with pytest.raises(InputError, match="becomes too large"):
        Preparation.parse(resize=60_000).apply(image(1, 4, 5), "photo.png")
    with pytest.raises(InputError, match="becomes too large"):
        Preparation.parse(resize=100).apply(image(1, 1, 60_000), "photo.png")


def test_mixed_sizes_and_modes_say_what_to_do(tmp_path):
    Image.fromarray(image(4, 5)).save(tmp_path / "a.png")
    Image.fromarray(image(4, 5, 3)).save(tmp_path / "b.png")
    with pytest.raises(InputError, match=r"b.png is 5 x 4 RGB, a.png is 5 x 4 gray.*--rgb"):
        load(tmp_path, task="any")
    assert load(tmp_path, task="any", rgb=True)[0].shape == (2, 3, 4, 5)
