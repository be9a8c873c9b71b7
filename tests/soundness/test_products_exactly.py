"""Products of two branches on rational numbers: forms, planes and the checker's rule hold without any tolerance."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from tiltproof.checker.form import Form, times
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.products import multiply

ENTRIES = 48
KINDS = ("independent", "equal", "opposite", "constant", "far apart", "tiny", "positive")


def pair(kind: str, symbols: int, size: float, dtype: torch.dtype) -> tuple[AffineForm, AffineForm]:
    """Two forms [1, ENTRIES] over the same symbols."""
    rng = np.random.default_rng([len(kind), symbols, int(-np.log2(size + 2.0**-99))])
    draw = lambda *shape: torch.tensor(rng.uniform(-1, 1, shape))  # noqa: E731
    stacks = [torch.cat([2 * draw(1, 1, ENTRIES), size * draw(symbols, 1, ENTRIES)]) for _ in range(2)]
    radii = [size * draw(1, ENTRIES).abs() * (draw(1, ENTRIES) > 0) for _ in range(2)]
    if kind in ("equal", "opposite"):
        stacks[1] = stacks[0] if kind == "equal" else torch.cat([stacks[0][:1], -stacks[0][1:]])
    elif kind == "constant":
        stacks[1][1:], radii[1] = 0, 0 * radii[1]
    elif kind in ("far apart", "tiny"):
        factor = 2.0**30 if kind == "far apart" else 2.0**-60
        stacks[1], radii[1] = stacks[1] * factor, radii[1] * factor
    elif kind == "positive":
        stacks = [torch.cat([stack[:1].abs() + 2 * size, stack[1:]]) for stack in stacks]
    return tuple(AffineForm(s.to(dtype), r.to(dtype)) for s, r in zip(stacks, radii, strict=True))


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(tensor.double().numpy())


def members(form: AffineForm, symbols: int):
    """Symbols, and the two ends of the remainder there."""
    center, slopes, radius = numbers(form.center), numbers(form.slopes), numbers(form.radius)
    for e in product((-1, Fraction(-2, 7), 0, 1), repeat=symbols):
        middle = sum((slopes[k] * e[k] for k in range(symbols)), center)
        yield e, middle - radius, middle + radius


def squares(form: AffineForm) -> AffineForm:
    return REGISTRY["square"].forward(Operation("y", "square", ("x",), {}, form.shape[1:]), [form])


CASES = pytest.mark.parametrize(
    ("kind", "symbols", "size", "dtype"),
    [
        (kind, symbols, size, dtype)
        for kind in KINDS
        for symbols, size, dtype in [
            (0, 0.0, torch.float32),
            (0, 0.5, torch.float32),
            (1, 0.25, torch.float32),
            (2, 1.0, torch.float64),
            (2, 2.0**-20, torch.float32),
        ]
    ],
)


@CASES
def test_forms_of_products_hold(kind, symbols, size, dtype):
    first, second = pair(kind, symbols, size, dtype)
    result, square = multiply(first, second), squares(first)
    checked = times(*(Form(torch.cat([form.stack, form.radius[None]]).double()) for form in (first, second)))
    checked = AffineForm(checked.rows[:-1], checked.radius)
    ends = zip(members(first, symbols), members(second, symbols), strict=True)
    for e, *both in ((e, *pairs) for (e, *xs), (_, *ys) in ends for pairs in product(xs, ys)):
        for form in (result, checked):
            assert_inside(form, e, both[0] * both[1])
    for e, *ends_ in members(first, symbols):
        for x in (*ends_, *(np.where((ends_[0] < 0) & (ends_[1] > 0), Fraction(0), end) for end in ends_)):
            assert_inside(square, e, x * x)


def assert_inside(form: AffineForm, e: tuple, value: np.ndarray) -> None:
    slopes = numbers(form.slopes)
    middle = sum((slopes[k] * e[k] for k in range(len(e))), numbers(form.center))
    assert (abs(value - middle) <= numbers(form.radius)).all()


@CASES
def test_planes_hold(kind, symbols, size, dtype):
    """a . y >= a1 . x1 + a2 . x2 + constant - error for a = 1 and -1, entry by entry."""
    first, second = pair(kind, symbols, size, dtype)
    first, second = (AffineForm(form.stack.transpose(1, 2), form.radius.T) for form in (first, second))
    operation = Operation("y", "product", ("x", "z"), {}, (1,))
    ends = list(zip(members(first, symbols), members(second, symbols), strict=True))
    for a in (1, -1):
        result = REGISTRY["product"].backward(
            operation, torch.full((ENTRIES, 1), float(a), dtype=dtype), [first, second]
        )
        p, q = (numbers(each) for each in result.inputs)
        free = numbers(result.constant)[:, None] - numbers(result.rounding_budget) * (1 + Fraction(1, 2**16))
        square = REGISTRY["square"].backward(operation, torch.full((ENTRIES, 1), float(a), dtype=dtype), [first])
        slope = numbers(square.inputs[0])
        offset = numbers(square.constant)[:, None] - numbers(square.rounding_budget) * (1 + Fraction(1, 2**16))
        for (_, *xs), (_, *ys) in ends:
            for x, y in product(xs, ys):
                assert (a * x * y >= p * x + q * y + free).all()
            middle = (xs[0] + xs[1]) / 2
            for x in (*xs, middle):
                assert (a * x * x >= slope * x + offset).all()


def test_a_gate_is_tight_to_second_order():
    """x g with x = 1 + h e and g = 1/2 + h e: the remainder is h^2 / 2, the half width of h^2 e^2; independent ones leave h^2."""
    for h in (1e-1, 1e-2, 1e-3):
        x, g, other = (
            AffineForm(torch.tensor([[[c]], [[s]], [[t]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
            for c, s, t in ((1, h, 0), (0.5, h, 0), (0.5, 0, h))
        )
        assert multiply(x, g).radius.item() == pytest.approx(h * h / 2, rel=1e-9)
        assert multiply(x, other).radius.item() == pytest.approx(h * h, rel=1e-9)
        assert squares(x).radius.item() == pytest.approx(h * h / 2, rel=1e-9)


@pytest.mark.parametrize("kind", ["add", "product"])
def test_coefficients_of_a_smaller_branch_are_sums_that_round(kind):
    """One entry serves 600; its coefficient is the sum of one large number and many that vanish next to it."""
    entries, unit = 600, 2.0**-24
    a = torch.full((1, entries), unit * (1 + 2.0**-10))
    a[0, 0] = 1
    forms = [AffineForm(torch.ones(1, 1, count), torch.zeros(1, count)) for count in (entries, 1)]
    operation = Operation("y", kind, ("x", "z"), {}, (entries,))
    result = REGISTRY[kind].backward(operation, a, forms)
    bound = sum(numbers(each).sum() for each in result.inputs) + Fraction(float(result.constant))
    error = (numbers(result.rounding_budget) * numbers(a.abs())).sum()
    assert bound - error <= numbers(a).sum() * (2 if kind == "add" else 1)


def test_a_float32_product_is_inside():
    """Exactly known factors: the bound holds for the product as float32 rounds it."""
    x, y = torch.rand(2, 1, 400, generator=torch.Generator().manual_seed(0))
    forms = [AffineForm(each.double()[None], torch.zeros(1, 400, dtype=torch.float64)) for each in (x, y)]
    a, unit = torch.ones(1, 400, dtype=torch.float64), 2.0**-24
    for kind, inputs, value in (("product", forms, x * y), ("square", forms[:1], x * x)):
        operation = Operation("z", kind, ("x", "y"), {}, (400,), evaluation=unit)
        result = REGISTRY[kind].forward(operation, inputs)
        value = value.double()
        assert ((result.lower <= value) & (value <= result.upper)).all()
        back = REGISTRY[kind].backward(operation, a, inputs)
        free = sum(p * form.center for p, form in zip(back.inputs, inputs, strict=True))
        assert (free.sum() + back.constant - back.rounding_budget.sum() <= value.sum()).all()
        assert (
            back.rounding_budget >= (value - (x.double() * y.double() if kind == "product" else x.double() ** 2)).abs()
        ).all()


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_proves_nothing(value):
    form = AffineForm(torch.tensor([[[0.0]], [[1.0]]]), torch.tensor([[value]]))
    for other in (form, AffineForm(torch.zeros(2, 1, 1), torch.zeros(1, 1))):
        result = multiply(form, other)
        assert not result.lower.isfinite().any()
        assert not result.upper.isfinite().any()
