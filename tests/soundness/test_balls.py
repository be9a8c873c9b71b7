"""Forms with a ball and symbols for kinks: norms of layers, each rule on its worst members, and whole networks in extended precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.small_networks import Function, settle
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.kinks import largest, relu_with_symbols, with_symbols
from tiltproof.network import Network, margins, read_network, run
from tiltproof.network.arithmetic import Window
from tiltproof.network.deep import DeepPass
from tiltproof.network.graph import Operation
from tiltproof.network.operator_norms import convolution_norm, matrix_norm
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.linear import ROW_BY_ROW

pytestmark = pytest.mark.usefixtures("in_proof")


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


LAYERS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(2 * 6 * 5, 7)),
    "conv": lambda: nn.Conv2d(2, 3, 3, padding=1),
    "conv stride": lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1),
    "conv uneven": lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(0, 1)),
    "conv dilation": lambda: nn.Conv2d(2, 3, 2, dilation=2, padding=2),
    "conv groups": lambda: nn.Conv2d(2, 4, 3, groups=2, padding=1),
    "conv of points": lambda: nn.Conv2d(2, 3, 1, stride=2),
    "conv batch norm": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)),
    "conv transposed": lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
    "scale": lambda: Function(lambda m, x: x * m.by + 1, by=torch.tensor([2.0, -3.0]).view(-1, 1, 1)),
    "average": lambda: nn.AvgPool2d(3, 2, 1),
    "average of all": lambda: Function(lambda _, x: x.mean((2, 3))),
    "adaptive average": lambda: nn.AdaptiveAvgPool2d((4, 3)),
    "sum": lambda: Function(lambda _, x: x.sum((2, 3))),
    "slice": lambda: Function(lambda _, x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))),
    "turn": lambda: Function(lambda _, x: x.permute(0, 2, 3, 1).flatten(1)),
    "branches side by side": lambda: Function(
        lambda m, x: torch.cat([m.a(x), x, 2 * x], 1), a=nn.Conv2d(2, 2, 3, padding=1)
    ),
    "sum of branches": lambda: Function(lambda m, x: m.a(x) + x, a=nn.Conv2d(2, 2, 3, padding=1)),
    "difference": lambda: Function(lambda m, x: m.a(x) - x, a=nn.Conv2d(2, 2, 3, padding=1)),
}


def matrix_of(model: nn.Module, network: Network) -> Tensor:
    """The linear part of an affine model, as a matrix."""
    size = network.shape
    basis = torch.eye(int(np.prod(size)), dtype=torch.float64)
    zero = model(torch.zeros(1, *size, dtype=torch.float64))
    return (model(basis.view(-1, *size)) - zero).flatten(1).T


def within(x: Tensor, radius: Tensor, ball: float) -> Tensor:
    """The vector cut to |x_i| <= r_i and shortened to |x|_2 <= ball."""
    x = torch.minimum(torch.maximum(x, -radius), radius)
    return x * min(1.0, ball / max(float(x.norm()), 1e-300))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LAYERS)
def test_what_is_left_over_stays_in_radius_and_ball(name, seed):
    """Members that stretch one output as far as it goes, or all of them together: they attain the bounds or nearly so."""
    model = settle(LAYERS[name](), seed).double()
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 6, 5)
    traced = read_network(model, shape, torch.rand(2, *shape, dtype=torch.float64))
    network = traced.network_as(torch.float64)
    matrix = matrix_of(model, network)
    size = matrix.shape[1]
    _, _, directions = torch.linalg.svd(matrix)
    radius = torch.rand(size, generator=generator, dtype=torch.float64) + 0.1
    # all radii count, both count, the ball alone, and radii that are proportional to the row of one output
    row = matrix[int(torch.randint(len(matrix), (1,), generator=generator))]
    for radii, ball in ((radius, 99.0), (radius, 1.0), (radius * 99, 0.5), (row.abs() + 1e-12, 99.0)):
        center = torch.rand(1, *shape, generator=generator, dtype=torch.float64)
        form = AffineForm(center[None], radii.view(1, *shape)).with_ball(torch.tensor([ball]).double())
        plain, forms = {network.input: AffineForm(center[None], radii.view(1, *shape))}, {network.input: form}
        for operation in network.operations:
            for found in (plain, forms):
                rule = REGISTRY[operation.kind]
                found[operation.name] = rule.forward(operation, [found[each] for each in operation.inputs])
        result = forms[network.output]
        assert result.ball is not None
        assert (result.radius <= plain[network.output].radius * (1 + 1e-9)).all(), "never looser"
        assert float(result.ball) <= float(plain[network.output].radius.norm()) * (1 + 1e-9)
        members = [
            within(direction * scale, radii, ball)
            for direction in (*directions[:4], row)
            for scale in (1.0, ball, 99.0)
        ]
        members += [within(each.sign() * radii, radii, ball) for each in (row, *matrix[:5])]
        members += [within(torch.where(row != 0, radii, 0.0) * row.sign(), radii, ball)]
        moved = torch.stack(members) @ matrix.T
        exact = 1 - 1e-13
        assert (moved.abs() * exact <= result.radius.flatten()).all()
        assert (moved.norm(dim=1) * exact <= result.ball).all()


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if name not in ("conv batch norm", "average", "adaptive average")]
)
def test_roundings_join_the_ball(name):
    """Of an exact input nothing is left over but what the layer rounds; numbers without trailing zeros, so that it does."""
    network = read_network(settle(LAYERS[name](), 0).double(), (2, 6, 5), torch.rand(2, 2, 6, 5).double()).network_as(
        torch.float64
    )
    center = torch.rand(1, 2, 6, 5, dtype=torch.float64) / 3
    form = AffineForm(center[None], torch.zeros_like(center)).with_ball(torch.zeros(1).double())
    forms = {network.input: form}
    for operation in network.operations:
        inputs = [forms[each] for each in operation.inputs]
        forms[operation.name] = REGISTRY[operation.kind].forward(operation, inputs)
    result = forms[network.output]
    exact = precisely(network, center.numpy().astype(np.longdouble))
    off = np.abs(exact - result.center.numpy().astype(np.longdouble))
    assert np.sqrt((off**2).sum()) <= float(result.ball)
    assert (off <= result.radius.numpy()).all()
    assert float(result.ball) < 1e-13


@pytest.mark.parametrize("seed", range(4))
def test_norms_are_attained(seed):
    """Of layers whose blocks have rank one, and of windows that do not overlap, the bounds are the norms themselves."""
    torch.manual_seed(seed)
    column, row = torch.randn(7, 1).double(), torch.randn(1, 9).double()
    true = float(column.norm() * row.norm())
    assert true <= matrix_norm(column @ row) <= true * (1 + 1e-6)
    weight = torch.randn(1, 3, 2, 2).double()
    true = float(weight.norm())
    window = _window(stride=2)
    assert true * (1 - 1e-14) <= convolution_norm(weight, window, (6, 8), (3, 4)) <= true * (1 + 1e-6)
    weight = (torch.randn(5, 1) @ torch.randn(1, 4)).view(5, 4, 1, 1).double()
    true = float(torch.linalg.matrix_norm(weight.flatten(1), 2))
    assert true * (1 - 1e-14) <= convolution_norm(weight, _window(), (6, 8), (6, 8)) <= true * (1 + 1e-6)


def _window(stride: int = 1):
    return Window((stride, stride), (0, 0), (1, 1), 1)


@pytest.mark.parametrize("wide", [False, True])
def test_norms_of_random_matrices(wide):
    """Matrices of equal singular values, of very different ones, of zeros and of huge or tiny numbers."""
    torch.manual_seed(1)
    for make in (torch.linalg.qr, lambda x: (x * torch.logspace(-8, 8, x.shape[1]).double(), 0)):
        weight = make(torch.randn(40, 12).double())[0]
        weight = weight.T if wide else weight
        for factor in (1.0, 1e-90, 1e90):
            true = float(torch.linalg.matrix_norm(weight, 2)) * factor
            assert true * (1 - 1e-13) <= matrix_norm(weight * factor) <= true * 1.01
    assert matrix_norm(torch.zeros(3, 4)) < 1e-80
    assert matrix_norm(torch.full((3, 4), torch.inf)) == torch.inf


def leftovers(form: AffineForm, y: Tensor, e: Tensor, old: int) -> Tensor:
    """|y - center - old symbols| [P, ...], less what the new symbols can take."""
    slopes = form.slopes
    rest = y - form.center - torch.einsum("kp,kp...->p...", e, slopes[:old])
    return (rest.abs() - slopes[old:].abs().sum(0)).clamp(min=0)


@pytest.mark.parametrize(("most", "negligible"), [(0, 0.0), (3, 0.0), (999, 0.0), (999, 0.3)])
@pytest.mark.parametrize("seed", range(4))
def test_relu_with_symbols_holds_at_every_member(seed, most, negligible):
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=torch.float64) * 2 - 1

    shape = (2, 3, 4, 5)
    stack = torch.stack([draw(*shape), *(draw(*shape) * 0.2 for _ in range(3))])
    radius, ball = draw(*shape).abs() * 0.3, torch.tensor([0.2, 0.6], dtype=torch.float64)
    form = AffineForm(stack, radius).with_ball(ball)
    result = relu_with_symbols(form, most, negligible)
    assert result.symbols <= 3 + most
    assert most or result.symbols == 3
    for _ in range(150):
        e = draw(3, 2)
        e = e.sign() if seed % 2 else e
        left = torch.stack(
            [within(draw(60).sign() * radius[p].flatten(), radius[p].flatten(), float(ball[p])) for p in (0, 1)]
        )
        x = stack[0] + torch.einsum("kp,kp...->p...", e, stack[1:]) + left.view(shape)
        rest = leftovers(result, x.clamp(min=0), e, 3)
        assert (rest <= result.radius * (1 + 1e-12)).all()
        assert (rest.flatten(1).norm(dim=1) <= result.ball).all()


def test_errors_without_symbols_are_in_the_ball():
    """All inputs at the bends: every output is a whole error away from its line."""
    count = 50
    stack = torch.stack([torch.zeros(1, count), torch.eye(1, count) * 0 + 1.0]).double()
    form = AffineForm(stack, torch.zeros(1, count).double()).with_ball(torch.zeros(1).double())
    result = relu_with_symbols(form, 0)
    # relu(e) for e = 1: the line s e + t / 2 with s = 1/2, t = 1/2 is 3/4
    assert float(result.ball) >= 0.25 * count**0.5
    assert (result.radius >= 0.25).all()
    some = relu_with_symbols(form, 10)
    assert float(some.ball) >= 0.25 * (count - 10) ** 0.5
    assert some.symbols == 11


def test_radii_become_symbols_and_nothing_is_lost():
    torch.manual_seed(0)
    radius = torch.rand(2, 3, 4).double()
    form = AffineForm(torch.rand(2, 2, 3, 4).double(), radius)
    for most, negligible in ((0, 0.0), (5, 0.0), (99, 0.0), (99, 1.0)):
        result = with_symbols(form, most, negligible)
        assert torch.allclose(result.slopes[1:].abs().sum(0) + result.radius, radius, rtol=0, atol=1e-15)
        assert (result.radius.flatten(1).norm(dim=1) <= result.ball).all()
    values, _ = largest(radius.flatten(1), 99, 1.0)
    assert 0 < len(values[0]) < 12


class Block(nn.Module):
    """A residual network with a narrow image, a strided shortcut as in ResNet-20, and two branches with kinks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.c, self.d = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.e, self.f = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = (self.b(self.a(x).relu()) + x).relu()
        x = (self.d(self.c(x).relu()) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))).relu()
        x = self.e(x).relu() - self.f(x).relu()
        return self.last(x.mean((2, 3)))


def precisely(network: Network, x: np.ndarray) -> np.ndarray:
    """The outputs for images [N, ...] in extended precision, by each operation's matrix."""
    values = {network.input: x}
    shapes = {network.input: network.shape}
    for operation in network.operations:
        shapes[operation.name] = operation.shape
        first = values[operation.inputs[0]]
        if operation.kind == "relu":
            result = np.maximum(first, 0)
        elif operation.kind == "concat":
            result = np.concatenate([values[each] for each in operation.inputs], 1)
        elif operation.kind in ("add", "sub"):
            result = first + values[operation.inputs[1]] * (1 if operation.kind == "add" else -1)
        else:
            shape, rule = shapes[operation.inputs[0]], REGISTRY[operation.kind]
            basis = torch.eye(int(np.prod(shape)), dtype=torch.float64).view(-1, *shape)
            if hasattr(rule, "signed"):
                matrix, shift = rule.signed(operation, basis), rule.shift(operation, basis)
                result = first.reshape(len(first), -1) @ matrix.flatten(1).numpy().astype(np.longdouble)
                if operation.kind in ("mean", "sum"):  # 1 / n is rounded
                    count = np.longdouble(np.prod(shape[1:]) if operation.kind == "mean" else 1)
                    result = first.reshape(len(first), shape[0], -1).sum(2) / count
                result = result.reshape(len(first), *operation.shape)
                if shift is not None:
                    result = result + shift.numpy().astype(np.longdouble)
            else:
                result = first.reshape(len(first), -1) @ rule.move(operation, basis).flatten(1).numpy().astype(
                    np.longdouble
                )
                result = result.reshape(len(first), *operation.shape)
        values[operation.name] = result
    return values[network.output]


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-3, 0.03])
@pytest.mark.parametrize("stretch", [1.0, 30.0])
def test_whole_networks_in_extended_precision(size, stretch):
    """Margins of members are never below the bound, by not even a rounding; weights so large that roundings show."""
    for seed in range(2):
        model = settle(Block(), seed).double()
        for name, parameter in model.named_parameters():
            if name.startswith(("a.w", "b.w", "c.w", "d.w")):
                parameter *= stretch
        generator = np.random.default_rng(seed)
        shape = (1, 8, 8)
        # unfolded: folding rounds weights, which the oracle would have to do as well
        network = read_network(model, shape, torch.rand(2, *shape).double()).network_as(torch.float64)
        for operation in network.operations:
            operation.settings.pop("roundings", None)
        center = torch.from_numpy(generator.random((2, *shape)))
        slopes = torch.from_numpy(generator.standard_normal((3, 2, *shape))) * size
        slopes[1:] *= size
        radius = torch.from_numpy(generator.random((2, *shape))) * size**2
        form = AffineForm(torch.cat([center[None], slopes]), radius)
        labels = torch.tensor([seed % 3, 1])
        for options in ({}, {"most_symbols": 2000, "tolerance": 1e-9}, {"tolerance": 1e9}):
            walk = DeepPass(network, **options)
            forms = walk.run(form, 5)
            if forms is None:
                continue
            result = margins(network, forms, labels)
            e = generator.uniform(-1, 1, (20, 3, 2))
            e[::2] = np.sign(e[::2])
            s = np.sign(generator.uniform(-1, 1, (20, 2, *shape)))
            wide = [each.numpy().astype(np.longdouble) for each in (center, slopes, radius)]
            x = wide[0] + np.einsum("nkp,kp...->np...", e.astype(np.longdouble), wide[1]) + s * wide[2]
            for row in (0, 1):
                answers = precisely(network, x[:, row])
                gaps = answers[:, labels[row], None] - answers
                lower, upper = result.lower[row].numpy(), result.upper[row].numpy()
                assert (gaps >= lower).all()
                assert (gaps <= upper).all()


def test_the_deep_pass_is_tighter_than_the_plain_one():
    """Through a stack of layers, where radii grow and lengths do not."""
    torch.manual_seed(0)
    layers = [module for _ in range(12) for module in (nn.Linear(64, 64), nn.ReLU())]
    for module in layers[::2]:
        nn.init.orthogonal_(module.weight)
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 4)).double().eval()
    center = torch.rand(1, 1, 8, 8).double()
    form = AffineForm(torch.stack([center, torch.randn_like(center) * 1e-4]), torch.full_like(center, 1e-9))
    network = read_network(model, (1, 8, 8), center).network_as(torch.float64)
    labels = torch.tensor([0])
    plain = margins(network, run(network, form), labels).radius[0, 1:]
    forms = DeepPass(network).run(form)
    assert forms is not None
    assert (margins(network, forms, labels).deviation()[0, 1:] < plain / 100).all()


def test_weights_that_differ_by_row():
    """Margins of many classes: each row of the batch has its own last layer."""
    torch.manual_seed(0)
    weight = torch.randn(2, 5, 7).double()
    settings = {"weight": weight, "bias": None, "roundings": 2}
    operation = Operation("last", "linear", ("x",), settings, (5,), kept={})
    radius, ball = torch.rand(2, 7).double(), torch.tensor([0.3, 0.1]).double()
    result = ROW_BY_ROW.forward(operation, [AffineForm(torch.rand(1, 2, 7).double(), radius).with_ball(ball)])
    for row in (0, 1):
        for k in range(5):
            member = within(weight[row, k] * 99, radius[row], float(ball[row]))
            assert float((weight[row, k] @ member).abs()) * (1 - 1e-13) <= float(result.radius[row, k])


def test_kinks_of_two_branches_have_symbols_of_their_own():
    """relu(x) - relu(z) - (x - z) / 2 is (|x| - |z|) / 2: both kinks are all there is, and the same symbol for both would cancel."""
    first, second, line = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)
    for layer, weights in ((first, [1.0, 0.0]), (second, [0.0, 1.0]), (line, [-0.5, 0.5])):
        layer.weight.data, layer.bias.data = torch.tensor([weights]), torch.zeros(1)
    last = nn.Linear(1, 2)
    last.weight.data, last.bias.data = torch.tensor([[1.0], [0.0]]), torch.zeros(2)

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return m.last(m.first(x).relu() - m.second(x).relu() + m.line(x))

    model = Function(forward, first=first, second=second, line=line, last=last).double()
    network = read_network(model, (1, 1, 2), torch.rand(2, 1, 1, 2).double()).network_as(torch.float64)
    stack = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).view(3, 1, 1, 1, 2).double()
    forms = DeepPass(network, tolerance=1e-9).run(AffineForm(stack, torch.zeros(1, 1, 1, 2).double()))
    assert forms is not None
    result = margins(network, forms, torch.tensor([0]))
    assert result.symbols == 4
    assert float(result.lower[0, 1]) <= -0.5
    assert float(result.upper[0, 1]) >= 0.5
