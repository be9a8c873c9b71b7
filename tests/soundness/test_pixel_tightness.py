"""Pixel bounds are as tight as promised: the exact hull, the paper's numbers, a quadratic remainder."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import (
    KINDS,
    PADDINGS,
    PAPER_BOUNDS,
    PAPER_IMAGE,
    PIXELWISE,
    SPATIAL,
    make_image,
    make_thetas,
    make_transform,
)
from tests.support.oracle import algorithm_1, composed_inverse, exact_image, source_positions, transformed
from tests.support.pixel_check import METHODS, assert_sound, random_box
from tiltproof import bound_pixels
from tiltproof.transforms import Scaling


@settings(max_examples=120)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE), min_size=1, max_size=4),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from([(1, 5), (3, 3), (6, 5)]),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_hull_is_never_wider_than_the_papers_box(letters, padding, size, kind, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, [kind] * len(letters), rng)
    image = torch.tensor(make_image("random", 1, *size, rng))[None]
    transform = make_transform(letters, padding)
    hull, fgv = (bound_pixels(image, transform, method=method, low=low, high=high) for method in ("hull", "fgv"))
    assert (hull.lower >= fgv.lower - 1e-6).all()
    assert (hull.upper <= fgv.upper + 1e-6).all()


@pytest.mark.parametrize("letter", ["Tu", "Tv"])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.7), (-0.9, -0.3), (2.0, 3.0), (-1.0, 0.0), (0.25, 0.25)])
@pytest.mark.parametrize("padding", PADDINGS)
def test_hull_of_a_shift_inside_one_cell_is_attained(letter, low, high, padding):
    """A pixel is a linear function of the shift there, so the two ends span its exact range."""
    rng = np.random.default_rng(6)
    image = rng.random((1, 4, 6))
    form = bound_pixels(
        torch.tensor(image)[None], make_transform([letter], padding), method="hull", low=[low], high=[high]
    )
    ends = np.stack([transformed(image, [letter], [theta], padding).floats() for theta in (low, high)])
    assert np.abs(form.lower[0].numpy() - ends.min(0)).max() < 1e-6
    assert np.abs(form.upper[0].numpy() - ends.max(0)).max() < 1e-6
    affine = bound_pixels(torch.tensor(image)[None], make_transform([letter], padding), low=[low], high=[high])
    assert affine.radius.max() < 1e-6  # linear in the symbol, so no remainder is needed


@pytest.mark.parametrize("letter", ["Tu", "Tv"])
def test_hull_of_a_shift_across_grid_lines_is_attained(letter):
    """Piecewise linear: the extrema are at the ends and at whole-pixel shifts."""
    rng = np.random.default_rng(9)
    image = rng.random((1, 5, 5))
    low, high = -1.3, 2.6
    form = bound_pixels(torch.tensor(image)[None], make_transform([letter]), method="hull", low=[low], high=[high])
    knots = np.stack([transformed(image, [letter], [theta]).floats() for theta in (low, -1, 0, 1, 2, high)])
    assert np.abs(form.lower[0].numpy() - knots.min(0)).max() < 1e-6
    assert np.abs(form.upper[0].numpy() - knots.max(0)).max() < 1e-6


@pytest.mark.parametrize(
    "letters",
    [["R"], ["Sc"], ["R", "Sh"], ["Sc", "R", "C", "B"], ["Scu", "Shv"], ["Yaw@9"], ["Pitch@7.5", "Scv"]],
    ids=",".join,
)
def test_remainder_falls_with_the_square_of_the_box(letters):
    """Halve the box three times: on a smooth image, with no grid line crossed, the radius falls by > 3 each time."""
    size = (8, 8)
    i, j = np.indices(size)
    pixels = (0.5 + 0.3 * np.sin(0.4 * i) * np.cos(0.5 * j))[None]
    center = {"R": 7.3, "Sc": 6.1, "Sh": 4.7, "C": 2.0, "B": 0.03, "Scu": 6.1, "Scv": 5.3, "Shv": 4.7}
    half = {"R": 0.8, "Sc": 0.9, "Sh": 0.9, "C": 2.0, "B": 0.02, "Scu": 0.9, "Scv": 0.9, "Shv": 0.9}
    center |= {"Yaw@9": 2.3, "Pitch@7.5": 2.9}
    half |= {"Yaw@9": 0.8, "Pitch@7.5": 0.6}
    corners = []
    for signs in np.ndindex(*([3] * len(letters))):
        spatial = [k for k, letter in enumerate(letters) if letter in SPATIAL]
        theta = [Fraction(center[letters[k]] + (signs[k] - 1) * 1.05 * half[letters[k]]) for k in spatial]
        column, row, unit = source_positions(composed_inverse([letters[k] for k in spatial], theta), *size)
        corners.append(np.stack([(column // unit).astype(int), (row // unit).astype(int)]))
    single_cell = (np.stack(corners) == corners[0]).all((0, 1))  # pixels that stay inside one cell
    assert single_cell.sum() >= 20
    image, transform, radii = torch.tensor(pixels)[None], make_transform(letters), []
    for share in (1, 0.5, 0.25, 0.125):
        low, high = [center[x] - share * half[x] for x in letters], [center[x] + share * half[x] for x in letters]
        form = bound_pixels(image, transform, low=low, high=high)
        radii.append(float(form.radius[0, 0].numpy()[single_cell].max()))
        assert_sound(
            letters, "zeros", pixels, low, high, make_thetas(low, high, np.random.default_rng(0), 2), ("affine",)
        )
    assert radii[0] < 0.05
    assert all(before > 3 * after for before, after in itertools.pairwise(radii)), radii


def test_the_papers_running_example_number_for_number():
    form = bound_pixels(torch.tensor(PAPER_IMAGE, dtype=torch.float64)[None, None], Scaling(2), method="fgv")
    printed = torch.tensor(PAPER_BOUNDS, dtype=torch.float64)
    assert (form.lower[0, 0] - printed[..., 0]).abs().max() < 0.006
    assert (form.upper[0, 0] - printed[..., 1]).abs().max() < 0.006


@pytest.mark.parametrize(
    ("letter", "low", "high"),
    [
        ("Sc", -2.0, 2.0),
        ("Sc", -30.0, 60.0),
        ("Tu", -0.7, 1.6),
        ("Tv", 0.0, 1.0),
        ("Scu", -30.0, 60.0),
        ("Scv", 1.0, 5.0),
        ("Shv", -20.0, 30.0),
    ],
)
def test_fgv_is_algorithm_1(letter, low, high):
    """Where interval coordinates are exact, `fgv` is the paper's algorithm (an upper bound above 1 may be cut to 1)."""
    image = np.random.default_rng(12).random((4, 3))
    form = bound_pixels(torch.tensor(image)[None, None], make_transform([letter]), method="fgv", low=[low], high=[high])
    exact = exact_image(image).fractions()
    ends = [composed_inverse([letter], [Fraction(value)]) for value in (low, high)]
    for i in range(4):
        for j in range(3):
            u, v = Fraction(j - 1), Fraction(3 - 2 * i, 2)
            columns, rows = ([matrix[k][0] * u + matrix[k][1] * v + matrix[k][2] for matrix in ends] for k in (0, 1))
            bottom, top = algorithm_1(exact, (min(columns), max(columns)), (min(rows), max(rows)))
            assert float(form.lower[0, 0, i, j]) == pytest.approx(float(bottom), abs=1e-6)
            assert min(float(form.upper[0, 0, i, j]), 1) == pytest.approx(min(float(top), 1), abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("letters", [["R"], ["Tu"], ["Sc", "R"], ["C", "B"], ["B", "R", "C"]], ids=",".join)
def test_pixels_stay_near_the_unit_interval_however_large_the_box(letters, method):
    """Enormous bounds are sound but useless: values are in [0, 1] and no bound needs to be wider."""
    low = [{"R": -180.0, "Tu": -30.0, "Sc": -50.0, "C": -90.0, "B": -0.5}[letter] for letter in letters]
    high = [-a for a in low]
    image = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    form = bound_pixels(image, make_transform(letters), method=method, low=low, high=high)
    limit = 12 if method == "fgv" else 1.5
    assert form.lower.min() > -limit
    assert form.upper.max() < 1 + limit


def test_outside_the_image_is_exactly_black_with_zeros():
    image = torch.ones(1, 1, 4, 4)
    for method in METHODS:
        form = bound_pixels(image, make_transform(["Tu"]), method=method, low=[20], high=[30])
        assert form.lower.abs().max() < 1e-6
        assert form.upper.abs().max() < 1e-6
