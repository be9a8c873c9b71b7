"""Products of matrices on rational numbers, and softmax to 40 digits: forms, planes and the checker's rules hold without tolerance."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from tests.soundness.test_products_exactly import numbers
from tiltproof.checker.attention import matrix_product, softmax_among
from tiltproof.checker.attention import softmax as checked_softmax
from tiltproof.checker.form import Form
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops import attention as rules

ROWS = 6
CASES = pytest.mark.parametrize(
    ("symbols", "size", "dtype"),
    [
        (0, 0.0, torch.float32),
        (0, 0.5, torch.float32),
        (1, 0.25, torch.float32),
        (2, 1.0, torch.float64),
        (2, 2.0**-12, torch.float32),
    ],
)


def some_form(
    shape: tuple[int, ...], symbols: int, size: float, dtype: torch.dtype, seed: int, scale: float = 1.0
) -> AffineForm:
    rng = np.random.default_rng([seed, symbols, int(size * 4096)])
    stack = rng.uniform(-1, 1, (1 + symbols, ROWS, *shape))
    stack[0] *= scale
    stack[1:] *= size
    radius = size * rng.uniform(0, 0.5, (ROWS, *shape)) * (rng.random((ROWS, *shape)) > 0.5)
    return AffineForm(torch.tensor(stack).to(dtype), torch.tensor(radius).to(dtype))


def members(*forms: AffineForm, seed: int = 0, count: int = 12):
    """The same symbols for all forms, and a value of each."""
    rng = np.random.default_rng(seed)
    parts = [tuple(map(numbers, (form.center, form.slopes, form.radius))) for form in forms]
    for k in range(count):
        drawn = rng.integers(-4, 5, forms[0].symbols)
        e = [Fraction(int(n), 4) if k % 3 == 0 else Fraction(int(np.sign(n) or 1)) for n in drawn]
        values = []
        for center, slopes, radius in parts:
            ends = np.vectorize(lambda n: Fraction(int(n)), otypes=[object])(rng.integers(0, 2, radius.shape) * 2 - 1)
            values.append(sum((slopes[j] * e[j] for j in range(len(e))), center) + radius * ends)
        yield e, values


def assert_inside(form: AffineForm, e: list, value: np.ndarray) -> None:
    slopes = numbers(form.slopes)
    middle = sum((slopes[k] * e[k] for k in range(len(e))), numbers(form.center))
    assert (abs(value - middle) <= numbers(form.radius)).all()


def checked(form: AffineForm) -> Form:
    return Form(torch.cat([form.stack, form.radius[None]]).double())


def as_affine(form: Form) -> AffineForm:
    return AffineForm(form.rows[:-1], form.rows[-1])


@CASES
def test_products_of_matrices_hold(symbols, size, dtype):
    first, second = some_form((2, 3), symbols, size, dtype, 1), some_form((3, 2), symbols, size, dtype, 2)
    operation, rule = Operation("y", "matmul", ("x", "z"), {}, (2, 2)), REGISTRY["matmul"]
    result, other = rule.forward(operation, [first, second]), as_affine(matrix_product(checked(first), checked(second)))
    a = torch.tensor(np.random.default_rng(3).uniform(-1, 1, (ROWS, 2, 2))).to(dtype)
    back = rule.backward(operation, a, [first, second])
    lengths = a.double().square().sum(1).sqrt()
    error = numbers((lengths * back.rounding_budget.double()).sum(1) * (1 + 2.0**-16))
    p, q = map(numbers, back.inputs)
    for e, (x, z) in members(first, second):
        y = np.einsum("rik,rkj->rij", x, z)
        assert_inside(result, e, y)
        assert_inside(other, e, y)
        bound = (p * x).sum((1, 2)) + (q * z).sum((1, 2)) + numbers(back.constant) - error
        assert ((numbers(a) * y).sum((1, 2)) >= bound).all()


def exact_softmax(x: np.ndarray, taking: np.ndarray | bool = True) -> np.ndarray:
    """Among the entries that take part."""
    with mpmath.workdps(40):
        powers = np.vectorize(lambda v: mpmath.exp(mpmath.mpf(v.numerator) / v.denominator), otypes=[object])(x)
        powers = powers * np.where(taking, 1, 0)
        return np.vectorize(lambda v: Fraction(mpmath.nstr(v, 38)), otypes=[object])(
            powers / powers.sum(1, keepdims=True)
        )


@pytest.mark.parametrize("mask", [None, [True, False, True, True], [False, False, True, False]])
@pytest.mark.parametrize("scale", [1.0, 12.0])
@pytest.mark.parametrize("chunk", [2**22, 1])
@CASES
def test_softmax_holds(symbols, size, dtype, chunk, scale, mask, monkeypatch):
    monkeypatch.setattr(rules, "ENTRIES_CPU", chunk)
    form = some_form((4,), symbols, size, dtype, 4, scale)
    taking = None if mask is None else torch.tensor(mask)
    operation, rule = Operation("y", "softmax", ("x",), {"dim": 1, "mask": taking}, (4,)), REGISTRY["softmax"]
    result, other = (
        rule.forward(operation, [form]),
        as_affine(softmax_among(checked(form), 1, None if taking is None else taking.unsqueeze(0))),
    )
    assert result.radius.isfinite().all()
    backs = []
    for seed in range(4):
        a = torch.tensor(np.random.default_rng(seed).uniform(-1, 1, (ROWS, 4))).to(dtype)
        backs.append((numbers(a), rule.backward(operation, a, [form])))
    for e, (x,) in members(form):
        y = exact_softmax(x, True if mask is None else np.array(mask))
        assert_inside(result, e, y)
        assert_inside(other, e, y)
        for a, back in backs:
            free = numbers(back.constant) - numbers(back.error) * (1 + Fraction(1, 2**16))
            assert ((a * y).sum(1) >= (numbers(back.inputs[0]) * x).sum(1) + free).all()


def test_what_all_entries_share_cancels():
    """Softmax does not change when every entry moves by the same number, nor does the product of opposite symbols' squares stay."""
    center = torch.tensor([[0.3, -0.5, 1.0]], dtype=torch.float64)
    form = AffineForm(torch.stack([center, torch.full_like(center, 5.0)]), torch.zeros_like(center))
    result = REGISTRY["softmax"].forward(Operation("y", "softmax", ("x",), {"dim": 1}, (3,)), [form])
    assert (result.upper - result.lower).max() < 1e-10
    stack = torch.tensor([[[[1.0, 2.0]]], [[[0.5, 0.5]]]], dtype=torch.float64)
    other = torch.tensor([[[[1.0], [2.0]]], [[[0.5], [-0.5]]]], dtype=torch.float64)
    forms = [AffineForm(each, torch.zeros_like(each[0])) for each in (stack, other)]
    product = REGISTRY["matmul"].forward(Operation("y", "matmul", ("x", "z"), {}, (1, 1)), forms)
    assert product.radius.max() < 1e-12


@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_float32_evaluations_are_inside(spread):
    x = (torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * spread).float()
    form = AffineForm(x.double()[None], torch.zeros(50, 30, dtype=torch.float64))
    operation = Operation("y", "softmax", ("x",), {"dim": 1}, (30,), evaluation=2.0**-24)
    rule = REGISTRY["softmax"]
    result = rule.forward(operation, [form])
    online = (x - 3).exp() / (x - 3).exp().sum(1, keepdim=True)
    for y in (x.softmax(1), online) if spread == 1 else (x.softmax(1),):
        assert ((y >= result.lower) & (y <= result.upper)).all()
        assert (y.double() - x.double().softmax(1)).abs().max() > 0
    a = torch.ones(50, 30, dtype=torch.float64)
    error = (x.softmax(1).double() - x.double().softmax(1)).abs().sum(1)
    assert (rule.backward(operation, a, [form]).error >= error).all()
    rounded = checked_softmax(Form(torch.cat([form.stack, form.radius[None]]), 2.0**-24), 1)
    assert ((x.softmax(1) >= rounded.lower()) & (x.softmax(1) <= rounded.upper())).all()
    first, second = (torch.randn(8, 16, 16, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
    forms = [AffineForm(each.double()[None], torch.zeros(8, 16, 16, dtype=torch.float64)) for each in (first, second)]
    product = REGISTRY["matmul"]
    operation = Operation("y", "matmul", ("x", "z"), {}, (16, 16), evaluation=2.0**-24)
    result, y = product.forward(operation, forms), (first @ second).double()
    real = first.double() @ second.double()
    assert ((y >= result.lower) & (y <= result.upper)).all()
    budget = product.backward(operation, torch.ones(8, 16, 16, dtype=torch.float64), forms).rounding_budget
    assert (budget * 4 >= (y - real).abs().sum(1)).all()
