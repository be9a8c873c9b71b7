"""The checker's proof of deep networks: norms of convolutions, its rules on their worst members, and whole networks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.soundness.test_balls import Block, within
from tests.support.small_networks import settle
from tiltproof.checker import deep
from tiltproof.checker.deep import DeepForm
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation
from tiltproof.checker.spectral import conv2d_sigma
from tiltproof.checker.verdicts import differences


@pytest.fixture(autouse=True)
def in_evaluation():
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
    "slice": lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1)),
    "normalized": lambda x: (x - torch.tensor([0.1, 0.2]).view(1, 2, 1, 1)) / torch.tensor([0.5, 3.0]).view(1, 2, 1, 1),
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
    ],
)
def test_what_has_no_rule_proves_nothing(call):
    model = nn.Module()
    model.forward = lambda x: F.linear(call(x).flatten(1), torch.randn(2, 60).double())
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
