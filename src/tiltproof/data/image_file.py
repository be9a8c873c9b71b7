"""What to do about a picture that is neither 8-bit grey nor RGB: a program that writes a copy, for each mode the right one.

The copy has another name, which nothing else has, and lossless PNG; the picture itself is left as it is. What a mode does not tell, such as
the scale of 32-bit numbers, is left to the user.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tiltproof.errors import InputError, shown

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

TIFF_BITS = 258
OPEN = "from PIL import Image; "
COMPOSITE = (
    OPEN + 'picture = Image.open({source}).convert("RGBA"); '
    'Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("{mode}").save({target})'
)
CONVERT = OPEN + 'Image.open({source}).convert("{mode}").save({target})'
SCALE = (
    "import numpy; "
    + OPEN
    + 'Image.fromarray(numpy.rint(numpy.asarray(Image.open({source})) / {scale}).astype("uint8")).save({target})'
)
NO_SCALE = "save it under another name as 8-bit grey or RGB, its values scaled to 0 to 255, and list that copy"


def conversion_advice(picture: Picture, path: Path) -> tuple[str, str]:
    """The reason why an opened picture cannot be taken, and what to do."""
    mode = picture.mode
    if mode.startswith("I;16") or (mode == "I" and picture.format in ("PNG", "PPM")):
        bits = _bits(picture)
        return f"it has {bits} bits a pixel", _program(SCALE, "8bit", path, scale=f"{(2**bits - 1) / 255:.6g}")
    if mode in ("LA", "La", "L"):
        return "it has an alpha channel", _program(COMPOSITE, "grey", path, "over white, ", mode="L")
    if mode in ("RGBA", "RGBa", "PA") or "transparency" in picture.info:
        return "it has an alpha channel", _program(COMPOSITE, "rgb", path, "over white, ", mode="RGB")
    if mode == "1":
        return "it has 1 bit a pixel", _program(CONVERT, "grey", path, mode="L")
    if mode == "P":
        return "it has a palette", _program(CONVERT, "rgb", path, mode="RGB")
    if mode in ("CMYK", "YCbCr", "RGBX"):
        return f"its colours are {mode}", _program(CONVERT, "rgb", path, mode="RGB")
    return f"pixels of mode {mode}, whose scale is not known", NO_SCALE


def _bits(picture: Picture) -> int:
    """Of a grey picture whose mode has room for 16: TIFF may have 12."""
    bits = getattr(picture, "tag_v2", {}).get(TIFF_BITS, (16,))
    return bits[0] if isinstance(bits, tuple) and bits[0] in (12, 16) else 16


def _program(text: str, word: str, path: Path, how: str = "", **settings: str) -> str:
    target, count = path.with_name(f"{path.stem}-{word}.png"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.stem}-{word}-{count}.png")
    program = text.format(source=repr(str(path)), target=repr(str(target)), **settings)
    return f"write a copy, {how}and list that in labels.csv, with Python: {program}"


# The middle of pictures.


def center_crop(images: Tensor, size: int) -> Tensor:
    """The middle ``size`` x ``size`` pixels of images [N, C, H, W]; of an odd rest, the larger half is cut off below and right.

    >>> import torch
    >>> center_crop(torch.arange(20).view(1, 1, 4, 5), 2).flatten().tolist()
    [6, 7, 11, 12]
    """
    height, width = images.shape[-2:]
    if not 0 < size <= min(height, width):
        raise InputError("a crop must fit into the picture", got=f"{size} x {size} out of {height} x {width}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


# One image file as pixels, with everything a hostile file can declare checked before its pixels are decoded.


if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF")
MODES = ("L", "RGB")
MOST_PIXELS_PER_IMAGE = 2048 * 2048
MOST_BYTES_PER_FILE = 2**26
MOST_JPEG_SCANS = 100
"""A progressive JPEG has about ten; each, however short, makes the decoder visit every pixel again."""
TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT = 322, 323

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its remarks on damaged files reach the terminal


def read_image(path: Path) -> np.ndarray:
    """One image as unsigned bytes [C, H, W]."""
    with strict_pillow():
        return decode_image(path, FORMATS)


@contextlib.contextmanager
def strict_pillow() -> Iterator[None]:
    """No remarks of Pillow's, and an error for a bomb; for the whole process, so threads decode inside of one such block."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode_image(path: Path, formats: tuple[str, ...]) -> np.ndarray:
    """As `read_image`, of these formats alone, inside of `strict_pillow`; TIFF is not for threads."""
    from PIL import Image, UnidentifiedImageError

    try:
        content = _checked_content(path)
        # From memory: a read of more than there is then costs nothing, and a length in the file may be absurd.
        with Image.open(io.BytesIO(content), formats=formats) as picture:
            _check_picture(picture, path)
            with _libtiff_silenced() if picture.format == "TIFF" else contextlib.nullcontext():
                pixels = np.asarray(picture)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("a listed image is missing", got=path) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(path, "more pixels than any reasonable photograph") from None
    except UnidentifiedImageError:
        raise InputError(f"not an image: {path}", do=f"use one of {', '.join(formats)}") from None
    except MemoryError:
        raise _too_large(path, "more than fits into memory") from None
    except Exception as error:  # Pillow's decoders answer damage with many types of exception
        raise InputError(f"the image {path} is damaged", got=_short(error), why="the file was cut short") from None
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise InputError(f"the image {path} is neither 8-bit grey nor RGB", got=f"{pixels.dtype} {pixels.shape}")
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _checked_content(path: Path) -> bytes:
    """The file, after what can be told without Pillow, whose readers of WebP and JPEG do not check it or do so late."""
    size = path.stat().st_size
    if not path.is_file():  # a pipe would wait forever, /dev/zero never end
        raise InputError("a listed image is not a regular file", got=path)
    if size > MOST_BYTES_PER_FILE:
        raise InputError(
            f"the image file {path} is too large", got=f"{size:,} bytes", do=f"keep to {MOST_BYTES_PER_FILE:,} bytes"
        )
    with path.open("rb") as stream:
        content = stream.read(size)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        _check_size(_webp_size(content), path)
    scans = content.count(b"\xff\xda") if content.startswith(b"\xff\xd8") else 0
    if scans > MOST_JPEG_SCANS:
        raise InputError(f"the image {path} is damaged", got=f"a JPEG of {scans:,} scans")
    return content


@contextlib.contextmanager
def _libtiff_silenced() -> Iterator[None]:
    """libtiff, which unpacks compressed TIFF for Pillow, writes a line to stderr for every damaged byte it meets."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _mode(picture: Picture) -> str:
    return f"mode {picture.mode}" + (" with a transparent colour" if "transparency" in picture.info else "")


def _check_picture(picture: Picture, path: Path) -> None:
    """Size, mode and number of frames, as the opened but not yet decoded picture declares them."""
    _check_size(picture.size, path)
    if picture.mode not in MODES or "transparency" in picture.info:  # a colour that stands for nothing
        why, do = conversion_advice(picture, path)
        raise InputError(f"the image {path} is neither 8-bit grey nor RGB", got=_mode(picture), why=why, do=do)
    tags = getattr(picture, "tag_v2", {})
    tile = [tags.get(tag, 1) for tag in (TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT)] if picture.format == "TIFF" else [1, 1]
    if not all(isinstance(length, int) for length in tile):
        raise InputError(f"the image {path} is damaged", got="tiles without a size")
    _check_size((tile[0], tile[1]), path)
    if picture.format == "MPO":  # a photograph with a preview behind it: the first frame is the picture
        return
    try:
        picture.seek(1)
    except EOFError:
        return
    raise InputError(
        f"the image {path} holds several frames",
        got=picture.format,
        why="an animation, or a document of several pages",
        do="save the frame that is meant as a file of its own",
    )


def _check_size(size: tuple[int, int], path: Path) -> None:
    width, height = size
    if width * height > MOST_PIXELS_PER_IMAGE:
        raise _too_large(path, f"{width} x {height}")


def _webp_size(start: bytes) -> tuple[int, int]:
    """The canvas that a WebP file declares: Pillow's decoder allocates it when the file is opened."""
    if start[12:16] == b"VP8X":
        return 1 + int.from_bytes(start[24:27], "little"), 1 + int.from_bytes(start[27:30], "little")
    if start[12:16] == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(start[26:28], "little") & 0x3FFF, int.from_bytes(start[28:30], "little") & 0x3FFF


def _too_large(path: Path, got: str) -> InputError:
    return InputError(
        f"the image {path} is too large", got=got, do=f"keep to {MOST_PIXELS_PER_IMAGE:,} pixels an image"
    )


def _short(error: Exception) -> str:
    """An exception's text, which may quote the file, on one line of a bearable length."""
    return shown(error) or type(error).__name__
