"""Nearest and bicubic interpolation: the exact image never leaves its bounds, the prover's and the checker's."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support.cases import IMAGE_KINDS, KINDS, PADDINGS, make_image, make_thetas, make_transform
from tests.support.exactly import violations
from tests.support.oracle import transformed as truth_of
from tests.support.pixel_check import assert_sound, random_box
from tiltproof import InputError, bound_pixels, parse
from tiltproof.checker.pixels import parameters
from tiltproof.checker.pixels import transformed as checked
from tiltproof.checker.polynomials import polynomial_images
from tiltproof.checker.tiling import read_transform
from tiltproof.kernels.matrix_program import trace
from tiltproof.names import INTERPOLATIONS
from tiltproof.pixels.polynomial import supported
from tiltproof.transforms.resampling import cubic_weights, resampled
from tiltproof.verify.shares import nested

OTHERS = INTERPOLATIONS[1:]
RULES = {"nearest": ["nearest", "nearest, first"], "bicubic": ["bicubic"]}
LETTERS = [
    *(["Tu"], ["R"], ["Sc"], ["Sh", "Tv"], ["Tu", "Tv"], ["C", "R", "B"], ["R", "B", "Tu"], ["Yaw@9"]),
    *(["Tz@9.5@0.3:-0.75:0.4"], ["B", "Scu"], ["G", "Tu"], ["R", "Sc", "C"]),
]


def one_case(seed: int, interpolation: str) -> None:
    rng = np.random.default_rng([seed, len(interpolation)])
    letters, padding = LETTERS[seed % len(LETTERS)], PADDINGS[seed // len(LETTERS) % 3]
    height, width = (int(side) for side in rng.integers(1, 7, 2))
    low, high = random_box(letters, [str(rng.choice(KINDS)) for _ in letters], rng)
    image = make_image(str(rng.choice(IMAGE_KINDS)), 1 + seed % 2, height, width, rng)
    thetas = make_thetas(low, high, rng, 3)
    dtype = (torch.float32, torch.float64)[seed % 2]
    assert_sound(letters, padding, image, low, high, thetas, ("affine", "hull"), (dtype,), interpolation=interpolation)

    transform = make_transform(letters, padding, interpolation=interpolation)
    read = read_transform(str(transform))
    box = torch.tensor([[low], [high]], dtype=torch.float64)
    exact = torch.tensor(image, dtype=torch.float64)[None]
    form = checked(exact, read, box[0], box[1])
    middles = [(x.center.item(), x.slopes[k].item()) for k, x in enumerate(parameters(box[0], box[1]))]
    rows = (form.center, form.radius, form.lower(), form.upper())
    if not all(bool(torch.isfinite(x).all()) for x in rows):
        return  # nothing is claimed
    for theta in thetas:
        e = [(x - Fraction(m)) / Fraction(h) if h else Fraction(0) for x, (m, h) in zip(theta, middles, strict=True)]
        for rule in RULES[interpolation]:
            truth = truth_of(exact[0].numpy(), letters, theta, padding, rule)
            found = violations(truth, rows[0][0], form.slopes[:, 0], *(x[0] for x in rows[1:]), e)
            assert not found, (seed, letters, padding, low, high, found[:3])


@pytest.mark.parametrize("interpolation", OTHERS)
@pytest.mark.parametrize("first", range(0, 48, 24))
def test_exact_truth_is_inside(interpolation, first):
    for seed in range(first, first + 24):
        one_case(seed, interpolation)


@pytest.mark.parametrize("letter", ["Tu", "Tv"])
def test_a_position_between_two_pixels_may_be_either(letter):
    """Shifts by halves, exactly and nearly, where one end of the box or both of them are ties."""
    image = torch.rand(1, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    near = 0.5 - 2.0**-53
    for low, high in ((0.5, 0.5), (0.25, 0.5), (0.5, 0.75), (near, near), (-1.5, 0.5), (-0.5, -near), (near, 0.5)):
        thetas = [(Fraction(low),), (Fraction(high),), ((Fraction(low) + Fraction(high)) / 2,)]
        assert_sound(
            [letter], "zeros", image.numpy(), [low], [high], thetas, ("affine", "hull"), interpolation="nearest"
        )
        box = torch.tensor([[low]], dtype=torch.float64), torch.tensor([[high]], dtype=torch.float64)
        form = checked(image[None], read_transform(f"{letter}(2); interpolation=nearest"), *box)
        for theta in thetas:
            for rule in RULES["nearest"]:
                truth = truth_of(image.numpy(), [letter], theta, "zeros", rule).floats()
                assert (form.lower()[0].numpy() <= truth).all()
                assert (truth <= form.upper()[0].numpy()).all()


def test_positions_that_bend_more_than_the_cubic():
    """Far to the side, the position of a yawing camera is so far from its tangent that the value's own remainder does not hide it."""
    thetas = [(Fraction(x),) for x in (84.0, 84.2, 84.4)]
    for method in ("affine", "hull"):
        ends = [84.0], [84.4]
        assert_sound(
            ["Yaw@0.02"],
            "zeros",
            np.ones((1, 1, 1)),
            *ends,
            thetas,
            (method,),
            whole_range=True,
            interpolation="bicubic",
        )


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", OTHERS)
@pytest.mark.parametrize("first", range(1000, 5000, 200))
def test_exact_truth_is_inside_at_length(interpolation, first):
    for seed in range(first, first + 200):
        one_case(seed, interpolation)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("interpolation", OTHERS)
def test_apply_is_what_the_definition_says(interpolation, padding):
    rng = np.random.default_rng(0)
    image = torch.tensor(rng.random((1, 2, 5, 6)))
    transform = parse(f"R(40), Sc(30), Tu(3), C(5); padding={padding}; interpolation={interpolation}")
    for theta in ([17.3, 11.0, 0.37, 2.0], [0.0, 0.0, 1.25, 0.0], [0.0] * 4, [-33.0, -20.0, 2.6, -3.0]):
        truth = truth_of(image[0].numpy(), ["R", "Sc", "Tu", "C"], theta, padding, interpolation).floats()
        assert np.allclose(transform.apply(image, torch.tensor(theta))[0].numpy(), truth, atol=1e-6)
    parameters = torch.tensor([[17.3, 11.0, 0.37, 2.0], [-3.0, 1.0, 0.2, 0.0]], dtype=torch.float64)
    each = transform.apply_each(torch.cat([image, image / 2]), parameters)
    assert torch.allclose(each[:2], transform.apply(image.expand(2, -1, -1, -1), parameters))
    assert torch.allclose(each[2:], transform.apply(image.expand(2, -1, -1, -1) / 2, parameters))


@pytest.mark.parametrize(("padding", "theirs"), [("zeros", "zeros"), ("border", "border"), ("reflect", "reflection")])
@pytest.mark.parametrize("interpolation", OTHERS)
def test_values_agree_with_torch(interpolation, padding, theirs):
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 2, 6, 5, dtype=torch.float64, generator=generator) * 0.4 + 0.3  # not clamped
    place = torch.rand(2, 1, 40, 40, dtype=torch.float64, generator=generator) * 14 - 5
    grid = torch.stack([place[0] / 4 * 2 - 1, place[1] / 5 * 2 - 1], -1)
    expected = torch.nn.functional.grid_sample(image, grid, interpolation, theirs, align_corners=True)
    found = resampled(image, place[0], place[1], padding, interpolation)
    assert torch.allclose(found, expected.clamp(0, 1), atol=1e-12)


def test_gradients():
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = torch.tensor([[11.0, 0.3]], dtype=torch.float64, requires_grad=True)
    cubic, near = (parse(f"R(20), Tu(1); interpolation={kind}") for kind in ("bicubic", "nearest"))
    assert torch.autograd.gradcheck(lambda t: cubic.apply(image, t), theta, atol=1e-5)
    (slope,) = torch.autograd.grad(near.apply(image, theta).sum(), theta)
    assert torch.equal(slope, torch.zeros(1, 2, dtype=torch.float64))


def test_the_inequalities_of_the_kernel():
    """Sizes of weights and of their derivatives, over fractions of exact places."""
    t = torch.linspace(0, 1, 4097, dtype=torch.float64, requires_grad=True)
    weights = cubic_weights(t)
    first = [torch.autograd.grad(w.sum(), t, create_graph=True)[0] for w in weights]
    second = [torch.autograd.grad(w.sum(), t, create_graph=True)[0] for w in first]
    for values, most, total in ((weights, 11 / 8, 1), (first, 3, 0), (second, 12, 0)):
        values = torch.stack(list(values)).detach()
        assert float(values.abs().sum(0).max()) == pytest.approx(most, abs=1e-6)
        assert torch.allclose(values.sum(0), torch.full_like(t.detach(), total))


@pytest.mark.parametrize("method", ["affine", "hull"])
def test_bounds_of_small_boxes_are_tight(method):
    """A bicubic remainder falls with the square of the box; most nearest pixels of a small box are one pixel."""
    image = torch.rand(1, 1, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.6 + 0.2
    cubic, near = (parse(f"R(20); interpolation={kind}") for kind in ("bicubic", "nearest"))
    radii = [bound_pixels(image, cubic, method, [3 - half], [3 + half]).radius.max() for half in (0.4, 0.2, 0.1)]
    ratio = 3.5 if method == "affine" else 1.8
    assert radii[0] > ratio * radii[1] > ratio**2 * radii[2]
    assert (bound_pixels(image, near, method, [3.0], [3.01]).width < 1e-12).double().mean() > 0.9
    values = torch.linspace(3.0, 3.8, 50, dtype=torch.float64)[:, None]
    reached = cubic.apply(image.expand(50, -1, -1, -1), values)
    spread = bound_pixels(image, cubic, "hull", [3.0], [3.8]).width
    assert (spread <= 1.5 * (reached.amax(0) - reached.amin(0)) + 0.15).all()


def test_what_knows_bilinear_interpolation_only_refuses_others():
    transform = parse("R(5); interpolation=nearest")
    with pytest.raises(InputError, match="bilinear interpolation only"):
        bound_pixels(torch.zeros(1, 1, 3, 3), transform, "fgv")
    ends = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    assert supported(parse("R(5)"), *ends)
    assert not supported(transform, *ends)
    assert trace(parse("R(5)"), [0]) is not None
    assert trace(transform, [0]) is None
    assert polynomial_images(torch.zeros(1, 1, 3, 3).double(), read_transform(str(transform)), *ends) is None


def test_a_share_of_a_range_keeps_the_interpolation():
    assert str(nested(parse("R(8); interpolation=nearest"), 0.5)) == "R(4); interpolation=nearest"
    assert str(parse("R(8), Linf(0.1); interpolation=bicubic").without_noise()) == "R(8); interpolation=bicubic"
