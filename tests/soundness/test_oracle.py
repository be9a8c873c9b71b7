"""The oracle itself, against facts worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.support.cases import PAPER_BOUNDS, PAPER_IMAGE
from tests.support.oracle import algorithm_1, composed_inverse, exact_image, kernel_sum, sine_cosine, transformed

LETTERS = (
    "R",
    "Tu",
    "Tv",
    "Sc",
    "Sh",
    "C",
    "B",
    "Scu",
    "Scv",
    "Shv",
    "Yaw@9",
    "Pitch@7.5",
    "Roll",
    "Tx@8",
    "Tz@9@0.3:-0.75:0.4",
)


def random_image(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape)


def same(result, expected) -> bool:
    return bool(
        (result.fractions() == np.vectorize(Fraction, otypes=[object])(np.asarray(expected, dtype=float))).all()
    )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflect"])
@pytest.mark.parametrize("letter", LETTERS)
def test_zero_changes_nothing(letter, padding):
    image = random_image(2, 3, 4)
    assert same(transformed(image, [letter], [0], padding), image)


def test_whole_pixel_shifts():
    image = random_image(1, 3, 4)
    right, up = np.zeros_like(image), np.zeros_like(image)
    right[:, :, 1:] = image[:, :, :-1]
    up[:, :-1] = image[:, 1:]
    assert same(transformed(image, ["Tu"], [1]), right)
    assert same(transformed(image, ["Tv"], [1]), up)
    assert same(transformed(image, ["Tu"], [1], "border"), image[:, :, [0, 0, 1, 2]])
    assert same(transformed(image, ["Tu"], [1], "reflect"), image[:, :, [1, 0, 1, 2]])
    assert same(transformed(image, ["Tu"], [-5], "reflect"), image[:, :, [1, 0, 1, 2]])  # 5 6 7 8 fold to 1 0 1 2
    assert same(transformed(image, ["Tv"], [-2], "reflect"), image[:, [2, 1, 0]])
    assert same(transformed(image, ["Tv"], [99], "border"), image[:, [2, 2, 2]])
    assert same(transformed(image, ["Tu"], [99], "zeros"), 0 * image)


def test_half_pixel_shift_is_the_mean_of_two():
    result = transformed([[[0.25, 0.75, 1.0]]], ["Tu"], [Fraction(1, 2)])
    assert same(result, [[[0.125, 0.5, 0.875]]])


def test_quarter_turns_are_counter_clockwise():
    image = random_image(1, 4, 4)
    for quarter in range(-4, 5):
        assert same(transformed(image, ["R"], [90 * quarter]), np.rot90(image, quarter, axes=(1, 2)))
    wide = random_image(1, 3, 6)
    assert same(transformed(wide, ["R"], [180]), wide[:, ::-1, ::-1])


def test_scaling_and_shearing_of_three_by_three():
    image = random_image(1, 3, 3)
    doubled = transformed(image, ["Sc"], [100])
    assert doubled.fraction(0, 1, 1) == Fraction(image[0, 1, 1])
    assert doubled.fraction(0, 1, 2) == (Fraction(image[0, 1, 1]) + Fraction(image[0, 1, 2])) / 2
    sheared = np.zeros_like(image)  # the row above the center moves right by one, the row below left by one
    sheared[0, 0, 1:], sheared[0, 1], sheared[0, 2, :2] = image[0, 0, :2], image[0, 1], image[0, 2, 1:]
    assert same(transformed(image, ["Sh"], [100]), sheared)


def test_composition_is_in_the_order_given():
    image = random_image(1, 4, 4)
    right = np.zeros_like(image)
    right[:, :, 1:] = image[:, :, :-1]
    turned = np.rot90(image, 1, axes=(1, 2))
    turned_right = np.zeros_like(image)
    turned_right[:, :, 1:] = turned[:, :, :-1]
    assert same(transformed(image, ["Tu", "R"], [1, 90]), np.rot90(right, 1, axes=(1, 2)))
    assert same(transformed(image, ["R", "Tu"], [90, 1]), turned_right)


def test_spatial_neighbors_are_interpolated_once():
    image = [[[0.0, 1.0, 0.0]]]
    together = transformed(image, ["Tu", "Tu"], [Fraction(1, 2), Fraction(-1, 2)])
    apart = transformed(image, ["Tu", "B", "Tu"], [Fraction(1, 2), 0, Fraction(-1, 2)])
    assert same(together, image)
    assert same(apart, [[[0.25, 0.5, 0.25]]])  # out of the frame at the right and back: 0 .5 .5 -> .25 .5 .25


def test_pixelwise_clamps_once_per_run_and_leaves_the_padding_alone():
    image = [[[0.75, 0.25]]]
    assert same(transformed(image, ["C", "B"], [100, Fraction(-1, 2)]), [[[1.0, 0.0]]])
    assert same(transformed(image, ["B", "C"], [Fraction(1, 2), -50]), [[[0.625, 0.375]]])  # no clamp in between
    assert same(transformed(image, ["B", "Tu"], [Fraction(1, 8), 1]), [[[0.0, 0.875]]])
    assert same(transformed(image, ["Tu", "B"], [1, Fraction(1, 8)]), [[[0.125, 0.875]]])
    assert same(transformed(image, ["C"], [-200]), [[[0.0, 0.0]]])


def test_one_pixel_wide_images():
    assert same(transformed([[[0.5]]], ["Tu"], [Fraction(1, 4)]), [[[0.375]]])
    for padding in ("border", "reflect"):
        assert same(transformed([[[0.5]]], ["R", "Tu"], [33, Fraction(7, 4)], padding), [[[0.5]]])
    assert same(transformed([[[0.5], [0.25]]], ["Tv"], [1], "reflect"), [[[0.25], [0.5]]])


def test_sine_and_cosine_are_exact_enough():
    sine, cosine = sine_cosine(Fraction(30))
    assert abs(sine - Fraction(1, 2)) < Fraction(1, 2**399)
    assert abs(cosine * cosine - Fraction(3, 4)) < Fraction(1, 2**398)


@pytest.mark.parametrize("theta", [Fraction(1, 7), Fraction(-95, 3), Fraction(1234, 10)])
def test_sampling_is_the_papers_kernel_sum(theta):
    image = exact_image(random_image(1, 4, 5)).fractions()
    letters = ["Sc", "R", "Sh", "Tv"]
    values = [theta / 3, theta, theta * 5, theta / 40]
    result = transformed(image, letters, values)
    matrix = composed_inverse(letters, values)
    for i in range(4):
        for j in range(5):
            u, v = Fraction(2 * j - 4, 2), Fraction(3 - 2 * i, 2)
            source = [row[0] * u + row[1] * v + row[2] for row in matrix[:2]]
            assert result.fraction(0, i, j) == kernel_sum(image[0], *source)


def test_a_turned_camera_sees_where_its_rays_meet_the_image():
    """The kernel sum at (x / w, y / w); a camera that turns back sees the image unchanged."""
    image = exact_image(random_image(1, 4, 5)).fractions()
    letters, values = ["Yaw@9", "Scv", "Pitch@7.5"], [Fraction(17, 3), Fraction(10), Fraction(-8)]
    result = transformed(image, letters, values)
    matrix = composed_inverse(letters, values)
    for i in range(4):
        for j in range(5):
            u, v = Fraction(2 * j - 4, 2), Fraction(3 - 2 * i, 2)
            x, y, w = (row[0] * u + row[1] * v + row[2] for row in matrix)
            assert abs(result.fraction(0, i, j) - kernel_sum(image[0], x / w, y / w)) < result.error
    back = transformed(image, ["Pitch@6", "Yaw@9", "Yaw@9", "Pitch@6"], [11, 20, -20, -11])
    assert np.abs(back.floats() - image.astype(float)).max() < 1e-15


def test_the_papers_running_example():
    """Scaling by +-2 %: Algorithm 1 gives the printed intervals, and the true images lie inside them."""
    image = np.array([[Fraction(str(x)) for x in row] for row in PAPER_IMAGE], dtype=object)
    stretch = [1 / Fraction("1.02"), 1 / Fraction("0.98")]
    for i in range(3):
        for j in range(3):
            u, v = sorted((j - 1) * s for s in stretch), sorted((1 - i) * s for s in stretch)
            bounds = algorithm_1(image, tuple(u), tuple(v))
            for computed, printed in zip(bounds, PAPER_BOUNDS[i][j], strict=True):
                assert abs(float(computed) - printed) < 0.0051
            for percent in range(-20, 21):
                value = transformed(image[None], ["Sc"], [Fraction(percent, 10)]).fraction(0, i, j)
                assert bounds[0] <= value <= bounds[1]
