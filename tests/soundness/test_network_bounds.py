# ruff: noqa: ARG005 - the networks are lambdas of (modules, x), and many need no modules
"""Every operation encloses: no member's output lies outside the bound, or outside the form at the member's own symbols."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.forms import assert_inside, candidates, climb, in_float64, make_form, margins
from tests.support.small_networks import ACTIVATIONS, SHAPE, SUPPORTED, Function, build
from tiltproof import InputError, UnsupportedOperation, bound_network
from tiltproof.enclosures.affine_form import AffineForm

SETS = [(2, 0.5, torch.float32), (3, 0.3, torch.float64), (0, 0.3, torch.float32), (1, 1e-5, torch.float32)]
"""Number of symbols, size of the set, dtype."""


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "many"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_every_operation(name, many):
    labels = torch.tensor([0, 2, 1])
    for seed, (symbols, scale, dtype) in enumerate(SETS * 3 if many else [SETS[0], SETS[1 + len(name) % 3]]):
        model = build(SUPPORTED[name], seed).to(dtype)
        form = make_form(SHAPE, symbols, seed, scale=scale, dtype=dtype)
        before = form.center.clone(), form.slopes.clone(), form.radius.clone()
        if seed % 2 == 0 or many:
            bound = bound_network(model, form)
            assert bound.center.dtype == dtype
            assert_inside(model, form, bound, seed=seed)
            assert all(map(torch.equal, before, (form.center, form.slopes, form.radius)))
        if seed % 2 == 1 or many:
            margin = bound_network(model, form, labels)
            assert_inside(model, form, margin, labels, seed)
            for row, label in enumerate(labels):
                for tensor in (margin.center[row], margin.radius[row], *margin.slopes[:, row]):
                    assert tensor[label] == 0
                assert max(-margin.lower[row, label], margin.upper[row, label]) < 1e-20


@pytest.mark.parametrize(
    "name",
    [name if k % 12 == 0 else pytest.param(name, marks=pytest.mark.slow) for k, name in enumerate(SUPPORTED)],
)
def test_an_unknown_input_proves_nothing_false(name):
    """A radius that is infinite or NaN admits every number: no bound that a rule makes of it excludes any output."""
    model = build(SUPPORTED[name], 1)
    labels = torch.tensor([0, 2, 1])
    form = make_form(SHAPE, 2, 1)
    radius = form.radius.clone()
    radius[0].view(-1)[3], radius[1].view(-1)[3] = torch.inf, torch.nan
    with torch.no_grad():
        bounds = [bound_network(model, AffineForm(form.stack, radius), each) for each in (None, labels)]
        for shift in (0.0, 7.0, -1e3, 1e5):
            images = form.center.double().clone()
            images[:2].view(2, -1)[:, 3] += shift
            outputs = in_float64(model)(images)
            for bound, values in zip(bounds, (outputs, margins(outputs[None], labels)[0]), strict=True):
                allowed = 1e-12 * (1 + outputs.abs().amax(1, keepdim=True))
                assert not (bound.lower > values + allowed).any()  # false for a NaN
                assert not (bound.upper < values - allowed).any()


@pytest.mark.parametrize("name", [*ACTIVATIONS, "residual add", "max pool padding", "deep"])
def test_a_single_image_is_a_point(name):
    """Radius 0 and no symbols: the bound is the output and its rounding, and stays narrow."""
    model = build(SUPPORTED[name], 1)
    center = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    form = AffineForm(center[None], torch.zeros_like(center))
    bound = bound_network(model, form)
    assert_inside(model, form, bound)
    assert (bound.upper - bound.lower).max() < 1e-2


@pytest.mark.parametrize("name", ["relu", "conv padding", "residual add", "max pool", "batch norm 2d", "deep"])
def test_more_symbols_never_leave_the_interval_result_far_behind(name):
    """Symbols are there to tighten: for small sets the affine bound is hardly ever wider than the interval bound."""
    model = build(SUPPORTED[name], 2)
    form = make_form(SHAPE, 2, 3, scale=0.01)
    box = AffineForm(((form.upper + form.lower) / 2)[None], (form.upper - form.lower) / 2 * 1.0001)
    affine, interval = bound_network(model, form), bound_network(model, box)
    assert (affine.width <= interval.width * 1.05 + 1e-4).all()


def exact_member(form: AffineForm, e, s, row: int) -> np.ndarray:
    to_fractions = np.vectorize(Fraction, otypes=[object])
    value = to_fractions(form.center[row].double().numpy())
    for k in range(form.slopes.shape[0]):
        value = value + to_fractions(form.slopes[k, row].double().numpy()) * Fraction(float(e[k]))
    return value + to_fractions(form.radius[row].double().numpy()) * to_fractions(s.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-7, 0.0])
@pytest.mark.parametrize("weights", ["plain", "cancelling", "huge", "tiny"])
def test_rounding_of_linear_and_relu_is_absorbed_exactly(weights, size, dtype):
    """Members, weights and outputs are rational numbers: the bound holds with no tolerance, even when terms cancel."""
    torch.manual_seed(5)
    model = (
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6), nn.LeakyReLU(0.25), nn.Linear(6, 3)).to(dtype).eval()
    )
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            if weights == "cancelling":
                layer.weight[:, 1::2] = -layer.weight[:, ::2] * (1 + 1e-6)
                layer.weight *= 1e4
            elif weights in ("huge", "tiny"):
                layer.weight *= 1e8 if weights == "huge" else 1e-10
                layer.bias *= 1e8 if weights == "huge" else 1e-10
    form = make_form((8,), 2, 6, scale=size, dtype=dtype)
    if weights == "cancelling":
        form = AffineForm(torch.cat([form.center[None] * 0 + 0.7, form.slopes]), form.radius)
    bounds = {None: bound_network(model, form)}
    labels = torch.tensor([1, 0, 2])
    bounds["margins"] = bound_network(model, form, labels)
    e, s = candidates(form, 1, 3)
    more_e, more_s = climb(in_float64(model), form, None, 1)
    e, s = torch.cat([e, more_e]), torch.cat([s, more_s])
    fractions = np.vectorize(Fraction, otypes=[object])
    layers = [
        (fractions(m.weight.detach().double().numpy()), fractions(m.bias.detach().double().numpy()))
        for m in (model[0], model[2], model[4])
    ]
    for sample in range(len(e)):
        for row in range(3):
            h = exact_member(form, e[sample, row], s[sample, row], row)
            h = np.maximum(layers[0][0] @ h + layers[0][1], Fraction(0))
            h = layers[1][0] @ h + layers[1][1]
            h = np.array([max(t, t / 4) for t in h] + [None], dtype=object)[:-1]
            outputs = layers[2][0] @ h + layers[2][1]
            for kind, bound in bounds.items():
                truth = outputs if kind is None else outputs[labels[row]] - outputs
                for k in range(3):
                    assert Fraction(bound.lower[row, k].item()) <= truth[k] <= Fraction(bound.upper[row, k].item()), (
                        kind,
                        k,
                    )
                    middle = Fraction(bound.center[row, k].item())
                    for j in range(2):
                        middle += Fraction(bound.slopes[j, row, k].item()) * Fraction(e[sample, row, j].item())
                    assert abs(truth[k] - middle) <= Fraction(bound.radius[row, k].item()), (kind, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("module", "function"),
    [(nn.Sigmoid(), lambda x: 1 / (1 + mpmath.exp(-x))), (nn.Tanh(), mpmath.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_sigmoid_and_tanh_to_the_last_digit(module, function, dtype):
    """One value per row, a symbol and a remainder: the true function, to 60 digits, never lies outside."""
    centers = [0.0, 1e-9, -0.3, 0.5, 1.0, -2.0, 3.0, 5.5, -8.0, 9.2, -17.0, 20.0, 40.0, -95.0, 120.0, -800.0]
    halves = [0.0, 1e-8, 1e-4, 0.05, 0.6, 2.5, 12.0, 300.0]
    shares = [0.0, 0.4, 1.0]  # fraction of the half width that is slope
    cases = [(c, h * share, h * (1 - share)) for c in centers for h in halves for share in shares]
    center, slope, radius = (torch.tensor([case[k] for case in cases], dtype=dtype).view(-1, 1) for k in range(3))
    bound = bound_network(nn.Sequential(module), AffineForm(torch.stack([center, slope]), radius))
    with mpmath.workdps(60):
        exactly = lambda tensor, row: mpmath.mpf(tensor[row, 0].item())  # noqa: E731
        for row in range(len(cases)):
            for e in (-1, mpmath.mpf("-0.37"), 0, mpmath.mpf("0.71"), 1):
                for s in (-1, 0, 1):
                    x = exactly(center, row) + e * exactly(slope, row) + s * exactly(radius, row)
                    y = function(x)
                    assert exactly(bound.lower, row) <= y <= exactly(bound.upper, row), (cases[row], e, s)
                    middle = exactly(bound.center, row) + e * mpmath.mpf(bound.slopes[0, row, 0].item())
                    assert abs(y - middle) <= exactly(bound.radius, row), (cases[row], e, s)


def test_hand_worked_example():
    """Inputs x1 = e1, x2 = e2; h1 = x1 + x2 and h2 = x1 - x2, both in [-2, 2]; y = relu(h1) + relu(h2).

    The parallelogram of relu on [-2, 2]: slope 2 / 4 = 1/2, offset and remainder 1/2 * 2 / 2 = 1/2 each. So
    relu(h1) = 1/2 e1 + 1/2 e2 + 1/2 +- 1/2 and relu(h2) = 1/2 e1 - 1/2 e2 + 1/2 +- 1/2; e2 cancels in their sum:
    y = 1 + e1 +- 1, in [-1, 3]. The true range is [0, 2]. Plain intervals would give [0, 4].
    """
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        model[2].weight.fill_(1)
    form = AffineForm(torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]]), torch.zeros(1, 2))
    bound = bound_network(model, form)
    assert bound.center.item() == pytest.approx(1, abs=1e-4)
    assert bound.slopes.flatten().tolist() == pytest.approx([1, 0], abs=1e-4)
    assert bound.radius.item() == pytest.approx(1, abs=1e-4)
    assert bound.lower.item() == pytest.approx(-1, abs=1e-4)
    assert bound.upper.item() == pytest.approx(3, abs=1e-4)


def test_hand_worked_margins():
    """Logits (x1 + x2, x1 - x2, 3), x1 = 1 + e1, x2 = 2 e1 +- 0.5: f0 - f1 = 4 e1 +- 1, f0 - f2 = 3 e1 - 2 +- 0.5."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]))
        model.bias.copy_(torch.tensor([0.0, 0.0, 3.0]))
    form = AffineForm(torch.tensor([[[1.0, 0.0]], [[1.0, 2.0]]]), torch.tensor([[0.0, 0.5]]))
    bound = bound_network(model, form, torch.tensor([0]))
    assert bound.center[0].tolist() == pytest.approx([0, 0, -2], abs=1e-4)
    assert bound.slopes[0, 0].tolist() == pytest.approx([0, 4, 3], abs=1e-4)
    assert bound.radius[0].tolist() == pytest.approx([0, 1, 0.5], abs=1e-4)


def test_interval_case_is_the_papers():
    """d = 0: mu = W (u + l) / 2 + b, r = |W| (u - l) / 2, and relu maps the ends."""
    model = build(lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), 3)
    form = make_form((5,), 0, 1)
    bound = bound_network(model, form)
    mu, r = form.center, form.radius
    for layer in model:
        mu, r = layer(mu), r @ layer.weight.abs().T
    assert torch.allclose(bound.center, mu, atol=1e-5)
    assert torch.allclose(bound.radius, r, atol=1e-5)
    positive = bound_network(nn.Sequential(nn.ReLU()), form)
    assert torch.allclose(positive.upper, form.upper.clamp(min=0), atol=1e-6)
    assert torch.allclose(positive.lower, form.lower.clamp(min=0), atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        Function(lambda m, x: (x - x).flatten(1)),
        Function(lambda m, x: (m.identity(x) - x).flatten(1), identity=nn.Identity()),
        Function(lambda m, x: (2 * x - (x + x)).flatten(1)),
        Function(lambda m, x: (torch.cat([x, x], 1) - torch.cat([x, x], 1)).flatten(1)),
    ],
)
def test_shared_symbols_cancel(model):
    form = make_form(SHAPE, 3, 0)
    form = AffineForm(torch.cat([form.center[None], form.slopes]), torch.zeros_like(form.radius))
    bound = bound_network(model.eval(), form)
    assert (bound.slopes == 0).all()
    assert (bound.center == 0).all()
    assert bound.radius.max() < 1e-5


def test_margins_of_a_shared_last_layer_are_tighter_than_differences_of_logits():
    """Both logits are nearly the same function, so their difference is nearly constant whatever the logits do."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight[1] = model.weight[0]
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    bound = bound_network(model, make_form((4,), 1, 0, scale=10.0), torch.zeros(3, dtype=torch.int64))
    assert (bound.lower[:, 1] > 0.999).all()
    assert (bound.upper[:, 1] < 1.001).all()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda m, x: torch.tan(x).flatten(1), "tan"),
        (lambda m, x: x.flatten(1).sort(1)[0], "sort"),
        (lambda m, x: x.flatten(1).cumprod(1), "cumprod"),
        (lambda m, x: m.module(x.flatten(1, 2))[0].flatten(1), "gru|lstm|dimension"),
    ],
)
def test_an_operation_without_a_rule_is_named(function, name):
    model = Function(function, module=nn.LSTM(5, 2, batch_first=True)).eval()
    with pytest.raises(UnsupportedOperation, match=f"(?i){name}"):
        bound_network(model, make_form(SHAPE, 1, 0))


def test_the_network_itself_is_left_alone():
    model = build(SUPPORTED["deep"], 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    bound_network(model, make_form(SHAPE, 2, 0), torch.tensor([0, 1, 2]))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_rows_do_not_see_each_other():
    model = build(SUPPORTED["deep"], 0)
    form = make_form(SHAPE, 2, 0)
    together = bound_network(model, form)
    for row in range(3):
        alone = bound_network(
            model, AffineForm(torch.cat([form.center[None], form.slopes])[:, row : row + 1], form.radius[row : row + 1])
        )
        assert torch.allclose(together.lower[row], alone.lower[0], atol=1e-4)
        assert torch.allclose(together.upper[row], alone.upper[0], atol=1e-4)


@pytest.mark.parametrize("text", ["x + 0.1", "0.1 - x", "x * 0.7", "x / 0.3", "leaky(x, 0.1)", "x - 0.1 * x"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_decimal_constants_are_taken_at_full_precision(text, dtype):
    """0.1 in a float64 network is the float64 nearest to 0.1, not the float32 one, which is 1.5e-9 away."""
    function = eval(f"lambda m, x: m.head({text})", {"leaky": F.leaky_relu})
    model = build(lambda: Function(function, head=nn.Linear(60, 3)), 0).to(dtype)
    form = make_form((60,), 1, 0, scale=0.0, dtype=dtype)
    assert_inside(model, form, bound_network(model, form))


def test_nan_weights_give_no_finite_bound():
    model = build(SUPPORTED["relu"], 0)
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    try:
        bound = bound_network(model, make_form(SHAPE, 1, 0), torch.tensor([0, 1, 2]))
    except InputError:
        return
    others = torch.ones(3, 3, dtype=torch.bool) & ~torch.eye(3, dtype=torch.bool)
    assert not (bound.lower[others] > -1e30).any()
