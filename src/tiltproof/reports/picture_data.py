"""Pictures and numbers as small text: base64 pictures for a page, numbers with no more digits than are seen."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from PIL import Image, features

from tiltproof.reports.style import coloured

LOSSLESS_PIXELS = 64 * 64
"""Pictures up to this size keep every pixel's value; larger ones are compressed as photographs are."""
THUMBNAIL, LARGEST = 48, 320
"""Longest side of a picture in the table, and of one that is looked at."""


def picture_data(values: np.ndarray) -> str:
    """An array [C, H, W] with values in [0, 1] as the text that stands in an image's ``src``."""
    return _encoded(_reduced(_picture(values), LARGEST), lossless=values[0].size <= LOSSLESS_PIXELS)


def thumbnail_data(values: np.ndarray) -> str:
    """The same for the table: small, and grey pictures lossless, which is smaller for digits."""
    return _encoded(_reduced(_picture(values), THUMBNAIL), lossless=len(values) == 1)


def width_data(lower: np.ndarray, upper: np.ndarray) -> tuple[str, float]:
    """The width between two bounds [C, H, W] in the colour scale, its widest channel, and the largest width."""
    width = (upper - lower).max(axis=0)
    widest = float(width.max())
    shades = coloured(width / (widest or 1.0)).transpose(2, 0, 1) / 255
    return picture_data(shades), widest


def _picture(values: np.ndarray) -> Image.Image:
    pixels = (np.clip(np.nan_to_num(values), 0, 1) * 255).round().astype(np.uint8)
    if len(pixels) == 3:
        return Image.fromarray(pixels.transpose(1, 2, 0))
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.mean(axis=0).astype(np.uint8))


def _reduced(picture: Image.Image, longest: int) -> Image.Image:
    if max(picture.size) <= longest:
        return picture
    share = longest / max(picture.size)
    size = max(1, round(picture.width * share)), max(1, round(picture.height * share))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _encoded(picture: Image.Image, lossless: bool) -> str:
    stream = io.BytesIO()
    if lossless:
        picture.save(stream, "PNG", optimize=True)
        kind = "png"
    elif features.check("webp"):
        picture.save(stream, "WEBP", quality=75, method=4)
        kind = "webp"
    else:
        picture.save(stream, "JPEG", quality=80)
        kind = "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()


def digits(value: float, count: int = 5) -> float | None:
    """To the nearest number of so many digits; None where there is no number.

    >>> digits(3.14159265), digits(float("inf"))
    (3.1416, None)
    """
    return float(f"{value:.{count}g}") if math.isfinite(value) else None


def digits_below(value: float, count: int = 5) -> float | None:
    """The same, never above: for a proved lower bound, which rounding must not raise.

    >>> digits_below(2.99999), digits_below(-0.1234567)
    (2.9999, -0.12346)
    """
    if value == 0 or not math.isfinite(value):
        return 0.0 if value == 0 else None
    places = count - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return rounded if rounded <= value else round(rounded - 10.0**-places, places)


def digits_above(value: float, count: int = 5) -> float | None:
    """The same, never below: for a proved upper bound."""
    below = digits_below(-value, count)
    return None if below is None else -below + 0.0
