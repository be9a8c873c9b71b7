"""No parameter inside a box may give a pixel outside its bound: every transformation, padding, method and kind of box.

The truth comes from the oracle (exact), the comparison is exact, and there is no allowance for rounding.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import (
    IMAGE_KINDS,
    KINDS,
    PADDINGS,
    PIXELWISE,
    SPATIAL,
    letters_of,
    make_image,
    make_interval,
    make_thetas,
    make_transform,
)
from tests.support.exactly import symbols, violations
from tests.support.oracle import transformed
from tests.support.pixel_check import DTYPES, METHODS, SIZES, assert_sound, random_box
from tiltproof import InputError, bound_pixels, parse
from tiltproof.transforms import Compose, Scaling, ScalingU, ScalingV


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("letter", SPATIAL + PIXELWISE)
def test_single_transformation(letter, padding, kind):
    rng = np.random.default_rng([len(letter), len(padding), len(kind)])
    basic = letter in ("R", "Tu", "Tv", "Sc", "Sh", "C", "B")  # all others behave much the same on small images
    for size in ((4, 5), (1, 3), (1, 1)) if basic else ((4, 5),):
        image = make_image("random" if rng.random() < 0.5 else "checkerboard", 1, *size, rng)
        low, high = random_box([letter], [kind], rng)
        assert_sound([letter], padding, image, low, high, make_thetas(low, high, rng, 4))


@settings(max_examples=250)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE), min_size=1, max_size=5),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    image_kind=st.sampled_from(IMAGE_KINDS),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_compositions(letters, padding, size, image_kind, kinds, dtype, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, kinds[: len(letters)], rng)
    image = make_image(image_kind, 1, *size, rng)
    assert_sound(letters, padding, image, low, high, make_thetas(low, high, rng, 3), dtypes=(dtype,))


@settings(max_examples=80)
@given(
    letters=st.sampled_from(
        [
            ("C", "R"), ("B", "Tu"), ("C", "B", "R", "Sc"), ("R", "B", "R"), ("Tu", "C", "Tv"), ("R", "C", "B", "Sh"),
            ("B", "R", "C"), ("Sc", "R", "C", "B"), ("Sh", "R", "Sc", "C", "B"), ("Tu", "Tv"), ("R", "Sh"), ("R", "R"),
            ("B", "Sh", "C", "R", "B"), ("Scu", "Scv", "Shv"), ("Yaw@9", "Pitch@7.5", "Roll"), ("C", "Yaw@9", "B", "Pitch@7.5"),
            ("Tu", "Yaw@9", "Sh", "Scu"), ("R", "Pitch@7.5"),
        ]
    ),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    image_kind=st.sampled_from(IMAGE_KINDS),
    kind=st.sampled_from(["tiny", "medium", "straddling", "from a grid line"]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_pixelwise_before_between_and_after_spatial(letters, padding, size, image_kind, kind, seed):
    """Small boxes, where the second-order remainder is tiny and a missing term shows at once."""
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, [kind] * len(letters), rng)
    image = make_image(image_kind, 1, *size, rng)
    assert_sound(list(letters), padding, image, low, high, make_thetas(low, high, rng, 3), dtypes=(torch.float64,))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    "text",
    ["R(10)", "Sc(5), R(5), C(5), B(0.01)", "Tu(2), Tv(2)", "C(10), R(2), B(0.02), Sh(2)", "Yaw(5@28), Pitch(3@28)"],
)
def test_larger_images(text, padding):
    rng = np.random.default_rng(11)
    transform = parse(text)
    letters = letters_of(transform)
    for size, kind in (((28, 28), "random"), ((33, 17), "bright border")):
        image = make_image(kind, 1, *size, rng)
        for share in (1, 0.01):  # the whole range, and a hundredth of it somewhere inside
            start = [
                a + (b - a) * (1 - share) * rng.random() for a, b in zip(transform.low, transform.high, strict=True)
            ]
            stop = [s + (b - a) * share for s, a, b in zip(start, transform.low, transform.high, strict=True)]
            thetas = make_thetas(start, stop, rng, 1)[:4]
            assert_sound(letters, padding, image, start, stop, thetas, dtypes=(torch.float32,))


EXTREMES = [
    ("Tu", 1e6, 1e6 + 0.3), ("Tu", 2.0**30 - 1, 2.0**30 + 0.7), ("Tv", -3e9, -3e9 + 0.5), ("Tu", 1e12, 1e12 + 1),
    ("Tv", 0.0, 2000.0),
    ("Sh", -5e8, -5e8 + 3), ("Sh", -3000.0, 3000.0), ("Sc", -99.5, -99.45), ("Sc", 1e6, 1e7), ("Sc", -97.0, 500.0),
    ("C", -1e5, 1e5), ("C", -100.0, -100.0), ("C", -100.001, -99.999), ("B", -1e5, 1e5), ("B", 0.999, 1.0),
    ("Scu", -99.5, -99.45), ("Scv", -97.0, 500.0), ("Shv", -5e8, -5e8 + 3), ("Shv", -3000.0, 3000.0), ("Roll", -360.0, 360.0),
    ("Yaw@9", -60.0, 60.0), ("Pitch@7.5", 70.0, 70.01), ("Yaw@0.5", -10.0, 11.0), ("Pitch@0.25", 8.0, 8.0), ("Yaw@1e6", -1.0, 1.0),
    ("Pitch@1e6", 1e-4, 1e-4 + 1e-12), ("Yaw@300", -80.0, 84.0), ("Yaw@9", -1e-12, 1e-12),
    ("R", -360.0, 360.0), ("R", 359.9999, 360.0), ("R", -1e-12, 1e-12), ("R", 44.999999, 45.000001), ("R", 90.0, 90.0),
]  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("letter", "low", "high"), EXTREMES)
def test_extreme_parameters(letter, low, high, padding):
    """Any finite box is a fair question; only Algorithm 1, which pads the image, may refuse one that is too far away."""
    rng = np.random.default_rng(3)
    thetas = make_thetas([low], [high], rng, 2)
    image = make_image("random", 1, 4, 5, rng)
    assert_sound([letter], padding, image, [low], [high], thetas, methods=("affine", "hull"))
    try:
        assert_sound([letter], padding, image, [low], [high], thetas, methods=("fgv",))
    except InputError:
        assert padding != "zeros"


@pytest.mark.parametrize("letters", [["R"], ["Tu", "B"], ["C", "Sc", "R"]], ids=",".join)
def test_the_whole_range_is_the_default_box(letters):
    rng = np.random.default_rng(2)
    low, high = random_box(letters, ["medium"] * len(letters), rng)
    thetas = make_thetas(low, high, rng)
    assert_sound(letters, "zeros", make_image("random", 2, 4, 4, rng), low, high, thetas, whole_range=True)


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
@pytest.mark.parametrize(
    "letters", [["R"], ["Tu"], ["Sc", "C"], ["R", "Sh", "B"], ["Yaw@9", "Pitch@7.5"]], ids=",".join
)
def test_rounding_is_absorbed_at_splits_of_a_millionth(letters, dtype):
    """Boxes so small that rounding is larger than the range: plain float32 hulls miss the truth here."""
    rng = np.random.default_rng(8)
    for width in (0.0, 1e-9, 2e-4):
        low = [make_interval(letter, "medium", rng)[0] for letter in letters]
        high = [a + width for a in low]
        image = make_image("random", 1, 9, 9, rng)
        assert_sound(letters, "zeros", image, low, high, make_thetas(low, high, rng, 2), dtypes=(dtype,))


def test_box_ends_that_float32_cannot_hold():
    """The box is what the caller wrote, not its float32 neighbor; the image is float32."""
    low, high = [0.1 + 1e-12], [0.1 + 3e-12]
    rng = np.random.default_rng(1)
    assert_sound(["Tu"], "zeros", make_image("checkerboard", 1, 5, 5, rng), low, high, make_thetas(low, high, rng))


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
    """At -100 % the image is a point; no finite bound is honest below that."""
    for scaling in (Scaling(5), ScalingU(5), ScalingV(5)):
        with pytest.raises(InputError):
            bound_pixels(torch.zeros(1, 1, 3, 3), scaling, low=[-150.0], high=[0.0])


@pytest.mark.slow
@settings(max_examples=3000)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE), min_size=1, max_size=5),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    image_kind=st.sampled_from(IMAGE_KINDS),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_compositions_at_length(letters, padding, size, image_kind, kinds, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, kinds[: len(letters)], rng)
    image = make_image(image_kind, 2, *size, rng)
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
