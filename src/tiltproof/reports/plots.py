"""Plots drawn with Pillow alone: margins over a parameter, pixel bounds, the accuracy trade-off, steering angles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAPER = "#ffffff"
INK = "#1f2430"
FAINT = "#5f6675"
GRID = "#e4e7ec"
SAMPLED = "#2458a6"
PROVED = "#1b8a5a"
OPEN = "#c4472b"
VIRIDIS = np.array(
    [
        *((68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141)),
        *((39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)),
    ],
    dtype=np.float64,
)
"""The color map of widths: its lightness rises evenly, so it also reads in gray and without color vision."""


def font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's built-in scalable font, so that plots look the same everywhere."""
    return ImageFont.load_default(size)


def viridis(values: np.ndarray) -> np.ndarray:
    """Map values in [0, 1] of any shape to colors: unsigned bytes with one more axis of length 3.

    >>> viridis(np.array([0.0, 1.0])).tolist()
    [[68, 1, 84], [253, 231, 37]]
    """
    position = np.clip(values, 0, 1) * (len(VIRIDIS) - 1)
    channels = [np.interp(position, np.arange(len(VIRIDIS)), VIRIDIS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return about ``most`` or fewer round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten.

    >>> round_ticks(-30, 30)
    [-30.0, -20.0, -10.0, 0.0, 10.0, 20.0, 30.0]
    """
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step + 0.0 for k in range(first, last + 1)]


WIDTH, HEIGHT = 1040, 560
"""Size of a plot with axes, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 84, 28, 92, 68
"""Distances from the edges of the plot to the axes."""
OVERSAMPLING = 3
"""Plots are drawn this many times larger and averaged down, for smooth lines."""
TICK_DECIMALS = 6
"""Largest number of decimals of a tick label."""
Area = tuple[float, float, float, float]
"""Left, top, right and bottom, in enlarged pixels."""


class Plot:
    """Axes with a scale from data to (enlarged) pixels."""

    def __init__(self, low: float, high: float, bottom: float, top: float) -> None:
        self.low, self.high, self.bottom, self.top = low, high, bottom, top
        self.sheet = Image.new("RGB", (WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING), PAPER)
        self.draw = ImageDraw.Draw(self.sheet)

    def x(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return OVERSAMPLING * (LEFT + share * (WIDTH - LEFT - RIGHT))

    def y(self, value: float) -> float:
        share = (max(value, self.bottom) - self.bottom) / (self.top - self.bottom)
        return OVERSAMPLING * (HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM))

    def holds(self, area: Area) -> bool:
        """Return whether a rectangle lies between the axes and the edges of the paper."""
        left, top, right, bottom = area
        return (
            left >= self.x(self.low)
            and right <= self.sheet.width
            and self.y(self.top) <= top
            and bottom <= self.y(self.bottom)
        )

    def line(self, points: Sequence[tuple[float, float]], color: str, thickness: float) -> None:
        self.draw.line(points, fill=color, width=round(thickness * OVERSAMPLING), joint="curve")

    def text(self, x: float, y: float, words: str, size: float, color: str, anchor: str) -> None:
        self.draw.text((x, y), words, color, font(size * OVERSAMPLING), anchor=anchor)

    def axes(self, across_label: str, up_label: str) -> None:
        left, right = self.x(self.low), self.x(self.high)
        floor, ceiling = self.y(self.bottom), self.y(self.top)
        for tick in round_ticks(self.bottom, self.top):
            self.line([(left, self.y(tick)), (right, self.y(tick))], GRID, 1)
            self.text(left - 10 * OVERSAMPLING, self.y(tick), _number(tick), 13, FAINT, "rm")
        for tick in round_ticks(self.low, self.high, most=9):
            self.line([(self.x(tick), floor), (self.x(tick), floor + 5 * OVERSAMPLING)], FAINT, 1)
            self.text(self.x(tick), floor + 18 * OVERSAMPLING, _number(tick), 13, FAINT, "mm")
        self.line([(left, ceiling), (left, floor), (right, floor)], FAINT, 1)
        self.text((left + right) / 2, floor + 44 * OVERSAMPLING, across_label, 15, INK, "mm")
        self._upright(up_label, 18 * OVERSAMPLING, (floor + ceiling) / 2)

    def _upright(self, words: str, x: float, y: float) -> None:
        """Draw text that reads upwards, centered at (x, y)."""
        face = font(15 * OVERSAMPLING)
        _, _, width, height = self.draw.textbbox((0, 0), words, font=face)
        label = Image.new("RGB", (math.ceil(width), math.ceil(height)), PAPER)
        ImageDraw.Draw(label).text((0, 0), words, INK, face)
        turned = label.transpose(Image.Transpose.ROTATE_90)
        self.sheet.paste(turned, (round(x - turned.width / 2), round(y - turned.height / 2)))

    def heading(self, title: str, entries: Sequence[tuple[str, str]]) -> None:
        """Draw a title and, below it, a legend of (words, color)."""
        self.text(LEFT * OVERSAMPLING, 26 * OVERSAMPLING, title, 18, INK, "lm")
        x = float(LEFT * OVERSAMPLING)
        for words, color in entries:
            self.line([(x, 60 * OVERSAMPLING), (x + 26 * OVERSAMPLING, 60 * OVERSAMPLING)], color, 3)
            self.text(x + 34 * OVERSAMPLING, 60 * OVERSAMPLING, words, 14, INK, "lm")
            x += 34 * OVERSAMPLING + self.draw.textlength(words, font=font(14 * OVERSAMPLING)) + 30 * OVERSAMPLING

    def finished(self) -> Image.Image:
        return self.sheet.reduce(OVERSAMPLING)


def _number(value: float) -> str:
    text = f"{value:.{TICK_DECIMALS}f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def margin_plot(
    parameters: Sequence[float],
    sampled: Sequence[float],
    boxes: Sequence[tuple[float, float, float]],
    title: str,
    parameter_label: str,
    margin_label: str = "margin: score of the label minus the best other",
) -> Image.Image:
    """Draw sampled margins over one parameter as a line, and certified lower bounds as steps below it.

    Parameters
    ----------
    parameters, sampled : sequence of float
        Parameter values and the margins sampled there.
    boxes : sequence of (float, float, float)
        Ends and certified lower bound of each box. A bound far below every sampled margin is drawn at the lower edge.
    title, parameter_label, margin_label : str
        Texts of the plot and its axes.

    Returns
    -------
    PIL.Image.Image
        The plot, 1040 x 560 pixels.
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
    """A plot of margins."""

    def step(self, low: float, high: float, bound: float) -> None:
        color, wash = (PROVED, "#d9efe4") if bound > 0 else (OPEN, "#f6ddd6")
        left, right, level, zero = self.x(low), self.x(high), self.y(bound), self.y(0)
        self.draw.rectangle((left, min(level, zero), right, max(level, zero)), fill=wash)
        self.line([(left, level), (right, level)], color, 2)

    def zero_line(self) -> None:
        self.line([(self.x(self.low), self.y(0)), (self.x(self.high), self.y(0))], INK, 1.6)

    def curve(self, parameters: Sequence[float], sampled: Sequence[float]) -> None:
        self.line([(self.x(x), self.y(y)) for x, y in zip(parameters, sampled, strict=True)], SAMPLED, 2)


PANEL = 252
"""Approximate width of a panel of `bounds_plot`: pixels are enlarged by the integer factor that comes closest."""
MARGIN, TITLE, CAPTION = 24, 46, 52
"""Space between panels, above them and below them."""
BAR, BAR_LABELS = 16, 52
"""Widths of the color bar and its labels."""


def bounds_plot(original: np.ndarray, lower: np.ndarray, upper: np.ndarray, title: str) -> Image.Image:
    """Draw the pixel bounds of one image side by side: original, lower bound, upper bound and width.

    Parameters
    ----------
    original, lower, upper : numpy.ndarray
        Arrays [C, H, W] with values in [0, 1], C = 1 or 3. The width panel shows the widest channel.
    title : str
        Text above the panels.

    Returns
    -------
    PIL.Image.Image
        The plot; every pixel is a square of one color.
    """
    width = (upper - lower).max(axis=0)
    widest = float(width.max())
    panels = [
        (_as_rgb(original), "original", ""),
        (_as_rgb(lower), "lower bound", f"mean {lower.mean():.3f}"),
        (_as_rgb(upper), "upper bound", f"mean {upper.mean():.3f}"),
        (Image.fromarray(viridis(width / (widest or 1.0))), "width", f"mean {width.mean():.3f}, widest {widest:.3f}"),
    ]
    height, columns = original.shape[1:]
    enlarge = max(1, round(PANEL / max(height, columns)))
    panel_width, panel_height = columns * enlarge, height * enlarge
    step = max(panel_width, 150) + MARGIN
    sheet = Image.new("RGB", (MARGIN + 4 * step + BAR + BAR_LABELS, TITLE + panel_height + CAPTION), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, TITLE / 2), title, INK, font(17), anchor="lm")
    for k, (panel, caption, detail) in enumerate(panels):
        left = MARGIN + k * step
        # nearest neighbor by an integer factor: every pixel stays a square of one color
        sheet.paste(panel.resize((panel_width, panel_height), Image.Resampling.NEAREST), (left, TITLE))
        draw.rectangle((left - 1, TITLE - 1, left + panel_width, TITLE + panel_height), outline=GRID)
        draw.text((left, TITLE + panel_height + 16), caption, INK, font(15), anchor="lm")
        draw.text((left, TITLE + panel_height + 35), detail, FAINT, font(12), anchor="lm")
    _color_bar(sheet, MARGIN + 3 * step + panel_width + 10, panel_height, widest)
    return sheet


def _as_rgb(image: np.ndarray) -> Image.Image:
    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    return Image.fromarray(pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels)


def _color_bar(sheet: Image.Image, left: int, height: int, widest: float) -> None:
    shades = viridis(np.linspace(1, 0, height))[:, None].repeat(BAR, axis=1)
    sheet.paste(Image.fromarray(shades), (left, TITLE))
    draw = ImageDraw.Draw(sheet)
    for share in (0.0, 0.5, 1.0):
        y = TITLE + round((1 - share) * (height - 1))
        draw.line((left + BAR, y, left + BAR + 3, y), fill=FAINT)
        draw.text((left + BAR + 7, y), f"{share * widest:.2f}", FAINT, font(12), anchor="lm")


@dataclass(frozen=True)
class Point:
    """A network in `tradeoff_plot`.

    Attributes
    ----------
    name : str
        Its label.
    clean, certified : float
        Accuracies in percent.
    boxes : float
        Boxes bounded, mean over all images.
    """

    name: str
    clean: float
    certified: float
    boxes: float


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front of clean accuracy, certified accuracy and boxes, by rising clean accuracy.

    >>> [p.name for p in pareto_front([Point("a", 80, 70, 9), Point("b", 82, 65, 9), Point("c", 79, 60, 9), Point("d", 79, 60, 4)])]
    ['d', 'a', 'b']
    """
    return _optimal(points, lambda p: (p.clean, p.certified, -p.boxes))


def _optimal(points: Sequence[Point], merits: Callable[[Point], tuple[float, ...]]) -> list[Point]:
    def dominates(one: Point, other: Point) -> bool:
        return merits(one) != merits(other) and all(a >= b for a, b in zip(merits(one), merits(other), strict=True))

    kept = [point for point in points if not any(dominates(other, point) for other in points)]
    return sorted(kept, key=lambda point: point.clean)


def tradeoff_plot(points: Sequence[Point], title: str) -> Image.Image:
    """Draw certified over clean accuracy of some networks; discs grow with the boxes per image.

    Parameters
    ----------
    points : sequence of Point
        The networks. A line joins those that are Pareto optimal in the two accuracies.
    title : str
        Text above the plot.

    Returns
    -------
    PIL.Image.Image
        The plot, 1040 x 560 pixels.
    """
    across, up = ([getattr(point, name) for point in points] for name in ("clean", "certified"))
    plot = Plot(
        math.floor(min(across) - 1), math.ceil(max(across) + 1), math.floor(min(up) - 1), math.ceil(max(up) + 1)
    )
    plot.axes("clean accuracy, %", "certified, %")
    front, line = pareto_front(points), _optimal(points, lambda p: (p.clean, p.certified))
    plot.line([(plot.x(point.clean), plot.y(point.certified)) for point in line], PROVED, 2)
    taken = []
    for point in points:
        x, y = plot.x(point.clean), plot.y(point.certified)
        radius = OVERSAMPLING * (3 + 2 * math.log10(max(point.boxes, 1.0)))
        taken.append((x - radius, y - radius, x + radius, y + radius))
        plot.draw.ellipse(taken[-1], fill=PROVED if point in front else SAMPLED)
    for point, disc in zip(points, tuple(taken), strict=True):
        _label(plot, disc, point.name, f"{point.boxes:,.0f} boxes per image", taken)
    plot.heading(title, [("not beaten in clean, certified and boxes alike", PROVED), ("beaten", SAMPLED)])
    return plot.finished()


def _label(plot: Plot, disc: Area, name: str, more: str, taken: list[Area]) -> None:
    """Draw two lines of text next to a point, in the first position where they cover nothing."""
    gap, line = 4 * OVERSAMPLING, 15 * OVERSAMPLING
    wide = max(plot.draw.textlength(words, font=font(size * OVERSAMPLING)) for words, size in ((name, 12), (more, 11)))
    left, top, right, bottom = disc
    middle, level = (left + right) / 2, (top + bottom) / 2
    sides = [(right + gap, level - line), (left - gap - wide, level - line)]
    for far in range(4):
        out = gap + far * line
        sides += [(x, y) for y in (top - out - 2 * line, bottom + out) for x in (middle - wide / 2, right, left - wide)]
    areas = [(x, y, x + wide, y + 2 * line) for x, y in sides]
    area = next(
        (area for area in areas if plot.holds(area) and not any(_overlap(area, other) for other in taken)), areas[0]
    )
    taken.append(area)
    plot.text(area[0], area[1] + line / 2, name, 12, INK, "lm")
    plot.text(area[0], area[1] + 3 * line / 2, more, 11, FAINT, "lm")


def _overlap(one: Area, other: Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


TRUE, PREDICTED, RANGE = "#2fbf5b", "#2d6cdf", "#e03a2f"
"""Colors of the steering angles."""
ENLARGE = 3
"""Frames are drawn this many times larger."""
SMOOTH = 2
"""Needles are drawn this many times larger again and reduced, for smooth lines."""
FRAME_MARGIN, FRAME_TITLE, FRAME_CAPTION = 20, 48, 44
"""Space between frames, above all of them, and below each."""
MAX_ANGLE = math.radians(85)
"""Larger angles are drawn at this one, so that no needle points below the horizon."""


@dataclass(frozen=True)
class Steering:
    """Steering angles of one frame in radians, positive to the left.

    Attributes
    ----------
    prediction : float
        The network's output.
    lower, upper : float
        The certified range.
    true : float or None
        The recorded angle, if known.
    """

    prediction: float
    lower: float
    upper: float
    true: float | None = None

    def caption(self) -> str:
        """Return the angles in degrees as text.

        >>> Steering(prediction=0.1, lower=0.09, upper=0.12, true=0.11).caption()
        'predicted 5.7°, certified 5.2° to 6.9°, right 6.3°'
        """
        text = f"predicted {_degrees(self.prediction)}, certified {_degrees(self.lower)} to {_degrees(self.upper)}"
        return text if self.true is None else f"{text}, right {_degrees(self.true)}"


def steering_plot(frames: np.ndarray, angles: Sequence[Steering], title: str, columns: int = 2) -> Image.Image:
    """Draw road frames with steering angles: prediction and truth as needles, the certified range as a fan.

    Parameters
    ----------
    frames : numpy.ndarray
        Array [n, 3, H, W] with values in [0, 1].
    angles : sequence of Steering
        The angles of each frame.
    title : str
        Text above the frames.
    columns : int
        Frames per row.

    Returns
    -------
    PIL.Image.Image
        The plot.
    """
    height, width = frames.shape[2] * ENLARGE, frames.shape[3] * ENLARGE
    columns = max(1, min(columns, len(frames)))
    rows = math.ceil(len(frames) / columns)
    size = (FRAME_MARGIN + columns * (width + FRAME_MARGIN), FRAME_TITLE + rows * (height + FRAME_CAPTION))
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((FRAME_MARGIN, FRAME_TITLE / 2), title, INK, font(18), anchor="lm")
    x = size[0] - FRAME_MARGIN
    for color, word in ((RANGE, "certified range"), (PREDICTED, "prediction"), (TRUE, "right answer")):
        x -= draw.textlength(word, font(14))
        draw.text((x, FRAME_TITLE / 2), word, INK, font(14), anchor="lm")
        draw.line((x - 26, FRAME_TITLE / 2, x - 8, FRAME_TITLE / 2), fill=color, width=5)
        x -= 46
    for k, (frame, steering) in enumerate(zip(frames, angles, strict=True)):
        left, top = (
            FRAME_MARGIN + k % columns * (width + FRAME_MARGIN),
            FRAME_TITLE + k // columns * (height + FRAME_CAPTION),
        )
        sheet.paste(_with_needles(frame, steering), (left, top))
        draw.text((left, top + height + 16), steering.caption(), FAINT, font(13), anchor="lm")
    return sheet


def _with_needles(frame: np.ndarray, steering: Steering) -> Image.Image:
    pixels = (np.clip(frame, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    size = pixels.shape[1] * ENLARGE, pixels.shape[0] * ENLARGE
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).convert("RGBA")
    large = size[0] * SMOOTH, size[1] * SMOOTH
    layer = Image.new("RGBA", large, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    foot, length = (large[0] / 2, large[1]), 0.92 * large[1]
    # the fan is a polygon whose rim follows the circle; its edges keep a narrow one visible
    rim = [_tip(foot, length, angle) for angle in np.linspace(steering.lower, steering.upper, 24)]
    draw.polygon([foot, *rim], fill=_rgba(RANGE, 110))
    for angle in (steering.lower, steering.upper):
        draw.line([foot, _tip(foot, length, angle)], fill=_rgba(RANGE, 255), width=2 * SMOOTH)
    if steering.true is not None:
        draw.line([foot, _tip(foot, 0.8 * length, steering.true)], fill=_rgba(TRUE, 255), width=3 * SMOOTH)
    draw.line([foot, _tip(foot, 0.9 * length, steering.prediction)], fill=_rgba(PREDICTED, 255), width=3 * SMOOTH)
    return Image.alpha_composite(image, layer.resize(size, Image.Resampling.LANCZOS)).convert("RGB")


def _tip(foot: tuple[float, float], length: float, angle: float) -> tuple[float, float]:
    """Return the end of a needle: straight up for 0, to the left for positive angles."""
    angle = min(max(angle, -MAX_ANGLE), MAX_ANGLE)
    return foot[0] - length * math.sin(angle), foot[1] - length * math.cos(angle)


def _rgba(color: str, alpha: int) -> tuple[int, int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16), alpha


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.1f}°"
