"""Pixels as polynomials of one parameter, against exact images, and against the forms of second order."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from tests.support.cases import make_transform
from tests.support.polynomial_check import Batch, chebyshev, check_batch, random_batch
from tiltproof.enclosures.polynomial import Polynomial
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.polynomial import parameters, polynomial_form


def run(cases: int, seed: int) -> int:
    total, kinks, number = 0, 0, 0
    while total < cases:
        rng = np.random.default_rng([seed, number])
        batch = random_batch(rng)
        try:
            done, columns = check_batch(batch, rng)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, batch {number}: {error}") from error
        total, kinks, number = total + done, kinks + columns, number + 1
    return kinks


@pytest.mark.parametrize("seed", range(4))
def test_exact_images(seed):
    assert run(400, seed) > 20, "hardly a kink was met: the test says little about columns"


@pytest.mark.slow
def test_many_exact_images():
    assert run(20_000, 100) > 1000


@pytest.mark.parametrize("angle", [0.0, 45.0, 90.0])
@pytest.mark.parametrize("size", [(6, 6), (5, 5), (4, 7)])
def test_grid_lines(angle, size):
    rng = np.random.default_rng(7)
    images = rng.random((6, 3, *size))
    widths = np.array([1e-6, 1e-3, 0.05, 0.3, 0.5, 0.5])[:, None]
    low = angle - widths * np.array([0, 0, 0, 1, 0.5, 0.3])[:, None]
    for symbols in (0, 40):
        check_batch(Batch(["R"], "zeros", images, low, low + widths, 4, symbols), rng)


def member(x: Polynomial, e: Fraction, sign: int) -> list[Fraction]:
    numbers = x.stack.T.tolist()
    terms = [Fraction(1), *chebyshev(e, x.degree)]
    radius = x.radius.tolist()
    return [
        sum((Fraction(c) * t for c, t in zip(row, terms, strict=True)), Fraction(r) * sign)
        for row, r in zip(numbers, radius, strict=True)
    ]


def random_polynomial(rng: np.random.Generator, degree: int, positive: bool = False) -> Polynomial:
    size = 10.0 ** rng.uniform(-3, 2, 12)
    center = size * (rng.uniform(0.5, 1, 12) if positive else rng.normal(size=12))
    share = size * 10.0 ** rng.uniform(-8, -0.3, 12)
    stack = share * rng.uniform(-0.4, 0.4, (degree, 12)) * (rng.random((degree, 12)) > 0.3)
    radius = share * rng.random(12) * 10.0 ** rng.uniform(-12, -1, 12) * (rng.random(12) > 0.5)
    return Polynomial(torch.tensor(np.concatenate([center[None], stack])), torch.tensor(radius))


POINTS = [Fraction(-1), Fraction(-7, 9), Fraction(-1, 3), Fraction(0), Fraction(1, 5), Fraction(5, 8), Fraction(1)]
EXACT = {"sin": mpmath.sin, "cos": mpmath.cos, "reciprocal": lambda x: 1 / x}


@pytest.mark.parametrize("name", [*EXACT, "mul", "add", "sub", "over", "deg2rad", "ends"])
def test_arithmetic(name):
    with mpmath.workdps(60):
        for seed in range(24):
            rng = np.random.default_rng(seed)
            x = random_polynomial(rng, 2 + seed % 3, positive=name == "reciprocal")
            y = random_polynomial(rng, 2 + seed % 3, positive=name == "over")
            if name == "ends":
                low, high = x.ends()
                for e in POINTS:
                    for sign in (-1, 1):
                        for k, value in enumerate(member(x, e, sign)):
                            assert Fraction(low[k].item()) <= value <= Fraction(high[k].item())
                continue
            result = {
                "mul": lambda: x * y,  # noqa: B023
                "add": lambda: x + y,  # noqa: B023
                "sub": lambda: x - y,  # noqa: B023
                "over": lambda: x.over(y),  # noqa: B023
            }.get(name, lambda: getattr(x, name)())()  # noqa: B023
            exact = Polynomial(result.stack, result.radius * 0)
            for e in POINTS:
                for signs in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
                    for k, (a, b) in enumerate(zip(member(x, e, signs[0]), member(y, e, signs[1]), strict=True)):
                        truth = value_of(name, a, b)
                        apart = abs(truth - member(exact, e, 0)[k])
                        assert apart <= Fraction(result.radius[k].item()) + Fraction(1, 10**50), (seed, e, k)


def value_of(name: str, a: Fraction, b: Fraction) -> Fraction:
    if name in EXACT or name == "deg2rad":
        x = mpmath.mpf(a.numerator) / a.denominator
        value = x * mpmath.pi / 180 if name == "deg2rad" else EXACT[name](x)
        return Fraction(str(mpmath.nstr(value, 55)))
    return {"mul": a * b, "add": a + b, "sub": a - b, "over": a / b if b else a}[name]


def smooth_radius(letter: str, half: float, degree: int, at: float) -> float:
    image = torch.rand(1, 3, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    box = [torch.tensor([[at + sign * half]], dtype=torch.float64) for sign in (-1, 1)]
    form = polynomial_form(image, torch.tensor([0]), make_transform([letter]), *box, degree)
    return float(form.radius.flatten().kthvalue(60).values)


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize(("letter", "at", "half"), [("R", 17.3, 2.0), ("Sc", 13.0, 3.0), ("Yaw@9", 7.3, 1.5)])
def test_order_of_the_remainder(letter, at, half, degree):
    """Inside a cell the radius falls like the width to the power degree + 1."""
    wide, narrow = (smooth_radius(letter, half * scale, degree, at) for scale in (1.0, 0.25))
    assert wide / narrow > 0.6 * 4 ** (degree + 1)
    assert smooth_radius(letter, half / 1000, degree, at) < 1e-13, "what is left is rounding"


@pytest.mark.parametrize("letter", ["R", "Sc", "Sh", "Tu", "Tv", "Scu", "Scv", "Shv"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflect"])
def test_not_looser_than_second_order(letter, padding):
    """With its hinge in the radius, a form of second order has no smaller radius than a polynomial of degree 4 without symbols."""
    rng = np.random.default_rng([ord(x) for x in letter + padding])
    transform = make_transform([letter], padding)
    images = torch.tensor(rng.random((40, 3, 7, 7)))
    low = torch.tensor(rng.uniform(-4, 4, (40, 1)))
    high = low + torch.tensor(10 ** rng.uniform(-6, -0.3, (40, 1)))
    form = polynomial_form(images, torch.arange(40), transform, low, high)
    for p in range(40):
        pair = [end[p : p + 1] for end in (low, high)]
        before = pair_bounds(images, torch.tensor([p]), transform, "affine", *pair, quadratic=True)
        loose = before.radius[0] + before.stack[3:, 0].abs().sum(0)
        assert (form.radius[p] <= loose * (1 + 1e-6) + 1e-13).all(), (low[p], high[p])


def test_columns_do_not_leave_radii():
    """With a symbol for each kink only roundings are left, in images of natural size."""
    image = torch.rand(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    low = torch.tensor([[6.3], [4.0]], dtype=torch.float64)
    form = polynomial_form(image, torch.zeros(2, dtype=torch.int64), make_transform(["R"]), low, low + 0.05, symbols=200)
    assert 4 < form.symbols < 60
    assert form.radius.max() < 1e-12
    bare = polynomial_form(image, torch.zeros(2, dtype=torch.int64), make_transform(["R"]), low, low + 0.05)
    assert bare.radius.max() > 1e-5
    assert bare.symbols == 4


def test_boxes_that_are_not_supported():
    image, low = torch.rand(1, 3, 6, 6, dtype=torch.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for letters in (["R", "Sc"], ["C", "R"], ["R", "G"]):
        transform = make_transform(letters)
        form = polynomial_form(image, torch.tensor([0]), transform, low, low + 0.1)
        same = pair_bounds(image, torch.tensor([0]), transform, "affine", low, low + 0.1)
        assert torch.equal(form.stack, same.stack)
        assert torch.equal(form.radius, same.radius)


def test_parameters_cover_their_box():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(500, 1)) * 10 ** rng.uniform(-9, 2, (500, 1))
    high = np.maximum(np.nextafter(low, np.inf), low + 10 ** rng.uniform(-18, 1, (500, 1)))
    (value,) = parameters(torch.tensor(low), torch.tensor(high), 2)
    for a, b, c, h in zip(low[:, 0], high[:, 0], *value.stack[:2].tolist(), strict=True):
        assert Fraction(c) - Fraction(h) <= Fraction(a)
        assert Fraction(b) <= Fraction(c) + Fraction(h)
