"""What the pictures share: colours, the font, the colour scale of widths and round numbers for axes."""

from __future__ import annotations

import math

import numpy as np
from PIL import ImageFont

PAPER = "#ffffff"
INK = "#1f2430"
FAINT = "#5f6675"
GRID = "#e4e7ec"
SAMPLED = "#2458a6"
PROVED = "#1b8a5a"
OPEN = "#c4472b"

# From dark blue over green to yellow: lightness rises evenly, so it reads in grey and by the colour-blind.
SCALE = np.array(
    [
        *((68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141)),
        *((39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)),
    ],
    dtype=np.float64,
)


def font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own scalable font, so that pictures look the same everywhere."""
    return ImageFont.load_default(size)


def coloured(values: np.ndarray) -> np.ndarray:
    """Values in [0, 1] of any shape as colours of the scale, unsigned bytes with one more axis of length 3.

    >>> coloured(np.array([0.0, 1.0])).tolist()
    [[68, 1, 84], [253, 231, 37]]
    """
    position = np.clip(values, 0, 1) * (len(SCALE) - 1)
    channels = [np.interp(position, np.arange(len(SCALE)), SCALE[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """At most about ``most`` round numbers that lie in [low, high]: multiples of 1, 2 or 5 times a power of ten.

    >>> round_ticks(-30, 30)
    [-30.0, -20.0, -10.0, 0.0, 10.0, 20.0, 30.0]
    """
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step + 0.0 for k in range(first, last + 1)]
