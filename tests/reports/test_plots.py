"""The plots: crisp pixels of the right values, a color scale, and a plot of what was proved."""

import sys

import numpy as np
import pytest
from PIL import Image, ImageColor

from tiltproof.reports import Point, Steering, bounds_plot, margin_plot, steering_plot, tradeoff_plot
from tiltproof.reports.plots import (
    FRAME_MARGIN,
    FRAME_TITLE,
    MARGIN,
    OPEN,
    PREDICTED,
    PROVED,
    RANGE,
    SAMPLED,
    TITLE,
    TRUE,
    _label,
    _overlap,
    pareto_front,
    round_ticks,
    viridis,
)


def shades(image):
    return {colour for _, colour in image.getcolors(maxcolors=1 << 24)}


def has_colour(image, name):
    wanted = np.array(ImageColor.getrgb(name))
    return bool((np.abs(np.asarray(image).astype(int) - wanted).max(axis=2) < 12).any())


@pytest.mark.parametrize("channels", [1, 3])
def test_bounds_are_shown_pixel_by_pixel(channels):
    original = np.random.default_rng(0).random((channels, 28, 28))
    image = bounds_plot(original, original * 0.5, original * 0.5 + 0.5, "title")
    assert image.mode == "RGB"
    enlarge = 252 // 28
    sheet = np.asarray(image)
    for row, column in [(0, 0), (13, 5), (27, 27)]:
        square = sheet[
            TITLE + row * enlarge : TITLE + (row + 1) * enlarge,
            MARGIN + column * enlarge : MARGIN + (column + 1) * enlarge,
        ]
        expected = np.broadcast_to((original[:, row, column] * 255).round(), 3)
        assert (square == expected).all(), "a pixel is one crisp square of its own value"


def test_bounds_of_other_shapes():
    wide, tall = bounds_plot(*np.zeros((3, 1, 4, 300)), "wide"), bounds_plot(*np.zeros((3, 3, 64, 8)), "tall")
    assert wide.width > 4 * 300
    assert tall.height > 200


def test_a_degenerate_box_has_width_zero_everywhere():
    image = bounds_plot(*np.full((3, 1, 8, 8), 0.5), "one point")
    assert tuple(viridis(np.array(0.0))) in shades(image)


def test_values_a_rounding_outside_the_unit_interval_do_not_wrap_round():
    sheet = np.asarray(bounds_plot(np.zeros((1, 8, 8)), np.full((1, 8, 8), -1e-6), np.full((1, 8, 8), 1 + 1e-6), "t"))
    panel = 8 * round(252 / 8)
    assert (sheet[TITLE + 5, MARGIN + panel + MARGIN + 5] == 0).all()
    assert (sheet[TITLE + 5, MARGIN + 2 * (panel + MARGIN) + 5] == 255).all()


def test_a_proved_range_is_drawn_without_red():
    angles = np.linspace(-30, 30, 61).tolist()
    margins = [5 + angle / 30 for angle in angles]
    boxes = [(low, low + 10.0, 3.0) for low in range(-30, 30, 10)]
    image = margin_plot(angles, margins, boxes, "all proved", "angle (degrees)")
    assert has_colour(image, SAMPLED)
    assert has_colour(image, PROVED)
    assert not has_colour(image, OPEN)


def test_an_open_box_is_drawn_in_red_even_when_its_bound_is_infinite():
    image = margin_plot([-1, 1], [2, 1], [(-1, 0, 0.5), (0, 1, float("-inf"))], "open", "pixels")
    assert has_colour(image, PROVED)
    assert has_colour(image, OPEN)


def test_constant_margins_and_a_single_box(tmp_path):
    image = margin_plot([0.0, 1.0], [0.0, 0.0], [(0.0, 1.0, 0.0)], "flat", "brightness")
    image.save(tmp_path / "flat.png")
    assert Image.open(tmp_path / "flat.png").size == image.size


@pytest.mark.parametrize(("low", "high"), [(-30, 30), (0, 1e-4), (-0.013, 0.021), (99.5, 100.5), (-1e6, 3)])
def test_ticks_are_few_round_and_inside(low, high):
    ticks = round_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    slack = 1e-9 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0])


def needle_side(image, colour):
    """Return the mean column of this color's pixels, relative to the middle of a frame 600 wide."""
    wanted = np.array(ImageColor.getrgb(colour))
    frame = np.asarray(image)[FRAME_TITLE : FRAME_TITLE + 198, FRAME_MARGIN : FRAME_MARGIN + 600].astype(int)
    columns = (np.abs(frame - wanted).max(axis=2) < 40).nonzero()[1]
    assert len(columns)
    return columns.mean() - 300


def test_steering_needles_point_where_the_angles_say():
    frames = np.full((3, 3, 66, 200), 0.5)
    left = Steering(prediction=0.5, lower=0.3, upper=0.7, true=-0.5)
    image = steering_plot(frames[:1], [left], "one frame")
    assert needle_side(image, PREDICTED) < -10
    assert needle_side(image, TRUE) > 10
    assert has_colour(image, RANGE)
    strip = steering_plot(frames, [left, left, Steering(0.0, -3.0, 3.0)], "a strip", columns=1)
    assert strip.width == image.width
    assert strip.height > 2 * image.height


def test_the_front_is_drawn_in_its_own_color():
    points = [
        Point("cheap", 79, 58, 20),
        Point("strict", 80, 75, 30),
        Point("loose", 84, 60, 4000),
        Point("beaten", 79, 59, 100),
    ]
    assert pareto_front(points) == points[:3]
    image = tradeoff_plot(points, "a front")
    assert has_colour(image, PROVED)
    assert has_colour(image, SAMPLED)


def test_labels_of_points_close_together_do_not_cover_each_other(monkeypatch):
    taken = []
    monkeypatch.setattr(
        sys.modules["tiltproof.reports.plots"], "_label", lambda *arguments: taken.append(label(*arguments))
    )
    tradeoff_plot(
        [Point(f"number {k}", 76 + 0.05 * k, 70 + 0.03 * k, 100) for k in range(6)] + [Point("far", 70, 60, 10)], "near"
    )
    (areas,) = {id(each): each for each in taken}.values()
    discs, labels = areas[:7], areas[7:]
    assert len(labels) == 7
    for k, area in enumerate(labels):
        assert not any(_overlap(area, other) for other in [*discs, *labels[:k]])


def label(*arguments):
    _label(*arguments)
    return arguments[-1]
