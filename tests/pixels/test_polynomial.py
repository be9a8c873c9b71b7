"""Pixels as polynomials of one parameter, against exact images, and against the forms of second order."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from tests.support.cases import make_transform
from tests.support.polynomial_check import Batch, chebyshev, check_batch, random_batch
from tiltproof.enclosures.centered import ONE, Centered, pi, sine
from tiltproof.enclosures.polynomial import Polynomial
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.polynomial import parameters, polynomial_form, supported


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


@pytest.mark.parametrize(("name", "value"), [("crossings.SAME", 0.02), ("polynomial.TOUCH", 0.01)])
def test_charges(monkeypatch, name, value):
    """Crossings that are taken together although they differ are charged for that, and paths that leave their cell by
    more than usual."""
    monkeypatch.setattr(f"tiltproof.pixels.{name}", value)
    run(500, 50)


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
SIGNS = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
EXACT = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "over": lambda a, b: a / b,
    "reciprocal": lambda a, _: 1 / a,
    "third": lambda a, _: a / 3,
    "times": lambda a, _: a * Fraction(3.7),
    "deg2rad": lambda a, _: a * Fraction(str(mpmath.nstr(mpmath.pi, 58))) / 180,
    "sin": lambda a, _: of_mpmath(mpmath.sin, a),
    "cos": lambda a, _: of_mpmath(mpmath.cos, a),
}
OPERATIONS = {
    "mul": lambda x, y: x * y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x + -y,
    "over": lambda x, y: x.over(y),
    "third": lambda x, _: x / 3,
    "times": lambda x, _: x * 3.7,
}


def of_mpmath(function, a: Fraction) -> Fraction:
    return Fraction(str(mpmath.nstr(function(mpmath.mpf(a.numerator) / a.denominator), 58)))


@pytest.mark.parametrize("name", ["mul", "add", "sub", "over", "reciprocal", "third", "times", "deg2rad"])
def test_polynomials(name):
    with mpmath.workdps(60):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            positive = name in ("over", "reciprocal")
            x, y = (random_polynomial(rng, 2 + seed % 3, positive) for _ in range(2))
            result = OPERATIONS.get(name, lambda x, _: getattr(x, name)())(x, y)
            exact = Polynomial(result.stack, result.radius * 0)
            for e in POINTS:
                found = member(exact, e, 0)
                for first, second in SIGNS:
                    for k, (a, b) in enumerate(zip(member(x, e, first), member(y, e, second), strict=True)):
                        apart = abs(EXACT[name](a, b) - found[k])
                        assert apart <= Fraction(result.radius[k].item()) + Fraction(1, 10**50), (seed, e, k)


@pytest.mark.parametrize("name", ["mul", "add", "sub", "reciprocal", "third", "times", "deg2rad", "sin", "cos"])
def test_centered_polynomials(name):
    with mpmath.workdps(60):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            x, y = (random_centered(rng, 2 + seed % 3, name == "reciprocal") for _ in range(2))
            result = OPERATIONS.get(name, lambda x, _: getattr(x, name)())(x, y)
            rest = Polynomial(result.rest.stack, result.rest.radius * 0)
            for e in POINTS:
                found = member(rest, e, 0)
                for first, second in SIGNS:
                    pairs = zip(centered_member(x, e, first), centered_member(y, e, second), strict=True)
                    for k, (a, b) in enumerate(pairs):
                        apart = abs(EXACT[name](a, b) - found[k] - Fraction(result.exact[k], ONE))
                        allowed = Fraction(result.rest.radius[k].item()) + Fraction(result.slack, ONE)
                        assert apart <= allowed + Fraction(1, 10**50), (seed, e, k)


def random_centered(rng: np.random.Generator, degree: int, positive: bool) -> Centered:
    x = random_polynomial(rng, degree, positive)
    result = Centered.around(x)
    result.rest = result.rest + x.center * torch.tensor(1e-3 * rng.random(12))
    result.slack = int(rng.integers(1, 2**40))
    return result


def centered_member(x: Centered, e: Fraction, sign: int) -> list[Fraction]:
    slack = Fraction(x.slack, ONE) * sign
    return [Fraction(c, ONE) + y + slack for c, y in zip(x.exact, member(x.rest, e, sign), strict=True)]


def test_ends():
    for seed in range(40):
        x = random_polynomial(np.random.default_rng(seed), 2 + seed % 3)
        if seed % 2:  # monotonic ones
            x.stack[1] *= 30
        low, high = x.ends()
        for e in POINTS:
            for sign in (-1, 1):
                for k, value in enumerate(member(x, e, sign)):
                    assert Fraction(low[k].item()) <= value <= Fraction(high[k].item())


def test_sines_of_exact_numbers():
    with mpmath.workdps(80):
        for number in [
            0,
            1,
            -1,
            ONE // 3,
            -ONE * 6,
            ONE * 355 // 113,
            ONE * 1023,
            *(pi() * k // 4 >> 32 for k in range(-8, 9)),
        ]:
            for quarters in range(5):
                exact = mpmath.sin(mpmath.mpf(number) / ONE + quarters * mpmath.pi / 2) * ONE
                assert abs(sine(number, quarters) - exact) < 1.01


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
    """With its hinge in the radius, a form of second order has no smaller radius than a polynomial of degree 4 without
    symbols."""
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
    form = polynomial_form(
        image, torch.zeros(2, dtype=torch.int64), make_transform(["R"]), low, low + 0.05, symbols=200
    )
    assert 4 < form.symbols < 60
    assert form.radius.max() < 1e-12
    bare = polynomial_form(image, torch.zeros(2, dtype=torch.int64), make_transform(["R"]), low, low + 0.05)
    assert bare.radius.max() > 1e-5
    assert bare.symbols == 4


def test_boxes_that_are_not_supported():
    image, low = torch.rand(1, 3, 6, 6, dtype=torch.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert not supported(make_transform(["R"] * 9), torch.zeros(1, 9), torch.zeros(1, 9))
    assert not supported(make_transform(["Tu"]), torch.zeros(1, 1), torch.full((1, 1), 1e7))
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
