"""One image file as pixels, with everything a hostile file can declare checked before its pixels are decoded."""

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

from tiltproof.data.conversion import conversion_advice
from tiltproof.errors import InputError, shown

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
