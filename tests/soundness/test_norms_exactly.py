"""Normalization by an image's own statistics, step by step, on rational numbers and roots of 50 digits."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.soundness.test_products_exactly import numbers
from tiltproof.checker.form import UNIT32, Form
from tiltproof.checker.network import statistics
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY

ROWS, COUNT, EPSILON = 12, 5, 2.0**-7
CASES = pytest.mark.parametrize(
    ("symbols", "size", "dtype"),
    [(0, 0.0, torch.float32), (1, 0.25, torch.float32), (2, 1.0, torch.float64), (2, 2.0**-12, torch.float32)],
)
mpmath.mp.dps = 50


def some_form(symbols: int, size: float, dtype: torch.dtype) -> AffineForm:
    rng = np.random.default_rng([symbols, int(size * 4096)])
    stack = rng.uniform(-1, 1, (1 + symbols, ROWS, COUNT)) * np.array([1, *[size] * symbols]).reshape(-1, 1, 1)
    stack[0] += rng.uniform(-2, 2, (ROWS, 1))
    radius = size * rng.uniform(0, 1, (ROWS, COUNT)) * (rng.random((ROWS, COUNT)) > 0.5)
    return AffineForm(torch.tensor(stack).to(dtype), torch.tensor(radius).to(dtype))


def operation(kind: str, evaluation: float = 0.0, count: int = COUNT) -> Operation:
    shape = (count,) if kind == "centered" else (1,)
    return Operation("y", kind, ("x",), {"dim": [1], "epsilon": EPSILON}, shape, evaluation)


def members(form: AffineForm, seed: int = 0):
    """Symbols and values [ROWS, COUNT]; remainders at their ends and in between."""
    rng, (center, slopes, radius) = np.random.default_rng(seed), map(numbers, (form.center, form.slopes, form.radius))
    for k in range(16):
        e = [
            Fraction(int(n), 4) if k % 2 else Fraction(int(np.sign(n) or 1)) for n in rng.integers(-4, 5, form.symbols)
        ]
        s = np.vectorize(lambda n: Fraction(int(n)), otypes=[object])(rng.integers(0, 2, radius.shape) * 2 - 1)
        yield e, sum((slopes[j] * e[j] for j in range(form.symbols)), center) + radius * s


def assert_inside(form: AffineForm, e: list, value: np.ndarray) -> None:
    slopes = numbers(form.slopes)
    middle = sum((slopes[k] * e[k] for k in range(len(e))), numbers(form.center))
    assert (abs(value - middle) <= numbers(form.radius)).all()


def exact_root(value: np.ndarray) -> np.ndarray:
    """1 / sqrt(v + EPSILON) as a rational number close by: 50 digits are far more than the bounds leave."""
    one = lambda v: 1 / mpmath.sqrt(mpmath.mpf(v.numerator) / v.denominator + EPSILON)  # noqa: E731
    return np.vectorize(lambda v: Fraction(mpmath.nstr(one(v), 45)), otypes=[object])(value)


@CASES
def test_forms_of_each_step_hold(symbols, size, dtype):
    form = some_form(symbols, size, dtype)
    centered = REGISTRY["centered"].forward(operation("centered"), [form])
    square = REGISTRY["mean_square"].forward(operation("mean_square"), [centered])
    own_square = REGISTRY["mean_square"].forward(operation("mean_square"), [form])
    root = REGISTRY["inverse_root"].forward(operation("inverse_root"), [square])
    checked = statistics.normalized(Form(torch.cat([form.stack, form.radius[None]]).double()), [1], EPSILON)
    assert own_square.radius.isfinite().all()
    assert root.radius.isfinite().all()
    for e, x in members(form):
        mean = x.sum(1, keepdims=True) / COUNT
        assert_inside(centered, e, x - mean)
        variance = ((x - mean) ** 2).sum(1, keepdims=True) / COUNT
        assert_inside(square, e, variance)
        assert_inside(own_square, e, (x * x).sum(1, keepdims=True) / COUNT)
        assert_inside(root, e, exact_root(variance))
        assert_inside(AffineForm(checked.rows[:-1], checked.radius), e, (x - mean) * exact_root(variance))


@CASES
def test_lines_of_each_step_hold(symbols, size, dtype):
    """a . y >= b . x + constant - error for a = 1 and -1, row by row."""
    form = some_form(symbols, size, dtype)
    square = REGISTRY["mean_square"].forward(operation("mean_square"), [form])
    for sign in (1, -1):
        a = torch.full((ROWS, 1), float(sign), dtype=dtype)
        back = {
            kind: REGISTRY[kind].backward(operation(kind), a, [given])
            for kind, given in (("mean_square", form), ("inverse_root", square))
        }
        parts = {
            kind: (
                numbers(result.inputs[0]),
                numbers(result.constant) - numbers(result.rounding_budget)[:, 0] * (1 + Fraction(1, 2**16)),
            )
            for kind, result in back.items()
        }
        for _, x in members(form):
            mean = (x * x).sum(1) / COUNT
            slope, free = parts["mean_square"]
            assert (sign * mean >= (slope * x).sum(1) + free).all()
            slope, free = parts["inverse_root"]
            assert (sign * exact_root(mean) >= slope[:, 0] * mean + free).all()


def test_variances_cancel_what_entries_share():
    """All entries move by the same number: the variance does not move at all. Two that move apart: it moves by their square."""
    stack = torch.tensor([[[1.0, 2, 3, 4]], [[0.5, 0.5, 0.5, 0.5]]], dtype=torch.float64)
    form = AffineForm(stack, torch.zeros(1, 4, dtype=torch.float64))
    centered = REGISTRY["centered"].forward(operation("centered"), [form])
    square = REGISTRY["mean_square"].forward(operation("mean_square"), [centered])
    assert square.lower.item() == pytest.approx(1.25)
    assert square.upper.item() == pytest.approx(1.25)
    stack[1] = torch.tensor([0.1, -0.1, 0.1, -0.1])
    spread = REGISTRY["mean_square"].forward(operation("mean_square"), [AffineForm(stack, form.radius)])
    assert spread.radius.item() == pytest.approx(0.01 / 2)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_float32_evaluations_are_inside(offset):
    """By two passes, by Welford's updates, and by mean(x^2) - mean(x)^2, which loses digits where the mean is large."""
    x = (torch.randn(200, 64, generator=torch.Generator().manual_seed(0)) + offset).float()
    form = AffineForm(x.double()[None], torch.zeros(200, 64, dtype=torch.float64))
    unit = 2.0**-24
    centered = REGISTRY["centered"].forward(operation("centered", 0.0, 64), [form])  # without its own allowance
    square = REGISTRY["mean_square"].forward(operation("mean_square", unit), [centered, form])
    mean = x.mean(1, keepdim=True)
    found = [((x - mean) ** 2).mean(1, keepdim=True), (x * x).mean(1, keepdim=True) - mean * mean]
    running, total = torch.zeros(200), torch.zeros(200)
    for k in range(64):
        step = x[:, k] - running
        running = running + step / (k + 1)
        total = total + step * (x[:, k] - running)
    found.append(total[:, None] / 64)
    for value in found:
        assert ((value >= square.lower) & (value <= square.upper)).all()
    y = F.layer_norm(x, (64,), eps=EPSILON).double()
    rows = Form(torch.cat([form.stack, form.radius[None]]), UNIT32)
    checked = statistics.normalized(rows, [1], EPSILON)
    assert ((y >= checked.lower()) & (y <= checked.upper())).all()
    budget = (
        REGISTRY["mean_square"]
        .backward(operation("mean_square", unit), torch.ones(200, 1, dtype=torch.float64), [centered, form])
        .rounding_budget
    )
    real = ((form.center - form.center.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True)
    assert all(((value - real).abs() <= budget).all() for value in found)


@pytest.mark.parametrize("half", [0.0, 2.0**-10, 0.5])
def test_inverse_roots_hold_at_exactly_known_numbers(half):
    """Points and intervals that are exactly float32 numbers: nothing but the rule itself rounds."""
    v = (2.0 ** (torch.rand(60, 1, generator=torch.Generator().manual_seed(1)) * 20 - 10)).float()
    form = AffineForm(torch.stack([v, v * half]), torch.zeros_like(v))
    rule, value = REGISTRY["inverse_root"], operation("inverse_root")
    result, (slope, low, high) = rule.forward(value, [form]), rule.band(value, form)
    back = [
        (sign, rule.backward(value, torch.full_like(v, sign), [form]))
        for sign in (float(torch.tensor(0.7)), -float(torch.tensor(0.7)))
    ]
    for e in (-1, 0, 1):
        x = numbers(v) * (1 + Fraction(half) * e)
        y = exact_root(x)
        assert_inside(result, [Fraction(e)], y)
        rest = y - numbers(slope) * x
        assert ((numbers(low) <= rest) & (rest <= numbers(high))).all()
        for sign, line in back:
            free = numbers(line.constant)[:, None] - numbers(line.rounding_budget) * (1 + Fraction(1, 2**16))
            assert (Fraction(sign) * y >= numbers(line.inputs[0]) * x + free).all()


def test_the_checkers_float32_variance_is_inside():
    x = (torch.randn(200, 64, generator=torch.Generator().manual_seed(0)) + 30).float()
    rows = torch.stack([x.double(), torch.zeros(200, 64, dtype=torch.float64)])
    square, _ = statistics.mean_of_squares(statistics.centered(Form(rows), [1], 64), Form(rows, UNIT32), [1], 64)
    mean = x.mean(1, keepdim=True)
    value = ((x * x).mean(1, keepdim=True) - mean * mean).double()
    assert ((value >= square.lower()) & (value <= square.upper())).all()
    assert ((value - ((x.double() - x.double().mean(1, keepdim=True)) ** 2).mean(1, keepdim=True)).abs() > 1e-6).any()
