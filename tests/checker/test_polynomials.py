"""The checker's polynomials of one parameter never lose the exact image, and say about what the prover's say."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from tests.support.cases import PLACES, make_image, make_transform
from tests.support.exactly import violations
from tests.support.oracle import transformed
from tests.support.polynomial_check import assert_joint, chebyshev
from tiltproof.checker.polynomials import WHOLE, Series, inverse, polynomial_images, sine_cosine
from tiltproof.checker.tiling import Transform
from tiltproof.pixels.polynomial import polynomial_form

LETTERS = [
    ["R"],
    ["Sc"],
    ["Tu"],
    ["Tv"],
    ["Sh"],
    ["Shv"],
    ["Scu"],
    ["Scv"],
    ["R", "Sc"],
    ["Tu", "R"],
    ["R", "Sh", "Tv"],
]
KINDS = ["random", "checkerboard", "bright pixel", "gradient", "smooth", "white"]


def compare(letters: list[str], seed: int, pairs: int = 12) -> tuple[int, int]:
    """Return how many boxes were compared, and how many columns they had."""
    rng = np.random.default_rng([seed, *(ord(x) for x in "".join(letters))])
    padding = ("zeros", "border", "reflect")[seed % 3]
    channels, height, width = int(rng.choice([1, 3])), *(int(n) for n in rng.integers(1, 8, 2))
    images = np.stack([make_image(kind, channels, height, width, rng) for kind in rng.choice(KINDS, pairs)])
    middle = np.array([[rng.uniform(-1, 1) * PLACES[letter][0] for letter in letters] for _ in range(pairs)])
    whole = np.array([[rng.integers(-1, 2) * PLACES[letter][1] for letter in letters] for _ in range(pairs)])
    middle = np.where(rng.random(middle.shape) < 0.3, whole, middle)
    middle = np.where(np.array(letters) != "Sc", middle, np.maximum(middle, -30))
    k = int(rng.integers(len(letters)))
    size = 10 ** rng.uniform(-6, -0.3, pairs) * (0.2 if letters[k] in ("Tu", "Tv") else 1.0)
    low, high = middle.copy(), middle.copy()
    share = rng.choice([0, 0.5, 1, 0.3], pairs)
    low[:, k], high[:, k] = middle[:, k] - size * share, middle[:, k] + size * (1 - share)
    transform = Transform(tuple(letters), (-1.0,) * len(letters), (1.0,) * len(letters), padding)
    done = columns = 0
    for p in range(pairs):
        ends = [torch.tensor(end[p : p + 1]) for end in (low, high)]
        form = polynomial_images(
            torch.tensor(images[p : p + 1]), transform, *ends, symbols=int(rng.choice([0, 2, 100]))
        )
        if form is None:
            continue
        extra = form.rows[5:-1, 0]
        extra = extra[extra.flatten(1).abs().sum(1) > 0]
        columns += len(extra)
        sizes = extra.abs().sum(0) * (1 + 2.0**-40)
        for share_ in (Fraction(0), Fraction(1), Fraction(float(rng.random()))):
            a, b = Fraction(low[p, k]), Fraction(high[p, k])
            theta = [Fraction(x) for x in low[p]]
            theta[k] = a + (b - a) * share_
            e = 2 * share_ - 1 if b > a else Fraction(0)
            truth = transformed(images[p], letters, theta, padding)
            lower, upper = form.lower()[0], form.upper()[0]
            radius = form.radius[0] + sizes
            found = violations(truth, form.center[0], form.rows[1:5, 0], radius, lower, upper, chebyshev(e, 4))
            assert not found, (letters, padding, low[p], high[p], found[:3])
            if len(extra):
                assert_joint(truth, form.rows[:5, 0], extra, form.radius[0], e)
            done += 1
    return done, columns


@pytest.mark.parametrize("letters", LETTERS, ids="-".join)
def test_exact_images(letters):
    results = [compare(letters, seed) for seed in range(6)]
    assert sum(done for done, _ in results) > 60
    assert sum(columns for _, columns in results) > 2 or len(letters) > 1


@pytest.mark.slow
def test_many_exact_images():
    done = seed = 0
    while done < 20_000:
        done, seed = done + compare(LETTERS[seed % len(LETTERS)], 1000 + seed)[0], seed + 1


def test_it_agrees_with_the_prover():
    image = torch.rand(1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for width in (1e-4, 1e-2, 0.05):
        low = torch.tensor([[11.3]], dtype=torch.float64)
        form = polynomial_images(image, Transform(("R",), (-20.0,), (20.0,), "zeros"), low, low + width)
        other = polynomial_form(image, torch.tensor([0]), make_transform(["R"]), low, low + width, symbols=200)
        assert form is not None
        assert form.radius.max() < 1e-12
        assert len(form.rows) - 2 == other.symbols
        reach, others = (stack[1:, 0].abs().sum(0) for stack in (form.rows[:-1], other.stack))
        assert (reach <= others * 1.6 + 1e-12).all()


def test_series():
    """Products, sines and inverses of series contain the exact values, also where powers beyond the fourth are large."""
    rng = np.random.default_rng(5)
    for trial in range(60):
        x, y = (
            Series(tuple(int(v * WHOLE) for v in rng.normal(size=5) * [1, *[0.1 if trial % 2 else 0.02] * 4]), int(n))
            for n in 2.0 ** rng.uniform(0, 120, 2)
        )
        x = x._replace(terms=(abs(x.terms[0]) + WHOLE // 2, *x.terms[1:]))
        for e in (Fraction(-1), Fraction(-1, 3), Fraction(1, 2), Fraction(1)):
            a, b = (
                sum((Fraction(t, WHOLE) * e**k for k, t in enumerate(z.terms)), Fraction(z.error * sign, WHOLE))
                for z, sign in ((x, 1), (y, -1))
            )
            sine, cosine = sine_cosine(x)
            results = {x.times(y): a * b, x.plus(y): a + b, x.over(7): a / 7}
            with mpmath.workdps(80):
                angle = mpmath.mpf(a.numerator) / a.denominator
                results |= {f: Fraction(str(g(angle))) for f, g in ((sine, mpmath.sin), (cosine, mpmath.cos))}
            if (divided := inverse(x)) is not None:
                results[divided] = 1 / a
            for found, truth in results.items():
                value = sum((Fraction(t, WHOLE) * e**k for k, t in enumerate(found.terms)), Fraction(0))
                assert abs(value - truth) <= Fraction(found.error, WHOLE) + Fraction(1, 10**75)


def test_what_is_not_supported():
    image = torch.rand(1, 3, 6, 6, dtype=torch.float64)
    ends = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[1.1]], dtype=torch.float64)
    for letter in ("C", "G", "Yaw"):
        assert polynomial_images(image, Transform((letter,), (-2.0,), (2.0,), "zeros", (9.0,)), *ends) is None
    wide = torch.tensor([[60.0]], dtype=torch.float64)
    assert polynomial_images(image, Transform(("R",), (-90.0,), (90.0,), "zeros"), -wide, wide) is None
    two = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert polynomial_images(image, Transform(("R", "Sc"), (0.0, 0.0), (2.0, 2.0), "zeros"), two, two + 0.1) is None
