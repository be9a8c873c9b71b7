"""Tracing a module: what is understood, and what is refused by name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tiltproof import InputError, UnsupportedOperation, bound_network
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import export_network

OLD_EXPORT = not hasattr(torch.compiler, "is_exporting")
"""Before torch 2.7."""


class Written(nn.Module):
    """A typical handwritten forward: length checks, constants, in-place operations, both spellings."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(64, 3)
        self.mean = torch.tensor([0.3]).view(1, 1, 1, 1)

    def forward(self, x):
        if len(x) == 0 or x.shape[1] != 1:
            raise ValueError
        x = (x - self.mean) / 0.5
        y = self.conv(x)
        F.relu(y, inplace=True)
        y = y + y.mul(2)  # y is rectified by now
        return self.fc(y.view(x.size(0), -1))


def test_point_bounds_equal_the_network():
    """A form without extent must yield the network's own output, up to rounding."""
    torch.manual_seed(0)
    model = Written().eval()
    x = torch.rand(3, 1, 4, 4)
    with torch.no_grad():
        bounds = bound_network(model, AffineForm.constant(x))
        assert torch.allclose(bounds.center, model(x), atol=1e-5)
    assert float(bounds.width.max()) < 1e-4


def test_live_parameters():
    """The graph is read once; its parameters are live, and gradients reach them."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    network = export_network(model, (1, 2, 2), torch.zeros(1, 1, 2, 2))
    with torch.no_grad():
        model[1].weight.fill_(3.0)
    weight = network.network_as().operations[-1].settings["weight"]
    assert weight is model[1].weight
    bounds = bound_network(model, AffineForm(torch.rand(2, 1, 1, 2, 2), torch.rand(1, 1, 2, 2), unit=0.0))
    bounds.upper.sum().backward()
    assert model[1].weight.grad is not None
    assert float(model[1].weight.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.RReLU(), nn.AdaptiveAvgPool3d(1)), "rrelu"),
        (nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic")), "upsample_bicubic2d"),
        (nn.Sequential(nn.ConstantPad2d(1, float("inf"))), "pad"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softmax2d(), nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 1, 1)), "conv3d"),
    ],
)
def test_an_unsupported_operation_is_named(model, name):
    with pytest.raises(UnsupportedOperation) as error:
        export_network(model, (1, 6, 6), torch.zeros(1, 1, 6, 6))
    text = str(error.value)
    assert name in text
    assert "node" in text
    assert "conv2d" in text  # the list of supported operations


class Through(nn.Module):
    """A linear layer after a function."""

    def __init__(self, function):
        super().__init__()
        self.function, self.fc = function, nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.function(x).flatten(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
        lambda x: (x.mean(0), F.max_pool2d(x, 2))[1],
        lambda x: F.max_pool2d(F.dropout(x, 0.0), 2),
    ],
    ids=["indices of a pool", "a mean over the batch", "dropout of nothing"],
)
def test_what_is_computed_for_nothing_is_left_out(function):
    torch.manual_seed(0)
    model, x = Through(function), torch.rand(3, 1, 4, 4)
    assert [operation.kind for operation in export_network(model, (1, 4, 4), torch.zeros(1, 1, 4, 4)).operations][
        -1
    ] == "linear"
    with torch.no_grad():
        bounds = bound_network(model, AffineForm.constant(x))
        assert torch.allclose(bounds.center, model(x), atol=1e-5)
    assert float(bounds.width.max()) < 1e-4


@pytest.mark.parametrize(
    "function", [lambda x: F.dropout(x, 0.5), lambda x: torch.dropout(x, p=0.5, train=True)], ids=["usual", "by name"]
)
def test_dropout_that_stays_in_training_is_refused(function):
    with pytest.raises(UnsupportedOperation, match="dropout in training mode"):
        export_network(Through(function), (1, 2, 2), torch.zeros(1, 1, 2, 2))


class DropoutThenInPlace(nn.Module):
    """Dropout in eval mode returns its input, so the ReLU below changes ``y`` too."""

    def __init__(self, reuse):
        super().__init__()
        self.reuse, self.dropout, self.relu, self.fc = reuse, nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x):
        y = self.fc(x.flatten(1))
        z = self.relu(self.dropout(y))
        return z + y if self.reuse else z


def test_writes_that_tracing_would_miss_are_refused():
    with pytest.raises(UnsupportedOperation, match="in place"):
        export_network(DropoutThenInPlace(reuse=True), (1, 2, 2), torch.zeros(1, 1, 2, 2))
    export_network(DropoutThenInPlace(reuse=False), (1, 2, 2), torch.zeros(1, 1, 2, 2))
    usual = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4, 2))
    export_network(usual, (1, 2, 2), torch.zeros(1, 1, 2, 2))


def test_a_model_that_cannot_run_is_refused_and_left_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)).train()
    with pytest.raises(InputError, match="cannot run"):
        export_network(model, (1, 6, 6), torch.zeros(1, 1, 6, 6))
    assert all(module.training for module in model.modules())


def test_training_mode_is_bounded_in_eval_mode_and_handed_back():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(32, 2)
    ).train()
    x = torch.rand(2, 1, 6, 6)
    bounds = bound_network(model, AffineForm.constant(x))
    assert all(module.training for module in model.modules())
    assert torch.allclose(bounds.center, model.eval()(x), atol=1e-5)


class WithConstant(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 3), function

    def forward(self, x):
        return self.function(self.fc, self.fc(x.flatten(1)))


@pytest.mark.parametrize(
    "function",
    [
        lambda _, y: y + torch.zeros(len(y), 3),
        lambda _, y: y * torch.ones(len(y), 1),
        lambda _, y: torch.zeros(len(y), 3) - y,
    ],
)
def test_constants_for_each_image_of_a_batch_are_refused(function):
    with pytest.raises(UnsupportedOperation, match=r"a row for each image of a batch.*torch.zeros\(1, ...\)"):
        bound_network(WithConstant(function).eval(), AffineForm.constant(torch.rand(2, 1, 2, 2)))


def test_a_number_out_of_a_parameter():
    model, x = WithConstant(lambda fc, y: y * fc.bias[0].item()).eval(), torch.rand(3, 1, 2, 2)
    with torch.no_grad():
        assert torch.allclose(bound_network(model, AffineForm.constant(x)).center, model(x), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda fc, y: y + fc.bias.tolist()[1],
        pytest.param(
            lambda fc, y: y + torch.tensor(fc.bias.tolist()),
            marks=pytest.mark.skipif(OLD_EXPORT, reason="torch 2.6 refuses to export it"),
        ),
    ],
)
def test_lists_of_numbers_out_of_parameters_are_refused(function):
    """While a module is traced, torch takes such a list apart number by number, so that its calls cannot be compared."""
    with pytest.raises(InputError, match="numbers taken out of tensors"):
        bound_network(WithConstant(function).eval(), AffineForm.constant(torch.rand(3, 1, 2, 2)))
