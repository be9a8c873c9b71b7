"""Lens distortion: positions and pixels against rational arithmetic, where the map would fold, and the checker's own reading."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.cases import (
    IMAGE_KINDS,
    LENSES,
    PADDINGS,
    PIXELWISE,
    SPATIAL,
    in_view,
    make_image,
    make_thetas,
    make_transform,
)
from tests.support.oracle import chain_positions, composed_inverse, transformed
from tests.support.pixel_check import assert_sound, random_box
from tiltproof import InputError, RunFolder, bound_pixels, certify, check, data, models, parse
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.coordinates import check_limits, coordinates, interval_coordinates, symbols
from tiltproof.transforms import Compose, LensDistortion, Rotation, Spatial

SIZE = (5, 7)
RUNS = [
    ["Ld"], ["Ld@5"], ["R", "Ld"], ["Ld", "R"], ["Yaw@9", "Ld"], ["Ld", "Yaw@9"], ["Ld@5", "Tu", "Sc", "Ld"],
    ["Pitch@7.5", "Ld", "Tx@8"], ["Tv", "Sh", "Ld@5"],
]  # fmt: skip


def box(values):
    return torch.tensor([[float(x) for x in values]], dtype=torch.float64)


@pytest.mark.parametrize("letters", RUNS, ids=",".join)
@pytest.mark.parametrize("half", [0.0, 1e-6, 1.0])
def test_positions_stay_in_their_forms_and_boxes(letters, half):
    rng = np.random.default_rng([len(letters), int(1e6 * half)])
    transform, run = make_transform(letters), list(range(len(letters)))
    scale = np.array([{"T": 0.03, "L": 0.4}.get(letter[0], 1.0) for letter in letters])
    for _ in range(2):
        middle = rng.uniform(-10 + half, 10 - half, len(letters)) * scale
        low, high = middle - half * scale, middle + half * scale
        ends = box(low), box(high)
        place = coordinates(transform, run, symbols(*ends), *ends, *SIZE)
        plain = interval_coordinates(transform, run, *ends, *SIZE)
        for theta in make_thetas(low, high, rng, 2):
            column, row, unit = chain_positions(composed_inverse(letters, theta), *SIZE)
            at = [
                (2 * t - Fraction(a) - Fraction(b)) / (Fraction(b) - Fraction(a)) if b > a else Fraction(0)
                for t, a, b in zip(theta, low, high, strict=True)
            ]
            forms = zip((place.column, place.row), (place.columns, place.rows), plain, (column, row), strict=True)
            for form, *bounds, truth in forms:
                for i, j in ((0, 0), (4, 0), (2, 3), (1, 5), (3, 6)):
                    exact, cut = Fraction(truth[i, j], unit), Fraction(1, 2**300)
                    for bound in bounds:
                        assert Fraction(bound.lower[0, i, j].item()) <= exact + cut
                        assert exact - cut <= Fraction(bound.upper[0, i, j].item())
                    value = Fraction(form.center[0, i, j].item()) + sum(
                        Fraction(slope[0, i, j].item()) * e for slope, e in zip(form.slopes, at, strict=True)
                    )
                    assert abs(exact - value) <= Fraction(form.radius[0, i, j].item()) + cut, (letters, theta, i, j)


def test_positions_of_a_lens_alone_are_affine_and_others_of_second_order():
    alone = box([-20.0]), box([30.0])
    place = coordinates(parse("Ld(-20:30)"), [0], symbols(*alone), *alone, *SIZE)
    assert place.column.radius.max() < 1e-12
    radii = []
    for half in (2.0, 1.0, 0.5, 0.25):
        ends = box([5 - half, 5 - half]), box([5 + half, 5 + half])
        place = coordinates(parse("R(10), Ld(10)"), [0, 1], symbols(*ends), *ends, *SIZE)
        radii.append(torch.stack([place.column.radius, place.row.radius]).amax())
    for before, after in itertools.pairwise(radii):
        assert before > 3.5 * after


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("letters", RUNS, ids=",".join)
@pytest.mark.parametrize("kind", ["tiny", "medium"])
def test_pixels_stay_in_their_bounds(letters, padding, kind):
    rng = np.random.default_rng([len(letters), len(padding), len(kind)])
    image = make_image("random", 1, 5, 6, rng)
    low, high = random_box(letters, [kind] * len(letters), rng)
    if not in_view(letters, low, high, 5, 6):
        low, high = [end / 4 for end in low], [end / 4 for end in high]
    assert_sound(letters, padding, image, low, high, make_thetas(low, high, rng, 1)[:4], dtypes=(torch.float64,))


@settings(max_examples=30)
@given(
    letters=st.lists(st.sampled_from(LENSES * 4 + SPATIAL + PIXELWISE), min_size=1, max_size=4),
    padding=st.sampled_from(PADDINGS),
    image_kind=st.sampled_from(IMAGE_KINDS),
    kind=st.sampled_from(["tiny", "medium", "straddling", "degenerate", "huge"]),
    interpolation=st.sampled_from(["bilinear", "bilinear", "nearest", "bicubic"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_compositions_and_interpolations(letters, padding, image_kind, kind, interpolation, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, [kind] * len(letters), rng)
    assume(in_view(letters, low, high, 4, 5))
    image = make_image(image_kind, 1, 4, 5, rng)
    methods = ("affine", "hull", "fgv") if interpolation == "bilinear" else ("affine", "hull")
    thetas = make_thetas(low, high, rng, 1)[:4]
    dtypes = (torch.float64,)
    assert_sound(letters, padding, image, low, high, thetas, methods, dtypes, interpolation=interpolation)


def test_the_transformation_is_the_one_of_the_oracle():
    rng = np.random.default_rng(3)
    for letters, padding in itertools.product(RUNS, PADDINGS):
        low, _ = random_box(letters, ["straddling"] * len(letters), rng)
        image = make_image("random", 2, *SIZE, rng)
        result = make_transform(letters, padding).apply(torch.tensor(image)[None], box(low))[0].numpy()
        assert np.abs(result - transformed(image, letters, low, padding).floats()).max() < 1e-9


def test_signs_and_units():
    image = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    image[..., 4, 8] = 1.0  # at u = 4, v = 0
    squeezed = LensDistortion(50, radius_pixels=4).apply(image, box([50.0]))[0, 0, 4]
    shown = 1 - abs(
        3 * (1 + 0.5 * 9 / 16) - 4
    )  # u' = 3 (1 + k r^2) with r = 3 / 4, at u = 3: the content has moved inwards
    assert squeezed.tolist() == [0, 0, 0, 0, 0, 0, 0, pytest.approx(shown), 0]
    corner = torch.tensor([(9 - 1) / 2, (9 - 1) / 2], dtype=torch.float64)
    transform = parse("Ld(10)")
    u, v = transform.moved(torch.tensor(10.0).double(), corner[0], corner[1], 9, 9)
    ratio = 2 * 4.0**2 / (2 * 4.5**2)  # r^2 of the corner pixel's middle; the corner itself has 1
    assert float(u) == float(v) == pytest.approx(4 * (1 + 0.1 * ratio))
    whole = torch.rand(2, 1, 6, 7)
    assert torch.equal(transform.apply(whole, torch.tensor([0.0])), whole)
    assert str(LensDistortion(-5, 10, 300).over(-1, 2)) == "Ld(-1:2@300)"
    assert parse("Ld(5@300)") == LensDistortion(5, radius_pixels=300) != parse("Ld(5)")
    assert (
        repr(Compose(Rotation(3), LensDistortion(5, 6, 7.5))) == "Compose(Rotation(-3, 3), LensDistortion(5, 6, 7.5))"
    )


@pytest.mark.parametrize(
    ("text", "size", "accepted"),
    [
        ("Ld(-30:10)", (28, 28), True),
        ("Ld(-34:10)", (28, 28), False),  # the middle of a corner pixel has r < 1, so the limit is -33.6
        ("Ld(-31:10)", (224, 224), True),
        ("Ld(-31.6:10)", (224, 224), False),
        ("Ld(-31:200@20)", (28, 28), True),  # r is at most 0.955 there
        ("Ld(-40:200@20)", (28, 28), False),
        ("Ld(0:200@2)", (28, 28), True),
        ("R(45), Ld(-30:10)", (28, 28), True),
        ("Ld(-30:10), Sc(-50:0)", (28, 28), False),  # the lens sees pixels at twice the distance
        ("Sc(-50:0), Ld(-30:10)", (28, 28), True),
        ("Ld(-20:0), Tu(12)", (28, 28), False),
        ("Ld(15), Yaw(10@28)", (28, 28), True),
        ("Yaw(50@28), Ld(150)", (28, 28), False),
        ("Yaw(50@28)", (28, 28), True),
    ],
)
def test_ranges_that_fold_the_image_are_refused(text, size, accepted):
    transform = parse(text)
    image = torch.rand(1, 1, *size)
    if accepted:
        check_limits(transform, *size)
        return
    for refuse in (lambda: check_limits(transform, *size), lambda: bound_pixels(image, transform)):
        with pytest.raises(InputError, match="the distance from the center does not grow"):
            refuse()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("Ld(5@0)", "between 0.01"),
        ("Ld(5@x)", "not a number"),
        ("Ld(2000)", "1000"),
        ("Ld(5@3@0:0:1)", "no plane"),
        ("Ld(0)", "empty"),
    ],
)
def test_bad_input(text, match):
    with pytest.raises(InputError, match=match):
        parse(text)
    with pytest.raises(InputError, match="number of pixels"):
        LensDistortion(1, 2, "far")


@pytest.mark.parametrize("text", ["Ld(-80:0)", "Ld(-60:60), Sc(60)", "Ld(60), Yaw(84@4)", "Yaw(84@4), Ld(60)"])
def test_bounds_hold_where_a_range_would_be_refused(text):
    """Losses bound such boxes too: a map that folds or meets the camera's plane is bounded like any other."""
    transform, rng = parse(text), np.random.default_rng(5)
    image = torch.tensor(make_image("random", 1, 5, 6, rng))[None]
    low, high = (box(end) for end in (transform.low, transform.high))
    for parts in (1, 7):
        step = (high - low) / parts
        lows = torch.cat([low + k * step for k in range(parts)])
        for method in ("affine", "hull"):
            form = pair_bounds(image, torch.zeros(parts, dtype=torch.int64), transform, method, lows, lows + step)
            for share in torch.linspace(0, 1, 23, dtype=torch.float64):
                seen = transform.apply(image.expand(parts, -1, -1, -1), lows + step * share)
                assert (seen >= form.lower - 1e-9).all()
                assert (seen <= form.upper + 1e-9).all()


class Bend(Spatial):
    """A user's own: lift the sides of the image, u' = u, v' = v - (b / 100) u^2."""

    letter, unit, by_matrix = "Bend", "percent", False

    def moved(self, value, u, v, height, width):
        return u, -(value / 100) * u * u + v


def test_a_map_of_the_users_own_is_bounded():
    image = torch.tensor(make_image("random", 1, 6, 7, np.random.default_rng(1)))[None]
    for transform in (Bend(20), Compose(Rotation(5), Bend(5), LensDistortion(3)), Compose(Bend(5), Rotation(5))):
        check_limits(transform, 6, 7)
        low, high = (torch.tensor([end], dtype=torch.float64) for end in (transform.low, transform.high))
        for method in ("affine", "hull"):
            form = bound_pixels(image, transform, method)
            for share in torch.linspace(0, 1, 17, dtype=torch.float64):
                seen = transform.apply(image, low + (high - low) * share)
                assert (seen >= form.lower - 1e-9).all()
                assert (seen <= form.upper + 1e-9).all()
        assert (bound_pixels(image, transform, "affine", [0.1] * len(low[0]), [0.2] * len(low[0])).slopes != 0).any()


def test_certified_and_checked(tmp_path):
    network, (images, labels) = models.load("mnist-r30"), data.load("mnist-sample")
    for k, text in enumerate(["Ld(-5:10)", "R(1), Ld(2@14), Yaw(0.5@40); padding=reflect"]):
        folder = tmp_path / str(k)
        certificate = certify(network, images[:2], labels[:2], text, run=RunFolder(folder))
        assert certificate.count("certified") == 2
        assert check(folder, network, images[:2], labels[:2]).certified == 2
    exact = certify(network, images[:1], labels[:1], "Ld(0:0.02)", semantics="uint8")
    assert exact.count("certified") == 1
