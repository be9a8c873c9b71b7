"""Printed bounds never cut a pixel off, whatever number type a tool reads them into."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.export.plain_reader import read_plain
from tiltproof.export.vnnlib import TINY, decimal_above, decimal_below, pixel_box, vnnlib_1, vnnlib_2

REALS = (
    st.floats(0, 1)
    | st.floats(0, 1e-6)
    | st.sampled_from([0.0, 1.0, 5e-324, 1e-38, 2.0**-40, 1 - 2.0**-53, 0.1, 1 / 255])
)


@given(REALS, REALS)
def test_a_box_holds_what_it_was_made_of(first, second):
    low, high = sorted((first, second))
    ends = (torch.tensor(end, dtype=torch.float64) for end in (low, high))
    below, above = (float(end) for end in pixel_box(*ends))
    for text, bound, side in ((decimal_below(below), below, -1), (decimal_above(above), above, 1)):
        assert "e" not in text
        assert text.count(".") == 1
        exact = Fraction(text)
        assert side * (exact - Fraction(low if side < 0 else high)) >= 0, "as a rational"
        assert side * (Fraction(float(text)) - Fraction(low if side < 0 else high)) >= 0, "as a float64"
        assert float(np.float32(text)) == bound, "as a float32, also by way of a float64"
        assert float(np.float32(float(text))) == bound
    assert 0 <= below <= above <= 1
    assert below > low - 2.0**-24 - TINY, "no wider than float32 makes it"
    assert above < high + 2.0**-24 + TINY


@given(st.floats(-1e6, 1e6, width=32))
def test_decimals_of_any_sign(bound):
    assert Fraction(decimal_below(bound)) <= Fraction(bound) <= Fraction(decimal_above(bound))


def test_what_is_not_bounded_may_be_any_pixel():
    below, above = pixel_box(torch.tensor([torch.nan, -torch.inf, -0.5]), torch.tensor([torch.nan, torch.inf, 1.5]))
    assert below.tolist() == [0, 0, 0]
    assert above.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("classes", "label"), [(2, 0), (2, 1), (5, 3)])
def test_both_versions_say_the_same(classes, label):
    vnnlib, compat = pytest.importorskip("vnnlib"), pytest.importorskip("vnnlib.compat")
    generator = torch.Generator().manual_seed(0)
    lower = torch.rand(2, 3, 4, generator=generator)
    upper = torch.nextafter(lower, torch.tensor(1.0))
    cases = [[(other, label)] for other in range(classes) if other != label]
    plain = read_plain(vnnlib_1(['said (by "whom" ever'], lower, upper, classes, cases))
    assert plain.outputs == classes
    assert plain.clauses == [(other, label) for other in range(classes) if other != label]
    query = vnnlib.parse_query_string(vnnlib_2(["said; (by"], lower, upper, classes, cases))
    (network,) = query.networks
    assert (network.inputs[0].shape, network.outputs[0].shape) == ([1, 2, 3, 4], [1, classes])
    (case,) = compat.transform(query)
    assert case.input_box == [(float(a), float(b)) for a, b in zip(plain.lower, plain.upper, strict=True)]
    rows = [constraint.coeff_matrix[0] for constraint in case.output_constraints]
    assert all(len(constraint.coeff_matrix) == 1 and constraint.rhs == [0.0] for constraint in case.output_constraints)
    # label - other <= 0, in the order of the other version
    wanted = [[float(k == label) - float(k == other) for k in range(classes)] for other, _ in plain.clauses]
    assert rows == wanted
    box = zip(case.input_box, lower.flatten().tolist(), upper.flatten().tolist(), strict=True)
    assert all((np.float32(a), np.float32(b)) == (low, high) for (a, b), low, high in box)
