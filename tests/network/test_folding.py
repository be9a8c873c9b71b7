"""Folding scales into the operation before them: the same function, fewer operations, every rounding inside the bounds."""

import mpmath
import pytest
import torch
from torch import nn

from tiltproof import bound_network
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import read_network
from tiltproof.network.ops import REGISTRY

pytestmark = pytest.mark.usefixtures("in_proof")


class Shared(nn.Module):
    """Reads the convolution's output twice: in the batch norm and in the sum."""

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
    assert [operation.kind for operation in network.network_as(dtype).operations] == ["conv2d", "relu", "reshape"]
    assert "scale" in [operation.kind for operation in network.network_as().operations]  # training keeps both steps
    assert "scale" in [
        operation.kind for operation in network.network_as(dtype, 2.0**-24).operations
    ]  # so do evaluations
    form = bound_network(model, AffineForm(images[None], torch.zeros_like(images)))
    assert torch.allclose(form.center, model(images), atol=1e-4)
    assert (form.lower <= model.double()(images.double())).all()
    assert (model(images.double()) <= form.upper).all()


def test_an_output_that_is_read_twice_stays():
    torch.manual_seed(1)
    model, images = settled(Shared()), torch.rand(4, 2, 5, 5)
    kinds = [
        operation.kind for operation in read_network(model, (2, 5, 5), images[:1]).network_as(torch.float32).operations
    ]
    assert kinds.count("scale") == 1
    form = bound_network(model, AffineForm(images[None], torch.zeros_like(images)))
    assert torch.allclose(form.center, model(images), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_shifts_that_nearly_cancel(bias, dtype):
    """s (w x + b - m) + t with m and t so large that mostly rounding remains: the exact value is inside all the same."""
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_after_a_convolution(dtype):
    """They cancel nearly all of the first shift and use the rest; the bounds contain the roundings of all."""
    generator = torch.Generator().manual_seed(4)
    first, shift, second = (torch.randn(200, 1, 1, dtype=dtype, generator=generator) for _ in range(3))
    conv = nn.Conv2d(1, 200, 1, dtype=dtype)
    one = torch.ones_like(first)
    model = flat(
        conv, Scales(first, 1e6 * shift, second, -1e6 * shift * second), Scales(3 * one, 0 * one, one, 0 * one)
    )
    image = torch.rand(1, 1, 1, 1, dtype=dtype, generator=generator)
    network = read_network(model, (1, 1, 1), image).network_as(dtype)
    assert [operation.kind for operation in network.operations] == ["conv2d", "reshape"]
    form = bound_network(model, AffineForm(image[None], torch.zeros_like(image)))
    numbers = (conv.weight, conv.bias, first, 1e6 * shift, second, -1e6 * shift * second)
    with mpmath.workdps(50):
        for k, (w, b, f, s, g, t) in enumerate(zip(*(each.flatten().tolist() for each in numbers), strict=True)):
            value = 3 * (((mpmath.mpf(float(image)) * w + b) * f + s) * g + t)
            assert float(form.lower[0, k]) <= value <= float(form.upper[0, k])


class Scales(nn.Module):
    """Computes s (x f + t') + t with numbers for each entry; ``read_twice``: the value between the scales is an output too."""

    def __init__(self, first, shift, second, more, read_twice=False):
        super().__init__()
        for name, value in {"first": first, "shift": shift, "second": second, "more": more}.items():
            self.register_buffer(name, value)
        self.read_twice = read_twice

    def forward(self, x):
        between = x * self.first + self.shift
        result = between * self.second + self.more
        return result + between if self.read_twice else result


def flat(*modules):
    return nn.Sequential(*modules, nn.Flatten()).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_become_one_that_holds_the_exact_value(dtype):
    """The shifts are so large that their sum is mostly rounding."""
    generator = torch.Generator().manual_seed(3)
    first, shift, second = (torch.randn(1, 300, 1, dtype=dtype, generator=generator) for _ in range(3))
    scales = Scales(first, 1e4 * shift, second, -1e4 * shift * second)
    model = flat(scales)
    image = torch.rand(1, 1, 300, 1, generator=generator).to(dtype)
    network = read_network(model, (1, 300, 1), image)
    assert [operation.kind for operation in network.network_as(dtype).operations] == ["scale", "reshape"]
    assert [operation.kind for operation in network.network_as(dtype, 2.0**-24).operations].count("scale") == 4
    form = bound_network(model, AffineForm(image[None], torch.zeros_like(image)))
    with mpmath.workdps(50):
        numbers = (image, scales.first, scales.shift, scales.second, scales.more)
        for k, (x, f, s, g, t) in enumerate(zip(*(each.flatten().tolist() for each in numbers), strict=True)):
            value = (mpmath.mpf(x) * f + s) * g + t
            assert float(form.lower[0, k]) <= value <= float(form.upper[0, k])
    assert (form.radius < (1.0 if dtype == torch.float32 else 1e-9)).all()


def test_every_scale_of_a_chain_is_allowed_for():
    """Chains of any length need an allowance for every scale.

    A batch norm's factor has 4 roundings; it multiplies what comes before it, and its shift is added. The reserve of a single
    scale does not last for many.
    """
    torch.manual_seed(5)
    counts = []
    for length in (1, 9):
        model, image = settled(flat(*(nn.BatchNorm2d(1) for _ in range(length)))), torch.rand(1, 1, 2, 2)
        operations = read_network(model, (1, 2, 2), image).network_as(torch.float64).operations
        assert [operation.kind for operation in operations] == ["scale", "reshape"]
        counts.append(REGISTRY["scale"].terms(operations[0], image.shape))
    assert all(many >= one + 8 * 6 for one, many in zip(*counts, strict=True))


def test_a_scale_that_is_read_twice_stays():
    ones = torch.ones(1, 2, 2)
    model = flat(Scales(2 * ones, ones, 3 * ones, ones, read_twice=True))
    image = torch.rand(1, 1, 2, 2)
    kinds = [operation.kind for operation in read_network(model, (1, 2, 2), image).network_as(torch.float32).operations]
    assert kinds.count("scale") == 2
    assert torch.allclose(bound_network(model, AffineForm(image[None], torch.zeros_like(image))).center, model(image))


def test_a_product_of_scales_that_vanishes_is_not_forgotten():
    """2^-80 2^-80 is not a float32 number, and yet with x = 2^100 the result is 2^-60."""
    tiny, nothing = torch.full((1, 1, 1), 2.0**-80), torch.zeros(1, 1, 1)
    image = torch.full((1, 1, 1, 1), 2.0**100)
    form = bound_network(flat(Scales(tiny, nothing, tiny, nothing)), AffineForm(image[None], torch.zeros_like(image)))
    assert float(form.lower) <= 2.0**-60 <= float(form.upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_vanish_in_a_fold_are_not_forgotten(dtype):
    """The same for a convolution's weight and the scale after it, in both dtypes."""
    small, large = (2.0**-80, 2.0**100) if dtype == torch.float32 else (2.0**-600, 2.0**1000)
    conv, nothing = nn.Conv2d(1, 1, 1, bias=False, dtype=dtype), torch.zeros(1, 1, 1, dtype=dtype)
    conv.weight.data.fill_(small)
    model = flat(conv, Scales(nothing + small, nothing, nothing + 1, nothing))
    image = torch.full((1, 1, 1, 1), large, dtype=dtype)
    network = read_network(model, (1, 1, 1), image).network_as(dtype)
    assert [operation.kind for operation in network.operations] == ["conv2d", "reshape"]
    form = bound_network(model, AffineForm(image[None], torch.zeros_like(image)))
    assert float(form.lower) <= small * large * small <= float(form.upper)
