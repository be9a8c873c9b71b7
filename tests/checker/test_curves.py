"""The checker's own rules for smooth functions, against the functions themselves."""

from __future__ import annotations

import mpmath
import pytest
import torch

from tests.support.curves import CASES, intervals, mpf
from tiltproof.checker import network  # noqa: F401  (registers the rules)
from tiltproof.checker.form import UNIT32, Form
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY


def form_of(ends: torch.Tensor, share: float, unit: float = 0.0) -> Form:
    middle, half = (ends[:, :1] + ends[:, 1:]) / 2, (ends[:, 1:] - ends[:, :1]) / 2
    return Form(torch.stack([middle, half * share, half * (1 - share)]), unit)


@pytest.mark.parametrize("name", CASES)
def test_to_the_last_digit(name):
    """Every member of the form, at ends and turns and in between, in [-1, 1] times the slope and the remainder."""
    case = CASES[name]
    form = form_of(intervals(case, torch.float64), 0.5)
    made = case.function(form)
    lower, upper = form.lower().flatten().tolist(), form.upper().flatten().tolist()
    proved = 0
    with mpmath.workdps(50):
        numbers = [[mpf(v) for v in plane.flatten().tolist()] for plane in (*form.rows, *made.rows)]
        for row, (first, last) in enumerate(zip(lower, upper, strict=True)):
            c, g, r, c2, g2, r2 = (each[row] for each in numbers)
            if not case.inside(first, last):
                assert r2 == mpmath.inf
                continue
            proved += bool(r2 < mpmath.inf)
            members = [
                (mpf(share), c + mpf(share) * g + rest * r) for share in (-1, -0.37, 0, 0.7, 1) for rest in (-1, 0, 1)
            ]
            if g + r > 0:
                members += [((mpf(t) - c) / (g + r), mpf(t)) for t in case.turns if first <= t <= last]
            for e, x in members:
                if abs(x - c - e * g) <= r:
                    assert abs(case.exact(x) - c2 - g2 * e) <= r2, (row, first, last)
    assert proved > 0.6 * len(lower)


@pytest.mark.parametrize("name", [name for name in CASES if name != "softplus of 1"])
def test_hardly_wider_than_the_prover(name):
    """What the prover proves must be within the checker's reach."""
    case = CASES[name]
    ends = intervals(case, torch.float64)
    ends = ends[(ends[:, 1] - ends[:, 0] > 1e-4 * (1 + ends.abs().amax(1))) & (ends.abs().amax(1) < 200)]
    made = case.function(form_of(ends, 0.7))
    form = AffineForm(*(lambda rows: (rows[:2], rows[2]))(form_of(ends, 0.7).rows))
    theirs = REGISTRY[case.kind].forward(Operation("y", case.kind, ("x",), case.settings, (1,)), [form])
    wider = made.radius / (theirs.radius + 1e-4)
    assert wider[theirs.radius < torch.inf].max() < 1.25
    assert wider[theirs.radius < torch.inf].median() < 1.1


@pytest.mark.parametrize("name", CASES)
def test_float32_evaluations_are_inside(name):
    case = CASES[name]
    x = intervals(case, torch.float32).flatten()
    x = x[(x.abs() < 100) & ((x > 0) | (case.domain != "positive"))][:, None]
    rows = torch.stack([x.double(), torch.zeros_like(x).double()])
    rounded, exact = case.function(Form(rows, UNIT32)), case.function(Form(rows))
    assert ((rounded.center == exact.center) | (rounded.radius == torch.inf)).all()
    assert (rounded.radius >= exact.radius).all()
    for answer in (case.function(x), *(torch.cat([case.function(part) for part in x.split(n)]) for n in (1, 7, 64))):
        known = (rounded.radius < torch.inf) & answer.isfinite()
        assert ((answer.double() - rounded.center).abs() <= rounded.radius)[known].all()
    tame = (exact.radius < torch.inf) & (exact.center.abs() < 1e6) & (x.abs() > 1e-2)
    size = 1 + x.abs() + exact.center.abs() * (1 + exact.center.abs().clamp(min=1e-9).log().abs())
    assert (rounded.radius <= 2.0**-14 * size + exact.radius)[tame].all()


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "reciprocal", "x^1.5"])
def test_the_end_of_the_domain(name):
    ends = torch.tensor([[0.0, 2.0], [-1e-16, 2.0], [2.0**-80, 2.0], [-1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    made = CASES[name].function(form_of(ends, 0.0))
    assert (made.radius.flatten() < torch.inf).tolist()[:2] == [False, False]
    assert (made.radius.flatten() < torch.inf).tolist()[3:] == [False, False]
    assert (made.lower()[[0, 1, 3, 4]] == -torch.inf).all()
    near = CASES[name].function(form_of(torch.tensor([[1e-9, 2.0]], dtype=torch.float64), 0.0))
    assert near.radius.isfinite().all()


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "reciprocal", "x^1.5"])
def test_numbers_that_a_float32_evaluation_may_flush(name):
    """Of a range that begins below the normal numbers nothing is known, although the function is defined there."""
    ends = torch.tensor([[2.0**-130, 2.0**-95], [1e-9, 2.0]], dtype=torch.float64)
    made = CASES[name].function(form_of(ends, 0.0, UNIT32))
    assert made.radius.isfinite().flatten().tolist() == [False, True]
