"""Images decoded once: by threads in the right order, cached in a file, and decoded again when anything changed."""

import logging
import os
import stat
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from tiltproof.data import pixel_cache
from tiltproof.data.pixel_cache import PixelCache
from tiltproof.errors import InputError

SHAPE = (3, 5, 4)


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Write seven single-color images in a folder; the user's cache folder lies next to it."""
    monkeypatch.setattr(pixel_cache, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(pixel_cache, "CHUNK", 2)
    (tmp_path / "set").mkdir()
    for k in range(7):
        save(tmp_path / "set" / f"{k}.JPEG", 10 * k)
    return tmp_path / "set"


def save(path, gray):
    Image.fromarray(np.full((5, 4, 3), gray, np.uint8)).save(path, "JPEG", quality=95)


@pytest.fixture
def decoded(monkeypatch):
    """Return the names of the images decoded so far."""
    names, decode = [], pixel_cache.decode_image

    def watched(path, formats):
        names.append(path.name)
        return decode(path, formats)

    monkeypatch.setattr(pixel_cache, "decode_image", watched)
    return names


def read(folder, names=None, about="as they are", **resize):
    cache = PixelCache(folder, "all", SHAPE, about, **resize)
    return cache.pixels(names or [f"{k}.JPEG" for k in range(7)])


def files(folder):
    return sorted(path.name for path in folder.rglob("*safetensors*"))


def test_the_images_come_in_the_order_asked_for(images):
    pixels = read(images, ["5.JPEG", "0.JPEG", "3.JPEG"])
    assert (pixels.shape, pixels.dtype) == ((3, *SHAPE), torch.uint8)
    assert pixels.float().mean((1, 2, 3)).round().tolist() == [50, 0, 30]


def test_the_second_time_nothing_is_decoded(images, decoded):
    first = read(images)
    assert sorted(decoded) == [f"{k}.JPEG" for k in range(7)]
    second = read(images)
    assert len(decoded) == 7
    assert torch.equal(first, second)
    assert files(images) == [], "nothing is written into the data"
    assert len(files(images.parent / "cache")) == 1
    second += 1  # a change in memory does not change the file
    assert torch.equal(first, read(images))


def changed_size(folder):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)).save(folder / "3.JPEG")


def cached(folder):
    (path,) = (folder.parent / "cache" / "pixels").iterdir()
    return path


def flipped_byte(folder):
    path = cached(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_short(folder):
    path = cached(folder)
    path.write_bytes(path.read_bytes()[:-5])


def nonsense(folder):
    cached(folder).write_bytes(b"nonsense")


def giant(folder):
    os.truncate(cached(folder), 2**40)


@pytest.mark.parametrize("change", [changed_size, flipped_byte, cut_short, nonsense, giant])
def test_a_change_is_noticed(images, decoded, change):
    read(images)
    change(images)
    pixels = read(images)
    assert len(decoded) == 14
    with Image.open(images / "3.JPEG") as image:
        assert np.array_equal(pixels[3], np.asarray(image).transpose(2, 0, 1))
    read(images)
    assert len(decoded) == 14


def test_other_images_or_another_treatment_are_not_the_same(images, decoded):
    read(images)
    (images / "6.JPEG").rename(images / "7.JPEG")
    names = [f"{k}.JPEG" for k in (0, 1, 2, 3, 4, 5, 7)]
    read(images, names)
    assert len(decoded) == 14
    assert read(images, names[::-1]).float().mean((1, 2, 3))[0].round() == 60
    assert len(decoded) == 21
    assert read(images, names, "inverted", resize=lambda image: 255 - image)[0].float().mean().round() == 255
    assert len(decoded) == 28


def test_resized_images_are_kept_as_they_have_become(images, decoded):
    small = {"resize": lambda image: image[:, :2, :3], "resized": (3, 2, 3)}
    first = read(images, **small)
    assert first.shape == (7, 3, 2, 3)
    assert torch.equal(first, read(images, **small))
    assert len(decoded) == 7
    assert torch.equal(first, read(images)[:, :, :2, :3])


def test_grey_images_become_rgb(images):
    pixels = np.random.default_rng(1).integers(0, 256, (5, 4), np.uint8)
    Image.fromarray(pixels).save(images / "2.JPEG", "JPEG", quality=95)
    with Image.open(images / "2.JPEG") as image:
        assert image.mode == "L"
        gray = torch.from_numpy(np.array(image))
    assert torch.equal(read(images)[2], gray.expand(3, 5, 4))


def test_where_the_cache_cannot_be_written_the_images_are_decoded_again(images, decoded):
    (images.parent / "cache").write_text("a file where a folder should be")
    first, second = read(images), read(images)
    assert len(decoded) == 14
    assert torch.equal(first, second)
    assert files(images.parent) == []


def test_two_folders_of_one_data_set_do_not_share_a_cache(images):
    first = read(images)
    images.rename(images.parent / "moved")
    assert torch.equal(read(images.parent / "moved"), first)
    assert len(files(images.parent / "cache")) == 2


def test_without_the_package_for_downloads(images, decoded, monkeypatch):
    def missing():
        raise ModuleNotFoundError("No module named 'pooch'")

    monkeypatch.setattr(pixel_cache, "cache_folder", missing)
    assert torch.equal(read(images), read(images))
    assert len(decoded) == 14


def test_where_nothing_can_be_written_the_images_are_still_read(images, decoded, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pixel_cache, "_write", full)
    monkeypatch.setattr(pixel_cache, "SLOW", 7)
    assert len(read(images)) == len(read(images)) == 7
    assert len(decoded) == 14
    assert "could not be cached" in caplog.text


def test_others_may_read_the_file(images):
    before = os.umask(0o022)
    try:
        read(images)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cached(images).stat().st_mode) == 0o644


def test_who_waits_is_told_why(images, monkeypatch, caplog):
    monkeypatch.setattr(pixel_cache, "SLOW", 7)
    caplog.set_level(logging.WARNING)
    read(images)
    assert "decoding 7 images" in caplog.text
    caplog.clear()
    read(images)
    assert not caplog.text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), r"missing.*4\.JPEG"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), r"4\.JPEG is damaged|not an image"),
        (lambda path: path.write_text("text"), r"not an image.*4\.JPEG.*JPEG"),
        (lambda path: Image.new("RGB", (4, 5)).save(path, "PNG"), "not an image"),
        (lambda path: Image.new("RGB", (5, 4)).save(path), "another size.*5 x 4.*keep to 4 x 5"),
        (lambda path: Image.new("CMYK", (4, 5)).save(path), "neither 8-bit gray nor RGB"),
    ],
    ids=["missing", "cut", "text", "png", "size", "cmyk"],
)
def test_a_image_that_cannot_be_used_is_named(images, spoil, message):
    spoil(images / "4.JPEG")
    filters = list(warnings.filters)
    with pytest.raises(InputError, match=message):
        read(images)
    assert warnings.filters == filters
    assert not files(images.parent)


def test_more_than_memory_holds(images, monkeypatch):
    monkeypatch.setattr(pixel_cache, "MAX_BYTES", 7 * 60 - 1)
    with pytest.raises(InputError, match="do not fit into memory"):
        read(images)
