"""`transform.apply` in float64 agrees with the oracle to 1e-9 everywhere."""

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
    PADDINGS,
    PIXELWISE,
    SPATIAL,
    in_view,
    make_image,
    make_interval,
    make_transform,
)
from tests.support.oracle import transformed
from tiltproof.transforms import Compose, Rotation, ScalingU, ScalingV, Shearing, ShearingV, TranslationU, TranslationV

SIZES = [(1, 1), (1, 6), (5, 1), (4, 4), (3, 7), (6, 5)]


def assert_agrees(letters, padding, image, theta, dtype=torch.float64, tolerance=1e-9):
    transform = make_transform(letters, padding)
    tensor = torch.tensor(image, dtype=dtype)
    result = transform.apply(tensor[None], torch.tensor([theta], dtype=dtype))[0].double().numpy()
    exact = transformed(tensor.double().numpy(), letters, [Fraction(value) for value in theta], padding).floats()
    assert result.shape == exact.shape
    assert np.abs(result - exact).max() <= tolerance, (letters, padding, theta)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("letter", SPATIAL + PIXELWISE)
def test_single(letter, size, padding):
    rng = np.random.default_rng(size[0] * 10 + size[1])
    for kind in ("medium", "huge", "straddling", "on grid lines", "outside"):
        assert_agrees([letter], padding, make_image("random", 2, *size, rng), [make_interval(letter, kind, rng)[1]])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("pair", list(itertools.permutations(SPATIAL + PIXELWISE, 2)), ids=",".join)
def test_every_ordered_pair(pair, padding):
    rng = np.random.default_rng(7)
    theta = [make_interval(letter, "medium", rng)[0] for letter in pair]
    assert_agrees(list(pair), padding, make_image("random", 1, 4, 5, rng), theta)


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(SPATIAL + PIXELWISE), min_size=3, max_size=5),
    st.sampled_from(PADDINGS),
    st.sampled_from([*SIZES, (9, 8)]),
    st.sampled_from(IMAGE_KINDS),
    st.sampled_from(["medium", "huge", "straddling", "on grid lines", "from a grid line"]),
    st.integers(0, 2**32 - 1),
)
def test_compositions_of_up_to_five(letters, padding, size, image_kind, kind, seed):
    rng = np.random.default_rng(seed)
    theta = [make_interval(letter, kind, rng)[int(rng.integers(2))] for letter in letters]
    assume(in_view(letters, theta, theta, *size))
    assert_agrees(letters, padding, make_image(image_kind, 1, *size, rng), theta)


@pytest.mark.parametrize("letters", [["R"], ["Sh", "Tu"], ["C", "R", "B"], ["Yaw@9", "Scv", "Pitch@7.5"]], ids=",".join)
def test_float32_is_the_same_image_to_float32_accuracy(letters):
    rng = np.random.default_rng(3)
    theta = [float(np.float32(make_interval(letter, "medium", rng)[0])) for letter in letters]
    assert_agrees(letters, "zeros", make_image("smooth", 3, 8, 8, rng), theta, torch.float32, 2e-5)


def test_each_image_has_its_own_parameters():
    rng = np.random.default_rng(5)
    images = torch.tensor(rng.random((3, 2, 4, 4)))
    parameters = torch.tensor([[10.0, 0.5], [-20.0, 0.0], [90.0, -1.0]], dtype=torch.float64)
    result = Compose(Rotation(90), TranslationU(2)).apply(images, parameters)
    for n in range(3):
        exact = transformed(images[n].numpy(), ["R", "Tu"], parameters[n].tolist()).floats()
        assert np.abs(result[n].numpy() - exact).max() <= 1e-9


def test_sign_conventions_seen_with_one_bright_pixel():
    """Right of the center, a counter-clockwise quarter turn takes the bright pixel to the top."""
    image = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    image[0, 0, 2, 4] = 1
    where = lambda image: tuple(int(k) for k in (image[0, 0] > 0.99).nonzero()[0])  # noqa: E731
    assert where(Rotation(90).apply(image, torch.tensor([90.0]))) == (0, 2)
    assert where(TranslationU(2).apply(image, torch.tensor([-1.0]))) == (2, 3)
    assert where(TranslationV(2).apply(image, torch.tensor([1.0]))) == (1, 4)
    top = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    top[0, 0, 0, 2] = 1
    assert where(Shearing(100).apply(top, torch.tensor([50.0]))) == (0, 3)
    assert where(ShearingV(100).apply(image, torch.tensor([50.0]))) == (1, 4)
    near = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    near[0, 0, 1, 3] = 1
    assert where(ScalingU(0, 100).apply(near, torch.tensor([100.0]))) == (1, 4)
    assert where(ScalingV(0, 100).apply(near, torch.tensor([100.0]))) == (0, 3)


@pytest.mark.parametrize("letter", SPATIAL + PIXELWISE)
def test_the_result_can_be_viewed_as_vectors(letter):
    """Networks begin with x.view(len(x), -1); their input must allow it, also with three channels."""
    images = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    result = make_transform([letter]).apply(images, torch.tensor([0.5]))
    assert result.view(2, -1).shape == (2, 60)
