"""One image's pixel bounds side by side: the original, the lower bound, the upper bound and the width between them."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from tiltproof.report.ink import FAINT, GRID, INK, PAPER, coloured, font

PANEL = 252
"""About how wide a panel is drawn: a picture's pixels are enlarged by the whole factor that comes closest."""
MARGIN, TITLE, CAPTION = 24, 46, 52
BAR, BAR_LABELS = 16, 52


def bounds_picture(original: np.ndarray, lower: np.ndarray, upper: np.ndarray, title: str) -> Image.Image:
    """Draw arrays [C, H, W] with values in [0, 1] (C = 1 or 3); the width panel shows the widest channel."""
    width = (upper - lower).max(axis=0)
    widest = float(width.max())
    panels = [
        (_grey_or_rgb(original), "original", ""),
        (_grey_or_rgb(lower), "lower bound", f"mean {lower.mean():.3f}"),
        (_grey_or_rgb(upper), "upper bound", f"mean {upper.mean():.3f}"),
        (Image.fromarray(coloured(width / (widest or 1.0))), "width", f"mean {width.mean():.3f}, widest {widest:.3f}"),
    ]
    height, columns = original.shape[1:]
    enlarge = max(1, round(PANEL / max(height, columns)))
    panel_width, panel_height = columns * enlarge, height * enlarge
    step = max(panel_width, 150) + MARGIN
    sheet = Image.new("RGB", (MARGIN + 4 * step + BAR + BAR_LABELS, TITLE + panel_height + CAPTION), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, TITLE / 2), title, INK, font(17), anchor="lm")
    for k, (picture, caption, detail) in enumerate(panels):
        left = MARGIN + k * step
        # Nearest neighbour by a whole factor: every pixel stays a crisp square of its own value.
        sheet.paste(picture.resize((panel_width, panel_height), Image.Resampling.NEAREST), (left, TITLE))
        draw.rectangle((left - 1, TITLE - 1, left + panel_width, TITLE + panel_height), outline=GRID)
        draw.text((left, TITLE + panel_height + 16), caption, INK, font(15), anchor="lm")
        draw.text((left, TITLE + panel_height + 35), detail, FAINT, font(12), anchor="lm")
    _colour_bar(sheet, MARGIN + 3 * step + panel_width + 10, panel_height, widest)
    return sheet


def _grey_or_rgb(image: np.ndarray) -> Image.Image:
    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    return Image.fromarray(pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels)


def _colour_bar(sheet: Image.Image, left: int, height: int, widest: float) -> None:
    shades = coloured(np.linspace(1, 0, height))[:, None].repeat(BAR, axis=1)
    sheet.paste(Image.fromarray(shades), (left, TITLE))
    draw = ImageDraw.Draw(sheet)
    for share in (0.0, 0.5, 1.0):
        y = TITLE + round((1 - share) * (height - 1))
        draw.line((left + BAR, y, left + BAR + 3, y), fill=FAINT)
        draw.text((left + BAR + 7, y), f"{share * widest:.2f}", FAINT, font(12), anchor="lm")
