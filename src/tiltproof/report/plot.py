"""Axes on paper: a scale from data to pixels, ticks and labels; the pictures draw on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

from tiltproof.report.ink import FAINT, GRID, INK, PAPER, font, round_ticks

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
        """Text that reads upwards, centred at (x, y)."""
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
