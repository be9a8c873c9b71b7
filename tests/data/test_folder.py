"""A folder of images with a labels.csv: order, values, and every kind of unusable row or image."""

import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from tiltproof.data import load as load_data
from tiltproof.data import load_folder
from tiltproof.errors import InputError


def save(folder, name, pixels):
    Image.fromarray(np.asarray(pixels, np.uint8)).save(folder / name)


@pytest.fixture
def folder(tmp_path):
    """Write two gray images, 3 wide and 2 high, listed in non-alphabetical order."""
    save(tmp_path, "a.png", [[0, 51, 102], [153, 204, 255]])
    save(tmp_path, "b.png", np.full((2, 3), 255))
    (tmp_path / "labels.csv").write_text("filename,label\nb.png,4\na.png,1\n")
    return tmp_path


def test_rows_keep_their_order(folder):
    images, labels = load_folder(folder)
    assert labels.tolist() == [4, 1]
    assert (images.shape, images.dtype, labels.dtype) == ((2, 1, 2, 3), torch.float32, torch.int64)
    assert torch.allclose(images[1, 0], torch.tensor([[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]]))
    assert torch.equal(load_data(folder)[0], images)


def test_rgb_planes_and_extra_columns(tmp_path):
    save(tmp_path, "red.png", np.tile([255, 0, 0], (2, 2, 1)))
    (tmp_path / "labels.csv").write_text("\ufefflabel,note,filename\n 7 ,hello,red.png\n", encoding="utf-8")
    images, labels = load_folder(tmp_path)
    assert images[0, :, 0, 0].tolist() == [1, 0, 0]
    assert labels.tolist() == [7]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"lacks the column filename and label.*\(empty\)"),
        ("b.png,4\na.png,1\n", "lacks the column filename and label.*make the first line"),
        ("filename,class\na.png,1\n", "lacks the column label"),
        ("filename,label\n", "lists no images"),
        ("filename,label\na.png\n", "line 2 .*needs a filename and a label"),
        ("filename,label\na.png,cat\n", "line 2 .*class number.*Got: cat"),
        ("filename,label\na.png,-1\n", "class number"),
        ("filename,label\na.png,1.0\n", "class number"),
        ("filename,label\nmissing.png,1\n", "missing.*missing.png"),
        ("filename,label\n../secret.png,1\n", "outside the folder"),
        ("filename,label\n/etc/passwd,1\n", "outside the folder"),
        ("filename,label\nlabels.csv,1\n", "not an image"),
        ('filename,label\n"a.png,1\n', "cannot be read as CSV"),
    ],
)
def test_a_table_that_cannot_be_used(folder, table, message):
    (folder / "labels.csv").write_text(table)
    with pytest.raises(InputError, match=message):
        load_folder(folder)


def test_no_table_and_no_folder(tmp_path):
    with pytest.raises(InputError, match="no labels.csv"):
        load_folder(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        load_folder(tmp_path / "nowhere")
    (tmp_path / "labels.csv").write_bytes(b"filename,label\n\xff\xfe.png,1\n")
    with pytest.raises(InputError, match="UTF-8"):
        load_folder(tmp_path)


def test_sizes_must_agree(folder):
    save(folder, "a.png", np.zeros((2, 4)))
    with pytest.raises(InputError, match="one size and mode.*a.png is 4 x 2 gray, b.png is 3 x 2 gray"):
        load_folder(folder)


def test_modes_must_agree(folder):
    save(folder, "a.png", np.zeros((2, 3, 3)))
    with pytest.raises(InputError, match="a.png is 3 x 2 RGB"):
        load_folder(folder)


@pytest.mark.parametrize("mode", ["RGBA", "P", "1", "LA"])
def test_other_modes_are_refused(folder, mode):
    Image.new(mode, (3, 2)).save(folder / "a.png")
    with pytest.raises(InputError, match="neither 8-bit gray nor RGB.*convert"):
        load_folder(folder)


def test_a_damaged_image(folder):
    whole = (folder / "a.png").read_bytes()
    (folder / "a.png").write_bytes(whole[: len(whole) - 24])
    with pytest.raises(InputError, match=r"a\.png is damaged"):
        load_folder(folder)


@pytest.mark.parametrize("size", [(4096, 4096), (30_000, 30_000)], ids=["large", "bomb"])
def test_an_image_bomb_is_refused_before_it_is_decoded(folder, size):
    (folder / "a.png").write_bytes(_png_header(*size))
    with pytest.raises(InputError, match="too large"):
        load_folder(folder)


def _png_header(width, height):
    """Return a PNG that announces a size and contains next to nothing."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)
