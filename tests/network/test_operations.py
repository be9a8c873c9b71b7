"""The table of small networks holds every operation, so that the tests that iterate over it see them all."""

from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.small_networks import ACTIVATIONS, SHAPE, SUPPORTED, build
from tiltproof import bound_network
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import UnsupportedOperation
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.tracing import export_network


@cache
def kinds(name: str) -> set[str]:
    network = export_network(build(SUPPORTED[name], 0), SHAPE, torch.rand(1, *SHAPE))
    return {operation.kind for operation in network.operations}


def test_every_operation_has_a_network():
    found = set().union(*map(kinds, SUPPORTED))
    assert found == set(REGISTRY)


def test_every_activation_is_among_the_elementwise_functions():
    marked = {kind for kind, rule in REGISTRY.items() if rule.activation}
    assert marked == set().union(*map(kinds, ACTIVATIONS)) - {"reshape", "linear", "scale", "add", "sub"}


@settings(deadline=None, max_examples=300)
@given(
    st.floats(-9, 9, width=32),
    st.floats(-4, 4, width=32),
    st.floats(0, 4, width=32),
    st.floats(-3, 3),
    st.floats(2.0**-20, 6),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_clamp_is_enclosed_exactly(center, slope, radius, low, width, dtype):
    """On rational numbers, at ends and kinks and in between: the form holds, and so do both lines of the backward rule."""
    high = low + width
    rule, operation = REGISTRY["clamp"], Operation("y", "clamp", ("x",), {"low": low, "high": high}, (1,))
    form = AffineForm(torch.tensor([[[center]], [[slope]]], dtype=dtype), torch.tensor([[radius]], dtype=dtype))
    result = rule.forward(operation, [form])
    c, g, r = (Fraction(float(each)) for each in (result.center, result.slopes, result.radius))
    back = [(a, rule.backward(operation, torch.tensor([[a]], dtype=dtype), [form])) for a in (1.0, -1.0)]
    for e in (-1, Fraction(-1, 3), 0, Fraction(2, 7), 1):
        middle = Fraction(center) + Fraction(slope) * e
        ends = middle - Fraction(radius), middle + Fraction(radius)
        kinks = [Fraction(kink) for kink in (low, high) if ends[0] <= kink <= ends[1]]
        for x in (*ends, middle, *kinks):
            y = min(max(x, Fraction(low)), Fraction(high))
            assert abs(y - c - g * e) <= r
            for a, line in back:
                error = Fraction(float(line.rounding_budget)) * (1 + Fraction(1, 2**10))
                assert Fraction(a) * y >= Fraction(float(line.inputs[0])) * x + Fraction(float(line.constant)) - error


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((-1, 3), (0.5, 1)), ((0.5, 1.5), (1, 0)), ((3, 4), (0, 0)), ((-2, 1), (1 / 3, 2 / 3))],
)
def test_clamp_by_hand(interval, expected):
    """Slope and width of the band of a clamp to [0, 2]: both kinks, none, beyond both, and one kink, as ReLU has it."""
    low, high = interval
    form = AffineForm(torch.tensor([[[(low + high) / 2]], [[(high - low) / 2]]]).double(), torch.zeros(1, 1).double())
    operation = Operation("y", "clamp", ("x",), {"low": 0.0, "high": 2.0}, (1,))
    slope, below, above = (float(each) for each in REGISTRY["clamp"].band(operation, form))
    assert (slope, above - below) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_a_clamp_without_ordered_bounds_is_refused(bounds):
    class Clamp(nn.Module):
        def forward(self, x):
            return x.clamp(*bounds)

    with pytest.raises(UnsupportedOperation, match="clamp"):
        bound_network(Clamp(), AffineForm(torch.rand(1, 2, 3), torch.rand(2, 3)))
