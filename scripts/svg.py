"""Minimal SVG for the figures of the documentation: a sheet, charts with axes, small bitmaps."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tiltproof.reports.plots import FAINT, GRID, INK, OPEN, PAPER, PROVED, SAMPLED, round_ticks

Points = Sequence[tuple[float, float]]
DARK = {
    PAPER: "#1e2129",
    INK: "#e6e8ee",
    FAINT: "#a3a9b8",
    GRID: "#363b47",
    SAMPLED: "#7fabf0",
    PROVED: "#3fbf87",
    OPEN: "#f0795c",
}
"""What each color becomes where the reader's device is set to dark; the paper is that of the site."""


class Sheet:
    """A white page of ``width`` x ``height``; whatever is added later lies on top."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height, self.parts = width, height, list[str]()

    def add(self, tag: str, text: str = "", **attributes: object) -> None:
        """One element; ``stroke_width`` becomes stroke-width, numbers get one decimal."""
        inside = " ".join(f'{key.replace("_", "-")}="{_number(value)}"' for key, value in attributes.items())
        self.parts.append(f"<{tag} {inside}>{text}</{tag}>" if text else f"<{tag} {inside}/>")

    def text(self, x: float, y: float, text: str, size: int = 13, anchor: str = "start", fill: str = INK) -> None:
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.add("text", text, x=x, y=y, font_size=size, text_anchor=anchor, fill=fill)

    def bitmap(self, x: float, y: float, size: float, pixels: np.ndarray) -> None:
        """Bytes [H, W] or [H, W, 3], each pixel a crisp square."""
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", optimize=True)
        data = base64.b64encode(file.getvalue()).decode()
        place = {"x": x, "y": y, "width": size, "height": size * pixels.shape[0] / pixels.shape[1]}
        self.add("image", **place, style="image-rendering:pixelated", href=f"data:image/png;base64,{data}")
        self.add("rect", **place, fill="none", stroke=GRID)

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="sans-serif">'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>'
        return "\n".join([head, _dark_style(), paper, *self.parts, "</svg>"]) + "\n"


class Chart:
    """A rectangle of a sheet with its own units; ``logarithmic`` takes both axes' logarithms."""

    def __init__(
        self,
        sheet: Sheet,
        place: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str] = ("", ""),
        logarithmic: bool = False,
    ) -> None:
        self.sheet, self.place, self.logarithmic = sheet, place, logarithmic
        self.x, self.y = ((math.log10(a), math.log10(b)) if logarithmic else (a, b) for a, b in (x, y))
        left, top, width, height = place
        for tick in self._ticks(self.x):
            at = left + (tick - self.x[0]) / (self.x[1] - self.x[0]) * width
            sheet.add("line", x1=at, y1=top, x2=at, y2=top + height, stroke=GRID)
            sheet.text(at, top + height + 16, self._label(tick), 11, "middle", FAINT)
        for tick in self._ticks(self.y):
            at = top + height - (tick - self.y[0]) / (self.y[1] - self.y[0]) * height
            sheet.add("line", x1=left, y1=at, x2=left + width, y2=at, stroke=GRID)
            sheet.text(left - 6, at + 4, self._label(tick), 11, "end", FAINT)
        sheet.text(left + width / 2, top + height + 34, labels[0], 12, "middle", FAINT)
        sheet.text(left, top - 8, labels[1], 12, "start", FAINT)

    def _ticks(self, ends: tuple[float, float]) -> list[float]:
        if self.logarithmic:
            return [float(k) for k in range(math.ceil(ends[0] - 1e-9), math.floor(ends[1] + 1e-9) + 1)]
        return round_ticks(*ends, most=6)

    def _label(self, tick: float) -> str:
        return f"1e{round(tick)}" if self.logarithmic else f"{tick:g}"

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where on the sheet a point lies."""
        if self.logarithmic:
            x, y = math.log10(x), math.log10(y)
        left, top, width, height = self.place
        across = left + (x - self.x[0]) / (self.x[1] - self.x[0]) * width
        return across, top + height - (y - self.y[0]) / (self.y[1] - self.y[0]) * height

    def line(self, points: Points, stroke: str, width: float = 2, dash: str = "none") -> None:
        self.sheet.add(
            "polyline",
            points=self._path(points),
            fill="none",
            stroke=stroke,
            stroke_width=width,
            stroke_dasharray=dash,
        )

    def area(self, points: Points, fill: str, opacity: float, stroke: str = "none") -> None:
        self.sheet.add("polygon", points=self._path(points), fill=fill, fill_opacity=opacity, stroke=stroke)

    def dots(self, points: Points, fill: str, radius: float = 4) -> None:
        for point in points:
            x, y = self.at(*point)
            self.sheet.add("circle", cx=x, cy=y, r=radius, fill=fill)

    def note(self, x: float, y: float, text: str, fill: str = INK, anchor: str = "start") -> None:
        across, down = self.at(x, y)
        self.sheet.text(across, down, text, 12, anchor, fill)

    def _path(self, points: Points) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))


def _dark_style() -> str:
    """Rules that outrank the colors of attributes."""
    rules = [f'[{key}="{light}"]{{{key}:{dark}}}' for light, dark in DARK.items() for key in ("fill", "stroke")]
    return f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"


def _number(value: object) -> object:
    return f"{value:.1f}" if isinstance(value, float) else value
