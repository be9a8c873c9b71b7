"""Batch norm inside the convolution: the same function, fewer operations, and every rounding inside the bounds."""

import mpmath
import pytest
import torch
from torch import nn

from tiltproof import AffineForm, bound_network
from tiltproof.network import read_network


class Shared(nn.Module):
    """The convolution's output is read twice: by the batch norm and by the sum."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        values = self.conv(x)
        return (self.norm(values) + values).flatten(1)


def settled(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 2)
            module.running_var.uniform_(0.1, 3)
            module.weight.data.normal_(0, 2)
            module.bias.data.normal_(0, 2)
    return model.eval()


def plain(bias=True):
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=bias), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_the_scale_is_gone_and_the_function_is_the_same(bias, dtype):
    torch.manual_seed(0)
    model, images = settled(plain(bias)).to(dtype), torch.rand(4, 2, 5, 5, dtype=dtype)
    network = read_network(model, (2, 5, 5), images[:1])
    assert [operation.kind for operation in network.live(dtype).operations] == ["conv2d", "relu", "reshape"]
    assert "scale" in [operation.kind for operation in network.live().operations]  # training takes both steps
    assert "scale" in [operation.kind for operation in network.live(dtype, 2.0**-24).operations]  # so do evaluations
    form = bound_network(model, AffineForm(images[None], torch.zeros_like(images)))
    assert torch.allclose(form.center, model(images), atol=1e-4)
    assert (form.lower <= model.double()(images.double())).all()
    assert (model(images.double()) <= form.upper).all()


def test_an_output_that_is_read_twice_stays():
    torch.manual_seed(1)
    model, images = settled(Shared()), torch.rand(4, 2, 5, 5)
    kinds = [operation.kind for operation in read_network(model, (2, 5, 5), images[:1]).live(torch.float32).operations]
    assert kinds.count("scale") == 1
    form = bound_network(model, AffineForm(images[None], torch.zeros_like(images)))
    assert torch.allclose(form.center, model(images), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_shifts_that_nearly_cancel(bias, dtype):
    """s (w x + b - m) + t with m and t so large that what remains is mostly rounding: the exact value is inside all the same."""
    torch.manual_seed(2)
    channels = 200
    conv, norm = nn.Conv2d(1, channels, 1, bias=bias), nn.BatchNorm2d(channels)
    norm.running_var.uniform_(0.01, 30)
    norm.weight.data.normal_()
    norm.running_mean.uniform_(-1e4, 1e4)
    with torch.no_grad():
        norm.bias.copy_(norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt())
    model = nn.Sequential(conv, norm, nn.Flatten()).to(dtype).eval()
    image = torch.rand(1, 1, 1, 1, dtype=dtype)
    form = bound_network(model, AffineForm(image[None], torch.zeros_like(image)))
    with mpmath.workdps(50):
        number = lambda x: mpmath.mpf(float(x))  # noqa: E731
        for k in range(channels):
            value = number(conv.weight[k, 0, 0, 0]) * number(image) + (number(conv.bias[k]) if bias else 0)
            spread = mpmath.sqrt(number(norm.running_var[k]) + mpmath.mpf(norm.eps))
            exact = (value - number(norm.running_mean[k])) / spread * number(norm.weight[k]) + number(norm.bias[k])
            assert number(form.lower[0, k]) <= exact <= number(form.upper[0, k])
