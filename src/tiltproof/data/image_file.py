"""Read image files as 8-bit pixels, checking what a hostile file declares before decoding; crops; advice on other modes.

The advice about an image that is neither 8-bit gray nor RGB is a program that writes a converted copy under a new name, as lossless
PNG. What a mode does not define, such as the scale of 32-bit numbers, is left to the user.
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
    from PIL.Image import Image as PillowImage

FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF")
MODES = ("L", "RGB")
MAX_PIXELS = 2048 * 2048
"""Limit of the pixels of an image."""
MAX_BYTES = 2**26
"""Size limit of a file."""
MAX_JPEG_SCANS = 100
"""A progressive JPEG has about ten; for each, however short, the decoder visits every pixel again."""
TIFF_BITS, TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT = 258, 322, 323
"""Numbers of TIFF tags."""
OPEN = "from PIL import Image; "
COMPOSITE = (
    OPEN + 'image = Image.open({source}).convert("RGBA"); '
    'Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("{mode}").save({target})'
)
CONVERT = OPEN + 'Image.open({source}).convert("{mode}").save({target})'
SCALE = (
    "import numpy; "
    + OPEN
    + 'Image.fromarray(numpy.rint(numpy.asarray(Image.open({source})) / {scale}).astype("uint8")).save({target})'
)
NO_SCALE = "save it under another name as 8-bit gray or RGB, its values scaled to 0 to 255, and use that copy"

logging.getLogger("PIL").addHandler(logging.NullHandler())  # keeps remarks on damaged files off the terminal


def conversion_advice(image: PillowImage, path: Path) -> tuple[str, str]:
    """Return why an opened image cannot be used, and what to do."""
    mode = image.mode
    if mode.startswith("I;16") or (mode == "I" and image.format in ("PNG", "PPM")):
        bits = _bits(image)
        return f"it has {bits} bits per pixel", _program(SCALE, "8bit", path, scale=f"{(2**bits - 1) / 255:.6g}")
    if mode in ("LA", "La", "L"):
        return "it has an alpha channel", _program(COMPOSITE, "gray", path, "over white, ", mode="L")
    if mode in ("RGBA", "RGBa", "PA") or "transparency" in image.info:
        return "it has an alpha channel", _program(COMPOSITE, "rgb", path, "over white, ", mode="RGB")
    if mode == "1":
        return "it has 1 bit per pixel", _program(CONVERT, "gray", path, mode="L")
    if mode == "P":
        return "it has a palette", _program(CONVERT, "rgb", path, mode="RGB")
    if mode in ("CMYK", "YCbCr", "RGBX"):
        return f"its colors are {mode}", _program(CONVERT, "rgb", path, mode="RGB")
    return f"pixels of mode {mode}, whose scale is not known", NO_SCALE


def _bits(image: PillowImage) -> int:
    """Return the bits per pixel of a 16-bit gray image; TIFF may have 12."""
    bits = getattr(image, "tag_v2", {}).get(TIFF_BITS, (16,))
    return bits[0] if isinstance(bits, tuple) and bits[0] in (12, 16) else 16


def _program(text: str, word: str, path: Path, how: str = "", **settings: str) -> str:
    target, count = path.with_name(f"{path.stem}-{word}.png"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.stem}-{word}-{count}.png")
    program = text.format(source=repr(str(path)), target=repr(str(target)), **settings)
    place = "list that in labels.csv, or move the original out of the data"
    return f"write a copy, {how}and {place}, with Python: {program}"


def center_crop(images: Tensor, size: int) -> Tensor:
    """Return the center pixels of images, rounded towards the top left.

    Parameters
    ----------
    images : Tensor
        Images [N, C, H, W].
    size : int
        Height and width of the result.

    Returns
    -------
    Tensor
        Images [N, C, size, size].

    Raises
    ------
    InputError
        If an image is smaller.

    Examples
    --------
    >>> import torch
    >>> center_crop(torch.arange(20).view(1, 1, 4, 5), 2).flatten().tolist()
    [6, 7, 11, 12]
    """
    height, width = images.shape[-2:]
    if not 0 < size <= min(height, width):
        raise InputError("a crop must fit into the image", got=f"{size} x {size} out of {height} x {width}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def read_image(path: Path) -> np.ndarray:
    """Read one image as unsigned bytes [C, H, W]."""
    with strict_pillow():
        return decode_image(path, FORMATS)


@contextlib.contextmanager
def strict_pillow() -> Iterator[None]:
    """Silence Pillow's warnings, and make decompression bombs errors; global, so threads must share one such context."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode_image(path: Path, formats: tuple[str, ...]) -> np.ndarray:
    """Decode an image of one of these formats inside `strict_pillow`; TIFF not in threads."""
    from PIL import Image, UnidentifiedImageError

    try:
        content = _checked_content(path)
        # from memory, where reading more than there is costs nothing: a length in the file may be absurd
        with Image.open(io.BytesIO(content), formats=formats) as image:
            _check_declared(image, path)
            with _libtiff_silenced() if image.format == "TIFF" else contextlib.nullcontext():
                pixels = np.asarray(image)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("a listed image is missing", got=path) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(path, "more pixels than Pillow accepts") from None
    except UnidentifiedImageError:
        raise InputError(f"not an image: {path}", do=f"use one of {', '.join(formats)}") from None
    except MemoryError:
        raise _too_large(path, "more than fits into memory") from None
    except Exception as error:  # Pillow's decoders raise many types of exceptions for damaged files
        raise InputError(f"the image {path} is damaged", got=_short(error), why="the file was cut short") from None
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise InputError(f"the image {path} is neither 8-bit gray nor RGB", got=f"{pixels.dtype} {pixels.shape}")
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _checked_content(path: Path) -> bytes:
    """Read the file and check what Pillow's decoders of WebP and JPEG check late or not at all."""
    size = path.stat().st_size
    if not path.is_file():  # reading a pipe could block, and /dev/zero would not end
        raise InputError("a listed image is not a regular file", got=path)
    if size > MAX_BYTES:
        raise InputError(
            f"the image file {path} is too large", got=f"{size:,} bytes", do=f"keep to {MAX_BYTES:,} bytes"
        )
    with path.open("rb") as stream:
        content = stream.read(size)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        _check_size(_webp_size(content), path)
    scans = content.count(b"\xff\xda") if content.startswith(b"\xff\xd8") else 0
    if scans > MAX_JPEG_SCANS:
        raise InputError(f"the image {path} is damaged", got=f"a JPEG of {scans:,} scans")
    return content


@contextlib.contextmanager
def _libtiff_silenced() -> Iterator[None]:
    """Silence libtiff, which writes a line to stderr for every damaged byte."""
    sys.stderr.flush()
    saved, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(devnull)


def _mode(image: PillowImage) -> str:
    return f"mode {image.mode}" + (" with a transparent color" if "transparency" in image.info else "")


def _check_declared(image: PillowImage, path: Path) -> None:
    """Check the size, mode and number of frames that the opened, not yet decoded image declares."""
    _check_size(image.size, path)
    if image.mode not in MODES or "transparency" in image.info:
        why, do = conversion_advice(image, path)
        raise InputError(f"the image {path} is neither 8-bit gray nor RGB", got=_mode(image), why=why, do=do)
    tags = getattr(image, "tag_v2", {})
    tile = [tags.get(tag, 1) for tag in (TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT)] if image.format == "TIFF" else [1, 1]
    if not all(isinstance(length, int) for length in tile):
        raise InputError(f"the image {path} is damaged", got="tiles without a size")
    _check_size((tile[0], tile[1]), path)
    if image.format == "MPO":  # a photograph and its preview: the first frame is the image
        return
    try:
        image.seek(1)
    except EOFError:
        return
    raise InputError(
        f"the image {path} has several frames",
        got=image.format,
        why="an animation, or a document of several pages",
        do="save the frame as a separate file",
    )


def _check_size(size: tuple[int, int], path: Path) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise _too_large(path, f"{width} x {height}")


def _webp_size(start: bytes) -> tuple[int, int]:
    """Return the size that a WebP file declares, which Pillow's decoder allocates when it opens the file."""
    if start[12:16] == b"VP8X":
        return 1 + int.from_bytes(start[24:27], "little"), 1 + int.from_bytes(start[27:30], "little")
    if start[12:16] == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(start[26:28], "little") & 0x3FFF, int.from_bytes(start[28:30], "little") & 0x3FFF


def _too_large(path: Path, got: str) -> InputError:
    return InputError(f"the image {path} is too large", got=got, do=f"keep to {MAX_PIXELS:,} pixels per image")


def _short(error: Exception) -> str:
    """Return an exception's text, which may quote the file, on one short line."""
    return shown(error) or type(error).__name__
