"""Rounding to whole numbers: every choice at ties, every kernel within the slack, and every float32 evaluation is inside of the bounds."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.small_networks import Function
from tiltproof.checker.form import Form
from tiltproof.checker.operations import fake_quantize, whole_numbers
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import UnsupportedOperation
from tiltproof.network import read_network
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.base import Input
from tiltproof.network.ops.quantize import fake_quantize as converted

HALF = Fraction(1, 2)


def whole(t: Fraction, slack: Fraction) -> set[int]:
    """All whole numbers within 1/2 + slack."""
    return set(range(math.ceil(t - HALF - slack), math.floor(t + HALF + slack) + 1))


def operation(factor: float, step: float, low: int, high: int, slack: float, evaluation: float = 0.0) -> Operation:
    more = {"low": float(low), "high": float(high), "slack": slack, "size": float(abs(low) + abs(high))}
    return Operation("y", "quantize", ("x",), {"factor": factor, "step": step, **more}, (1,), evaluation)


@settings(deadline=None, max_examples=150)
@given(
    st.floats(-40, 40, width=32),
    st.floats(-9, 9, width=32) | st.floats(-0.125, 0.125, width=32),
    st.floats(0, 9, width=32) | st.just(0.0),
    st.floats(0.03125, 8),
    st.sampled_from([1.0, 0.0625, 0.3]),
    st.integers(-9, 0),
    st.integers(1, 20),
    st.sampled_from([0.0, 2.0**-9, 0.125]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_whole_numbers_are_enclosed_exactly(center, slope, radius, factor, step, low, high, slack, dtype):
    """On rational numbers, at ends, kinks and halves: the form holds, both backward lines do, and so does the checker's form."""
    rule, made = REGISTRY["quantize"], operation(factor, step, low, high, slack)
    form = AffineForm(torch.tensor([[[center]], [[slope]]], dtype=dtype), torch.tensor([[radius]], dtype=dtype))
    result = rule.forward(made, [form])
    c, g, r = (Fraction(float(each)) for each in (result.center, result.slopes, result.radius))
    back = [(a, rule.backward(made, torch.tensor([[a]], dtype=dtype), [form])) for a in (1.0, -1.0)]
    checked = Form(torch.tensor([[[center]], [[slope]], [[radius]]], dtype=torch.float64))
    own = [
        Fraction(float(each))
        for each in whole_numbers(checked, factor, step, low, high, slack, 2 * high).rows.flatten()
    ]
    exact = Fraction(factor)
    for e in (-1, Fraction(-1, 3), 0, Fraction(2, 7), 1):
        middle = Fraction(center) + Fraction(slope) * e
        ends = middle - Fraction(radius), middle + Fraction(radius)
        first = math.floor(ends[0] * exact)
        marks = [Fraction(n) / exact for n in (low, high, *range(first, first + 4))]
        marks += [
            (Fraction(n) + half) / exact for n in range(first, first + 4) for half in (HALF, HALF - Fraction(slack))
        ]
        for x in (*ends, middle, *(mark for mark in marks if ends[0] <= mark <= ends[1])):
            for n in whole(x * exact, Fraction(slack)):
                y = min(max(n, low), high) * Fraction(step)
                assert abs(y - c - g * e) <= r
                assert abs(y - own[0] - own[1] * e) <= own[2]
                for a, line in back:
                    error = Fraction(float(line.rounding_budget)) * (1 + Fraction(1, 2**10))
                    assert (
                        Fraction(a) * y >= Fraction(float(line.inputs[0])) * x + Fraction(float(line.constant)) - error
                    )


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.6, 1.4), (0, 1, 1)),
        ((-0.4, 0.4), (0, 0, 0)),
        ((0.4, 0.6), (0, 0, 1)),
        ((30, 90), (0, 7, 7)),
        ((-9.4, -1.6), (0, -4, -2)),
    ],
)
def test_constants_by_hand(interval, expected):
    """Between two halves nothing of the input's width is left; beyond the last whole number neither."""
    low, high = interval
    form = AffineForm(torch.tensor([[[(low + high) / 2]]]).double(), torch.tensor([[(high - low) / 2]]).double())
    slope, below, above = (float(each) for each in REGISTRY["quantize"].band(operation(1.0, 1.0, -4, 7, 0.0), form))
    assert (slope, below, above) == pytest.approx(expected, abs=1e-9)


def test_a_wide_interval_keeps_its_slope():
    form = AffineForm(torch.tensor([[[10.0]], [[30.0]]]).double(), torch.zeros(1, 1).double())
    slope, below, above = (
        float(each) for each in REGISTRY["quantize"].band(operation(1.0, 1.0, -128, 127, 0.25), form)
    )
    assert (slope, below, above) == pytest.approx((1, -0.75, 0.75), abs=1e-6)


@settings(deadline=None, max_examples=100)
@given(
    st.floats(-40, 40, width=32),
    st.floats(0, 1, width=32),
    st.floats(0.01, 0.5),
    st.integers(-128, 127),
    st.integers(0, 2**31),
)
def test_float32_evaluations_are_enclosed(center, radius, scale, zero, seed):
    """torch's own fake quantization of any float32 number of the set."""
    made = converted((1,), Input("x", (1,)), scale, zero, -128, 127)
    live = Operation("y", "quantize", ("x",), made.settings, (1,), 2.0**-24)
    form = AffineForm(torch.tensor([[[center]]]), torch.tensor([[radius]]))
    bound = REGISTRY["quantize"].forward(live, [form])
    rows = Form(torch.tensor([[[center]], [[radius]]], dtype=torch.float64), 2.0**-24)
    own = fake_quantize(rows, scale, zero, -128, 127)
    x = np.float32(center) + np.float32(radius) * np.random.default_rng(seed).uniform(-1, 1, 200).astype("f")
    x = torch.from_numpy(np.clip(x, center - radius, center + radius).astype("f"))
    x = x[(x.double() >= center - radius) & (x.double() <= center + radius)]
    y = torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127).double()
    assert bool((y >= bound.lower.double()).all())
    assert bool((y <= bound.upper.double()).all())
    assert bool((y >= own.lower()).all())
    assert bool((y <= own.upper()).all())


def test_what_may_leave_the_integers_proves_nothing_about_float32():
    form = AffineForm(torch.tensor([[[2.0**70]]]), torch.zeros(1, 1))
    forward = REGISTRY["quantize"].forward
    assert float(forward(operation(1.0, 1.0, -4, 7, 0.0), [form]).lower) > 6.99
    assert float(forward(operation(1.0, 1.0, -4, 7, 0.0, 2.0**-24), [form]).lower) <= -4


@pytest.mark.parametrize(
    "arguments", [(0.0, 0, -128, 127), (0.1, 300, -128, 127), (0.1, 0, 5, 5), (0.1, 0, -(2**30), 2**30)]
)
def test_other_quantizations_are_refused(arguments):
    scale, zero, low, high = arguments
    model = Function(lambda _, x: torch.fake_quantize_per_tensor_affine(x, scale, zero, low, high).flatten(1))
    with pytest.raises((UnsupportedOperation, ValueError)):
        read_network(nn.Sequential(model, nn.Linear(4, 2)).eval(), (1, 2, 2), torch.rand(1, 1, 2, 2))


def points_near_halves(scale: float, count: int = 600) -> torch.Tensor:
    """float32 numbers next to (n + 1/2) scale."""
    halves = (np.random.default_rng(0).integers(-120, 120, count) + 0.5) * scale
    numbers = halves.astype("f")
    return torch.from_numpy(np.concatenate([np.nextafter(numbers, np.float32(end)) for end in (-1e9, 1e9)] + [numbers]))


@pytest.mark.parametrize("scale", [0.1, 0.037, 1 / 3])
def test_float32_evaluations_next_to_halves_are_enclosed(scale):
    """Where the rounded product is on the other side of a half than the exact one; in float64 forms, whose own roundings are smaller."""
    made = converted((1,), Input("x", (1,)), scale, 3, -128, 127)
    x = points_near_halves(scale)[:, None]
    form = AffineForm(x.double()[None], torch.zeros(x.shape, dtype=torch.float64))
    bound = REGISTRY["quantize"].forward(Operation("y", "quantize", ("x",), made.settings, (1,), 2.0**-24), [form])
    own = fake_quantize(Form(torch.stack([x.double(), torch.zeros_like(x.double())]), 2.0**-24), scale, 3, -128, 127)
    y = torch.fake_quantize_per_tensor_affine(x, scale, 3, -128, 127).double()
    assert bool((y >= bound.lower).all())
    assert bool((y <= bound.upper).all())
    assert bool((y >= own.lower()).all())
    assert bool((y <= own.upper()).all())


@pytest.mark.parametrize("slack", [0.0, 0.03, 0.0007])
def test_float64_roundings_next_to_halves_are_enclosed(slack):
    """Of exact products next to a choice the computed ones may be on its other side, once a slack that rounds is added."""
    factor = 1 / 3 + 2.0**-30
    n = np.random.default_rng(1).integers(-100, 100, 400)
    marks = np.concatenate([(n + sign * (0.5 + slack)) / factor for sign in (-1, 1)])
    x = torch.from_numpy(np.concatenate([np.nextafter(marks, end) for end in (-1e9, 1e9)] + [marks]))[:, None]
    made = operation(factor, 1.0, -128, 127, slack)
    bound = REGISTRY["quantize"].forward(made, [AffineForm(x[None], torch.zeros_like(x))])
    own = whole_numbers(Form(torch.stack([x, torch.zeros_like(x)])), factor, 1.0, -128, 127, slack, 255)
    for row, value in enumerate(x.flatten().tolist()):
        for y in whole(Fraction(value) * Fraction(factor), Fraction(slack)):
            assert bound.lower[row] <= y <= bound.upper[row]
            assert own.lower()[row] <= y <= own.upper()[row]
