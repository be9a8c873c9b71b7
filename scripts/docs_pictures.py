"""Draw the figures of docs/pictures, all from results of the package.

python scripts/docs_pictures.py [FOLDER]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import docs_tables
import numpy as np
import torch
from svg import Chart, Sheet

import tiltproof
from tiltproof.reports.plots import FAINT, INK, OPEN, PROVED, SAMPLED, viridis
from tiltproof.verify.state import Boxes, Tiling, leaves

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
ROW, COLUMN = 25, 14
"""The pixel that is followed: near the foot of the first digit, a 7."""


def seven() -> torch.Tensor:
    return tiltproof.data.load("mnist-sample")[0][:1].double()


def one_pixel() -> Sheet:
    """A pixel over the angle, and three ways to enclose it: CGT's interval, the exact interval, the affine form."""
    image, (low, high) = seven(), (0.0, 8.0)
    angles = torch.linspace(low, high, 241, dtype=torch.float64)
    values = tiltproof.transforms.Rotation(30).apply(image.expand(len(angles), -1, -1, -1), angles[:, None])[
        :, 0, ROW, COLUMN
    ]
    boxes = {name: tiltproof.bound_pixels(image, "R(30)", name, [low], [high]) for name in ("fgv", "hull", "affine")}
    ends = {name: (float(f.lower[0, 0, ROW, COLUMN]), float(f.upper[0, 0, ROW, COLUMN])) for name, f in boxes.items()}
    sheet = Sheet(760, 380)
    chart = Chart(sheet, (60, 34, 480, 290), (low, high), (-0.2, 1.2), ("angle in degrees", "value of the pixel"))
    for name, opacity in (("fgv", 0.10), ("hull", 0.16)):
        bottom, top = ends[name]
        chart.area([(low, bottom), (high, bottom), (high, top), (low, top)], INK, opacity)
    form = boxes["affine"]
    center, slope = (float(plane[0, 0, ROW, COLUMN]) for plane in form.stack)
    radius = float(form.radius[0, 0, ROW, COLUMN])
    corners = [(low, center - slope), (high, center + slope)]
    band = [(x, y - radius) for x, y in corners] + [(x, y + radius) for x, y in reversed(corners)]
    chart.area(band, PROVED, 0.35, PROVED)
    chart.line(corners, PROVED, 1, "5 4")
    chart.line(list(zip(angles.tolist(), values.tolist(), strict=True)), SAMPLED, 2.5)
    for k, (color, opacity, text) in enumerate(
        (
            (SAMPLED, 1.0, "the pixel itself"),
            (PROVED, 1.0, f"affine form: c + G e ± r, r = {radius:.3f}"),
            (INK, 0.3, f"exact interval, width {ends['hull'][1] - ends['hull'][0]:.2f}"),
            (INK, 0.1, f"CGT's interval, width {ends['fgv'][1] - ends['fgv'][0]:.2f}"),
        )
    ):
        sheet.add("rect", x=556, y=44 + 36 * k, width=14, height=14, fill=color, fill_opacity=opacity)
        for line, part in enumerate(text.split(": ")):
            sheet.text(576, 55 + 36 * k + 14 * line, part, 11)
    return sheet


def second_order() -> Sheet:
    """Widths over the box size: intervals fall like the size, the remainder of the affine form like its square."""
    image = seven()
    sizes = [2.0**-k for k in range(8)]
    widths: dict[str, list[tuple[float, float]]] = {"fgv": [], "hull": [], "remainder": []}
    for size in sizes:
        for name in ("fgv", "hull", "affine"):
            form = tiltproof.bound_pixels(image, "R(30)", name, [5.0 - size / 2], [5.0 + size / 2])
            width = 2 * form.radius if name == "affine" else form.width
            widths["remainder" if name == "affine" else name].append((size, float(width.mean())))
    sheet = Sheet(760, 380)
    labels = ("width of the box in degrees", "mean width over all pixels")
    chart = Chart(sheet, (60, 34, 440, 290), (0.005, 1.5), (1e-8, 0.2), labels, logarithmic=True)
    texts = {"fgv": "CGT's interval", "hull": "exact interval", "remainder": "affine form: 2 r"}
    for (name, points), color in zip(widths.items(), (FAINT, INK, PROVED), strict=True):
        chart.line(points, color)
        chart.dots(points, color, 3)
        across, down = chart.at(*points[0])
        (a, b), (c, d) = points[-4], points[-1]
        order = np.log(b / d) / np.log(a / c)
        sheet.text(
            across + 14, down + (12 if name == "hull" else 0), f"{texts[name]} (order {order:.1f})", 11, fill=color
        )
    return sheet


def cells() -> Sheet:
    """A coordinate box that crosses a grid line each way, and the nine points where extremes can lie."""
    sheet = Sheet(430, 330)
    chart = Chart(sheet, (50, 24, 340, 260), (0, 3.4), (0, 2.8))
    for line in (0, 1, 2, 3):
        chart.line([(line, 0), (line, 2.4)], FAINT, 1)
    for line in (0, 1, 2):
        chart.line([(0, line), (3.4, line)], FAINT, 1)
    chart.dots([(x, y) for x in (0, 1, 2, 3) for y in (0, 1, 2)], FAINT, 3)
    xs, ys = (1.35, 2.0, 2.8), (0.45, 1.0, 1.7)
    chart.area([(xs[0], ys[0]), (xs[2], ys[0]), (xs[2], ys[2]), (xs[0], ys[2])], PROVED, 0.25, PROVED)
    chart.dots([(x, y) for x in xs for y in ys], OPEN, 4.5)
    chart.note(0.06, 2.66, "gray: pixel centers; green: where one pixel may look", FAINT)
    chart.note(0.06, 2.48, "red: the only points that need a look", OPEN)
    return sheet


def relu() -> Sheet:
    """The two relaxations of ReLU: the parallelogram going forward, two lines going backward."""
    sheet = Sheet(720, 300)
    low, high = -1.0, 2.0
    slope = high / (high - low)
    for k, title in enumerate(("forward: one slope, remainder t / 2", "backward: a line above, a line below")):
        chart = Chart(sheet, (50 + 350 * k, 40, 290, 210), (-1.3, 2.3), (-1.0, 2.4), ("x", title))
        curve = [(-1.3, 0.0), (0.0, 0.0), (2.3, 2.3)]
        if k == 0:
            gap = -slope * low
            points = [(low, slope * low), (high, slope * high), (high, slope * high + gap), (low, slope * low + gap)]
            chart.area(points, PROVED, 0.3, PROVED)
        else:
            chart.area([(low, 0), (low, low), (high, high)], PROVED, 0.3)
            chart.line([(low, 0), (high, high)], PROVED, 2)
            chart.line([(low, low), (high, high)], PROVED, 2)
        chart.line(curve, SAMPLED, 2.5)
        for end, name in ((low, "l"), (high, "h")):
            chart.line([(end, -1.0), (end, 2.4)], FAINT, 1, "3 3")
            chart.note(end + 0.05, -0.9, name, FAINT)
    return sheet


def tiling() -> Sheet:
    """The boxes that prove one image for two parameters, drawn in the plane of the parameters."""
    transform = tiltproof.parse("Sc(10), R(10)")
    images, labels = tiltproof.data.load("mnist-sample")
    certificate = tiltproof.certify(
        tiltproof.models.load("mnist-sc5-r5-c5-b001"), images[11:12], labels[11:12], transform
    )
    (result,) = certificate.results
    assert result.verdict is tiltproof.Verdict.CERTIFIED, result
    assert result.grid is not None
    assert result.tree is not None
    nodes = torch.tensor(leaves(result.grid, result.tree, 10_000))
    lower, upper = Tiling(transform, result.grid).bounds(Boxes(nodes[:, :2], nodes[:, 2:]))
    sheet = Sheet(560, 400)
    labels_ = ("scaling in percent", "rotation in degrees")
    chart = Chart(sheet, (60, 34, 460, 310), (-10, 10), (-10, 10), labels_)
    for (a, b), (c, d) in zip(lower.tolist(), upper.tolist(), strict=True):
        chart.area([(a, b), (c, b), (c, d), (a, d)], PROVED, 0.25, PROVED)
    sheet.text(520, 26, f"{len(nodes)} boxes, each with a proof", 12, "end", PROVED)
    return sheet


def bounds() -> Sheet:
    """A digit, its lower and upper bound over a box of angles, and the width between them."""
    image = seven()
    sheet = Sheet(720, 430)
    for row, (name, text) in enumerate((("fgv", "CGT's intervals"), ("hull", "exact intervals"))):
        form = tiltproof.bound_pixels(image, "R(4:7)", name)
        lower, upper = (end[0, 0].clamp(0, 1).numpy() for end in (form.lower, form.upper))
        planes = [image[0, 0].numpy(), lower, upper]
        panels = [(plane * 255).round().astype(np.uint8) for plane in planes] + [viridis(upper - lower)]
        sheet.text(20, 24 + 205 * row, f"{text} for R(4:7)")
        titles = ("the image", "lower bound", "upper bound", f"width, mean {(upper - lower).mean():.3f}")
        for k, (panel, title) in enumerate(zip(panels, titles, strict=True)):
            sheet.bitmap(20 + 175 * k, 34 + 205 * row, 150, panel)
            sheet.text(20 + 175 * k, 198 + 205 * row, title, 11, fill=FAINT)
    return sheet


RIBBON, CELLS = 90.0, 360
"""Degrees to either side, and cells in which the margin is bounded."""
PICTURE = 4


def margin_ribbon() -> Sheet:
    """A digit at seven angles, and its margin over all angles: proved from below cell by cell, and evaluated."""
    images, labels = tiltproof.data.load("mnist-sample")
    model, image, label = (
        tiltproof.models.load("mnist-r30").double(),
        images[PICTURE, None].double(),
        labels[PICTURE, None],
    )
    ends = torch.linspace(-RIBBON, RIBBON, CELLS + 1, dtype=torch.float64)
    form = tiltproof.bound_pixels(
        image.expand(CELLS, -1, -1, -1), f"R({RIBBON:g})", "affine", ends[:-1, None], ends[1:, None]
    )
    others = torch.arange(10) != label
    proved = tiltproof.bound_network(model, form, label.expand(CELLS)).lower[:, others].amin(1).detach()
    moved = tiltproof.parse(f"R({RIBBON:g})").apply(image.expand(CELLS + 1, -1, -1, -1), ends[:, None])
    scores = model(moved).detach()
    reached = scores[:, label].squeeze(1) - scores[:, others].amax(1)
    low, high = math.floor(float(reached.min())), math.ceil(float(reached.max())) + 1
    sheet = Sheet(760, 360)
    place = 60.0, 118.0, 680.0, 190.0
    chart = Chart(sheet, place, (-RIBBON, RIBBON), (low, high), ("angle in degrees", "margin of the label"))
    for cells, color in ((proved, PROVED), (torch.minimum(reached[1:], reached[:-1]), OPEN)):
        shown = cells > 0 if color == PROVED else cells < 0
        steps = [
            (x, float(y) * bool(on)) for y, on, *xs in zip(cells, shown, ends[:-1], ends[1:], strict=True) for x in xs
        ]
        chart.area([(-RIBBON, 0), *((float(x), y) for x, y in steps), (RIBBON, 0)], color, 0.6)
    chart.line([(-RIBBON, 0), (RIBBON, 0)], INK, 1)
    chart.line(list(zip(ends.tolist(), reached.tolist(), strict=True)), SAMPLED, 2)
    for k in range(7):
        angle = -RIBBON + k * RIBBON / 3
        picture = moved[round((angle + RIBBON) * CELLS / (2 * RIBBON)), 0].numpy()
        across, _ = chart.at(angle * 0.93, 0)
        sheet.bitmap(across - 32, 12, 64, (picture * 255).round().astype(np.uint8))
        sheet.text(across, 90, f"{angle:+.0f}°" if angle else "0°", 11, "middle", FAINT)
    for k, (color, text) in enumerate(((PROVED, "proved: at least this"), (SAMPLED, "evaluated"), (OPEN, "wrong"))):
        sheet.add("rect", x=400 + 140 * k, y=101, width=12, height=12, fill=color)
        sheet.text(417 + 140 * k, 111, text, 11)
    return sheet


FARTHEST, GAP = 90.0, 0.1
"""Degrees of the range whose proved share is looked for, and how close both ends of a radius have to come."""


def radius_curve() -> Sheet:
    """The share of images certified at radius >= r, from both ends: proved, and not yet refuted by a counterexample."""
    images, labels = tiltproof.data.load("mnist-sample")
    found = tiltproof.certified_radius(tiltproof.models.load("mnist-r30"), images, labels, f"R({FARTHEST:g})", gap=GAP)
    points, count = found.curve(), len(found.results)
    proved, possible = [(0.0, 0.0)], [(0.0, 100.0)]
    before = 0.0
    for point in points:  # the first count holds up to a point, the second one from a point on
        share = 100 * point.certified / count
        proved += [(before, share), (point.radius, share)]
        before = point.radius
    for point in points:
        possible += [(point.radius, possible[-1][1]), (point.radius, 100 * point.possible / count)]
    gaps = [high - low for low, high in found.radii if high is not None]
    sheet = Sheet(760, 330)
    labels_ = (
        "radius r in degrees: every rotation by at most r to either side",
        "images certified at r or more, in percent",
    )
    chart = Chart(sheet, (60, 34, 680, 240), (0, FARTHEST), (0, 100), labels_)
    chart.area([*proved, (FARTHEST, 0)], PROVED, 0.35)
    chart.line(proved[1:], PROVED, 2)
    chart.line(possible, OPEN, 1.5, "5 3")
    median = found.summary()["median_radius"]
    chart.line([(median, 0), (median, 100 * sum(low >= median for low, _ in found.radii) / count)], INK, 1, "3 3")
    chart.note(median + 1, 4, f"half of them: {median:.0f}°", INK)
    for k, (color, text) in enumerate(
        (
            (PROVED, "proved: at least so large a share"),
            (OPEN, "at most: the others have a counterexample"),
        )
    ):
        sheet.add("rect", x=76, y=196 + 20 * k, width=12, height=12, fill=color)
        sheet.text(93, 206 + 20 * k, text, 11)
    sheet.text(76, 250, f"both ends of each radius are at most {max(gaps):.2f}° apart", 11)
    return sheet


GALLERY = {"R": 20.0, "Tu": 4.0, "Tv": 4.0, "Sc": 30.0, "Sh": 40.0, "C": -50.0, "B": 0.3}


def gallery() -> Sheet:
    """What a positive (for contrast a negative) parameter of each of CGT's transformations does."""
    image = seven()
    sheet = Sheet(760, 130)
    sheet.bitmap(10, 10, 84, (image[0, 0].numpy() * 255).round().astype(np.uint8))
    sheet.text(10, 114, "the image", 12)
    for k, (letter, value) in enumerate(GALLERY.items(), start=1):
        moved = tiltproof.parse(f"{letter}({abs(value)})").apply(image, torch.tensor([value]))
        sheet.bitmap(10 + 94 * k, 10, 84, (moved[0, 0].numpy() * 255).round().astype(np.uint8))
        sheet.text(10 + 94 * k, 114, f"{letter}: {value:+g}", 12)
    return sheet


def front() -> Sheet:
    """What provability costs: clean and certified share of eight networks, and the boxes an image of each takes."""
    rows = docs_tables.read("front")["rows"]
    sheet = Sheet(760, 420)
    labels = ("clean, percent of the images", "certified, percent; the circles' areas are boxes per image")
    chart = Chart(sheet, (60, 34, 660, 330), (71.5, 81), (63.5, 73), labels)
    for name, clean, certified, _, boxes in rows:
        across, down = chart.at(float(clean), float(certified))
        radius = math.sqrt(float(boxes)) * 0.8
        color = PROVED if name.startswith("bound") else SAMPLED
        sheet.add("circle", cx=across, cy=down, r=radius, fill=color, fill_opacity=0.35, stroke=color)
        beside = name in LEFT_OF
        sheet.text(
            across + (-radius - 5 if beside else radius + 5),
            down + 4,
            f"{name}: {boxes}",
            12,
            "end" if beside else "start",
        )
    for k, (color, text) in enumerate(
        ((PROVED, "trained with bounds"), (SAMPLED, "trained on sampled transformations"))
    ):
        sheet.add("circle", cx=80, cy=300 + 22 * k, r=6.0, fill=color, fill_opacity=0.35, stroke=color)
        sheet.text(94, 304 + 22 * k, text, 12)
    return sheet


LEFT_OF = {"bound 0.2", "bound 0.1, boxes twice as wide"}
"""Networks named to the left of their circle, where another one is on the right."""

PICTURES = {
    "front": front,
    "margin-ribbon": margin_ribbon,
    "radius-curve": radius_curve,
    "one-pixel": one_pixel,
    "second-order": second_order,
    "cells": cells,
    "relu": relu,
    "tiling": tiling,
    "bounds": bounds,
    "gallery": gallery,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
