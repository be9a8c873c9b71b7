"""Maximum, jumps and kinks on rational numbers, and in float32 beside a kink: prover and checker enclose every value."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.soundness.test_products_exactly import CASES, ENTRIES, assert_inside, members, numbers, pair
from tests.support.small_networks import Function
from tiltproof import bound_network
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation, outputs
from tiltproof.checker.piecewise import in_pieces, maximum
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import UnsupportedOperation
from tiltproof.network import read_network
from tiltproof.network.arithmetic import proof_arithmetic
from tiltproof.network.forward import run
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY

MORE = 1 + Fraction(1, 2**16)


@CASES
def test_the_larger_of_two_forms_is_enclosed(kind, symbols, size, dtype):
    first, second = pair(kind, symbols, size, dtype)
    operation = Operation("y", "maximum", ("x", "z"), {}, (ENTRIES,))
    result = REGISTRY["maximum"].forward(operation, [first, second])
    checked = maximum(*(Form(torch.cat([form.stack, form.radius[None]]).double()) for form in (first, second)))
    checked = AffineForm(checked.rows[:-1], checked.radius)
    for (e, *xs), (_, *ys) in zip(members(first, symbols), members(second, symbols), strict=True):
        for x, y in product(xs, ys):
            for form in (result, checked):
                assert_inside(form, e, np.maximum(x, y))


@CASES
def test_planes_of_the_larger_of_two_hold(kind, symbols, size, dtype):
    first, second = (AffineForm(form.stack.transpose(1, 2), form.radius.T) for form in pair(kind, symbols, size, dtype))
    operation = Operation("y", "maximum", ("x", "z"), {}, (1,))
    for number in (1.0, -1.0, 0.3, -0.7):
        given_ = torch.full((ENTRIES, 1), number, dtype=dtype)
        a = Fraction(float(given_[0]))
        result = REGISTRY["maximum"].backward(operation, given_, [first, second])
        p, q = (numbers(each) for each in result.inputs)
        free = numbers(result.constant)[:, None] - numbers(result.rounding_budget) * MORE
        for (_, *xs), (_, *ys) in zip(members(first, symbols), members(second, symbols), strict=True):
            for x, y in product(xs, ys):
                assert (a * np.maximum(x, y) >= p * x + q * y + free).all()


def test_what_two_branches_share_cancels():
    """max(x + 1/2, x) is x + 1/2, however far x reaches."""
    x = AffineForm(torch.tensor([[[0.0]], [[3.0]]]).double(), torch.zeros(1, 1).double())
    y = REGISTRY["maximum"].forward(Operation("y", "maximum", ("x", "z"), {}, (1,)), [x + 0.5, x])
    assert float(y.slopes) == pytest.approx(3)
    assert float(y.radius) < 1e-12


NUMBERS = st.floats(-9, 9, width=32) | st.sampled_from([0.0, 1.0, -1.0])


@settings(deadline=None, max_examples=300)
@given(
    NUMBERS,
    st.floats(-4, 4, width=32) | st.just(0.0),
    st.floats(0, 4, width=32) | st.sampled_from([0.0, 1.0, 2.0**-30]),
    st.sampled_from([(-1.0, 1.0), (0.0, 1.0), (0.0, 0.3), (-2.5, 7.0)]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_jump_is_enclosed_exactly(center, slope, radius, ends, dtype):
    """At ends and at 0, with any value of the jump there: the form holds, both backward lines do, and so does the checker's form."""
    rule, operation = REGISTRY["step"], Operation("y", "step", ("x",), {"low": ends[0], "high": ends[1]}, (1,))
    form = AffineForm(torch.tensor([[[center]], [[slope]]], dtype=dtype), torch.tensor([[radius]], dtype=dtype))
    result = rule.forward(operation, [form])
    c, g, r = (Fraction(float(each)) for each in (result.center, result.slopes, result.radius))
    back = [(a, rule.backward(operation, torch.tensor([[a]], dtype=dtype), [form])) for a in (1.0, -1.0)]
    rows = Form(torch.tensor([[[center]], [[slope]], [[radius]]], dtype=torch.float64))
    own = [Fraction(float(x)) for x in in_pieces(rows, [(0.0, ends[0]), (0.0, ends[1])], [0.0]).rows.flatten()]
    for e in (-1, Fraction(-1, 3), 0, Fraction(2, 7), 1):
        middle = Fraction(center) + Fraction(slope) * e
        least, most = middle - Fraction(radius), middle + Fraction(radius)
        tiny = [Fraction(sign, 2**140) for sign in (-1, 0, 1)]
        for x in (least, most, middle, *(t for t in tiny if least <= t <= most)):
            low, high = (Fraction(end) for end in ends)
            for y in (low, high, (low + high) / 2) if x == 0 else (low,) if x < 0 else (high,):
                assert abs(y - c - g * e) <= r
                assert abs(y - own[0] - own[1] * e) <= own[2]
                for a, line in back:
                    error = Fraction(float(line.rounding_budget)) * MORE
                    assert (
                        Fraction(a) * y >= Fraction(float(line.inputs[0])) * x + Fraction(float(line.constant)) - error
                    )


def test_lines_beside_a_jump_by_hand():
    """Of the sign on [-1, 3]: below through (0, -1) and (3, 1), above the constant."""
    form = AffineForm(torch.tensor([[[1.0]], [[2.0]]]).double(), torch.zeros(1, 1).double())
    operation = Operation("y", "step", ("x",), {"low": -1.0, "high": 1.0}, (1,))
    (below, low), (above, high) = REGISTRY["step"].lines(operation, form)
    assert [float(each) for each in (below, low, above, high)] == pytest.approx([2 / 3, -1, 0, 1], abs=1e-6)


BROKEN = {
    "abs": ([(-1.0, 0.0), (1.0, 0.0)], [0.0]),
    "prelu": ([(-1.7, 0.0), (1.0, 0.0)], [0.0]),
    "clamp": ([(0.0, -0.5), (1.0, 0.0), (0.0, 0.75)], [-0.5, 0.75]),
    "soft shrink": ([(1.0, 0.3), (0.0, 0.0), (1.0, -0.3)], [-0.3, 0.3]),
    "hard shrink": ([(1.0, 0.0), (0.0, 0.0), (1.0, 0.0)], [-0.3, 0.3]),
}


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(sorted(BROKEN)),
    NUMBERS,
    st.floats(-4, 4, width=32) | st.just(0.0),
    st.floats(0, 4, width=32) | st.sampled_from([0.0, 2.0**-30]),
)
def test_the_checkers_pieces_exactly(name, center, slope, radius):
    pieces, kinks = BROKEN[name]
    rows = Form(torch.tensor([[[center]], [[slope]], [[radius]]], dtype=torch.float64))
    own = [Fraction(float(x)) for x in in_pieces(rows, pieces, kinks).rows.flatten()]
    ends = [-math.inf, *kinks, math.inf]
    for e in (-1, Fraction(-1, 3), 0, Fraction(2, 7), 1):
        middle = Fraction(center) + Fraction(slope) * e
        least, most = middle - Fraction(radius), middle + Fraction(radius)
        for x in (least, most, middle, *(Fraction(t) for t in kinks if least <= t <= most)):
            for (a, b), low, high in zip(pieces, ends[:-1], ends[1:], strict=True):
                if low <= x <= high:
                    assert abs(Fraction(a) * x + Fraction(b) - own[0] - own[1] * e) <= own[2]


FUNCTIONS = {
    "abs": (torch.abs, 0.0),
    "clamp from below": (lambda x: x.clamp(min=0.1), 0.1),
    "clamp from above": (lambda x: x.clamp(max=-0.7), -0.7),
    "maximum": (lambda x: torch.maximum(x, torch.tensor(0.1)), 0.1),
    "prelu": (lambda x: F.prelu(x, torch.tensor([-0.3])), 0.0),
    "hard sigmoid": (F.hardsigmoid, -3.0),
    "threshold": (lambda x: F.threshold(x, 0.1, -0.3), 0.1),
    "soft shrink": (lambda x: F.softshrink(x, 0.1), 0.1),
    "hard shrink": (lambda x: F.hardshrink(x, 0.3), 0.3),
    "sign": (torch.sign, 0.0),
    "tanh shrink": (F.tanhshrink, 0.0),
}


@pytest.mark.parametrize("radius", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_evaluations_beside_a_kink(name, radius):
    """torch's own answers to the float32 numbers next to a kink, which is itself rounded, and to subnormal numbers at 0."""
    function, kink = FUNCTIONS[name]
    near = [np.float32(kink)]
    for direction in (-np.inf, np.inf):
        value = np.float32(kink)
        for _ in range(3):
            value = np.nextafter(value, np.float32(direction))
            near.append(value)
    center = torch.from_numpy(np.array(near, "f")).view(-1, 1)
    form = AffineForm(center[None], torch.full_like(center, radius))
    model = Function(lambda _, x: function(x))
    with proof_arithmetic(center.device):
        live = read_network(model, (1,), center).network_as(torch.float32, 2.0**-24)
        bound = run(live, form)[live.output]
    with evaluation(model, torch.device("cpu")):
        own = model(Form(torch.stack([center, torch.full_like(center, radius)]).double(), 2.0**-24))
    for share in np.linspace(-1, 1, 41):
        x = (center.double() + share * radius).float()
        x = torch.where((x.double() - center.double()).abs() <= radius, x, center)
        for given_ in (x, torch.where(x.abs() < 2.0**-126, 0.0, x)):
            y = function(given_).double()
            assert bool((y >= bound.lower.double()).all())
            assert bool((y <= bound.upper.double()).all())
            assert bool((y >= own.lower()).all())
            assert bool((y <= own.upper()).all())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.maximum(x, x.mean(1, keepdim=True)),
        lambda x: F.threshold(x, 0.0, float("inf")),
        lambda x: F.softshrink(x, 0.0),
    ],
)
def test_other_uses_are_refused(function):
    with pytest.raises(UnsupportedOperation, match="no bound rule"):
        bound_network(Function(lambda _, x: function(x)), AffineForm(torch.rand(1, 2, 3), torch.rand(2, 3)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((x > 0) + (x > -1)) * x,
        lambda x: (x > x.mean()) * x,
        lambda x: (x > 0).float(),
        lambda x: (~(x > 0)) * x,
        lambda x: F.relu(x).long() * x,
    ],
)
def test_truth_values_elsewhere_are_refused(function):
    model, form = Function(lambda _, x: function(x)), AffineForm(torch.rand(1, 2, 3), torch.rand(2, 3))
    with pytest.raises(UnsupportedOperation):
        bound_network(model, form)
    with evaluation(model, torch.device("cpu")), pytest.raises(Exception):  # noqa: B017, PT011 - whatever comes first
        outputs(model, Form(torch.rand(3, 2, 3).double()))


def test_a_division_by_what_may_be_zero_proves_nothing():
    class Quotient(nn.Module):
        def forward(self, x):
            return x[:, :1] / x[:, 1:]

    form = AffineForm(torch.tensor([[[1.0, 0.5]]]), torch.tensor([[0.1, 0.5]]))
    assert float(bound_network(Quotient(), form).radius) == math.inf
