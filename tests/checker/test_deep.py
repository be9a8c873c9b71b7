"""The checker's proof of deep networks: norms of convolutions, its rules on their worst members, and whole networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiltproof
from tests.soundness.test_balls import Block, within
from tests.support.processes import ROOT
from tests.support.run_folder import manifest_of, record, write_run
from tests.support.small_networks import settle
from tiltproof.checker import CheckFailed, check, deep
from tiltproof.checker.deep import DeepForm
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation
from tiltproof.checker.polynomials import polynomial_images
from tiltproof.checker.spectral import conv2d_sigma
from tiltproof.checker.tiling import read_transform
from tiltproof.checker.verdicts import differences

NETWORKS = ROOT.parent / "shared" / "networks"


@pytest.fixture(autouse=True)
def in_evaluation(request):
    """Except for whole checks, which begin their own."""
    if "folder" in request.fixturenames:
        yield
    else:
        with evaluation(nn.Identity(), torch.device("cpu")):
            yield


CONVOLUTIONS = [  # outputs, inputs, kernel, stride, padding, dilation, size
    (4, 3, (3, 3), 1, 1, 1, (7, 6)),
    (4, 3, (3, 3), 2, 1, 1, (8, 5)),
    (2, 4, (2, 2), 2, 0, 1, (6, 8)),
    (3, 3, (2, 3), (1, 2), (2, 0), (2, 1), (6, 7)),
    (5, 2, (1, 1), 1, 0, 1, (3, 4)),
    (1, 1, (5, 5), 3, 2, 1, (6, 7)),
]


def matrix_of(weight: Tensor, stride, padding, dilation, size) -> tuple[Tensor, tuple[int, int]]:
    basis = torch.eye(weight.shape[1] * size[0] * size[1]).double().view(-1, weight.shape[1], *size)
    result = F.conv2d(basis, weight, None, stride, padding, dilation)
    return result.flatten(1).T, (result.shape[2], result.shape[3])


@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_sigma_of_convolutions(shape):
    outputs, inputs, kernel, stride, padding, dilation, size = shape
    for seed, factor in enumerate((1.0, 1e-60, 1e60)):
        torch.manual_seed(seed)
        weight = torch.randn(outputs, inputs, *kernel).double() * factor
        matrix, result = matrix_of(weight, stride, padding, dilation, size)
        true = float(torch.linalg.matrix_norm(matrix, 2))
        assert true * (1 - 1e-13) <= conv2d_sigma(weight, stride, padding, dilation, size, result) <= true * 1.6
    if stride == 2 and kernel == (2, 2):  # windows that do not overlap: the norm itself
        assert conv2d_sigma(weight, stride, padding, dilation, size, result) <= true * (1 + 1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_sigma_is_close_where_images_are_larger_than_kernels(stride):
    weight = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(stride)).double()
    matrix, result = matrix_of(weight, stride, 1, 1, (14, 12))
    true = float(torch.linalg.matrix_norm(matrix, 2))
    assert true * (1 - 1e-13) <= conv2d_sigma(weight, stride, 1, 1, (14, 12), result) <= true * 1.05


def test_sigma_is_attained():
    weight = torch.randn(4, 1, 1, 1).double() @ torch.ones(1, 3).double().view(1, 1, 1, 3)
    weight = weight.view(4, 3, 1, 1)
    true = float(weight.square().sum().sqrt())
    assert true <= conv2d_sigma(weight, 1, 0, 1, (4, 4), (4, 4)) <= true * (1 + 1e-5)


def make(radius: Tensor, ball: float, seed: int = 0) -> DeepForm:
    """A form [1, ...] around a random center with two symbols."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(4, 1, *radius.shape, generator=generator, dtype=torch.float64)
    rows[-1] = radius
    return DeepForm(rows, ball, torch.arange(2), [2])


class Normed(nn.Module):
    """A convolution and the batch norm behind it, of very different scales by channel."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, stride, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


LAYERS = {
    "conv": lambda: nn.Conv2d(2, 3, 3, padding=1),
    "conv stride": lambda: nn.Conv2d(2, 3, 3, 2, 1),
    "conv and norm": Normed,
    "conv and norm, stride": lambda: Normed(2),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 5)),
}
FUNCTIONS = {
    "mean": lambda x: x.mean((2, 3)),
    "slice": lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2)),
    "normalized": lambda x: (x - torch.tensor([0.1, 0.2]).view(1, 2, 1, 1)) / torch.tensor([0.5, 3.0]).view(1, 2, 1, 1),
    "times": lambda x: x * torch.tensor([-2.0, 0.3]).view(2, 1, 1) + 1,
    "average": lambda x: F.avg_pool2d(x, (2, 3)),
    "average with gaps": lambda x: F.avg_pool2d(x, 2, 3),
    "average of all": lambda x: F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1),
    "rows": lambda x: x.reshape(x.size(0), -1)[:, 3:50:2],
    "both": lambda x: x + x,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*LAYERS, *FUNCTIONS])
def test_members_stay_inside(name, seed):
    model = settle(LAYERS[name](), seed).double() if name in LAYERS else FUNCTIONS[name]
    shape, size = (2, 6, 5), 60
    basis = torch.eye(size).double().view(-1, *shape)
    zero = model(torch.zeros(1, *shape).double())
    matrix = (model(basis) - zero).flatten(1).T
    row = matrix[(len(matrix) // 2 + 1 + seed) % len(matrix)]  # of an output in the middle: all of the kernel is inside
    directions = torch.linalg.svd(matrix)[2]
    radius = torch.rand(size).double() + 0.1
    for radii, ball in ((radius, 99.0), (radius, 1.0), (radius * 99, 0.5), (row.abs() + 1e-12, 99.0)):
        form = make(radii.view(shape), ball)
        result = model(form)
        assert isinstance(result, DeepForm)
        members = [within(d * scale, radii, ball) for d in (*directions[:4], row) for scale in (1.0, ball, 99.0)]
        members += [within(each.sign() * radii, radii, ball) for each in (row, *matrix[:5])]
        moved = torch.stack(members) @ matrix.T
        assert (moved.abs() * (1 - 1e-13) <= result.radius.flatten()).all()
        assert (moved.norm(dim=1) * (1 - 1e-13) <= result.ball).all()
        # the center may round, and then differs by no more than what is left over
        assert torch.allclose(model(form.center), result.center, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_relu_holds_at_every_member(seed):
    torch.manual_seed(seed)
    radius = torch.rand(2, 4, 5).double() * 0.2
    form = make(radius, 0.3, seed)
    form.store[0][0] -= 0.5
    result = torch.relu(form)
    assert result.numbers.tolist() == list(range(len(result.numbers)))
    new = result.slopes[2:].abs().sum(0)
    assert len(result.numbers) > 2
    for _ in range(150):
        e = (torch.rand(2).double() * 2 - 1).sign()
        left = within((torch.rand(40).double() - 0.5).sign() * radius.flatten(), radius.flatten(), 0.3)
        x = form.center + torch.einsum("k,kp...->p...", e, form.slopes) + left.view(form.shape)
        rest = x.clamp(min=0) - result.center - torch.einsum("k,kp...->p...", e, result.slopes[:2])
        rest = (rest.abs() - new).clamp(min=0)
        assert (rest <= result.radius * (1 + 1e-12)).all()
        assert float(rest.norm()) <= result.ball


def test_errors_of_relu_are_in_the_ball():
    """Small kinks without symbols: all inputs at the bend."""
    rows = torch.zeros(3, 1, 50).double()
    rows[1], rows[2] = 0.1, 1.0
    result = torch.relu(DeepForm(rows, 1e-3, torch.arange(1), [1]))
    assert len(result.numbers) == 1
    assert float(result.ball) >= 0.25 * 50**0.5


@pytest.mark.parametrize("size", [0.0, 1e-4, 0.02])
def test_margins_of_members(size):
    """Whole networks: never above a member's margin; close to it for small boxes."""
    proved = 0
    for seed in range(4):
        torch.manual_seed(seed)
        model = settle(Residual(), seed).double()
        center, label = torch.rand(1, 1, 8, 8).double(), torch.tensor([seed % 3])
        rows = torch.cat(
            [center[None], torch.randn(3, 1, 1, 8, 8).double() * size, torch.rand(1, 1, 1, 8, 8).double() * size**2]
        )
        lower, upper = deep.margins(model, Form(rows), label, differences)
        e = torch.rand(200, 3).double() * 2 - 1
        e[::2] = e[::2].sign()
        x = (
            rows[0]
            + torch.einsum("nk,k...->n...", e, rows[1:4, 0])
            + (torch.rand(200, 1, 8, 8).double() - 0.5).sign() * rows[4]
        )
        answers = model(x)
        gaps = answers[:, label] - answers
        gaps[:, label] = torch.inf
        assert lower <= float(gaps.min())
        assert float(gaps.amin(1).max()) <= upper
        proved += float(gaps.min()) - lower < 1e-6 + 30 * size
    assert proved >= 3


class Residual(Block):
    """Without a difference of branches, which has no rule."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.b(torch.relu(self.a(x))) + x)
        x = torch.relu(self.d(torch.relu(self.c(x))) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        return self.last((torch.relu(self.e(x)) + torch.relu(self.f(x))).mean((2, 3)))


@pytest.mark.parametrize(
    "call",
    [
        torch.sigmoid,
        lambda x: x * x,
        lambda x: x - x,
        lambda x: x[:, [0, 0]],
        lambda x: x[:, :1] + x,
        lambda x: x.flatten(0),
        lambda x: x > 0,
        lambda x: -x,
        lambda x: F.conv2d(x, torch.ones(2, 1, 1, 1).double(), groups=2),
        # numbers that are repeated are longer together
        lambda x: x[:, :1] + torch.zeros(1, 2, 1, 1),
        lambda x: x[:, :1] - torch.zeros(2, 1, 1),
        lambda x: torch.zeros(2, 1, 1) + x[:, :1],
        lambda x: x[:, :1] * torch.ones(1, 2, 1, 1),
        lambda x: x[:, :1] / torch.ones(1, 2, 1, 1),
        lambda x: F.pad(x, (1, 1), mode="replicate"),
        lambda x: F.avg_pool2d(x, 3, 2),
        lambda x: F.avg_pool2d(x, 2, padding=1),
        lambda x: x.sigmoid() if hasattr(x, "sigmoid") else x,
        lambda x: torch.relu_(x.flatten(1)),
        lambda x: (x[:, :, 1:], torch.relu_(x))[0],
    ],
)
def test_what_has_no_rule_proves_nothing(call):
    model = nn.Module()
    model.forward = lambda x: last(call(x).flatten(1))

    def last(x):
        return F.linear(x, torch.randn(2, math.prod(x.shape[1:])).double())

    rows = torch.zeros(3, 1, 2, 6, 5).double()
    assert deep.margins(model, Form(rows), torch.tensor([0]), differences) == (-torch.inf, torch.inf)


def test_kinks_of_two_branches_have_symbols_of_their_own():
    """relu(x) + relu(-z) - (x - z) / 2 is (|x| + |z|) / 2: with one symbol for both, and of opposite signs, nothing would be left."""

    def forward(x: Tensor) -> Tensor:
        x = x.flatten(1)
        first, second = (F.linear(x, torch.tensor([row]).double()) for row in ([1.0, 0.0], [0.0, 1.0]))
        kinks = torch.relu(first) + torch.relu(second) * -1.0 + F.linear(x, torch.tensor([[-0.5, 0.5]]).double())
        return F.linear(kinks, torch.tensor([[1.0], [0.0]]).double())

    model = nn.Module()
    model.forward = forward
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).double().view(4, 1, 1, 1, 2)
    assert -0.6 < deep.margins(model, Form(rows), torch.tensor([0]), differences)[0] <= -0.5


@pytest.mark.parametrize("change", ["data", "in place", "another tensor"])
def test_norms_of_weights_that_change(change):
    weight = nn.Parameter(torch.randn(2, 2, 3, 3).double())

    def ball() -> float:
        return F.conv2d(make(torch.full((2, 6, 5), 0.1).double(), 1e-3), weight, padding=1).ball

    before = ball()
    if change == "data":
        weight.data.mul_(8)
    elif change == "in place":
        with torch.no_grad():
            weight.mul_(8)
    else:
        weight.data = weight.data * 8
    assert ball() == pytest.approx(8 * before, rel=1e-9)


def test_in_place_and_not_are_the_same():
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 2, 3, padding=1).double(), settle(nn.BatchNorm2d(2), 0).double()
    radius = torch.rand(2, 6, 5).double()

    def out_of_place(x: Tensor) -> Tensor:
        x = torch.relu(x)
        return torch.relu(norm(conv(x)) + x)

    def in_place(x: Tensor) -> Tensor:
        same = F.relu(x, inplace=True)
        y = conv(x)
        x += norm(y)
        y.relu_()  # nothing reads it any more
        return same.relu_()

    first, second = (call(make(radius, 0.4)) for call in (out_of_place, in_place))
    assert torch.equal(first.rows, second.rows)
    assert first.ball == second.ball


def test_a_convolution_written_over_is_not_one():
    """Batch norm takes what stands there now."""
    radius = torch.full((2, 6, 5), 1e-9).double()
    conv, norm = nn.Conv2d(2, 2, 3, padding=1).double(), settle(nn.BatchNorm2d(2), 0).double()
    x, other = make(radius, 1e-9), make(radius * 1e9, 1e9)
    other.counter = x.counter
    y = conv(x)
    y += other
    assert norm(y).ball > 1e-3


def test_too_many_numbers_are_given_up(monkeypatch):
    monkeypatch.setattr(deep, "MOST_BYTES", 8 * 60 * 5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2)).double()
    rows = torch.zeros(3, 1, 2, 6, 5).double()
    rows[1] = 1.0
    assert deep.margins(model, Form(rows), torch.tensor([0]), differences) == (-torch.inf, torch.inf)
    monkeypatch.setattr(deep, "MOST_BYTES", 2**20)
    assert math.isfinite(deep.margins(model, Form(rows), torch.tensor([0]), differences)[0])


class Plain(nn.Module):
    """Fourteen layers without any training: radii grow by 10^12 or so."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Conv2d(1 if k == 0 else 6, 6, 3, padding=1) for k in range(14))
        self.last = nn.Linear(6, 3)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)
            layer.bias.data.normal_(std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return self.last(x.mean((2, 3)))


class Deep:
    """A run about one image and R(4), with a network that radii do not prove."""

    def __init__(self, folder):
        self.folder, self.model = folder, Plain().eval()
        self.images = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            answers = self.model(self.images)
        self.labels = answers.argmax(1)
        top = answers.topk(2).values[0]
        self.margin = float(top[0] - top[1])

    def check(self, *fields, label=None, keep=None, **settings):
        labels = self.labels if label is None else torch.tensor([label])
        verdict, rest = fields
        manifest = manifest_of(self.model, self.images, labels, "R(4)")
        manifest["claim"] |= {} if keep is None else {"keep": keep}
        write_run(self.folder, manifest, [record(0, int(labels), verdict, **rest)])
        return check(self.folder, self.model, self.images, labels, **settings)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def tiled(tree: str, margin: float = 0.001) -> tuple:
    return "certified", {"margin": margin, "grid": [2], "tree": tree, "boxes": 1 + tree.count("2") + tree.count("a")}


def test_a_run_of_a_deep_network(folder, monkeypatch):
    """Four boxes hold, and three do not."""
    case = Deep(folder)
    assert case.check(*tiled("a2.a2."), extra_splits=0).sub_boxes == 4
    for tree in ("1.a2.", "a2.1."):
        with pytest.raises(CheckFailed, match="could not be re-proved"):
            case.check(*tiled(tree), extra_splits=0)
    assert case.check(*tiled("1.a2.")).sub_boxes == 4, "the claim holds, and halves of the box show it"
    with pytest.raises(CheckFailed, match="its margin is smaller than claimed"):
        case.check(*tiled("a2.a2.", margin=0.5))
    monkeypatch.setattr(deep, "margins", lambda *_: (-math.inf, math.inf))
    with pytest.raises(CheckFailed, match="could not be re-proved"):
        case.check(*tiled("a2.a2."), extra_splits=0)


def test_other_rules_than_the_label(folder):
    """A positive margin of the label says nothing about another rule; that of the own answer is the same."""
    case = Deep(folder)
    assert case.check(*tiled("a2.a2."), keep={"rule": "own"}, extra_splits=0).sub_boxes == 4
    row = torch.full((3,), -0.5).index_fill(0, case.labels, 1.0).tolist()
    rows = {"rule": "linear", "each": None, "rows": [[row]], "bounds": [[case.margin / 2]]}
    with pytest.raises(CheckFailed, match="could not be re-proved"):
        case.check(*tiled("a2.a2."), keep=rows, extra_splits=0)


class Turns(nn.Module):
    """Orthogonal matrices, with small row norms and long sums of sizes, and ReLUs."""

    def __init__(self, linear: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = linear
        self.layers = nn.ModuleList(nn.Linear(64, 64) if linear else nn.Conv2d(64, 64, 1) for _ in range(30))
        self.last = nn.Linear(64, 3)
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, 1.4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), 64) if self.linear else x.reshape(x.size(0), 64, 1, 1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.last(x.flatten(1))


@pytest.mark.parametrize("linear", [False, True])
def test_points_of_a_deep_network(folder, monkeypatch, linear):
    """Radii of roundings decide nothing at a point where they grow by 10^25, and lengths do."""
    case = Deep(folder)
    case.model = Turns(linear).eval()
    with torch.no_grad():
        case.labels = case.model(case.images).argmax(1)
    other = 1 if int(case.labels) == 0 else 0
    with pytest.raises(CheckFailed, match="the network is right about it"):
        case.check("misclassified", {"margin": -1.0})
    found = {"margin": -1e9, "counterexample": [0.0]}
    with pytest.raises(CheckFailed, match="does not change the answer"):
        case.check("falsified", found)
    with pytest.raises(CheckFailed, match="it is misclassified"):
        case.check("falsified", found, label=other)
    assert case.check("misclassified", {"margin": -1.0}, label=other).images == 1
    monkeypatch.setattr(deep, "margins", lambda *_: (-math.inf, math.inf))
    assert case.check("misclassified", {"margin": -1.0}).images == 1, "radii alone cannot tell"


def test_a_forward_pass_that_tells_deep_forms_apart(folder):
    """It cannot show the bounds another network than the one that answers."""
    case = Deep(folder)
    inner, own = case.model.forward, int(case.labels)
    scores = torch.zeros(3).index_fill(0, case.labels, 5.0)

    def forward(x):
        y = inner(x)
        return F.linear(y * 0.0, torch.zeros(3, 3), scores) if isinstance(x, DeepForm) else y

    case.model.forward = forward
    with pytest.raises(CheckFailed, match="answer to the image lies outside its bounds"):
        case.check(*tiled("1.a2."), label=own, extra_splits=0)

    def refusing(x):
        """It gives no answer to points."""
        return forward(x if not isinstance(x, DeepForm) or len(x.numbers) > 4 else x.sigmoid())

    case.model.forward = refusing
    with pytest.raises(CheckFailed, match="could not be re-proved"):
        case.check(*tiled("2."), label=own, extra_splits=0)


def test_roundings_join_the_ball():
    """Of an exact input nothing is left over but what the layer rounds."""
    torch.manual_seed(0)
    precise = np.longdouble
    size = 60
    conv, norm = nn.Conv2d(2, 3, 3, padding=1).double(), settle(nn.BatchNorm2d(2), 0).double()
    linear = nn.Linear(size, 5).double()
    layers = {
        "conv": conv,
        "linear": lambda x: linear(x.flatten(1)),
        "norm": norm,
        "mean": lambda x: x.mean((2, 3)),
        "both": lambda x: x + x * 0.1 + 0.7,
        "difference": lambda x: (x - 0.1) / 0.3,
    }
    for name, layer in layers.items():
        form = DeepForm(
            torch.stack([torch.rand(1, 2, 6, 5).double() / 3, torch.zeros(1, 2, 6, 5).double()]), 0.0, none, [0]
        )
        x = form.center.numpy().astype(precise).flatten()
        if name == "norm":
            column = [
                t.detach().numpy().astype(precise).reshape(2, 1)
                for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            ]
            exact = (x.reshape(2, -1) - column[0]) / np.sqrt(column[1] + precise(norm.eps)) * column[2] + column[3]
        elif name == "both":
            exact = x + x * precise(0.1) + precise(0.7)
        elif name == "difference":
            exact = (x - precise(0.1)) / precise(0.3)
        elif name == "mean":
            exact = x.reshape(2, -1).sum(1) / 30
        else:  # weights come out exactly
            bias = layer(torch.zeros(1, 2, 6, 5).double()).flatten()
            plain = {
                "conv": lambda y: F.conv2d(y, conv.weight, None, 1, 1),
                "linear": lambda y: y.flatten(1) @ linear.weight.T,
            }
            matrix = plain[name](torch.eye(size).double().view(-1, 2, 6, 5)).flatten(1).T
            exact = matrix.detach().numpy().astype(precise) @ x + bias.detach().numpy().astype(precise)
        with torch.no_grad():
            result = layer(form)
        off = np.abs(exact.flatten() - result.center.numpy().astype(precise).flatten())
        assert 0 < np.sqrt((off**2).sum()) <= result.ball < 1e-13, name
        assert (off <= result.radius.numpy().flatten()).all(), name


none = torch.arange(0)


def test_the_last_layer_takes_all_of_the_ball():
    """Radii in proportion to the difference of rows: |d| . r is |d|_2 |r|_2."""
    weight = torch.randn(2, 20).double()
    apart = weight[0] - weight[1]
    rows = torch.stack([torch.rand(20).double(), apart.abs() / 7]).view(2, 1, 1, 4, 5)
    model = nn.Module()
    model.forward = lambda x: F.linear(x.flatten(1), weight)
    lower, upper = deep.margins(model, Form(rows), torch.tensor([0]), differences)
    middle, reach = float(rows[0].flatten() @ apart), float(apart.square().sum() / 7)
    assert middle - reach - 1e-9 <= lower <= middle - reach + 1e-14
    assert middle + reach - 1e-14 <= upper <= middle + reach + 1e-9


@pytest.mark.parametrize(("low", "high"), [(-4.0, -2.0), (0.0, 2.0), (0.5, 0.75), (3.0, 3.0)])
@pytest.mark.parametrize("seed", range(2))
def test_margins_of_sampled_transformations(low, high, seed):
    """The whole way from the image, against the module in float64 on transformed images."""
    model = Plain(seed).eval().double()
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(seed)).double()
    label = model(image).argmax(1)
    ends = (torch.tensor([[end]]).double() for end in (low, high))
    form = polynomial_images(image, read_transform("R(4)"), *ends, 64)
    lower, upper = deep.margins(model, form, label, differences)
    angles = torch.linspace(low, high, 60).double().unsqueeze(1)
    answers = model(tiltproof.parse("R(4)").apply(image.expand(60, -1, -1, -1).contiguous(), angles))
    ahead = answers[:, label] - answers
    ahead[:, label] = math.inf
    ahead = ahead.amin(1)
    assert lower - 1e-12 <= float(ahead.min())
    assert float(ahead.max()) <= upper + 1e-12
    assert upper - lower < 0.1


@pytest.mark.slow
@pytest.mark.skipif(not NETWORKS.is_dir(), reason="no ../shared/networks")
def test_a_run_of_a_resnet_20(folder):
    """Four boxes of 0.03 degrees hold; merged with their neighbours until one has 0.5 degrees, they do not."""
    model = tiltproof.models.load(str(NETWORKS / "resnet20-cifar10.safetensors"), "cifar10_resnet20")
    images, labels = (each[:1] for each in tiltproof.data.load("cifar10-sample"))

    def checked(transform: str, grid: int):
        claim = {"margin": 0.001, "grid": [grid], "tree": f"{grid}.", "boxes": grid}
        manifest = manifest_of(model, images, labels, transform)
        write_run(folder, manifest, [record(0, int(labels), "certified", **claim)])
        return check(folder, model, images, labels, extra_splits=0)

    assert checked("R(0.0625)", 4).sub_boxes == 4
    with pytest.raises(CheckFailed, match="could not be re-proved"):
        checked("R(0.5)", 2)
