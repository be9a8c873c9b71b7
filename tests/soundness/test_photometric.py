"""Gamma, saturation, hue and blurs: the exact image, bounds that nothing leaves, and remainders of second order."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import photometric_oracle as photometric
from tests.support.cases import (
    COLORED,
    IMAGE_KINDS,
    KINDS,
    PADDINGS,
    PHOTOMETRIC,
    PIXELWISE,
    SPATIAL,
    make_image,
    make_interval,
    make_thetas,
    make_transform,
)
from tests.support.exactly import symbols, violations
from tests.support.oracle import exact_image, transformed
from tests.support.pixel_check import DTYPES, SIZES, assert_sound, random_box
from tiltproof import FGV, InputError, attack, bound_pixels, certify, parse
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.pixels.photometric import enclose, power_form, power_interval
from tiltproof.transforms import GaussianBlur, MotionBlur

OURS = ("affine", "hull")


def channels_for(letters):
    return 3 if {*letters} & {*COLORED} else 1


def assert_agrees(letters, padding, image, theta):
    tensor = torch.tensor(image)[None]
    result = make_transform(letters, padding).apply(tensor, torch.tensor([theta], dtype=torch.float64))[0].numpy()
    exact = transformed(image, letters, [Fraction(value) for value in theta], padding).floats()
    assert np.abs(result - exact).max() <= 1e-9, (letters, padding, theta)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 1), (4, 6)], ids=str)
@pytest.mark.parametrize("letter", [*PHOTOMETRIC, "Mb@90", "Mb@-135", "Bl@1"])
def test_the_image_is_the_oracles(letter, size, padding):
    rng = np.random.default_rng(size[0] * 10 + size[1])
    for kind in ("medium", "huge", "straddling", "on grid lines", "outside"):
        image = make_image("random", channels_for([letter]), *size, rng)
        assert_agrees([letter], padding, image, [make_interval(letter, kind, rng)[1]])


@settings(max_examples=80)
@given(
    st.lists(st.sampled_from(SPATIAL + PIXELWISE + PHOTOMETRIC + PHOTOMETRIC), min_size=2, max_size=5),
    st.sampled_from(PADDINGS),
    st.sampled_from(IMAGE_KINDS),
    st.sampled_from(["medium", "huge", "straddling", "on grid lines"]),
    st.integers(0, 2**32 - 1),
)
def test_compositions_are_the_oracles_in_the_order_written(letters, padding, image_kind, kind, seed):
    rng = np.random.default_rng(seed)
    theta = [make_interval(letter, kind, rng)[int(rng.integers(2))] for letter in letters]
    assert_agrees(letters, padding, make_image(image_kind, channels_for(letters), 4, 5, rng), theta)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("letter", PHOTOMETRIC)
def test_nothing_leaves_the_bounds_of_one_part(letter, padding, kind):
    rng = np.random.default_rng([len(letter), len(padding), len(kind)])
    for size, image_kind in (((3, 4), "random"), ((1, 3), "checkerboard"), ((1, 1), "faint")):
        low, high = random_box([letter], [kind], rng)
        image = make_image(image_kind, channels_for([letter]), *size, rng)
        dtypes = (DTYPES[rng.integers(len(DTYPES))],)
        assert_sound([letter], padding, image, low, high, make_thetas(low, high, rng, 3), OURS, dtypes)


@settings(max_examples=100)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE + PHOTOMETRIC + PHOTOMETRIC), min_size=2, max_size=4),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES[:-2]),
    image_kind=st.sampled_from(IMAGE_KINDS),
    kinds=st.lists(st.sampled_from(KINDS), min_size=4, max_size=4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_nothing_leaves_the_bounds_of_compositions(letters, padding, size, image_kind, kinds, dtype, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, kinds[: len(letters)], rng)
    image = make_image(image_kind, channels_for(letters), *size, rng)
    methods = OURS if {*letters} & {*PHOTOMETRIC} else ("affine",)
    assert_sound(letters, padding, image, low, high, make_thetas(low, high, rng, 2), methods, (dtype,))


@pytest.mark.slow
@settings(max_examples=3000)
@given(
    letters=st.lists(st.sampled_from(SPATIAL + PIXELWISE + PHOTOMETRIC * 2), min_size=1, max_size=5),
    padding=st.sampled_from(PADDINGS),
    size=st.sampled_from(SIZES),
    image_kind=st.sampled_from(IMAGE_KINDS),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_nothing_leaves_the_bounds_at_length(letters, padding, size, image_kind, kinds, seed):
    rng = np.random.default_rng(seed)
    low, high = random_box(letters, kinds[: len(letters)], rng)
    image = make_image(image_kind, channels_for(letters), *size, rng)
    assert_sound(letters, padding, image, low, high, make_thetas(low, high, rng, 4), OURS)


@pytest.mark.parametrize("first", ["C", "B"])
@pytest.mark.parametrize(
    ("letter", "low", "high"),
    [
        ("G", 20.0, 22.0),
        ("S", 40.0, 42.0),
        ("H", 30.0, 31.0),
        ("Bl@4", 0.9, 0.91),
        ("Mb@0", 3.0, 3.02),
        ("Mb@30", 1.0, 1.02),
    ],
)
def test_an_uncertain_image_and_an_uncertain_parameter(first, letter, low, high):
    """Wide in the first parameter, narrow in the second: the remainder is their product, which nothing else covers for."""
    rng = np.random.default_rng(5)
    image = 0.2 + 0.3 * rng.random((channels_for([letter]), 4, 4))
    ends = {"C": (-40.0, 40.0), "B": (-0.15, 0.15)}[first]
    box = [ends[0], low], [ends[1], high]
    corners = [tuple(map(Fraction, corner)) for corner in itertools.product(*zip(*box, strict=True))]
    assert_sound([first, letter], "border", image, *box, corners, OURS, (torch.float64,))


EXTREMES = [
    ("G", -99.9, -99.0), ("G", -99.9, 1e4), ("G", 1e4, 1e5), ("G", -1e-9, 1e-9), ("G", 0.0, 0.0), ("G", -50.0, 100.0),
    ("S", -1e4, 1e4), ("S", -100.0, -100.0), ("S", -100.001, -99.999), ("S", 1e6, 1e6 + 1), ("H", -360.0, 360.0),
    ("H", 359.9999, 360.0), ("H", 90.0, 90.0), ("H", -1e-12, 1e-12), ("Bl@4", 0.0, 5e-324), ("Bl@4", 0.0, 32.0),
    ("Bl@4", 0.01, 0.03), ("Bl@4", 0.0, 0.25), ("Bl@4", 31.9, 32.0), ("Bl@20", 5.0, 5.5), ("Bl@1", 0.3, 2.0),
    ("Bl@4", 1.7, 1.7), ("Mb@0", 0.0, 5e-324), ("Mb@0", 0.0, 60.0), ("Mb@30", 1.9999999, 2.0000001), ("Mb@30", 59.0, 60.0),
    ("Mb@90", 3.999, 4.001), ("Mb@-135", 0.0, 2.0), ("Mb@45", 5.0, 5.0), ("Mb@0", 4.0, 4.0),
]  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("letter", "low", "high"), EXTREMES)
def test_extreme_parameters(letter, low, high, padding):
    rng = np.random.default_rng(3)
    thetas = make_thetas([low], [high], rng, 1)[:5]
    pixels = make_image("random", channels_for([letter]), 2, 3, rng)
    pixels[:, 0, 0], pixels[:, 1, 2] = 0, 1
    limits = {"Mb": (0, 60), "Bl": (0, 32), "G": (-99.99, 1e6), "S": (-1e7, 1e7), "H": (-360, 360)}[
        letter.partition("@")[0]
    ]
    image = torch.tensor(pixels)
    transform = make_transform([letter], padding, [limits])
    truths = [(theta, transformed(pixels, [letter], theta, padding)) for theta in thetas]
    for method in OURS:
        form = bound_pixels(image[None], transform, method=method, low=[low], high=[high])
        parts = (form.center[0], form.slopes[:, 0], form.radius[0], form.lower[0], form.upper[0])
        for theta, truth in truths:
            assert not violations(truth, *parts, symbols(theta, [low], [high])), (method, [float(x) for x in theta])
        assert (form.lower > -2.5).all()  # not sound merely by being enormous
        assert (form.upper < 3.5).all()


@pytest.mark.parametrize(
    ("letters", "center", "half"),
    [
        (["G"], [7.0], [8.0]), (["H"], [15.0], [4.0]), (["Bl@4"], [0.8], [0.1]), (["Bl@4"], [1.5], [0.2]),
        (["Mb@30"], [2.0], [0.4]), (["Mb@0"], [5.2], [0.4]), (["G", "S"], [7.0, 7.0], [6.0, 6.0]),
        (["Bl@4", "G"], [0.9, 5.0], [0.1, 4.0]), (["C", "Bl@4"], [3.0, 1.1], [3.0, 0.1]), (["G", "Mb@30", "H"], [5, 3, 9], [4, 0.3, 2]),
    ],
)  # fmt: skip
def test_remainders_fall_with_the_square_of_the_box(letters, center, half):
    """Halve the box: on an image away from 0 and 1 the radius falls by nearly 4."""
    i, j = np.indices((6, 6))
    image = 0.5 + 0.2 * np.sin(0.9 * i + 0.3) * np.cos(0.8 * j)
    image = np.stack([image, 1 - image, image.T])[: channels_for(letters)]
    radii = []
    for share in (1, 0.5, 0.25, 0.125):
        low = [c - share * h for c, h in zip(center, half, strict=True)]
        high = [c + share * h for c, h in zip(center, half, strict=True)]
        form = bound_pixels(torch.tensor(image)[None], make_transform(letters), low=low, high=high)
        radii.append(float(form.radius.max()))
        assert_sound(
            letters, "zeros", image, low, high, make_thetas(low, high, np.random.default_rng(0), 1), ("affine",)
        )
    assert 1e-9 < radii[0] < 0.1
    assert all(before > 3.2 * after for before, after in itertools.pairwise(radii)), radii


@settings(max_examples=150)
@given(
    x=st.tuples(st.floats(0, 1), st.floats(0, 1))
    | st.sampled_from([(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 1e-300)]),
    g=st.tuples(st.floats(0.01, 8), st.floats(0, 1)),
    wobble=st.floats(0, 0.5),
    share=st.tuples(st.integers(0, 64), st.integers(0, 64)),
)
@example(
    x=(0.0, 1.0), g=(0.9, 0.2), wobble=0.0, share=(24, 64)
)  # x ln x is the same at both ends, and least between them
def test_powers(x, g, wobble, share):
    """x = center + slope e_0 + remainder, g = center + slope e_1: exact powers stay in the form and in the interval."""
    low, high = sorted(x)
    least, most = g[0], g[0] + g[1]
    tensor = lambda value: torch.tensor([[[[value]]]], dtype=torch.float64)  # noqa: E731
    middle, half = (low + high) / 2, (high - low) / 2
    zero = tensor(0.0)
    slope, rest = half * (1 - wobble), half * wobble * (1 + 1e-12) + 1e-15
    base = AffineForm(torch.stack([tensor(middle), tensor(slope), zero]), tensor(rest))
    power = AffineForm(torch.stack([tensor((least + most) / 2), zero, tensor((most - least) / 2)]), tensor(1e-15))
    form = power_form(base, power)
    interval = power_interval(Interval(tensor(low), tensor(high)), Interval(tensor(least), tensor(most)))
    for first, second in itertools.product((Fraction(share[0], 64), Fraction(0), Fraction(1)), repeat=2):
        second = Fraction(share[1], 64) if second == Fraction(share[0], 64) else second
        pixel = Fraction(low) + (Fraction(high) - Fraction(low)) * first
        exponent = Fraction(least) + (Fraction(most) - Fraction(least)) * second
        truth, error = photometric.gamma(exact_image(np.array([[[pixel]]], dtype=object)), exponent, Fraction(0))
        value = truth.fraction(0, 0, 0)
        assert Fraction(interval.lower.item()) - error <= value <= Fraction(interval.upper.item()) + error
        e = [2 * first - 1, 2 * second - 1]
        at = [Fraction(plane.item()) for plane in form.stack]
        # the symbol of x may differ from e by what its remainder absorbs, here by an arbitrary amount
        spread = abs(at[1]) * Fraction(rest) / Fraction(slope) if slope else Fraction(0)
        gap = abs(value - at[0] - at[1] * e[0] - at[2] * e[1])
        assert gap <= Fraction(form.radius.item()) + spread + error, (float(pixel), float(exponent))


@pytest.mark.parametrize(
    "part", [GaussianBlur(2), GaussianBlur(0, 6, 4), GaussianBlur(0, 1, 9), MotionBlur(9)], ids=repr
)
def test_weights_of_blurs_are_enclosed(part):
    """Compare with exact weights, read off a row with one bright pixel, whose blur is the kernel itself."""
    rng = np.random.default_rng(1)
    size = 2 * part.taps + 1
    row = np.zeros((1, 1, size))
    row[0, 0, part.taps] = 1
    name = f"{part.letter}@{part.fixed:g}"
    for trial in range(30):
        low = float(rng.choice([0.0, rng.uniform(*part.range), rng.integers(0, 6) / 2]))
        low = min(low, part.range[1])
        high = min(low + 10.0 ** rng.uniform(-12, 0.5) * (trial % 7 > 0), part.range[1])
        center = torch.full((1, 1, 1, 1), (low + high) / 2, dtype=torch.float64)
        ends = [torch.full_like(center, end) for end in (low, high)]
        weights = enclose(part, center, *ends)
        half = torch.maximum(ends[1] - center, center - ends[0])
        forms = weights.forms(AffineForm(torch.stack([center, half]), half * 2.0**-50))
        for theta in make_thetas([low], [high], rng, 2):
            blurred = transformed(row, [name], theta)
            e = (theta[0] - Fraction(center.item())) / Fraction(half.item()) if half > 0 else Fraction(0)
            # the Gaussian's second pass, up and down from one row, uses the middle weight
            whole = Fraction(1)
            if part.letter == "Bl":
                column = transformed(row.transpose(0, 2, 1), [name], theta, "zeros")
                whole = exact_root(column.fraction(0, part.taps, 0))
            for k in range(1, part.taps + 1):
                value = blurred.fraction(0, 0, part.taps + k) / whole
                lower, upper = (Fraction(end[0, k - 1].item()) for end in (weights.lower, weights.upper))
                assert lower - TINY <= value <= upper + TINY, (part, low, high, k)
                at = Fraction(forms.center[0, k - 1].item()) + Fraction(forms.slopes[0, 0, k - 1].item()) * e
                assert abs(value - at) <= Fraction(forms.radius[0, k - 1].item()) + TINY, (part, low, high, float(e), k)
        middle = 1 - 2 * sum(blurred.fraction(0, 0, part.taps + k) / whole for k in range(1, part.taps + 1))
        assert middle <= Fraction(weights.middle.item()) + TINY


TINY = Fraction(1, 2**150)


def exact_root(value):
    """Return w_0 from w_0^2."""
    with mpmath.workprec(600):
        return photometric.nearest(mpmath.sqrt(photometric.number(value)))


def test_a_flat_image_stays_flat_under_blurs():
    for text in ("Bl(2); padding=border", "Mb(5@30); padding=reflect"):
        form = bound_pixels(torch.full((1, 2, 5, 6), 0.7, dtype=torch.float64), text)
        assert (form.upper - form.lower).max() < 1e-12


def test_known_values():
    """A path of length 2 or 4 ends at whole pixels: the trapezoidal rule. Red has the luma 0.213."""
    row = torch.zeros(1, 1, 1, 7, dtype=torch.float64)
    row[..., 3] = 1
    for length, expected in (
        (0, [0, 0, 0, 1, 0, 0, 0]),
        (2, [0, 0, 0.25, 0.5, 0.25, 0, 0]),
        (4, [0, 0.125, 0.25, 0.25, 0.25, 0.125, 0]),
    ):
        found = parse("Mb(4)").apply(row, torch.tensor([float(length)]))
        assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64).view_as(found))
        found = parse("Mb(4@90)").apply(row.mT, torch.tensor([float(length)])).mT
        assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64).view_as(found))
    red = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).view(1, 3, 1, 1)
    assert torch.allclose(parse("S(100)").apply(red, torch.tensor([-100.0])), torch.full_like(red, 0.213))
    assert torch.allclose(
        parse("H(90)").apply(red, torch.tensor([90.0])).flatten(), torch.tensor([0.0, 0.356, 0.0]).double()
    )
    assert torch.allclose(parse("G(0:100)").apply(red / 2, torch.tensor([100.0])), red / 4)


@pytest.mark.parametrize("text", ["S(10)", "H(10)", "R(3), H(10)"])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_colors_need_three_channels(text, channels):
    images = torch.rand(1, channels, 4, 4)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * channels, 2)).eval()
    for refused in (
        lambda: bound_pixels(images, text),
        lambda: parse(text).apply(images, torch.zeros(len(parse(text).parts))),
        lambda: certify(model, images, torch.tensor([0]), text),
        lambda: attack(model, images, torch.tensor([0]), text),
    ):
        with pytest.raises(InputError, match="3 channels"):
            refused()


@pytest.mark.parametrize("text", ["G(10)", "S(10)", "H(10)", "Bl(1)", "Mb(2@30)", "R(3), Bl(1)"])
def test_the_papers_method_is_refused(text):
    images = torch.rand(1, 3, 4, 4)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2)).eval()
    for refused in (
        lambda: bound_pixels(images, text, method="fgv"),
        lambda: certify(model, images, torch.tensor([0]), text, bounds=FGV()),
    ):
        with pytest.raises(InputError, match="affine or hull"):
            refused()


@pytest.mark.parametrize(("text", "low"), [("Bl(2)", [-0.1]), ("Mb(2)", [-0.1]), ("G(5)", [-100.0])])
def test_boxes_where_the_parameter_means_nothing_are_refused(text, low):
    with pytest.raises(InputError):
        bound_pixels(torch.zeros(1, 1, 3, 3), text, low=low, high=[0.5])


@pytest.mark.parametrize(
    "text", ["G(50)", "G(50), R(20)", "R(20), G(50)", "Bl(2)", "Mb(4@30)", "S(50), H(40)", "Mb(3), G(20), Bl(1)"]
)
def test_gradients_are_numbers_also_where_pixels_are_black(text):
    images = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    images[:, :, :2], images[:, :, 4] = 0, 1
    transform = parse(text)
    for share in (0.0, 0.3, 1.0):
        theta = torch.tensor([[a + (b - a) * share for a, b in zip(transform.low, transform.high, strict=True)]] * 2)
        theta.requires_grad_()
        (gradient,) = torch.autograd.grad(transform.apply(images, theta).square().sum(), theta)
        assert gradient.isfinite().all()
