"""Images as data URLs, and numbers rounded to the digits that are shown."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from PIL import Image, features

from tiltproof.reports.plots import viridis

LOSSLESS_PIXELS = 64 * 64
"""Images up to this size keep every pixel's value; larger ones are compressed lossily."""
THUMBNAIL = 48
"""Longest side of an image in the table."""
LARGEST_FRAME, LOSSLESS_STRIP = 128, 28 * 28
"""Longest side of an image in a strip, and numbers of an image whose strip keeps every pixel's value."""
LARGEST = 320
"""Longest side of an image in the details."""


def image_data(values: np.ndarray) -> str:
    """Encode an array [C, H, W] with values in [0, 1] as a data URL."""
    return _encoded(_reduced(_as_image(values), LARGEST), lossless=values[0].size <= LOSSLESS_PIXELS)


def strip_data(frames: np.ndarray) -> str:
    """Encode arrays [N, C, H, W] side by side, each at most as large as an image of the details that turns."""
    pictures = [_reduced(_as_image(frame), LARGEST_FRAME) for frame in frames]
    strip = Image.new(pictures[0].mode, (sum(each.width for each in pictures), pictures[0].height))
    for k, each in enumerate(pictures):
        strip.paste(each, (k * each.width, 0))
    return _encoded(strip, lossless=frames[0].size <= LOSSLESS_STRIP)


def thumbnail_data(values: np.ndarray) -> str:
    """Encode a thumbnail for the table; gray images are lossless, which is smaller for digits."""
    return _encoded(_reduced(_as_image(values), THUMBNAIL), lossless=len(values) == 1)


def width_data(lower: np.ndarray, upper: np.ndarray) -> tuple[str, float]:
    """Encode the width between two bounds [C, H, W] (of the widest channel) in colors; also return the largest width."""
    width = (upper - lower).max(axis=0)
    widest = float(width.max())
    shades = viridis(width / (widest or 1.0)).transpose(2, 0, 1) / 255
    return image_data(shades), widest


def _as_image(values: np.ndarray) -> Image.Image:
    pixels = (np.clip(np.nan_to_num(values), 0, 1) * 255).round().astype(np.uint8)
    if len(pixels) == 3:
        return Image.fromarray(pixels.transpose(1, 2, 0))
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.mean(axis=0).astype(np.uint8))


def _reduced(image: Image.Image, longest: int) -> Image.Image:
    if max(image.size) <= longest:
        return image
    share = longest / max(image.size)
    size = max(1, round(image.width * share)), max(1, round(image.height * share))
    return image.resize(size, Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, lossless: bool) -> str:
    stream = io.BytesIO()
    if lossless:
        image.save(stream, "PNG", optimize=True)
        kind = "png"
    elif features.check("webp"):
        image.save(stream, "WEBP", quality=75, method=4)
        kind = "webp"
    else:
        image.save(stream, "JPEG", quality=80)
        kind = "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()


def digits(value: float, count: int = 5) -> float | None:
    """Round to ``count`` significant digits; None if the value is not finite.

    >>> digits(3.14159265), digits(float("inf"))
    (3.1416, None)
    """
    return float(f"{value:.{count}g}") if math.isfinite(value) else None


def digits_below(value: float, count: int = 5) -> float | None:
    """Round down to ``count`` significant digits, as a proved lower bound requires.

    >>> digits_below(2.99999), digits_below(-0.1234567)
    (2.9999, -0.12346)
    """
    if value == 0 or not math.isfinite(value):
        return 0.0 if value == 0 else None
    places = count - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return rounded if rounded <= value else round(rounded - 10.0**-places, places)


def digits_above(value: float, count: int = 5) -> float | None:
    """Round up to ``count`` significant digits, as a proved upper bound requires."""
    below = digits_below(-value, count)
    return None if below is None else -below + 0.0
