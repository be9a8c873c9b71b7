"""Road frames with steering angles: the right one in green, the prediction in blue, the certified range as a red fan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from tiltproof.reports.style import FAINT, INK, PAPER, font

TRUE, PREDICTED, RANGE = "#2fbf5b", "#2d6cdf", "#e03a2f"
ENLARGE, SMOOTH = 3, 2
"""Frames are drawn this many times larger; lines twice as large again and then reduced, so that they have no steps."""
MARGIN, TITLE, CAPTION = 20, 48, 44
FARTHEST = math.radians(85)
"""Angles beyond this are drawn here: a needle never points below the horizon."""


@dataclass(frozen=True)
class Steering:
    """Angles of one frame in radians, positive to the left."""

    prediction: float
    lower: float
    upper: float
    true: float | None = None

    def caption(self) -> str:
        """In degrees, as people read them.

        >>> Steering(prediction=0.1, lower=0.09, upper=0.12, true=0.11).caption()
        'predicted 5.7°, certified 5.2° to 6.9°, right 6.3°'
        """
        text = f"predicted {_degrees(self.prediction)}, certified {_degrees(self.lower)} to {_degrees(self.upper)}"
        return text if self.true is None else f"{text}, right {_degrees(self.true)}"


def steering_picture(frames: np.ndarray, angles: Sequence[Steering], title: str, columns: int = 2) -> Image.Image:
    """Draw frames [n, 3, H, W] with values in [0, 1], ``columns`` beside each other; in a strip they read like film, row by row."""
    height, width = frames.shape[2] * ENLARGE, frames.shape[3] * ENLARGE
    columns = max(1, min(columns, len(frames)))
    rows = math.ceil(len(frames) / columns)
    size = (MARGIN + columns * (width + MARGIN), TITLE + rows * (height + CAPTION))
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, TITLE / 2), title, INK, font(18), anchor="lm")
    x = size[0] - MARGIN
    for colour, word in ((RANGE, "certified range"), (PREDICTED, "prediction"), (TRUE, "right answer")):
        x -= draw.textlength(word, font(14))
        draw.text((x, TITLE / 2), word, INK, font(14), anchor="lm")
        draw.line((x - 26, TITLE / 2, x - 8, TITLE / 2), fill=colour, width=5)
        x -= 46
    for k, (frame, steering) in enumerate(zip(frames, angles, strict=True)):
        left, top = MARGIN + k % columns * (width + MARGIN), TITLE + k // columns * (height + CAPTION)
        sheet.paste(_with_needles(frame, steering), (left, top))
        draw.text((left, top + height + 16), steering.caption(), FAINT, font(13), anchor="lm")
    return sheet


def _with_needles(frame: np.ndarray, steering: Steering) -> Image.Image:
    pixels = (np.clip(frame, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    size = pixels.shape[1] * ENLARGE, pixels.shape[0] * ENLARGE
    picture = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).convert("RGBA")
    large = size[0] * SMOOTH, size[1] * SMOOTH
    layer = Image.new("RGBA", large, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    foot, length = (large[0] / 2, large[1]), 0.92 * large[1]
    # the fan is a polygon whose rim follows the circle; a narrow one still shows as a line
    rim = [_tip(foot, length, angle) for angle in np.linspace(steering.lower, steering.upper, 24)]
    draw.polygon([foot, *rim], fill=_rgba(RANGE, 110))
    for angle in (steering.lower, steering.upper):
        draw.line([foot, _tip(foot, length, angle)], fill=_rgba(RANGE, 255), width=2 * SMOOTH)
    if steering.true is not None:
        draw.line([foot, _tip(foot, 0.8 * length, steering.true)], fill=_rgba(TRUE, 255), width=3 * SMOOTH)
    draw.line([foot, _tip(foot, 0.9 * length, steering.prediction)], fill=_rgba(PREDICTED, 255), width=3 * SMOOTH)
    return Image.alpha_composite(picture, layer.resize(size, Image.Resampling.LANCZOS)).convert("RGB")


def _tip(foot: tuple[float, float], length: float, angle: float) -> tuple[float, float]:
    """Where a needle ends: straight up for 0, to the left for positive angles."""
    angle = min(max(angle, -FARTHEST), FARTHEST)
    return foot[0] - length * math.sin(angle), foot[1] - length * math.cos(angle)


def _rgba(colour: str, alpha: int) -> tuple[int, int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16), alpha


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.1f}°"
