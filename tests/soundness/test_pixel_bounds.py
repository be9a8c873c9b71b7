"""No parameter inside a box may give a pixel outside its bound: every transformation, padding, method and kind of box.

The truth comes from the oracle (exact), the comparison is exact, and nothing is allowed for rounding.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import (
    KINDS,
    PADDINGS,
    PAPER_BOUNDS,
    PAPER_PICTURE,
    PICTURES,
    PIXELWISE,
    SPATIAL,
    make_interval,
    make_picture,
    make_thetas,
    make_transform,
)
from exactly import symbols, violations
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import algorithm_1, composed_inverse, exact_picture, source_positions, transformed

from tiltproof import Compose, InputError, Scaling, bound_pixels, parse

METHODS = ("affine", "hull", "fgv")
SIZES = [(1, 1), (1, 2), (1, 7), (2, 1), (6, 1), (2, 2), (3, 3), (4, 6), (7, 5), (9, 9)]
DTYPES = (torch.float32, torch.float64)


def assert_sound(letters, padding, picture, low, high, thetas, methods=METHODS, dtypes=DTYPES, whole_range=False):
    """Bounds of one picture over one box hold at all the given parameters."""
    transform = make_transform(letters, padding, list(zip(low, high, strict=True)) if whole_range else None)
    box = {} if whole_range else {"low": list(low), "high": list(high)}
    for dtype in dtypes:
        image = torch.tensor(picture, dtype=dtype)
        truths = [(theta, transformed(image.double().numpy(), letters, theta, padding)) for theta in thetas]
        for method in methods:
            form = bound_pixels(image[None], transform, method=method, **box)
            assert form.center.shape == (1, *image.shape)
            assert form.center.dtype == form.lower.dtype == dtype
            assert form.slopes.shape == (len(letters) if method == "affine" else 0, 1, *image.shape)
            for theta, truth in truths:
                found = violations(
                    truth,
                    form.center[0],
                    form.slopes[:, 0],
                    form.radius[0],
                    form.lower[0],
                    form.upper[0],
                    symbols(theta, low, high),
                )
                text = f"{letters} {padding} {method} {dtype} low={list(low)} high={list(high)} theta={[str(t) for t in theta]}"
                assert not found, f"{len(found)} pixels, {text}: {found[:3]}"


def random_box(letters, kinds, rng):
    intervals = [make_interval(letter, kind, rng) for letter, kind in zip(letters, kinds, strict=True)]
    return [a for a, _ in intervals], [b for _, b in intervals]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("letter", SPATIAL + PIXELWISE)
def test_single_transformation(letter, padding, kind):
    rng = np.random.default_rng([len(letter), len(padding), len(kind)])
    for size in ((4, 5), (1, 3), (1, 1)):
        picture = make_picture("random" if rng.random() < 0.5 else "checkerboard", 1, *size, rng)
        low, high = random_box([letter], [kind], rng)
        assert_sound([letter], padding, picture, low, high, make_thetas(low, high, rng, 4))


@settings(max_examples=250)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE), min_size=1, max_size=5),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    picture=st.sampled_from(PICTURES),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_compositions(letters, padding, size, picture, kinds, dtype, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, kinds[: len(letters)], rng)
    image = make_picture(picture, 1, *size, rng)
    assert_sound(letters, padding, image, low, high, make_thetas(low, high, rng, 3), dtypes=(dtype,))


@settings(max_examples=80)
@given(
    letters=st.sampled_from(
        [
            ("C", "R"), ("B", "Tu"), ("C", "B", "R", "Sc"), ("R", "B", "R"), ("Tu", "C", "Tv"), ("R", "C", "B", "Sh"), ("B", "R", "C"),
            ("Sc", "R", "C", "B"), ("Sh", "R", "Sc", "C", "B"), ("Tu", "Tv"), ("R", "Sh"), ("B", "Sh", "C", "R", "B"), ("R", "R"),
        ]
    ),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    picture=st.sampled_from(PICTURES),
    kind=st.sampled_from(["tiny", "medium", "straddling", "from a grid line"]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_pixelwise_before_between_and_after_spatial(letters, padding, size, picture, kind, seed):
    """Small boxes, where the second-order remainder is tiny and a missing term shows at once."""
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, [kind] * len(letters), rng)
    image = make_picture(picture, 1, *size, rng)
    assert_sound(list(letters), padding, image, low, high, make_thetas(low, high, rng, 3), dtypes=(torch.float64,))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("text", ["R(10)", "Sc(5), R(5), C(5), B(0.01)", "Tu(2), Tv(2)", "C(10), R(2), B(0.02), Sh(2)"])
def test_larger_pictures(text, padding):
    rng = np.random.default_rng(11)
    transform = parse(text)
    letters = [part.letter for part in transform.parts]
    for size, kind in (((28, 28), "random"), ((33, 17), "bright border")):
        picture = make_picture(kind, 1, *size, rng)
        for share in (1, 0.01):  # the whole range, and a hundredth of it somewhere inside
            start = [
                a + (b - a) * (1 - share) * rng.random() for a, b in zip(transform.low, transform.high, strict=True)
            ]
            stop = [s + (b - a) * share for s, a, b in zip(start, transform.low, transform.high, strict=True)]
            thetas = make_thetas(start, stop, rng, 1)[:4]
            assert_sound(letters, padding, picture, start, stop, thetas, dtypes=(torch.float32,))


EXTREMES = [
    ("Tu", 1e6, 1e6 + 0.3), ("Tu", 2.0**30 - 1, 2.0**30 + 0.7), ("Tv", -3e9, -3e9 + 0.5), ("Tu", 1e12, 1e12 + 1), ("Tv", 0.0, 2000.0),
    ("Sh", -5e8, -5e8 + 3), ("Sh", -3000.0, 3000.0), ("Sc", -99.999, -99.998), ("Sc", 1e6, 1e7), ("Sc", -99.99, 500.0),
    ("C", -1e5, 1e5), ("C", -100.0, -100.0), ("C", -100.001, -99.999), ("B", -1e5, 1e5), ("B", 0.999, 1.0),
    ("R", -360.0, 360.0), ("R", 359.9999, 360.0), ("R", -1e-12, 1e-12), ("R", 44.999999, 45.000001), ("R", 90.0, 90.0),
]  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("letter", "low", "high"), EXTREMES)
def test_extreme_parameters(letter, low, high, padding):
    """Any finite box is a fair question, however far outside the transformation's usual range."""
    rng = np.random.default_rng(3)
    thetas = make_thetas([low], [high], rng, 2)
    assert_sound([letter], padding, make_picture("random", 1, 4, 5, rng), [low], [high], thetas)


@pytest.mark.parametrize("letters", [["R"], ["Tu", "B"], ["C", "Sc", "R"]], ids=",".join)
def test_the_whole_range_is_the_default_box(letters):
    rng = np.random.default_rng(2)
    low, high = random_box(letters, ["medium"] * len(letters), rng)
    thetas = make_thetas(low, high, rng)
    assert_sound(letters, "zeros", make_picture("random", 2, 4, 4, rng), low, high, thetas, whole_range=True)


def test_each_image_has_its_own_box_and_channels_are_kept_apart():
    rng = np.random.default_rng(4)
    letters, number = ["R", "B"], 5
    images = torch.tensor(rng.random((number, 3, 4, 5)))
    boxes = [random_box(letters, [kind] * 2, rng) for kind in ("tiny", "medium", "degenerate", "huge", "straddling")]
    low = torch.tensor([a for a, _ in boxes], dtype=torch.float64)
    high = torch.tensor([b for _, b in boxes], dtype=torch.float64)
    for method in METHODS:
        form = bound_pixels(images, make_transform(letters), method=method, low=low, high=high)
        for n, (a, b) in enumerate(boxes):
            for theta in make_thetas(a, b, rng, 2):
                truth = transformed(images[n].numpy(), letters, theta)
                found = violations(
                    truth,
                    form.center[n],
                    form.slopes[:, n],
                    form.radius[n],
                    form.lower[n],
                    form.upper[n],
                    symbols(theta, a, b),
                )
                assert not found, (method, n, found[:3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("letters", [["R"], ["Tu"], ["Sc", "C"], ["R", "Sh", "B"]], ids=",".join)
def test_rounding_is_absorbed_at_splits_of_a_millionth(letters, dtype):
    """Boxes so small that rounding is larger than the range: plain float32 hulls miss the truth here."""
    rng = np.random.default_rng(8)
    for width in (0.0, 1e-9, 2e-4):
        low = [make_interval(letter, "medium", rng)[0] for letter in letters]
        high = [a + width for a in low]
        picture = make_picture("random", 1, 9, 9, rng)
        assert_sound(letters, "zeros", picture, low, high, make_thetas(low, high, rng, 2), dtypes=(dtype,))


def test_box_ends_that_float32_cannot_hold():
    """The box is what the caller wrote, not its float32 neighbour; the picture is float32."""
    low, high = [0.1 + 1e-12], [0.1 + 3e-12]
    rng = np.random.default_rng(1)
    assert_sound(["Tu"], "zeros", make_picture("checkerboard", 1, 5, 5, rng), low, high, make_thetas(low, high, rng))


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
    image = torch.tensor(make_picture("random", 1, *size, rng))[None]
    transform = make_transform(letters, padding)
    hull, fgv = (bound_pixels(image, transform, method=method, low=low, high=high) for method in ("hull", "fgv"))
    assert (hull.lower >= fgv.lower - 1e-6).all()
    assert (hull.upper <= fgv.upper + 1e-6).all()


@pytest.mark.parametrize("letter", ["Tu", "Tv"])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.7), (-0.9, -0.3), (2.0, 3.0), (-1.0, 0.0), (0.25, 0.25)])
@pytest.mark.parametrize("padding", PADDINGS)
def test_hull_of_a_shift_inside_one_cell_is_attained(letter, low, high, padding):
    """There a pixel is a linear function of the shift, so its exact range is spanned by the two ends."""
    rng = np.random.default_rng(6)
    picture = rng.random((1, 4, 6))
    form = bound_pixels(
        torch.tensor(picture)[None], make_transform([letter], padding), method="hull", low=[low], high=[high]
    )
    ends = np.stack([transformed(picture, [letter], [theta], padding).floats() for theta in (low, high)])
    assert np.abs(form.lower[0].numpy() - ends.min(0)).max() < 1e-6
    assert np.abs(form.upper[0].numpy() - ends.max(0)).max() < 1e-6
    affine = bound_pixels(torch.tensor(picture)[None], make_transform([letter], padding), low=[low], high=[high])
    assert affine.radius.max() < 1e-6  # linear in the symbol, so nothing is left over


@pytest.mark.parametrize("letter", ["Tu", "Tv"])
def test_hull_of_a_shift_across_grid_lines_is_attained(letter):
    """Piecewise linear: the extremes are at the ends and at whole-pixel shifts."""
    rng = np.random.default_rng(9)
    picture = rng.random((1, 5, 5))
    low, high = -1.3, 2.6
    form = bound_pixels(torch.tensor(picture)[None], make_transform([letter]), method="hull", low=[low], high=[high])
    knots = np.stack([transformed(picture, [letter], [theta]).floats() for theta in (low, -1, 0, 1, 2, high)])
    assert np.abs(form.lower[0].numpy() - knots.min(0)).max() < 1e-6
    assert np.abs(form.upper[0].numpy() - knots.max(0)).max() < 1e-6


@pytest.mark.parametrize("letters", [["R"], ["Sc"], ["R", "Sh"], ["Sc", "R", "C", "B"]], ids=",".join)
def test_remainder_falls_with_the_square_of_the_box(letters):
    """Halve the box three times: on a smooth picture, where no grid line is crossed, the radius falls by > 3 each time."""
    size = (8, 8)
    i, j = np.indices(size)
    picture = (0.5 + 0.3 * np.sin(0.4 * i) * np.cos(0.5 * j))[None]
    centre = {"R": 7.3, "Sc": 6.1, "Sh": 4.7, "C": 2.0, "B": 0.03}
    half = {"R": 0.8, "Sc": 0.9, "Sh": 0.9, "C": 2.0, "B": 0.02}
    corners = []
    for signs in np.ndindex(*([3] * len(letters))):
        spatial = [k for k, letter in enumerate(letters) if letter in SPATIAL]
        theta = [Fraction(centre[letters[k]] + (signs[k] - 1) * 1.05 * half[letters[k]]) for k in spatial]
        column, row, unit = source_positions(composed_inverse([letters[k] for k in spatial], theta), *size)
        corners.append(np.stack([(column // unit).astype(int), (row // unit).astype(int)]))
    one_cell = (np.stack(corners) == corners[0]).all((0, 1))  # pixels that stay inside one cell
    assert one_cell.sum() >= 20
    image, transform, radii = torch.tensor(picture)[None], make_transform(letters), []
    for share in (1, 0.5, 0.25, 0.125):
        low, high = [centre[x] - share * half[x] for x in letters], [centre[x] + share * half[x] for x in letters]
        form = bound_pixels(image, transform, low=low, high=high)
        radii.append(float(form.radius[0, 0].numpy()[one_cell].max()))
        assert_sound(
            letters, "zeros", picture, low, high, make_thetas(low, high, np.random.default_rng(0), 2), ("affine",)
        )
    assert radii[0] < 0.05
    assert all(before > 3 * after for before, after in itertools.pairwise(radii)), radii


def test_the_papers_running_example_number_for_number():
    form = bound_pixels(torch.tensor(PAPER_PICTURE, dtype=torch.float64)[None, None], Scaling(2), method="fgv")
    printed = torch.tensor(PAPER_BOUNDS, dtype=torch.float64)
    assert (form.lower[0, 0] - printed[..., 0]).abs().max() < 0.006
    assert (form.upper[0, 0] - printed[..., 1]).abs().max() < 0.006


@pytest.mark.parametrize(
    ("letter", "low", "high"), [("Sc", -2.0, 2.0), ("Sc", -30.0, 60.0), ("Tu", -0.7, 1.6), ("Tv", 0.0, 1.0)]
)
def test_fgv_is_algorithm_1(letter, low, high):
    """Where interval coordinates are exact, `fgv` is the paper's algorithm (an upper bound above 1 may be cut to 1)."""
    picture = np.random.default_rng(12).random((4, 3))
    form = bound_pixels(
        torch.tensor(picture)[None, None], make_transform([letter]), method="fgv", low=[low], high=[high]
    )
    exact = exact_picture(picture).fractions()
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
    """Bounds that are sound because they are enormous help nobody: values are in [0, 1] and none needs to be wider."""
    low = [{"R": -180.0, "Tu": -30.0, "Sc": -50.0, "C": -90.0, "B": -0.5}[letter] for letter in letters]
    high = [-a for a in low]
    image = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    form = bound_pixels(image, make_transform(letters), method=method, low=low, high=high)
    limit = 12 if method == "fgv" else 1.5
    assert form.lower.min() > -limit
    assert form.upper.max() < 1 + limit


def test_outside_the_picture_is_exactly_black_with_zeros():
    image = torch.ones(1, 1, 4, 4)
    for method in METHODS:
        form = bound_pixels(image, make_transform(["Tu"]), method=method, low=[20], high=[30])
        assert form.lower.abs().max() < 1e-6
        assert form.upper.abs().max() < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        {"images": torch.full((1, 1, 3, 3), float("nan"))},
        {"images": torch.full((1, 1, 3, 3), 1.5)},
        {"images": torch.full((1, 1, 3, 3), -0.5)},
        {"images": torch.zeros(1, 3, 3)},
        {"images": torch.zeros(1, 1, 3, 3, dtype=torch.int64)},
        {"method": "box"},
        {"low": [1.0], "high": [-1.0]},
        {"low": [float("nan")], "high": [1.0]},
        {"low": [0.0], "high": [float("inf")]},
        {"low": [0.0, 0.0], "high": [1.0, 1.0]},
    ],
    ids=str,
)
def test_bad_input_is_refused(change):
    arguments = {"images": torch.zeros(1, 1, 3, 3), "transform": parse("R(5)"), **change}
    with pytest.raises(InputError):
        bound_pixels(**arguments)


def test_scaling_through_a_point_is_refused():
    """At -100 % the picture is a point; no finite bound is honest below that."""
    with pytest.raises(InputError):
        bound_pixels(torch.zeros(1, 1, 3, 3), Scaling(5), low=[-150.0], high=[0.0])


@pytest.mark.slow
@settings(max_examples=3000)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE), min_size=1, max_size=5),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    picture=st.sampled_from(PICTURES),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_compositions_at_length(letters, padding, size, picture, kinds, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, kinds[: len(letters)], rng)
    image = make_picture(picture, 2, *size, rng)
    assert_sound(letters, padding, image, low, high, make_thetas(low, high, rng, 4))


def test_composition_of_compositions_is_flat():
    inner = Compose(parse("R(5)"), parse("Sh(3)"))
    outer = Compose(inner, parse("B(0.1)"), padding="border")
    image = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    flat = parse("R(5), Sh(3), B(0.1); padding=border")
    for method in METHODS:
        a, b = bound_pixels(image, outer, method=method), bound_pixels(image, flat, method=method)
        assert torch.equal(a.lower, b.lower)
        assert torch.equal(a.upper, b.upper)
