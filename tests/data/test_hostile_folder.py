"""A hostile folder of images: names that lead elsewhere, tables and images made to hang or to exhaust memory."""

import io
import os
import struct

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from tiltproof.data import load_folder
from tiltproof.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """Write one image, and a secret next to the folder."""
    inside = tmp_path / "photos"
    inside.mkdir()
    Image.new("L", (3, 2)).save(inside / "a.png")
    Image.new("L", (3, 2)).save(tmp_path / "secret.png")
    return inside


def refused(folder, message, *names):
    (folder / "labels.csv").write_text("filename,label\n" + "".join(f"{name},1\n" for name in names))
    with pytest.raises(InputError, match=message) as caught:
        load_folder(folder)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("name", ["../secret.png", "x/../../secret.png", "/etc/passwd", "/dev/zero", "."])
def test_names_that_lead_elsewhere(folder, name):
    refused(folder, "outside the folder|not a regular file", name)
    refused(folder, "outside the folder|not a regular file", "a.png", name)


def test_links_that_lead_elsewhere(folder):
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "up").symlink_to(folder.parent)
    (folder / "loop.png").symlink_to("loop.png")
    refused(folder, "outside the folder", "link.png")
    refused(folder, "outside the folder", "up/secret.png")
    refused(folder, "cannot be found|damaged|missing", "loop.png")
    (folder / "same.png").symlink_to("a.png")
    (folder / "labels.csv").write_text("filename,label\nsame.png,1\n")
    assert len(load_folder(folder)[0]) == 1


def test_pipes_and_devices(folder):
    os.mkfifo(folder / "pipe.png")
    refused(folder, "not a regular file", "pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    refused(folder, "outside the folder", "zero.png")
    (folder / "labels.csv").unlink()
    os.mkfifo(folder / "labels.csv")
    with pytest.raises(InputError, match="not a regular file"):
        load_folder(folder)


@pytest.mark.parametrize("name", ["a\0.png", "a\x1b[2J.png", "x" * 2000, '"a\nb.png"', "x" * 500])
def test_unusable_names(folder, name):
    refused(folder, "invalid filename|damaged|cannot be found|missing", name)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"filename,label\n" + b"x" * 200_000 + b",1\n", "field larger than field limit"),
        (b"filename,label\n" + b"a.png,1\n" * 250_001, "more than 250,000 rows"),
        (b"filename,label" + b",x" * 200 + b"\n" + b"a.png,1\n", "too many columns"),
        (b"x" * (2**25 + 1), "too large.*bytes"),
        (bytes(1000), "lacks the column"),
        (bytes(range(256)), "UTF-8"),
        ("filename,label\na.png,1\n".encode("utf-16"), "UTF-8"),
        (b"filename,label\na.png," + b"9" * 5000 + b"\n", "class number"),
        (b"filename,label\na.png,\x1b[31m\n", r"class number.*'\\x1b\[31m'"),
    ],
    ids=["line", "rows", "columns", "size", "zeros", "binary", "utf-16", "label", "escape"],
)
def test_hostile_tables(folder, table, message, little_memory):
    (folder / "labels.csv").write_bytes(table)
    with little_memory(300 * 2**20), pytest.raises(InputError, match=message) as caught:
        load_folder(folder)
    assert str(caught.value).isprintable()


def tiff(tags, data=b""):
    """Return an 8-bit gray TIFF with these tags on top of the usual ones."""
    directory = ImageFileDirectory_v2()
    usual = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: 64}
    for tag, value in {**usual, **tags}.items():
        directory[tag] = value
    buffer = io.BytesIO()
    directory.save(buffer)
    return buffer.getvalue() + data


BOMBS = {
    "bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
    "ppm": b"P6 60000 60000 255\n" + bytes(100),
    "webp": b"RIFF"
    + struct.pack("<I", 100)
    + b"WEBPVP8X"
    + struct.pack("<II", 10, 0)
    + b"\xff\xff\x00" * 2
    + bytes(80),
    "lossless webp": b"RIFF"
    + struct.pack("<I", 100)
    + b"WEBPVP8L"
    + struct.pack("<IBI", 80, 0x2F, 2**28 - 1)
    + bytes(80),
    "lossy webp": b"RIFF"
    + struct.pack("<I", 100)
    + b"WEBPVP8 "
    + struct.pack("<I", 80)
    + b"\x10\0\0\x9d\x01\x2a\xff\x3f\xff\x3f"
    + bytes(80),
    "tiff": tiff({256: 60_000, 257: 60_000}, bytes(100)),
    "tile of tiff": tiff({259: 8, 322: 40_000, 323: 40_000, 324: 8, 325: 64}, bytes(100)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_image_bombs(folder, name, little_memory):
    (folder / "bomb").write_bytes(BOMBS[name])
    with little_memory():
        refused(folder, "too large", "bomb")


def test_a_file_too_large_for_its_pixels(folder):
    with (folder / "large.png").open("wb") as stream:
        stream.truncate(2**40)
    refused(folder, "too large.*bytes", "large.png")


def test_a_jpeg_of_very_many_scans(folder):
    buffer = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    last = content.rindex(b"\xff\xda")
    (folder / "scans.jpg").write_bytes(content[:-2] + content[last:-2] * 5000 + content[-2:])
    refused(folder, r"5,\d\d\d scans", "scans.jpg")


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_several_frames(folder, format):
    frames = [Image.new("RGB", (3, 2), color) for color in ("red", "green", "blue")]
    frames[0].save(folder / "frames", format, save_all=True, append_images=frames[1:])
    refused(folder, "several frames.*separate file", "frames")


def test_a_photograph_with_a_preview_behind_it_is_the_photograph(folder):
    Image.new("RGB", (8, 8), "white").save(
        folder / "p.jpg", "MPO", save_all=True, append_images=[Image.new("RGB", (4, 4))]
    )
    (folder / "labels.csv").write_text("filename,label\np.jpg,1\n")
    images, _ = load_folder(folder)
    assert images.shape == (1, 3, 8, 8)
    assert images.min() == 1


def test_libtiff_keeps_quiet(folder, capfd):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "b.tiff", compression="tiff_adobe_deflate")
    content = bytearray((folder / "b.tiff").read_bytes())
    content[60:90] = bytes(30)
    (folder / "b.tiff").write_bytes(content)
    refused(folder, "damaged|not an image", "b.tiff")
    assert capfd.readouterr() == ("", "")
