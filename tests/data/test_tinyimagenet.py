"""Tiny ImageNet's folders: the order of images and classes, gray images, the test crop, and every kind of bad text."""

import numpy as np
import pytest
import torch
from PIL import Image

from tiltproof.data import load as load_data
from tiltproof.data import pixel_cache
from tiltproof.data.loading import load_pixels
from tiltproof.errors import InputError

CLASSES = ["n02000000", "n01000000", "n03000000"]
"""In the file's order, which is not sorted."""


def save(path, gray, mode="RGB", size=64):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size), gray, np.uint8)).convert(mode).save(path, "JPEG")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Write three classes of two training images, and three validation images; an image's gray is 20 x class + number."""
    monkeypatch.setattr(pixel_cache, "cache_folder", lambda: tmp_path / "cache")
    folder = tmp_path / "data" / "tinyimagenet" / "tiny-imagenet-200"
    for k, name in enumerate(sorted(CLASSES)):
        for number in (9, 10):
            save(
                folder / "train" / name / "images" / f"{name}_{number}.JPEG", 20 * k + number, "L" if k == 1 else "RGB"
            )
    lines = []
    for number, name in enumerate(["n03000000", "n01000000", "n03000000"]):
        save(folder / "val" / "images" / f"val_{number}.JPEG", 100 + number)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(CLASSES) + "\n")
    return tmp_path / "data"


def inner(root):
    return root / "tinyimagenet" / "tiny-imagenet-200"


def test_training_images_are_whole_and_in_order(root):
    images, labels = load_data("tinyimagenet", root, "train")
    assert (images.shape, images.dtype, labels.dtype) == ((6, 3, 64, 64), torch.float32, torch.int64)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert (255 * images.mean((1, 2, 3))).round().tolist() == [9, 10, 29, 30, 49, 50]


def test_grey_is_read_as_three_equal_channels(root):
    images, _ = load_data("tinyimagenet", root, "train")
    assert torch.equal(images[2, 0], images[2, 1])
    assert torch.equal(images[2, 0], images[2, 2])


def test_test_images_are_the_middle_of_the_validation_images(root):
    path = inner(root) / "val" / "images" / "val_1.JPEG"
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")
    images, labels = load_data("tinyimagenet", root)
    assert (images.shape, labels.tolist()) == ((3, 3, 56, 56), [2, 0, 2])
    with Image.open(path) as image:
        whole = np.asarray(image).transpose(2, 0, 1)
    assert torch.equal(images[1], torch.from_numpy(whole[:, 4:60, 4:60].copy()).float() / 255)


@pytest.mark.parametrize("split", ["train", "test"])
def test_bytes_are_the_same_images(root, split):
    pixels, labels = load_pixels("tinyimagenet", root, split)
    images, same = load_data("tinyimagenet", root, split)
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels.float() / 255, images)
    assert torch.equal(labels, same)


def test_root_is_any_of_the_three_folders(root, monkeypatch):
    for folder in (root, root / "tinyimagenet", inner(root)):
        assert len(load_data("tinyimagenet", folder)[0]) == 3
    monkeypatch.setenv("TILTPROOF_DATA", str(root))
    assert len(load_data("tinyimagenet")[0]) == 3


def test_no_root_and_the_wrong_root(tmp_path, monkeypatch):
    monkeypatch.delenv("TILTPROOF_DATA", raising=False)
    with pytest.raises(InputError, match="not downloaded automatically.*tiny-imagenet-200/wnids.txt"):
        load_data("tinyimagenet")
    with pytest.raises(InputError, match="not in the data folder.*wnids.txt"):
        load_data("tinyimagenet", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("wnids.txt", b"", "name each class once.*0 names"),
        ("wnids.txt", b"n01000000\nn01000000\n", "name each class once"),
        ("wnids.txt", b"n01000000\n../../etc\n", "something other than class names.*etc"),
        ("wnids.txt", b"n0100000\x1b[2J", "something other"),
        ("wnids.txt", b"\xff\xfe", "not UTF-8"),
        ("wnids.txt", b"n01000000\n" * 500_000, "too large"),
        ("val/val_annotations.txt", b"", "lists no images"),
        ("val/val_annotations.txt", b"val_0.JPEG\n", "line 1 .*a tab and a class"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn09000000\n", "line 1 .*n09000000"),
        ("val/val_annotations.txt", b"../../../secret.JPEG\tn01000000\n", "line 1 .*secret"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn01000000\n" * 2, "line 2 .*each file once"),
        ("val/val_annotations.txt", b"val_7.JPEG\tn01000000\n", r"missing.*val_7\.JPEG"),
    ],
)
def test_texts_that_cannot_be_used(root, file, content, message):
    (inner(root) / file).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_data("tinyimagenet", root)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


def test_a_class_without_images(root):
    folder = inner(root) / "train" / "n02000000" / "images"
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(InputError, match="n02000000 has no training images"):
        load_data("tinyimagenet", root, "train")
    folder.rmdir()
    with pytest.raises(InputError, match="n02000000 cannot be read.*No such file"):
        load_data("tinyimagenet", root, "train")


def test_a_image_of_another_size(root):
    save(inner(root) / "val" / "images" / "val_1.JPEG", 5, size=56)
    with pytest.raises(InputError, match=r"val_1\.JPEG has another size.*56 x 56.*keep to 64 x 64"):
        load_data("tinyimagenet", root)
