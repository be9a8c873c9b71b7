"""Every architecture is bounded and certified: bounds contain all samples, and are tight enough to mean something."""

import pytest
import torch

from tiltproof import Attack, BranchAndBound, Verdict, bound_network, bound_pixels, certify, certify_range, parse
from tiltproof.models import ARCHITECTURES

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "tinyimagenet": (3, 56, 56), "driving": (3, 66, 200)}
RANGE = "R(10:10.00001)"
"""Small, so that bounds of these networks are nearly exact; away from 0, where every pixel has a kink."""


CLASSIFIERS = [name for name in ARCHITECTURES if not name.startswith("driving")]


def marked(names, *slow):
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def network_and_image(name):
    """Return a network with random weights and running statistics in float64, and a smooth image.

    The weights are smaller than fresh ones, with which the bounds of the residual network grow a billionfold.
    """
    torch.manual_seed(0)
    model = ARCHITECTURES[name]()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2)
        elif isinstance(module, torch.nn.Conv2d):
            module.weight /= 4
    channels, height, width = SHAPES[name.partition("_")[0]]
    rows, columns = torch.arange(height).view(-1, 1) / 9, torch.arange(width) / 7
    image = 0.5 + 0.4 * torch.sin(rows + torch.arange(channels).view(-1, 1, 1)) * torch.cos(columns)
    return model.eval().double(), image[None].double()


@pytest.mark.parametrize("name", marked(ARCHITECTURES, "tinyimagenet_wide_resnet"))
def test_bounds_contain_what_is_sampled_and_little_else(name):
    model, image = network_and_image(name)
    transform = parse(RANGE)
    form = bound_network(model, bound_pixels(image, transform))
    low, high = transform.low[0], transform.high[0]
    parameters = torch.linspace(low, high, 5, dtype=torch.float64).view(-1, 1)
    outputs = model(transform.apply(image.expand(5, -1, -1, -1), parameters))
    assert (form.lower <= outputs).all()
    assert (outputs <= form.upper).all()
    assert form.width.max() < 0.1 * (outputs - model(image)).abs().max(), "the image at 0 degrees has other outputs"


@pytest.mark.parametrize(
    "name", marked(CLASSIFIERS, "tinyimagenet_wide_resnet", "tinyimagenet_cnn7", "cifar10_resnet18")
)
def test_an_answer_far_ahead_is_certified(name):
    model, image = network_and_image(name)
    *_, last = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    last.bias[3] += 100
    certificate = certify(
        model, image, torch.tensor([3]), RANGE, search=BranchAndBound(max_boxes=4), attack=Attack(samples=1)
    )
    assert certificate.verdicts == [Verdict.CERTIFIED]
    assert 90 < certificate.margins[0] < 110


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in CLASSIFIERS])
def test_the_range_of_an_angle_is_certified(name):
    model, image = network_and_image(name)
    transform = parse(RANGE)
    (result,) = certify_range(model, image, None, transform, search=BranchAndBound(max_boxes=4)).results
    for degrees in (transform.low[0], transform.high[0]):
        angle = float(model(transform.apply(image, torch.tensor([[degrees]], dtype=torch.float64))))
        assert result.lower[0] <= angle <= result.upper[0]
    assert result.width < 0.1 * abs(angle - float(model(image)))
