"""Pixel widths: against bounds computed image by image, against recorded figures, and against the paper's."""

import os

import pytest
import torch

from tiltproof import InputError, bound_pixels, parse
from tiltproof.data import load as load_data
from tiltproof.training import pixel_widths, read_recipe, tune
from tiltproof.training.box_sizes import equal_effects, sample_parameters


@pytest.fixture(scope="module")
def digits():
    return load_data("mnist-sample")[0]


@pytest.fixture(scope="module")
def photos():
    return load_data("cifar10-sample")[0]


@pytest.mark.parametrize("method", ["fgv", "hull", "affine"])
@pytest.mark.parametrize("text", ["R(20)", "Sc(5), C(5), B(0.01)", "C(5), Tu(1); padding=border", "Yaw(5@40), Shv(2)"])
def test_widths_are_those_of_the_pixel_bounds(photos, method, text):
    transform, images = parse(text), photos[:5].double()
    nu = [(high - low) / 50 for low, high in zip(transform.low, transform.high, strict=True)]
    found = pixel_widths(images, transform, nu, method, samples=3, seed=4)
    half, sizes, remainders = torch.tensor(nu, dtype=torch.float64), [], []
    for theta in sample_parameters(transform, 3, 4):
        form = bound_pixels(images, transform, method, theta - half, theta + half)
        sizes.append(form.width.flatten(1))
        remainders.append(2 * form.radius.flatten(1))
    assert found.average == pytest.approx(torch.stack(sizes).mean().item(), rel=1e-9)
    assert found.maximum == pytest.approx(torch.stack(sizes).amax(2).mean().item(), rel=1e-9)
    assert found.remainder_average == pytest.approx(torch.stack(remainders).mean().item(), rel=1e-9)
    assert found.remainder_maximum == pytest.approx(torch.stack(remainders).amax(2).mean().item(), rel=1e-9)


def test_parameters_lie_one_in_each_tenth():
    transform = parse("R(-10:25), B(0.1)")
    for seed in range(20):
        theta = sample_parameters(transform, 10, seed)
        shares = (theta - torch.tensor(transform.low)) / (torch.tensor(transform.high) - torch.tensor(transform.low))
        assert (shares * 10).floor().long().sort(0).values.equal(torch.arange(10)[:, None].expand(-1, 2))


@pytest.mark.parametrize(
    ("name", "average", "maximum"),
    [
        ("cifar10-r10", 0.0002649, 0.000861),
        ("cifar10-r2-sh2", 0.008865, 0.02841),
        ("cifar10-sc1-r1-c1-b0001", 0.006314, 0.01273),
        ("mnist-r30", 0.01778, 0.2304),
        ("mnist-sc5-r5-c5-b001", 0.0399, 0.3511),
        ("mnist-sh2-r2-sc2-c2-b0001", 0.02109, 0.2558),
        ("mnist-tu2-tv2", 0.03846, 0.3331),
    ],
)
def test_figures_of_the_samples(name, average, maximum, digits, photos):
    recipe = read_recipe(f"{name}-paper")
    widths = pixel_widths(digits if name.startswith("mnist") else photos, recipe.transform, recipe.loss.nu)
    assert widths.average == pytest.approx(average, rel=0.01)
    assert widths.maximum == pytest.approx(maximum, rel=0.01)


def test_methods_differ_as_they_should(digits):
    widths = {method: pixel_widths(digits, "R(30)", [0.25], method) for method in ("fgv", "hull", "affine")}
    assert widths["fgv"].maximum > 2 * widths["hull"].maximum
    assert widths["affine"].maximum > 5 * widths["affine"].remainder_maximum
    assert widths["hull"].maximum == widths["hull"].remainder_maximum
    assert 0 < widths["fgv"].maximum_error < 0.1 * widths["fgv"].maximum


@pytest.mark.parametrize(
    ("method", "epsilon"), [("fgv", 0.2), ("fgv", 0.5), ("fgv", 0.001), ("hull", 0.1), ("affine", 0.1)]
)
def test_tune_finds_the_width(digits, method, epsilon):
    nu = tune(digits[:40], "R(30), C(5)", epsilon, method=method, samples=4)
    assert pixel_widths(digits[:40], "R(30), C(5)", nu, method, samples=4).maximum == pytest.approx(epsilon, rel=0.01)


def test_tune_keeps_the_proportions_until_a_box_is_the_range(digits):
    nu = tune(digits[:20], "R(30), C(5)", 0.1, start=[0.5, 1.0], samples=3)
    assert nu[1] / nu[0] == pytest.approx(2)
    nu = tune(digits[:20], "R(30), C(5)", 0.4, start=[0.001, 1.0], samples=3)
    assert nu[1] == 5.0
    assert tune(digits[:20], "R(30), C(5)", 0.1, start=[1.0, 0.0], samples=3)[1] == 0


def test_boxes_of_a_camera_stay_in_front_of_it(digits):
    """Half of the range on either side of its ends would be too far, so the widest boxes are smaller."""
    nu = tune(digits[:10], "Yaw(40@20), Tu(1)", 0.3, samples=3)
    assert pixel_widths(digits[:10], "Yaw(40@20), Tu(1)", nu, samples=3).maximum == pytest.approx(0.3, rel=0.01)
    with pytest.raises(InputError, match="depth reaches zero"):
        pixel_widths(digits[:10], "Yaw(40@20), Tu(1)", [20.0, 0.5])


def test_equal_effects(digits):
    transform = parse("R(30), C(5), B(0.01)")
    nu = equal_effects(digits[:20], transform, samples=3)
    alone = [
        pixel_widths(digits[:20], transform, [half if j == k else 0 for j in range(3)], samples=3).maximum
        for k, half in enumerate(nu)
    ]
    assert max(alone) < 1.3 * min(alone)


def test_the_seed_decides(digits):
    first, second, other = (pixel_widths(digits[:5], "R(30)", [0.5], seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize("nu", [[], [0.1, 0.1], [0], [-1], [float("nan")], [float("inf")]])
def test_bad_half_widths(digits, nu):
    with pytest.raises(InputError, match="nu needs (1|at least one)"):
        pixel_widths(digits[:1], "R(30)", nu)


def test_bad_input(digits):
    with pytest.raises(InputError, match="out of reach"):
        tune(digits[:5], "B(0.01)", 0.5)
    for epsilon in (0, 1e-14, -1, 2, float("nan")):
        with pytest.raises(InputError, match="epsilon is a pixel width"):
            tune(digits[:5], "R(30)", epsilon)
    with pytest.raises(InputError, match="does not change"):
        tune(torch.zeros(2, 1, 8, 8), "R(30)", 0.1)
    with pytest.raises(InputError, match="method"):
        pixel_widths(digits[:5], "R(30)", [0.1], "magic")
    with pytest.raises(InputError, match="at least 1"):
        pixel_widths(digits[:5], "R(30)", [0.1], samples=0)
    with pytest.raises(InputError, match="-100"):
        pixel_widths(digits[:5], "Sc(50)", [60])


@pytest.mark.slow
@pytest.mark.skipif("TILTPROOF_DATA" not in os.environ, reason="needs the training sets")
@pytest.mark.parametrize(
    ("name", "average", "maximum"), [("mnist-r30", 0.019, 0.234), ("cifar10-r2-sh2", 8.94e-3, 2.82e-2)]
)
def test_the_papers_figures(name, average, maximum):
    recipe = read_recipe(f"{name}-paper")
    images, _ = load_data(recipe.data.name, split="train")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:2000]
    widths = pixel_widths(images[chosen], recipe.transform, recipe.loss.nu)
    assert widths.average == pytest.approx(average, rel=0.05)
    assert widths.maximum == pytest.approx(maximum, rel=0.05)
