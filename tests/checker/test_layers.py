"""Outputs of many small networks never leave the forms that their own forward passes propagate."""

from __future__ import annotations

import ast
import copy
import operator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import small_networks
from tiltproof import checker
from tiltproof.checker.form import UNIT32, Form
from tiltproof.checker.network import evaluation
from tiltproof.checker.operations import linear, relu
from tiltproof.checker.photometric import quotient, reciprocal, sine_and_cosine
from tiltproof.checker.pixels import as_float32
from tiltproof.checker.verdicts import bound_margins
from tiltproof.errors import InputError


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)
        self.norm, self.end = nn.BatchNorm2d(4), nn.Linear(2, 3)
        self.register_buffer("mean", torch.tensor([0.3, 0.6]).view(1, 2, 1, 1))

    def forward(self, x):
        x = (x - self.mean) / 0.25
        y = self.b(F.relu(self.norm(self.a(x)), inplace=True))
        x = x + y
        x += 0.5 * y
        x = torch.cat([x, 1 - y], dim=1)[:, :2]
        return self.end(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.end = nn.Linear(36, 3)

    def forward(self, x):
        y = x.permute(0, 2, 3, 1).transpose(1, 3).contiguous().clone()
        y = y.relu_().unsqueeze(1).squeeze(1)[:, :, 1:4, ...]
        y = y.reshape(x.size(0), -1) * torch.full((36,), 0.5) - torch.sigmoid(x[:, 0, 0, 0].unsqueeze(1))
        return torch.tanh(self.end(y.view(y.shape[0], 36)))


class Product(nn.Module):
    def forward(self, x):
        gate = torch.sigmoid(x.mean((2, 3), keepdim=True))
        return torch.neg((x * gate).mean(dim=(2,)).flatten(1)[:, :3] / 3)


class BatchSecond(nn.Module):
    """Pixels, images, channels: as recurrent networks and torch's transformers have them by default."""

    def __init__(self):
        super().__init__()
        self.enter, self.norm = nn.Linear(2, 4), nn.LayerNorm(4, eps=1.0)
        self.attention, self.end = nn.MultiheadAttention(4, 2), nn.Linear(144, 3)

    def forward(self, x):
        x = F.gelu(self.enter(x.flatten(2).permute(2, 0, 1))) * 0.5 - torch.tensor([0.1, 0.2, 0.0, 0.3])
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        scores = (x.transpose(0, 1) @ x.permute(1, 2, 0) * 0.02).softmax(-1).transpose(0, 1)
        x = -torch.relu(x) / 2 + scores[..., :4]
        return self.end(x.transpose(0, 1).flatten(1))


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(7)
    found = {
        "conv": nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        "dilated groups": nn.Sequential(
            nn.Conv2d(2, 4, (3, 2), dilation=(2, 1), groups=2, bias=False), nn.Flatten(), nn.Linear(40, 3)
        ),
        "in place": nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(True), nn.Conv2d(4, 3, 4), nn.LeakyReLU(0.2, True), nn.Flatten()
        ),
        "max": nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
        ),
        "means": nn.Sequential(
            nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Dropout(), nn.Linear(4, 4)
        ),
        "deep": nn.Sequential(
            nn.Flatten(), *[m for _ in range(4) for m in (nn.Linear(72, 72), nn.ReLU())], nn.Linear(72, 3)
        ),
        "smooth": nn.Sequential(
            nn.Flatten(), nn.Linear(72, 9), nn.Sigmoid(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2)
        ),
        "residual": Residual(),
        "moves": Moves(),
        "batch second": BatchSecond(),
        "product": nn.Sequential(nn.Conv2d(2, 3, 3), Product(), nn.Linear(3, 2)),
    }
    for network in found.values():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.1, 3)
                module.weight.data.normal_()
                module.bias.data.normal_()
    return {name: network.eval() for name, network in found.items()}


def random_form(seed: int, width: float, pairs: int = 3, symbols: int = 2) -> Form:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(2 + symbols, pairs, 2, 6, 6, generator=generator, dtype=torch.float64)
    data[1:] *= width
    data[-1] = data[-1].abs() * 0.3
    return Form(data)


def point(form: Form, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    e = torch.rand(len(form.slopes), generator=generator, dtype=torch.float64) * 2 - 1
    rho = torch.rand(form.shape, generator=generator, dtype=torch.float64) * 2 - 1
    if seed % 3 == 0:
        e, rho = e.sign(), rho.sign()
    return form.center + torch.tensordot(e, form.slopes, 1) + rho * form.radius, e


def outside(form: Form, e: torch.Tensor, value: torch.Tensor) -> float:
    """Return how far a value leaves the form at these symbols, minus the error of its own float64 evaluation."""
    excess = (value - form.center - torch.tensordot(e, form.slopes, 1)).abs() - form.radius
    return (excess - 1e-13 * (1 + form.magnitude)).max().item()


@pytest.fixture
def evaluating():
    """Enter `evaluation`, without which the checker refuses to follow a forward pass."""
    with evaluation(nn.Identity(), torch.device("cpu")):
        yield


@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("width", [1e-9, 0.01, 0.2, 1.0])
def test_outputs_are_inside(name, width):
    network = networks()[name]
    reference = copy.deepcopy(network).double()
    for seed in range(4):
        form = random_form(seed, width)
        labels = torch.tensor([0, 1, 1])
        with evaluation(network, torch.device("cpu")):
            output, margins = network(Form(form.rows)), bound_margins(network, Form(form.rows), labels)
        for k in range(12):
            x, e = point(form, 100 * seed + k)
            with torch.no_grad():
                y = reference(x)
            assert outside(output, e, y) <= 0
            others = y.masked_fill(F.one_hot(labels, y.shape[1]).bool(), -torch.inf).amax(1)
            margin = y[range(3), labels] - others
            assert (margins.lower - 1e-12 <= margin).all()
            assert (margin <= margins.upper + 1e-12).all()


@pytest.mark.parametrize("name", networks())
def test_float32_evaluations_are_inside(name):
    """torch's own float32 pass, channels last or not, is one of the evaluations that the form must contain."""
    network = networks()[name]
    for seed in range(6):
        form = random_form(seed, 1e-6)
        output = network(as_float32(form))
        for k in range(6):
            x, e = point(form, k)
            with torch.no_grad():
                for y in (network(x.float()), network(x.float().to(memory_format=torch.channels_last))):
                    assert outside(output, e, y.double()) <= 0
        assert output.radius.max() < 1


@pytest.mark.parametrize("width", [1e-6, 0.05, 0.5])
@pytest.mark.parametrize("name", small_networks.SUPPORTED)
def test_outputs_of_every_operation_are_inside(name, width):
    """The networks that the prover's rules are tested on; real-valued, and float32 as torch evaluates it."""
    network, labels = small_networks.build(small_networks.SUPPORTED[name], 1), torch.tensor([0, 1, 2])
    reference = copy.deepcopy(network).double()
    form = Form(random_form(2, width).rows[..., :5])
    with evaluation(network, torch.device("cpu")):
        if name in small_networks.CHECKER_REFUSES:
            with pytest.raises(InputError):
                bound_margins(network, Form(form.rows), labels)
            return
        output, rounded = network(Form(form.rows)), network(as_float32(form))
        margins = bound_margins(network, Form(form.rows), labels)
    for k in range(24):
        x, e = point(form, k)
        with torch.no_grad():
            y, evaluated = reference(x.clone()), network(x.float()).double()
        assert outside(output, e, y) <= 0
        assert outside(rounded, e, evaluated) <= 0
        margin = y[range(3), labels] - y.masked_fill(F.one_hot(labels, 3).bool(), -torch.inf).amax(1)
        assert (margins.lower - 1e-12 <= margin).all()
        assert (margin <= margins.upper + 1e-12).all()


def test_float32_sums_in_any_order():
    rng = np.random.default_rng(0)
    for n in (3, 50, 700):
        w1, w2 = rng.normal(size=(8, n)).astype(np.float32), rng.normal(size=(3, 8)).astype(np.float32)
        x = rng.random(n).astype(np.float32)
        form = Form(torch.zeros(2, 1, n, dtype=torch.float64), UNIT32)
        form.rows[0] = torch.tensor(x).double()
        bias = torch.tensor(rng.normal(size=3).astype(np.float32))
        output = linear(relu(linear(form, torch.tensor(w1))), torch.tensor(w2), bias)

        def dot(a, b):
            terms = list((a * b)[rng.permutation(len(a))])
            while len(terms) > 1:  # add two at random: a random summation tree
                i = rng.integers(len(terms) - 1)
                terms[i] = np.float32(terms[i] + terms.pop())
            return terms[0]

        for _ in range(20):
            hidden = np.maximum(np.array([dot(row, x) for row in w1], dtype=np.float32), np.float32(0))
            y = np.array([dot(row, hidden) for row in w2], dtype=np.float32) + bias.numpy()
            assert (np.abs(y - output.center[0].numpy()) <= output.radius[0].numpy()).all()


def test_float64_rounding_is_absorbed_exactly():
    """Check against rational arithmetic without tolerance; the numbers cancel, so little but rounding is left."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        w, x = (
            torch.randn(2, 40, generator=generator, dtype=torch.float64),
            torch.randn(40, generator=generator, dtype=torch.float64),
        )
        w[:, 20:], x[20:] = -w[:, :20] * (1 + 1e-15), x[:20]
        form = Form(torch.stack([x, torch.zeros_like(x)])[:, None])
        output = linear(form * 3.3 - 0.1, w)
        for row in range(2):
            inputs = [Fraction(v) * Fraction(3.3) - Fraction(0.1) for v in x.tolist()]
            truth = sum(Fraction(a) * b for a, b in zip(w[row].tolist(), inputs, strict=True))
            assert abs(truth - Fraction(output.center[0, row].item())) <= Fraction(output.radius[0, row].item())


def test_a_single_layer_s_rounding_is_absorbed_exactly():
    generator = torch.Generator().manual_seed(4)
    for _ in range(50):
        w, x = (
            torch.randn(40, generator=generator, dtype=torch.float64),
            torch.randn(40, generator=generator, dtype=torch.float64),
        )
        output = linear(Form(torch.stack([x, torch.zeros_like(x)])[:, None]), w[None])
        truth = sum(Fraction(a) * Fraction(b) for a, b in zip(w.tolist(), x.tolist(), strict=True))
        assert abs(truth - Fraction(output.center.item())) <= Fraction(output.radius.item())


def test_ends_of_a_form_are_rounded_outward():
    generator = torch.Generator().manual_seed(5)
    form = Form(torch.randn(5, 300, generator=generator, dtype=torch.float64) ** 3)
    form.rows[-1].abs_()
    for k in range(300):
        center, *spread = (Fraction(v) for v in form.rows[:, k].tolist())
        assert Fraction(form.lower()[k].item()) <= center - sum(map(abs, spread))
        assert Fraction(form.upper()[k].item()) >= center + sum(map(abs, spread))


ELEMENTWISE = {
    "scale": lambda x: x * 0.1,
    "shift": lambda x: x - 0.3,
    "divide": lambda x: x / 0.7,
    "add": lambda x: x + x.flatten(2).transpose(1, 2).reshape(x.shape),
    "multiply": lambda x: x * x.transpose(2, 3),
    "norm": lambda x: F.batch_norm(x, torch.tensor([0.1, 5.0]), torch.tensor([0.3, 2.0]), torch.tensor([1.7, 0.3])),
    "leaky": lambda x: F.leaky_relu(x, 0.3),
    "mean": lambda x: x.mean((2, 3)),
    "pool": lambda x: F.avg_pool2d(x, 3, 1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_float32_rounding_of_one_operation_is_paid_for(name):
    """The image is already float32, so only the operation's own rounding remains to be covered."""
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(6))
    form = Form(torch.stack([x.double(), torch.zeros_like(x).double()]), UNIT32)
    output, value = ELEMENTWISE[name](form), ELEMENTWISE[name](x).double()
    assert (value - output.center).abs().max() > 0, "the evaluation happens to be exact: nothing is tested"
    assert ((value - output.center).abs() <= output.radius).all()
    assert output.radius.max() < 1e-4


@pytest.mark.parametrize("width", [1e-3, 0.1, 1.0])
def test_a_maximum_at_its_extremes(width):
    """Check maxima where one number of the window is as high as possible and the others as low as possible."""
    form = random_form(8, width)
    output = F.max_pool2d(form, 2)
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        e = torch.tensor(signs, dtype=torch.float64)
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            rho = -torch.ones(6, 6, dtype=torch.float64)
            rho[i::2, j::2] = 1
            x = form.center + torch.tensordot(e, form.slopes, 1) + rho * form.radius
            assert outside(output, e, F.max_pool2d(x, 2)) <= 0


def test_sine_cosine_and_reciprocal():
    import mpmath

    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        data = torch.randn(3, 1, 1, generator=generator, dtype=torch.float64)
        data[1:] *= 10.0 ** -(seed % 9)
        data[-1].abs_()
        form = Form(data)
        positive = Form(data.clone())
        positive.rows[0] = data[0].abs() + 2 * (data[1].abs() + data[2]) + 0.01
        sine, cosine = sine_and_cosine(form)
        for f, of, result in (
            (mpmath.sin, form, sine),
            (mpmath.cos, form, cosine),
            (lambda t: 1 / t, positive, reciprocal(positive)),
        ):
            for e, rho in ((1, 1), (-1, 1), (0.3, -1), (1, -1), (0, 0)):
                with mpmath.workdps(60):
                    c, g, r = (mpmath.mpf(v) for v in of.rows.flatten().tolist())
                    value = f(c + g * e + r * rho)
                    c, g, r = (mpmath.mpf(v) for v in result.rows.flatten().tolist())
                    assert abs(value - c - g * e) <= r, (seed, f)


def test_quotient():
    """Check on rational numbers: both remainders at either end, symbols shared by numerator and denominator."""
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        x, w = torch.randn(2, 4, 1, 6, generator=generator, dtype=torch.float64).unbind()
        for data, share in ((x, 10.0 ** -(seed % 7)), (w, 10.0 ** -(seed % 5))):
            data[1:] *= share
            data[-1] = data[-1].abs() * (seed % 3 > 0)
        w[0] = w[0].abs() + w[1:].abs().sum(0) * (1 + 10.0 ** -(seed % 4)) + 1e-6
        x[1:3, :, :3] = (x[0] / w[0] * w[1:3])[..., :3]  # the symbols cancel there
        result = quotient(Form(x), Form(w)).rows.tolist()
        for e in ((1, 1), (-1, 1), (-1, -1), (Fraction(1, 3), 0)):
            for at, below in ((1, 1), (1, -1), (-1, 1)):
                for k in range(6):
                    (a, *g, r), (c, *h, s) = ([Fraction(v) for v in f[:, 0, k].tolist()] for f in (x, w))
                    truth = (a + g[0] * e[0] + g[1] * e[1] + at * r) / (c + h[0] * e[0] + h[1] * e[1] + below * s)
                    c, *g, r = (Fraction(row[0][k]) for row in result)
                    assert abs(truth - c - g[0] * e[0] - g[1] * e[1]) <= r, (seed, e, k)


def test_a_quotient_by_what_reaches_zero_is_unknown():
    x, w = (Form(torch.tensor(rows, dtype=torch.float64).view(3, 1)) for rows in ((1.0, 0.1, 0.0), (0.5, 0.3, 0.2)))
    assert not quotient(x, w).radius.isfinite().any()


@pytest.mark.usefixtures("evaluating")
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 1e200])
def test_what_is_not_finite_proves_nothing(broken):
    for name, network in networks().items():
        form = random_form(0, 0.01)
        form.rows[0, 1, 0, 2, 2] = broken
        for unit in (0.0, UNIT32):
            margins = bound_margins(network, Form(form.rows, unit), torch.tensor([0, 1, 1]))
            assert not margins.lower[1] > 0 or broken == 1e200, name


class Forward(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.end = function, nn.Linear(72, 2)

    def forward(self, x):
        return self.end(self.function(x).flatten(1))


def swallowing(x):
    try:
        return torch.erfinv(x)
    except Exception:
        return x


REFUSED = {
    "softmax of the batch": lambda x: torch.softmax(x, 0),
    "maximum of padding alone": lambda x: F.max_pool2d(x[:, :, :1], (2, 1), 1, (2, 0), (3, 1)).repeat(1, 3, 1, 1),
    "nothing to attend to": lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(6, 6).tril(-1).bool()),
    "a mask for each image": lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(3, 1, 6, 6) > 0),
    "einsum over the batch": lambda x: torch.einsum("nchw,nchw->chw", x, x),
    "einsum over one's dimension": lambda x: torch.einsum("nchw,nch->nc", x, x.mean(3)),
    "sort": lambda x: x.sort(1).values,
    "values": lambda x: x if x.mean((1, 2, 3)).max() > 0 else -x,
    "branch": lambda x: x if (x[:, 0, 0, 0] > 0) else -x,
    "batch mean": lambda x: x - x.mean(0),
    "whole mean": lambda x: x - x.mean(),
    "batch size": lambda x: x.reshape(1, -1).flip(1).reshape(x.shape),
    "batch cat": lambda x: torch.cat([x, x]),
    "mixed batch": lambda x: x.transpose(0, 1),
    "first of batch": lambda x: x[0:1],
    "constant per image": lambda x: x * torch.ones(3, 1, 1, 1),
    "view then in place": lambda x: (x.transpose(2, 3), x.relu_())[1],
    "in place on a view": lambda x: F.relu(x[:, :1], inplace=True),
    "in place after contiguous": lambda x: x.contiguous().relu_(),
    "reshape of a permuted copy, in place": lambda x: (x.permute(0, 1, 3, 2) * 2).flatten(1).__iadd__(1.0),
    "swallowed": swallowing,
    "training dropout": lambda x: F.dropout(x, 0.5, True),
    "training norm": lambda x: F.batch_norm(x, None, None, training=True),
    "data": lambda x: x.detach(),
    "raw numbers": lambda x: x.data,
    "power": lambda x: x ** torch.full((1,), 2.0),
    "power of a form": lambda x: x**x,
    "numpy": lambda x: np.asarray(x),
    "divide": lambda x: x // x,
    "steep leaky": lambda x: F.leaky_relu(x, 1.5),
    "ceil": lambda x: F.max_pool2d(x, 4, ceil_mode=True),
}


class AliasedReshape(nn.Module):
    """Writes through a reshape and reads the original tensor, and vice versa."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 3, 3), nn.Linear(48, 3)

    def forward(self, x):
        y = self.first(x)
        flat = y.flatten(1)
        flat.relu_()
        y += 0.25
        outputs = self.last(flat + y.reshape(y.shape[0], -1))
        again = outputs.view(outputs.shape[0], 3)
        again *= -1
        return outputs


@pytest.mark.usefixtures("evaluating")
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3])
def test_writing_through_a_reshape(spread):
    torch.manual_seed(3)
    model = AliasedReshape().eval()
    form, labels = random_form(1, spread), torch.tensor([0, 1, 2])
    margins = bound_margins(model, Form(form.rows), labels)
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        for trial in range(20):
            symbols = (
                torch.rand(len(form.rows) - 2, generator=torch.Generator().manual_seed(trial), dtype=torch.float64) * 2
                - 1
            )
            image = form.center + torch.einsum("k,k...->...", symbols, form.slopes)
            outputs = double(image)
            own = outputs.gather(1, labels[:, None])[:, 0]
            margin = own - outputs.scatter(1, labels[:, None], -torch.inf).amax(1)
            assert (margin >= margins.lower).all()
            assert (margin <= margins.upper).all()


@pytest.mark.usefixtures("evaluating")
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused(name):
    with pytest.raises(InputError):
        bound_margins(Forward(REFUSED[name]).eval(), random_form(0, 0.1), torch.tensor([0, 1, 1]))


@pytest.mark.usefixtures("evaluating")
def test_later_changes_in_place_do_not_reach_the_margins():
    """The last linear layer's input is remembered as it was before the change."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.end = nn.Linear(72, 2)

        def forward(self, x):
            hidden = x.flatten(1) * 1.0
            y = self.end(hidden)
            hidden *= 0.0
            return y

    network, form = Late().eval(), random_form(0, 1e-9)
    margins = bound_margins(network, form, torch.tensor([0, 0, 0]))
    with torch.no_grad():
        y = copy.deepcopy(network).double()(point(form, 1)[0])
    assert torch.allclose(margins.lower, y[:, 0] - y[:, 1], atol=1e-6)


def test_modes_come_back():
    network = nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
    network[1].eval()
    with evaluation(network, torch.device("cpu")):
        assert not network[0].training
    assert network.training
    assert network[0].training
    assert not network[1].training


def test_every_function_has_one_rule():
    """A second rule would replace the first, depending on which module is imported last."""
    found = {}
    for path in sorted(Path(checker.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "rule":
                    for name in map(ast.unparse, decorator.args):
                        found.setdefault(name, []).append(path.name)
    assert len(found) > 100
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize(
    "mixing",
    [
        lambda x: x.permute(1, 0, 2, 3) * torch.ones(3, 6, 1),  # numbers of their own for each image
        lambda x: x.flatten(1).transpose(0, 1).softmax(-1),
        lambda x: x.flatten(1).transpose(0, 1) @ torch.ones(3, 3, dtype=torch.float64),
        lambda x: F.relu(x.permute(1, 0, 2, 3), inplace=True),
        lambda x: operator.iadd(x.permute(1, 0, 2, 3), 1.0),
        lambda x: F.layer_norm(x.permute(1, 0, 2, 3), (6, 6)),
        lambda x: x.permute(1, 0, 2, 3).mean(0),
    ],
)
@pytest.mark.usefixtures("evaluating")
def test_values_with_the_batch_second_are_not_mixed(mixing):
    form = random_form(0, 0.1)
    assert mixing(form.center).shape
    with pytest.raises((InputError, AttributeError), match=r"batch dimension is not the first"):
        mixing(form)
