"""The conversion advice for images of other modes works verbatim: the copy holds the right values, the file is unchanged."""

import numpy as np
import pytest
from PIL import Image

from tiltproof.data import load_folder
from tiltproof.errors import InputError

SIZE = (4, 3)
RAMP = (np.arange(12) * 5957).reshape(3, 4).astype(np.uint16)
"""0 to 65,527: clipped at 255 it would be white except for one pixel."""
COLORS = np.random.default_rng(0).integers(0, 256, (3, 4, 3)).astype(np.uint8)
GREY = COLORS[..., 0]
ALPHA = np.array([[0, 255, 128, 3]] * 3).astype(np.uint8)


def over_white(values):
    share = (ALPHA if values.ndim == 2 else ALPHA[..., None]) / 255
    return values * share + 255 * (1 - share)


def eight_bits(path):
    Image.fromarray(RAMP).save(path)
    return RAMP / 257


def portable_greymap(path):
    path.write_bytes(b"P5 4 3 65535\n" + RAMP.astype(">u2").tobytes())
    return RAMP / 257


def twelve_bits(path):
    """Write two 12-bit values in three bytes, as scanners and microscopes do."""
    values = (np.arange(12) * 372).clip(0, 4095)
    text = "".join(f"{value:012b}" for value in values)
    content = int(text, 2).to_bytes(18, "big")
    tags = [(256, 4, 4), (257, 4, 3), (258, 3, 12), (259, 3, 1), (262, 3, 1), (273, 4, 200), (277, 3, 1), (278, 4, 3)]
    tags.append((279, 4, 18))
    entries = b"".join(
        tag.to_bytes(2, "little") + kind.to_bytes(2, "little") + (1).to_bytes(4, "little") + value.to_bytes(4, "little")
        for tag, kind, value in tags
    )
    head = b"II*\0\x08\0\0\0" + len(tags).to_bytes(2, "little") + entries + bytes(4)
    path.write_bytes(head.ljust(200, b"\0") + content)
    return values.reshape(3, 4) / 4095 * 255


def with_alpha(path):
    Image.fromarray(np.dstack([COLORS, ALPHA])).save(path)
    return over_white(COLORS)


def grey_with_alpha(path):
    Image.fromarray(np.dstack([GREY, ALPHA])).save(path)
    return over_white(GREY)


def palette(path):
    picture = Image.fromarray((np.arange(12) % 3).reshape(3, 4).astype(np.uint8))
    picture.putpalette([255, 0, 0, 10, 20, 30, 0, 0, 255])
    picture.save(path)
    return np.array([[255, 0, 0], [10, 20, 30], [0, 0, 255]])[np.arange(12).reshape(3, 4) % 3]


def palette_with_a_transparent_color(path):
    picture = Image.fromarray((np.arange(12) % 2).reshape(3, 4).astype(np.uint8))
    picture.putpalette([255, 0, 0, 10, 20, 30])
    picture.save(path, transparency=0)
    return np.array([[255, 255, 255], [10, 20, 30]])[np.arange(12).reshape(3, 4) % 2]


def grey_with_a_transparent_level(path):
    Image.fromarray((np.arange(12) % 2 * 100).reshape(3, 4).astype(np.uint8)).save(path, transparency=0)
    return np.array([255, 100])[np.arange(12).reshape(3, 4) % 2]


def one_transparent_color(path):
    colors = np.array([[255, 0, 0], [10, 20, 30]], dtype=np.uint8)[np.arange(12).reshape(3, 4) % 2]
    Image.fromarray(colors).save(path, transparency=(255, 0, 0))
    return np.array([[255, 255, 255], [10, 20, 30]])[np.arange(12).reshape(3, 4) % 2]


def one_bit(path):
    Image.fromarray(np.arange(12).reshape(3, 4) % 5 == 0).save(path)
    return (np.arange(12).reshape(3, 4) % 5 == 0) * 255


def inks(path):
    """Ink subtracts light, and black ink darkens all three channels."""
    values = np.dstack([255 - COLORS, np.zeros((3, 4), np.uint8)])
    Image.fromarray(values, "CMYK").save(path)
    return COLORS


def luma_and_chroma(path):
    picture = Image.fromarray(COLORS).convert("YCbCr")
    picture.save(path)
    return np.asarray(picture.convert("RGB"))


ADVICE = {
    "16-bit.png": eight_bits,
    "16-bit.tiff": eight_bits,
    "16-bit.pgm": portable_greymap,
    "12-bit.tiff": twelve_bits,
    "RGBA.png": with_alpha,
    "LA.png": grey_with_alpha,
    "P.png": palette,
    "P with transparency.png": palette_with_a_transparent_color,
    "L with transparency.png": grey_with_a_transparent_level,
    "RGB with transparency.png": one_transparent_color,
    "1.png": one_bit,
    "1.tiff": one_bit,
    "CMYK.tiff": inks,
    "YCbCr.tiff": luma_and_chroma,
    'it\'s "quoted".png': with_alpha,
}


def refused(folder, name):
    rows = f'filename,label\n"{name.replace(chr(34), chr(34) * 2)}",0\n'
    (folder / "labels.csv").write_text(rows)
    with pytest.raises(InputError, match="neither 8-bit gray nor RGB") as caught:
        load_folder(folder)
    return caught.value


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_is_right(tmp_path, name):
    wanted = ADVICE[name](tmp_path / name)
    before = (tmp_path / name).read_bytes()
    error = refused(tmp_path, name)
    said, _, program = error.do.partition(": ")
    assert "write a copy" in said
    exec(program, {})
    assert (tmp_path / name).read_bytes() == before, "the picture itself is as it was"
    (copy,) = {path.name for path in tmp_path.iterdir()} - {name, "labels.csv"}
    rows = f'filename,label\n"{copy.replace(chr(34), chr(34) * 2)}",0\n'
    (tmp_path / "labels.csv").write_text(rows)
    images, _ = load_folder(tmp_path)
    seen = images[0].numpy() * 255
    assert seen.shape[0] == (3 if wanted.ndim == 3 else 1)
    assert np.abs(seen - (wanted.transpose(2, 0, 1) if wanted.ndim == 3 else wanted[None])).max() <= 1.01


def test_the_copy_takes_no_other_pictures_name(tmp_path):
    with_alpha(tmp_path / "a.png")
    for name in ("a-rgb.png", "a-rgb-2.png"):
        Image.new("RGB", SIZE, "red").save(tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    exec(refused(tmp_path, "a.png").do.partition(": ")[2], {})
    assert {path: path.read_bytes() for path in before} == before
    assert (tmp_path / "a-rgb-3.png").exists()


@pytest.mark.parametrize(("mode", "name"), [("I", "a.tiff"), ("F", "a.tiff"), ("LAB", "a.tiff")])
def test_where_the_scale_is_not_known_no_program_is_offered(tmp_path, mode, name):
    Image.new(mode, SIZE).save(tmp_path / name)
    error = refused(tmp_path, name)
    assert "Image.open" not in str(error)
    assert "under another name" in error.do


def test_the_reason_is_that_of_the_mode(tmp_path):
    for name, words in (("16-bit.png", "16 bits"), ("LA.png", "alpha"), ("P.png", "palette"), ("1.png", "1 bit")):
        ADVICE[name](tmp_path / name)
        assert words in refused(tmp_path, name).why
    inks(tmp_path / "CMYK.tiff")
    assert "CMYK" in refused(tmp_path, "CMYK.tiff").why
