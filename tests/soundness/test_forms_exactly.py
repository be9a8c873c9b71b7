"""Arithmetic of affine forms and intervals, operation by operation, on rational numbers without a rounding tolerance."""

from __future__ import annotations

import operator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from tests.support.planted import fractions
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.relu import clamp01, relax_relu
from tiltproof.pixels.coordinates import combine

ENTRIES = 60


def random_form(rng: np.random.Generator, dtype: torch.dtype, positive: bool = False) -> AffineForm:
    """Draw entries of very different magnitudes, some without remainder, some without slopes."""
    size = 10.0 ** rng.uniform(-9, 3, ENTRIES)
    center = size * (rng.uniform(0.5, 1, ENTRIES) if positive else rng.normal(size=ENTRIES))
    if not positive:
        center *= np.where(rng.random(ENTRIES) < 0.3, 1e-2, 1.0)  # these may change their sign
    share = 10.0 ** rng.uniform(-17, -0.5, ENTRIES) * (rng.random(ENTRIES) > 0.3)
    slopes = size * share * rng.uniform(-0.4, 0.4, (2, ENTRIES))
    radius = size * share * rng.random(ENTRIES) * 0.4 * (rng.random(ENTRIES) > 0.4)
    stack, radius = torch.tensor(np.stack([center, *slopes])), torch.tensor(radius)
    return AffineForm(stack.to(dtype)[:, None], radius.to(dtype)[None])


def members(form: AffineForm, e: list[int], sign: int) -> np.ndarray:
    """Return the member at symbols e and at the end ``sign`` of every remainder, exactly."""
    c, g, r = (fractions(x.double().numpy()) for x in (form.center[0], form.slopes[:, 0], form.radius[0]))
    return c + sum(g[k] * e[k] for k in range(len(g))) + r * sign


def assert_holds(result: AffineForm, truth: np.ndarray, e: list[int], what: object) -> None:
    low, high, r = (fractions(x.double().numpy()) for x in (result.lower[0], result.upper[0], result.radius[0]))
    middle = members(AffineForm(result.stack, result.radius * 0), e, 0)
    for k, value in enumerate(truth):
        assert low[k] <= value <= high[k], (what, k)
        assert abs(value - middle[k]) <= r[k], (what, k, float(abs(value - middle[k]) - r[k]))


CORNERS = [([a, b], sign) for a in (-1, 1) for b in (-1, 1) for sign in (-1, 1)]
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_two_forms(name, dtype):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        first, second = random_form(rng, dtype), random_form(rng, dtype)
        result = getattr(operator, name)(first, second)
        for e, sign in CORNERS:
            for other in (-1, 1):
                truth = getattr(operator, name)(members(first, e, sign), members(second, e, other))
                assert_holds(result, truth, e, (name, seed))


UNARY = {
    "itself": (lambda form: form, lambda x: x),
    "minus": (lambda form: -form, lambda x: -x),
    "plus a number": (lambda form: form + 0.1, lambda x: x + Fraction(0.1)),
    "from a number": (lambda form: 1.0 - form, lambda x: 1 - x),
    "over a hundred": (lambda form: form / 100, lambda x: x / 100),
    "in float32": (lambda form: form.to(torch.float32), lambda x: x),
    "in float64": (lambda form: form.to(torch.float64), lambda x: x),
    "relu": (relax_relu, lambda x: max(x, Fraction(0))),
    "leaky relu": (lambda form: relax_relu(form, 0.1), lambda x: max(x, Fraction(0.1) * x)),
    "clamp": (clamp01, lambda x: min(max(x, Fraction(0)), Fraction(1))),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_one_form(name, dtype):
    function, exact = UNARY[name]
    for seed in range(4):
        form = random_form(np.random.default_rng(seed), dtype)
        if name == "plus a number" and dtype == torch.float32:
            exact = lambda x: x + Fraction(torch.tensor(0.1).item())  # noqa: E731 - a tensor's own arithmetic
        result = function(form)
        for e, sign in CORNERS:
            assert_holds(result, np.array([exact(x) for x in members(form, e, sign)], dtype=object), e, (name, seed))


@pytest.mark.parametrize("name", ["sin", "cos", "reciprocal", "deg2rad"])
def test_functions(name):
    """Compare with sixty digits, in the precision in which coordinates are computed."""
    exact = {"sin": mpmath.sin, "cos": mpmath.cos, "reciprocal": lambda x: 1 / x, "deg2rad": mpmath.radians}[name]
    with mpmath.workdps(60):
        for seed in range(4):
            form = random_form(np.random.default_rng(seed), torch.float64, positive=name == "reciprocal")
            result = getattr(form, name)()
            for e, sign in CORNERS:
                x = [mpmath.mpf(value.numerator) / value.denominator for value in members(form, e, sign)]
                truth = [Fraction(str(mpmath.nstr(exact(value), 50))) for value in x]
                assert_holds(result, np.array(truth, dtype=object), e, (name, seed))


def test_quotient_of_forms():
    """x / w, w > 0, some with shared symbols that cancel; remainders at either end."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        first, second = random_form(rng, torch.float64), random_form(rng, torch.float64, positive=True)
        share = first.center / second.center
        first.slopes[:, :, ::2] = (share * second.slopes)[:, :, ::2]
        if seed % 2:  # denominators that come near zero
            size = second.deviation() * (1 + 10.0 ** -rng.uniform(0, 4, ENTRIES)) + 1e-12
            second.stack[0] = torch.where(torch.tensor(rng.random(ENTRIES) < 0.5), size, second.center)
        result = first.over(second)
        for e, sign in CORNERS:
            for other in (-1, 1):
                assert_holds(result, members(first, e, sign) / members(second, e, other), e, seed)


def test_a_quotient_by_what_reaches_zero_is_unbounded():
    one = AffineForm.constant(torch.ones(1, 1, dtype=torch.float64), 1)
    stack = torch.tensor([[[0.5]], [[0.5]]], dtype=torch.float64)
    for radius in (0.0, 0.2):
        result = one.over(AffineForm(stack, torch.full((1, 1), radius, dtype=torch.float64)))
        assert not torch.isfinite(result.reach()).any()


def test_between_and_intervals():
    rng = np.random.default_rng(0)
    a, b = (torch.tensor(np.sort(rng.normal(size=(2, ENTRIES)), 0) * 10.0 ** rng.uniform(-9, 3, ENTRIES)) for _ in "ab")
    form = AffineForm.between(a[None, 0], a[None, 1])
    ends = [fractions(x.numpy()) for x in (*a, *b)]
    assert (fractions(form.lower[0].numpy()) <= ends[0]).all()
    assert (fractions(form.upper[0].numpy()) >= ends[1]).all()
    first, second = Interval(*a), Interval(*b)
    for name in ("add", "sub", "mul"):
        function = getattr(operator, name)
        result = function(first, second)
        for x in ends[:2]:
            for y in ends[2:]:
                assert (fractions(result.lower.numpy()) <= function(x, y)).all()
                assert (function(x, y) <= fractions(result.upper.numpy())).all()


@pytest.mark.parametrize("numbers", [(), (0, 1), (1, 0), (2,), (0, 1, 2)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_positions(numbers, sign):
    """+-(a u + b v + c) + offset, where some of a, b and c are numbers instead of forms."""
    rng = np.random.default_rng(len(numbers) + sign + 1)
    forms = [random_form(rng, torch.float64) for _ in range(3)]
    flat = [AffineForm(form.stack[:, 0], form.radius[0]) for form in forms]
    row = [(0, 1, 1)[k] if k in numbers else form for k, form in enumerate(flat)]
    for offset, u, v in ((0.0, 1.5, -0.5), (13.5, -13.5, 2.0), (0.5, 0.0, 0.0), (111.5, 3.0, -111.5)):
        places = (torch.full((1, 1), value, dtype=torch.float64) for value in (u, v))
        result = combine(tuple(row), *places, flat[0], sign, offset)
        result = AffineForm(result.stack.view(3, 1, ENTRIES), result.radius.view(1, ENTRIES))
        for e, end in CORNERS:
            a, b, c = (
                np.full(ENTRIES, Fraction((0, 1, 1)[k]))
                if k in numbers
                else members(form, e, end * int(np.sign((u, v, 1)[k]) or 1))
                for k, form in enumerate(forms)
            )
            truth = sign * (a * Fraction(u) + b * Fraction(v) + c) + Fraction(offset)
            assert_holds(result, truth, e, (numbers, sign, offset))
