"""Axes on paper: a scale from data to pixels, ticks and labels; the pictures draw on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from tiltproof.reports.style import FAINT, GRID, INK, OPEN, PAPER, PROVED, SAMPLED, coloured, font, round_ticks

WIDTH, HEIGHT = 1040, 560
LEFT, RIGHT, TOP, BOTTOM = 84, 28, 92, 68
FINENESS = 3
"""Everything is drawn this many times larger and averaged down, which is what makes the lines smooth."""
MOST_TICK_DECIMALS = 6

Area = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels of the enlarged picture."""


class Plot:
    """Axes with a scale from data to (enlarged) pixels."""

    def __init__(self, low: float, high: float, bottom: float, top: float) -> None:
        self.low, self.high, self.bottom, self.top = low, high, bottom, top
        self.sheet = Image.new("RGB", (WIDTH * FINENESS, HEIGHT * FINENESS), PAPER)
        self.draw = ImageDraw.Draw(self.sheet)

    def x(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return FINENESS * (LEFT + share * (WIDTH - LEFT - RIGHT))

    def y(self, value: float) -> float:
        share = (max(value, self.bottom) - self.bottom) / (self.top - self.bottom)
        return FINENESS * (HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM))

    def holds(self, area: Area) -> bool:
        """Whether a rectangle lies between the axes and the edges of the paper."""
        left, top, right, bottom = area
        return (
            left >= self.x(self.low)
            and right <= self.sheet.width
            and self.y(self.top) <= top
            and bottom <= self.y(self.bottom)
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str, thickness: float) -> None:
        self.draw.line(points, fill=colour, width=round(thickness * FINENESS), joint="curve")

    def text(self, x: float, y: float, words: str, size: float, colour: str, anchor: str) -> None:
        self.draw.text((x, y), words, colour, font(size * FINENESS), anchor=anchor)

    def axes(self, across_label: str, up_label: str) -> None:
        left, right = self.x(self.low), self.x(self.high)
        floor, ceiling = self.y(self.bottom), self.y(self.top)
        for tick in round_ticks(self.bottom, self.top):
            self.line([(left, self.y(tick)), (right, self.y(tick))], GRID, 1)
            self.text(left - 10 * FINENESS, self.y(tick), _number(tick), 13, FAINT, "rm")
        for tick in round_ticks(self.low, self.high, most=9):
            self.line([(self.x(tick), floor), (self.x(tick), floor + 5 * FINENESS)], FAINT, 1)
            self.text(self.x(tick), floor + 18 * FINENESS, _number(tick), 13, FAINT, "mm")
        self.line([(left, ceiling), (left, floor), (right, floor)], FAINT, 1)
        self.text((left + right) / 2, floor + 44 * FINENESS, across_label, 15, INK, "mm")
        self._upright(up_label, 18 * FINENESS, (floor + ceiling) / 2)

    def _upright(self, words: str, x: float, y: float) -> None:
        """Text that reads upwards, centered at (x, y)."""
        face = font(15 * FINENESS)
        _, _, width, height = self.draw.textbbox((0, 0), words, font=face)
        label = Image.new("RGB", (math.ceil(width), math.ceil(height)), PAPER)
        ImageDraw.Draw(label).text((0, 0), words, INK, face)
        turned = label.transpose(Image.Transpose.ROTATE_90)
        self.sheet.paste(turned, (round(x - turned.width / 2), round(y - turned.height / 2)))

    def heading(self, title: str, entries: Sequence[tuple[str, str]]) -> None:
        """A title, and below it what the colours mean: (words, colour)."""
        self.text(LEFT * FINENESS, 26 * FINENESS, title, 18, INK, "lm")
        x = float(LEFT * FINENESS)
        for words, colour in entries:
            self.line([(x, 60 * FINENESS), (x + 26 * FINENESS, 60 * FINENESS)], colour, 3)
            self.text(x + 34 * FINENESS, 60 * FINENESS, words, 14, INK, "lm")
            x += 34 * FINENESS + self.draw.textlength(words, font=font(14 * FINENESS)) + 30 * FINENESS

    def finished(self) -> Image.Image:
        return self.sheet.reduce(FINENESS)


def _number(value: float) -> str:
    text = f"{value:.{MOST_TICK_DECIMALS}f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


# The margin over one parameter: what sampling sees (a line) and what is proved for each box (steps below it).


def margin_picture(
    parameters: Sequence[float],
    sampled: Sequence[float],
    boxes: Sequence[tuple[float, float, float]],
    title: str,
    parameter_label: str,
    margin_label: str = "margin: score of the label minus the best other",
) -> Image.Image:
    """Draw margins sampled at ``parameters`` and the certified lower bounds ``(box low, box high, bound)``.

    A bound far below every sampled margin is drawn at the lower edge, so that the rest stays legible.
    """
    plot = _MarginPlot(*_ranges(parameters, sampled, boxes))
    plot.axes(parameter_label, margin_label)
    for low, high, bound in boxes:
        plot.step(low, high, bound)
    plot.zero_line()
    plot.curve(parameters, sampled)
    entries = [("sampled margin", SAMPLED), ("certified lower bound, box by box", PROVED)]
    if any(bound <= 0 for _, _, bound in boxes):
        entries.append(("not proved: bound at or below zero", OPEN))
    plot.heading(title, entries)
    return plot.finished()


def _ranges(
    parameters: Sequence[float], sampled: Sequence[float], boxes: Sequence[tuple[float, float, float]]
) -> tuple[float, float, float, float]:
    edges = [edge for low, high, _ in boxes for edge in (low, high)] + list(parameters)
    top, lowest = max([0.0, *sampled]), min([0.0, *sampled])
    spread = (top - lowest) or 1.0
    bounds = [bound for _, _, bound in boxes if math.isfinite(bound)]
    bottom = max(min([lowest, *bounds]), lowest - spread)
    return min(edges), max(edges), bottom - 0.06 * spread, top + 0.06 * spread


class _MarginPlot(Plot):
    """What is drawn between the axes."""

    def step(self, low: float, high: float, bound: float) -> None:
        colour, wash = (PROVED, "#d9efe4") if bound > 0 else (OPEN, "#f6ddd6")
        left, right, level, zero = self.x(low), self.x(high), self.y(bound), self.y(0)
        self.draw.rectangle((left, min(level, zero), right, max(level, zero)), fill=wash)
        self.line([(left, level), (right, level)], colour, 2)

    def zero_line(self) -> None:
        self.line([(self.x(self.low), self.y(0)), (self.x(self.high), self.y(0))], INK, 1.6)

    def curve(self, parameters: Sequence[float], sampled: Sequence[float]) -> None:
        self.line([(self.x(x), self.y(y)) for x, y in zip(parameters, sampled, strict=True)], SAMPLED, 2)


# One image's pixel bounds side by side: the original, the lower bound, the upper bound and the width between them.


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
