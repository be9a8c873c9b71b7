"""Smooth functions of one variable: bounds to the last digit, nearly as narrow as can be, and none outside of the domain."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from tests.support.curves import CASES, Case, intervals, mpf
from tests.support.small_networks import Function
from tiltproof import BranchAndBound, UnsupportedOperation, Verdict, bound_network, certify
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.curves import Gate

UNIT = 2.0**-24


def operation(case: Case, evaluation: float = 0.0) -> Operation:
    return Operation("y", case.kind, ("x",), case.settings, (1,), evaluation)


def form_of(ends: torch.Tensor, share: float = 0.6) -> AffineForm:
    """One entry per row; ``share`` of the half width is slope, the rest remainder."""
    middle, half = (ends[:, :1] + ends[:, 1:]) / 2, (ends[:, 1:] - ends[:, :1]) / 2
    return AffineForm(torch.stack([middle, half * share]), half * (1 - share))


def exact_value(tensor: torch.Tensor) -> list:
    return [mpf(number) for number in tensor.flatten().tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_to_the_last_digit(name, dtype):
    """Every member of the form, at ends and turns and in between: the form, both lines of the band and both backward lines hold."""
    case = CASES[name]
    rule, form = REGISTRY[case.kind], form_of(intervals(case, dtype))
    made = rule.forward(operation(case), [form])
    slope, low, high = rule.band(operation(case), form)
    (below, under), (above, over) = rule.lines(operation(case), form)
    lower, upper = form.lower.flatten().tolist(), form.upper.flatten().tolist()
    proved = 0
    with mpmath.workdps(50):
        numbers = [
            exact_value(t) for t in (form.center, form.slopes, form.radius, made.center, made.slopes, made.radius)
        ]
        lines = [exact_value(t) for t in (slope, low, high, below, under, above, over)]
        for row, (first, last) in enumerate(zip(lower, upper, strict=True)):
            if not case.inside(first, last):
                assert made.radius[row] == torch.inf
                continue
            proved += bool(made.radius[row] < torch.inf)
            c, g, r, c2, g2, r2 = (each[row] for each in numbers)
            s, lo, hi, s1, t1, s2, t2 = (each[row] for each in lines)
            turns = [mpf(turn) for turn in case.turns if first <= turn <= last]
            members = [(mpf(share), mpf(rest)) for share in (-1, -0.37, 0, 0.7, 1) for rest in (-1, 0, 1)]
            inside = [(e, c + e * g + rest * r) for e, rest in members]
            inside += [((turn - c) / (abs(g) + r + mpf(1e-300)), turn) for turn in turns if g + r > 0]
            for e, x in inside:
                if abs(x - c - e * g) > r:
                    continue  # a turn that rounding has put outside of the form
                y = case.exact(x)
                assert abs(y - c2 - g2 * e) <= r2, (row, first, last)
                assert lo <= y - s * x <= hi, (row, first, last)
                assert s1 * x + t1 <= y <= s2 * x + t2, (row, first, last)
    assert proved > 0.7 * len(lower)


@pytest.mark.parametrize("name", CASES)
def test_outlines_contain_the_graph(name):
    """Along every slope that the graph has, not only along those that the rule would choose; a hair of 1e-12 is the evaluation's."""
    case = CASES[name]
    rule, spans = REGISTRY[case.kind], intervals(case, torch.float64)
    begins = torch.linspace(-7, 7, 29, dtype=torch.float64)  # of long ones with many turns
    spans = torch.cat([spans, *(torch.stack([begins, begins + width], 1) for width in (1.0, 4.0, 6.5, 9.3))])
    spans = spans[[case.inside(first, last) and last - first > 1e-3 and last < 40 for first, last in spans.tolist()]]
    lower, upper = spans.unbind(1)
    domain = rule.domain(operation(case), lower, upper)
    lower, upper = (lower, upper) if domain is None else (lower[domain], upper[domain])
    outline = rule.outline(operation(case), lower, upper)
    x = torch.minimum(lower + (upper - lower) * torch.linspace(0, 1, 3001, dtype=torch.float64)[:, None], upper)
    y = case.function(x)
    steep = (y[1:] - y[:-1]) / (x[1:] - x[:-1])
    hair = 1e-12 * (1 + x.abs().amax(0) + y.abs().amax(0) + steep.abs().amax(0) * x.abs().amax(0))
    hair = hair + 1e-6 * (case.kind == "softplus")  # torch's threshold is a step
    assert len(lower) > 40
    for slope in torch.cat([steep[::25], steep.amin(0)[None], steep.amax(0)[None]]):
        low, high = outline.offsets(slope)
        rest = y - slope * x
        assert (rest.amin(0) >= low - hair).all()
        assert (rest.amax(0) <= high + hair).all()


def narrowest(x: np.ndarray, y: np.ndarray) -> float:
    """Return the vertical width of the narrowest band of parallel lines around the points; it is convex in the slope."""
    steep = np.diff(y) / np.diff(x)
    left, right = steep.min(), steep.max()

    def width(slope):
        return np.ptp(y - slope * x)

    for _ in range(120):
        one, other = left + (right - left) / 3, right - (right - left) / 3
        left, right = (left, other) if width(one) < width(other) else (one, right)
    return width((left + right) / 2)


@pytest.mark.parametrize("name", [name for name in CASES if name != "softplus of 1"])
def test_nearly_as_narrow_as_can_be(name):
    """At most 1.1 times the narrowest band; what rounding and float64's library functions are allowed comes on top.

    On the same many points the band holds, but for their own rounding.
    """
    case = CASES[name]
    ends = intervals(case, torch.float64)[::2]
    form = form_of(ends, 1.0)
    slope, low, high = REGISTRY[case.kind].band(operation(case), form)
    compared = 0
    for row, (first, last) in enumerate(zip(form.lower.flatten().tolist(), form.upper.flatten().tolist(), strict=True)):
        if not case.inside(first, last) or last - first < 1e-6 * (1 + abs(first)):
            continue
        x = np.linspace(first, last, 3000)
        if first > 0:
            x = np.union1d(x, np.geomspace(first, last, 3000))
        elif first < 0 < last or case.domain == "below 50":
            x = np.union1d(
                x, np.clip(np.concatenate([np.linspace(-9, 9, 2000), last - np.geomspace(1e-3, 30, 900)]), first, last)
            )
        x = x[np.concatenate([[True], np.diff(x) > 1e-9 * (last - first)])]
        y = case.function(torch.tensor(x)).numpy()
        rounding = 1e-11 * (1 + np.abs(y).max() + np.abs(x).max())
        rest = y - float(slope[row]) * x
        assert float(low[row]) - 1e-3 * rounding <= rest.min() <= rest.max() <= float(high[row]) + 1e-3 * rounding, (
            first,
            last,
        )
        best = narrowest(x, y)
        if best > 100 * rounding:  # else hardly curved at all
            compared += 1
            assert float(high[row] - low[row]) <= 1.1 * best + rounding, (first, last)
    assert compared > 20


@pytest.mark.parametrize("name", CASES)
def test_float32_evaluations_are_inside(name):
    """torch's own evaluation at points: only its rounding remains to be covered, and is not covered by far too much."""
    case = CASES[name]
    x = intervals(case, torch.float32).flatten()
    x = x[(x.abs() < 100) & ((x > 0) | (case.domain != "positive"))][:, None]
    point = AffineForm(x.double()[None], torch.zeros_like(x).double())
    made, exact = (REGISTRY[case.kind].forward(operation(case, unit), [point]) for unit in (UNIT, 0.0))
    known = exact.radius < torch.inf
    for answer in (case.function(x), *(torch.cat([case.function(part) for part in x.split(n)]) for n in (1, 7, 64))):
        off = (answer.double() - made.center).abs()
        assert (off <= made.radius)[known & answer.isfinite()].all()
    size = 1 + x.abs().double() + made.center.abs() * (1 + made.center.abs().clamp(min=1e-9).log().abs())
    tame = known & (made.center.abs() < 1e6) & (x.abs() > 1e-3)
    assert (made.radius <= 300 * UNIT * size + exact.radius)[tame].all()


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "reciprocal", "x^1.5", "x^-3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_end_of_the_domain(name, dtype):
    """A range that ends at 0, or that rounding carries there, proves nothing, forwards or backwards; one that ends just inside does."""
    case = CASES[name]
    rule, function = REGISTRY[case.kind], case.function
    tiny = torch.finfo(dtype).eps
    center = torch.tensor([[1.0], [1.0], [1.0], [1.0], [0.0]], dtype=dtype)
    radius = torch.tensor([[1.0], [1 - tiny / 2], [1 + tiny], [1 - 64 * tiny], [0.0]], dtype=dtype)
    form = AffineForm(torch.stack([center, 0 * center]), radius)
    made = rule.forward(operation(case), [form])
    outside = ~(form.lower > 0).flatten()
    assert outside.tolist() == [True, True, True, False, True]
    assert (made.radius.flatten() < torch.inf).tolist() == [False, False, False, True, False]
    assert (made.center[outside] == 0).all()
    assert (made.slopes[:, outside] == 0).all()
    for a in (1.0, -1.0):
        line = rule.backward(operation(case), torch.full_like(center, a), [form])
        assert not (line.constant[outside] > -torch.inf).any()
        assert line.constant[~outside].isfinite().all()
    bound = bound_network(nn.Sequential(Function(lambda _, x: function(x)), nn.Linear(1, 2)).to(dtype).eval(), form)
    assert not (bound.lower[outside] > -torch.inf).any()


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "reciprocal", "x^1.5"])
def test_float32_near_zero_is_no_proof(name):
    """Numbers that an evaluation may flush to zero have no logarithm there."""
    case = CASES[name]
    x = torch.tensor([[2.0**-130], [2.0**-50]], dtype=torch.float64)
    form = AffineForm(torch.stack([x, 0 * x]), torch.zeros_like(x))
    finite = REGISTRY[case.kind].forward(operation(case, UNIT), [form]).radius < torch.inf
    assert finite.flatten().tolist() == [False, True]


def test_an_evaluation_may_overflow():
    x = torch.tensor([[75.0], [90.0]], dtype=torch.float64)
    form = AffineForm(torch.stack([x, 0 * x]), torch.zeros_like(x))
    finite = REGISTRY["exp"].forward(operation(CASES["exp"], UNIT), [form]).radius < torch.inf
    assert finite.flatten().tolist() == [True, False]


@pytest.mark.parametrize("name", ["gelu", "gelu by tanh", "silu", "mish"])
def test_inflection_points(name):
    """The second derivative changes sign at the two points that the rule knows, and nowhere else."""
    case = CASES[name]
    rule = REGISTRY[case.kind]
    assert isinstance(rule, Gate)
    with mpmath.workdps(60):
        signs = []
        for first, last in zip((-12, *rule.ends), (*rule.ends, 12), strict=True):
            width = mpf(last) - mpf(first)
            shares = [mpf(1e-15), *(mpf(k) / 60 for k in range(1, 60)), 1 - mpf(1e-15)]
            found = {
                mpmath.sign(mpmath.diff(case.exact, mpf(first) + width * share, 2, h=mpf(1e-20))) for share in shares
            }
            assert len(found) == 1, (first, last)
            signs.append(found.pop())
    assert signs == [-1, 1, -1]


def test_a_long_way_from_zero():
    """Sines of large numbers, and of more than a period."""
    form = form_of(torch.tensor([[1e7, 1e7 + 1], [-50.0, 50.0], [1000.0, 1000.5]], dtype=torch.float64))
    made = REGISTRY["sin"].forward(operation(CASES["sin"]), [form])
    assert made.radius[:2].flatten().tolist() == pytest.approx([1, 1])
    assert (made.slopes[:, :2] == 0).all()
    assert made.radius[2] < 0.3


def test_a_box_that_leaves_the_domain_is_split():
    """Over the whole range the logarithm's argument reaches 0; over parts of it nothing does, and they are proved one by one."""
    model = Function(lambda m, x: m.head(torch.log(x.mean((2, 3)) - 0.32)), head=nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.head.bias.copy_(torch.tensor([4.0, -4.0]))
    image, label = torch.full((1, 1, 4, 4), 0.5), torch.tensor([0])
    image[..., 2:] = 0.6
    for semantics in ("real", "float32"):
        certificate = certify(
            model, image, label, "C(25), B(0.05)", search=BranchAndBound(max_boxes=2000), semantics=semantics
        )
        assert certificate.verdicts == [Verdict.CERTIFIED]
    below = certify(model, image, label, "B(0.35)", search=BranchAndBound(max_boxes=200))
    assert below.verdicts[0] is not Verdict.CERTIFIED


@pytest.mark.parametrize(
    "function",
    [lambda x: x**0, lambda x: x**1, lambda x: x**100, lambda x: torch.pow(-2.0, x), lambda x: torch.pow(x, x),
     lambda x: torch.celu(x, 1e9), lambda x: torch.nn.functional.softplus(x, 1e-9)],
)  # fmt: skip
def test_other_uses_are_refused(function):
    model = Function(lambda _, x: function(x).flatten(1)).eval()
    with pytest.raises(UnsupportedOperation):
        bound_network(model, AffineForm(torch.rand(1, 2, 3) + 1, torch.rand(2, 3) * 0.1))


def test_gradients_for_training():
    """Bounds of training have gradients without NaN, also where a box is a point."""
    for name, case in CASES.items():
        ends = torch.tensor([[0.5, 0.5], [0.4, 1.2], [1.0, 9.0]], requires_grad=True)
        middle, half = (ends[:, :1] + ends[:, 1:]) / 2, (ends[:, 1:] - ends[:, :1]) / 2
        form = AffineForm(torch.stack([middle, half / 2]), half / 2, unit=0.0)
        made = REGISTRY[case.kind].forward(operation(case), [form])
        (gradient,) = torch.autograd.grad((made.upper - made.lower / 2).sum(), ends)
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name
