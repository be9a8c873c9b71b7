"""Fixed-point products and roundings: forward and backward bounds, and the checker's, hold every exact result."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.small_networks import Function
from tests.tflite.tflite_files import by_multiplier
from tiltproof.checker import fixed_point as checked
from tiltproof.checker.form import Form
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import UnsupportedOperation
from tiltproof.fixed_point import multiplier_of, rounded_units
from tiltproof.network import read_network
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY, fixed_point
from tiltproof.network.ops.base import Input, Refused

X = Input("x", (1,))


def exact_product(x: Fraction, multiplier: int, shift: int, low: int, high: int) -> int:
    """As defined: x rounded to a whole number that keeps 32 bits, then the kernels' product."""
    most = (2**31 - 1) >> max(shift, 0)
    whole = min(max(round(x), -most), most)
    return min(max(by_multiplier(whole, multiplier, shift), low), high)


def exactly_rounded(x: Fraction, factor: float, offset: int, low: int, high: int, snap: float) -> int:
    moved = x * Fraction(factor) + offset
    half = math.floor(moved) + Fraction(1, 2)
    moved = half if abs(moved - half) <= Fraction(snap) else moved
    n = math.floor(abs(moved) + Fraction(1, 2)) * (1 if moved > 0 else -1)
    return min(max(n - offset, low), high)


def held(
    kind: str, made: Operation, center: float, slope: float, radius: float, dtype: torch.dtype, own: Form, at: object
) -> None:
    """Every result over the form lies inside of the bounds of both programs, and above both backward lines."""
    form = AffineForm(torch.tensor([[[center]], [[slope]]], dtype=dtype), torch.tensor([[radius]], dtype=dtype))
    rule = REGISTRY[kind]
    result = rule.forward(made, [form])
    c, g, r = (Fraction(float(each)) for each in (result.center, result.slopes, result.radius))
    back = [(a, rule.backward(made, torch.tensor([[a]], dtype=dtype), [form])) for a in (1.0, -1.0)]
    theirs = [Fraction(float(each)) for each in own.rows.flatten()]
    for e in (-1, Fraction(-1, 3), 0, Fraction(2, 7), 1):
        middle = Fraction(center) + Fraction(slope) * e
        for share in (-1, Fraction(-2, 3), Fraction(-1, 7), 0, Fraction(3, 8), 1):
            x = middle + share * Fraction(radius)
            y = at(x)
            assert abs(y - c - g * e) <= r
            assert abs(y - theirs[0] - theirs[1] * e) <= theirs[2]
            for a, line in back:
                error = Fraction(float(line.rounding_budget)) * (1 + Fraction(1, 2**10))
                assert Fraction(a) * y >= Fraction(float(line.inputs[0])) * x + Fraction(float(line.constant)) - error


@settings(deadline=None, max_examples=300)
@given(
    st.integers(-3000, 3000).map(float) | st.floats(-3000, 3000, width=32) | st.floats(-(2.0**33), 2.0**33, width=32),
    st.floats(-900, 900, width=32) | st.just(0.0),
    st.floats(0, 900, width=32) | st.just(0.0) | st.just(2.0**32),
    st.integers(2**30, 2**31 - 1) | st.integers(1, 2**31 - 1),
    st.integers(-14, 6),
    st.integers(-128, 0),
    st.integers(1, 127),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_products_are_enclosed_exactly(center, slope, radius, multiplier, shift, low, high, dtype):
    settings_of = fixed_point.requantize((1,), X, [multiplier], [shift], low, high).settings
    made = Operation("y", "requantize", ("x",), settings_of, (1,))
    rows = torch.tensor([[[center]], [[slope]], [[radius]]], dtype=torch.float64)
    own = checked.requantize(Form(rows), [multiplier], [shift], low, high)
    held(
        "requantize", made, center, slope, radius, dtype, own, lambda x: exact_product(x, multiplier, shift, low, high)
    )


@settings(deadline=None, max_examples=200)
@given(
    st.floats(-9, 9, width=32) | st.integers(-18, 18).map(lambda n: n / 2),
    st.floats(-4, 4, width=32) | st.just(0.0),
    st.floats(0, 4, width=32) | st.just(0.0),
    st.floats(0.125, 30) | st.just(1.0),
    st.integers(-9, 9),
    st.sampled_from([0.0, 2.0**-13, 0.0625]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_roundings_are_enclosed_exactly(center, slope, radius, factor, offset, snap, dtype):
    settings_of = fixed_point.rounded((1,), X, factor, offset, -20, 25, snap).settings
    made = Operation("y", "rounded", ("x",), settings_of, (1,))
    rows = torch.tensor([[[center]], [[slope]], [[radius]]], dtype=torch.float64)
    own = checked.rounded(Form(rows), factor, offset, -20, 25, snap)
    held(
        "rounded", made, center, slope, radius, dtype, own, lambda x: exactly_rounded(x, factor, offset, -20, 25, snap)
    )


def test_a_single_accumulator_gives_a_single_number():
    """Where slack alone would leave two open: 2^-9 beside a tie."""
    multiplier, shift = multiplier_of(0.003)
    settings_of = fixed_point.requantize((1,), X, [multiplier], [shift], -128, 127).settings
    made = Operation("y", "requantize", ("x",), settings_of, (1,))
    x = torch.arange(-40000.0, 40000.0, 7, dtype=torch.float64)[:, None]
    form = AffineForm(x[None], torch.full(x.shape, 0.25, dtype=torch.float64))
    bound = REGISTRY["requantize"].forward(made, [form])
    own = checked.requantize(Form(torch.stack([x, torch.full_like(x, 0.25)])), [multiplier], [shift], -128, 127)
    exact = torch.tensor([exact_product(Fraction(n), multiplier, shift, -128, 127) for n in x.flatten().tolist()])
    for center, reach in ((bound.center, bound.reach()), (own.center, own.reach)):
        assert float(reach.max()) < 1e-9
        torch.testing.assert_close(center.flatten(), exact.double(), rtol=0, atol=1e-9)


def test_wide_bounds_keep_their_slope():
    multiplier, shift = multiplier_of(0.003)
    settings_of = fixed_point.requantize((1,), X, [multiplier], [shift], -128, 127).settings
    made = Operation("y", "requantize", ("x",), settings_of, (1,))
    form = AffineForm(torch.tensor([[[0.0]], [[30000.0]]]).double(), torch.zeros(1, 1).double())
    bound = REGISTRY["requantize"].forward(made, [form])
    assert float(bound.slopes) == pytest.approx(90, rel=1e-3)
    assert float(bound.radius) < 0.51


@pytest.mark.parametrize(
    "arguments",
    [([0], [0], -4, 5), ([2**31], [0], -4, 5), ([2**30], [31], -4, 5), ([2**30], [-63], -4, 5), ([2**30] * 3, [0] * 3, -4, 5),
     ([2**30], [0], 5, 5)],
)  # fmt: skip
def test_other_products_are_refused(arguments):
    with pytest.raises(Refused):
        fixed_point.requantize((1,), X, *arguments)
    with pytest.raises(UnsupportedOperation):
        checked.requantize(Form(torch.zeros(3, 1, 1).double()), *arguments)


def test_other_roundings_and_sums_are_refused():
    for arguments in ((0.0, 0, -4, 5, 0.0), (1.0, 0, -4, 5, 0.25), (1.0, 2**21, -4, 5, 0.0), (1.0, 0, 5, 4, 0.0)):
        with pytest.raises(Refused):
            fixed_point.rounded((1,), X, *arguments)
        with pytest.raises(UnsupportedOperation):
            checked.rounded(Form(torch.zeros(3, 1, 1).double()), *arguments)
    with pytest.raises(UnsupportedOperation):
        checked.rescaled_sum(Form(torch.zeros(3, 1, 1).double()), torch.zeros(1), [2**30] * 3, [0] * 3, False, 0, 5)
    with pytest.raises(Refused):
        fixed_point.rescaled_sum((1,), X, X, [2**30] * 2, [0] * 2, False, 0, 5)
    model = nn.Sequential(
        Function(lambda _, x: torch.ops.tiltproof.requantize(x.flatten(1), [2**31], [0], 0, 5)), nn.Linear(4, 2)
    )
    with pytest.raises(UnsupportedOperation, match="31 bits"):
        read_network(model.eval(), (1, 2, 2), torch.rand(1, 1, 2, 2))


def test_gradients_are_those_of_the_real_function():
    """For attacks: nothing where it is clipped."""
    x = torch.tensor([[3.0, 900.0]], requires_grad=True)
    y = torch.ops.tiltproof.requantize(x, [2**30], [-2], -10, 20)
    z = torch.ops.tiltproof.rescaled_sum(x, x, [2**30, 2**30, 1717986918], [0, 0, -19], True, -9, 9)
    y.sum().backward()
    assert x.grad.tolist() == [[0.125, 0.0]]
    x.grad = None
    z.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0]]
    x.grad = None
    torch.ops.tiltproof.rounded(x, 0.5, 3, -9, 9, 0.0).sum().backward()
    assert x.grad.tolist() == [[0.5, 0.0]]


def test_ties_go_away_from_zero():
    x = torch.tensor([0.5, -0.5, 1.5, -2.5], dtype=torch.float64)
    assert rounded_units(x, 0, -9, 9, 0.0).tolist() == [1, -1, 2, -3]
    assert rounded_units(x, -3, -9, 9, 0.0).tolist() == [0, -1, 1, -3]


def test_float32_evaluations_next_to_ties_are_enclosed():
    """Where a product that is rounded to float32 is on the other side of a tie than the exact one."""
    settings_of = fixed_point.rounded((1,), X, 0.3, 0, -120, 120, 0.0).settings
    made = Operation("y", "rounded", ("x",), settings_of, (1,), 2.0**-24)
    ties = ((torch.arange(-100, 100) + 0.5) / 0.3).double()
    x = torch.cat([ties, torch.nextafter(ties.float(), torch.tensor(0.0)).double(), ties.float().double()])[:, None]
    bound = REGISTRY["rounded"].forward(made, [AffineForm(x[None], torch.zeros_like(x))])
    own = checked.rounded(Form(torch.stack([x, torch.zeros_like(x)]), 2.0**-24), 0.3, 0, -120, 120, 0.0)
    units = x.float() * torch.tensor(0.3)
    for y in (rounded_units(units.double(), 0, -120, 120, 0.0), rounded_units(x * 0.3, 0, -120, 120, 0.0)):
        assert bool((y >= bound.lower).all())
        assert bool((y <= bound.upper).all())
        assert bool((y >= own.lower()).all())
        assert bool((y <= own.upper()).all())


@pytest.mark.parametrize("shift", [-3, -2, -1, 0, 1])
def test_no_rounding_is_forgotten_in_wide_bounds(shift):
    """What is just below a half, rounded three times, so that all of them go the same way; bounds along M x, for many multipliers."""
    numbers = torch.arange(-150.0, 150.0, dtype=torch.float64)
    x = torch.cat([numbers + 0.5 - 2.0**-20, numbers - 0.5 + 2.0**-20, numbers])
    for multiplier in range(2**30 + 1, 2**31, 2**30 // 37):
        settings_of = fixed_point.requantize((1,), X, [multiplier], [shift], -1000, 1000).settings
        made = Operation("y", "requantize", ("x",), settings_of, (1,))
        y = torch.tensor(
            [exact_product(Fraction(each), multiplier, shift, -1000, 1000) for each in x.tolist()], dtype=torch.float64
        )
        form = AffineForm(torch.tensor([[[0.0]], [[151.0]]]).double(), torch.zeros(1, 1).double())
        bound = REGISTRY["requantize"].forward(made, [form])
        own = checked.requantize(
            Form(torch.tensor([[[0.0]], [[151.0]], [[0.0]]]).double()), [multiplier], [shift], -1000, 1000
        )
        assert float(bound.slopes) > 0
        for center, slope, radius in ((bound.center, bound.slopes, bound.radius), (own.center, own.slopes, own.radius)):
            assert float((y - center - slope.flatten() * x / 151).abs().max()) <= float(radius)
        for a in (1.0, -1.0):
            line = REGISTRY["requantize"].backward(made, torch.tensor([[a]]).double(), [form])
            below = line.inputs[0].flatten() * x + line.constant
            assert bool((a * y >= below - line.rounding_budget.flatten() * 1.001).all())


def test_accumulators_beyond_32_bits_stay_where_they_are():
    """Far from the ends of the range, where only that keeps the bounds from following M x."""
    factor = [2**30], [-25], -1000, 1000
    made = Operation("y", "requantize", ("x",), fixed_point.requantize((1,), X, *factor).settings, (1,))
    form = Form(torch.tensor([[[0.0]], [[2.0**33]], [[0.0]]]).double())
    own = checked.requantize(form, *factor)
    held("requantize", made, 0.0, 2.0**33, 0.0, torch.float64, own, lambda x: exact_product(x, 2**30, -25, -1000, 1000))


def test_ties_of_the_kernels():
    """Up at first, away from zero at last."""
    x = torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64)
    for function in (
        lambda x: torch.ops.tiltproof.requantize(x[:, None], [2**30], [0], -9, 9),
        lambda x: checked.requantize(Form(torch.stack([x, 0 * x])[:, :, None]), [2**30], [0], -9, 9).center,
    ):
        assert function(x).flatten().round().tolist() == [-1, 0, 1, 2]
    for function in (
        lambda x: torch.ops.tiltproof.requantize(x[:, None], [2**31 - 1], [-1], -9, 9),
        lambda x: checked.requantize(Form(torch.stack([x, 0 * x])[:, :, None]), [2**31 - 1], [-1], -9, 9).center,
    ):
        assert function(x).flatten().round().tolist() == [-2, -1, 1, 2]
