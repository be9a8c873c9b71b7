"""The architectures: the paper's shapes, the weight names, and the built-in normalization."""

import pytest
import torch

from tiltproof.models import ARCHITECTURES, cifar10_cnn, mnist_cnn
from tiltproof.models.architectures import WideBlock

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "tinyimagenet": (3, 56, 56), "driving": (3, 66, 200)}
OUTPUTS = {"mnist": 10, "cifar10": 10, "tinyimagenet": 200, "driving": 1}
DRIVING = {
    "conv1": (24, 3, 5, 5), "conv2": (36, 24, 5, 5), "conv3": (48, 36, 5, 5), "conv4": (64, 48, 3, 3), "conv5": (64, 64, 3, 3),
    "fc1": (100, 64 * 1 * 18), "fc2": (50, 100), "fc3": (10, 50), "fc4": (1, 10),
}  # fmt: skip
CNN7 = {
    "conv1": (64, 3, 3, 3), "conv2": (64, 64, 3, 3), "conv3": (128, 64, 3, 3), "conv4": (128, 128, 3, 3), "conv5": (128, 128, 3, 3),
    "norm_conv1": (64,), "norm_conv2": (64,), "norm_conv3": (128,), "norm_conv4": (128,), "norm_conv5": (128,),
}  # fmt: skip
EXPECTED = {
    "mnist_cnn": {"conv1": (32, 1, 4, 4), "conv2": (64, 32, 4, 4), "fc1": (200, 3136), "fc2": (10, 200)},
    "cifar10_cnn": {
        "conv1": (32, 3, 3, 3), "conv2": (32, 32, 4, 4), "conv3": (64, 32, 4, 4), "fc1": (150, 4096), "fc2": (10, 150),
    },
    "cifar10_wide": {
        "conv1": (64, 3, 3, 3), "conv2": (128, 64, 4, 4), "conv3": (256, 128, 4, 4), "fc1": (128, 4096), "fc2": (10, 128),
    },
    "cifar10_cnn7": {**CNN7, "fc1": (256, 2048), "fc2": (10, 256)},
    "tinyimagenet_cnn7": {**CNN7, "fc1": (512, 128 * 14 * 14), "fc2": (200, 512)},
    "tinyimagenet_wide": {
        "conv1": (96, 3, 5, 5), "conv2": (192, 96, 4, 4), "conv3": (256, 192, 3, 3), "conv4": (192, 256, 4, 4),
        "norm_conv1": (96,), "norm_conv2": (192,), "norm_conv3": (256,), "norm_conv4": (192,),
        "fc1": (256, 192 * 7 * 7), "fc2": (200, 256),
    },
    "tinyimagenet_wide_resnet": {
        "conv1": (16, 3, 3, 3), "norm": (640,), "fc": (200, 640 * 2 * 2),
        "block1.norm1": (16,), "block1.conv1": (160, 16, 3, 3), "block1.shortcut": (160, 16, 1, 1),
        "block1.norm2": (160,), "block1.conv2": (160, 160, 3, 3),
        "block2.norm1": (160,), "block2.conv1": (320, 160, 3, 3), "block2.shortcut": (320, 160, 1, 1),
        "block2.norm2": (320,), "block2.conv2": (320, 320, 3, 3),
        "block3.norm1": (320,), "block3.conv1": (640, 320, 3, 3), "block3.shortcut": (640, 320, 1, 1),
        "block3.norm2": (640,), "block3.conv2": (640, 640, 3, 3),
    },
    "driving_cnn": DRIVING,
    "driving_cnn_dropout": DRIVING,
}  # fmt: skip
"""The weights; each has a bias."""


def data_of(name):
    return name.partition("_")[0]


def images_for(name, count=1):
    return torch.rand(count, *SHAPES[data_of(name)], generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", EXPECTED)
def test_parameters_have_names_and_shapes(name):
    shapes = {key: tuple(tensor.shape) for key, tensor in ARCHITECTURES[name]().named_parameters()}
    weights = {key.removesuffix(".weight"): shape for key, shape in shapes.items() if key.endswith("weight")}
    assert weights == EXPECTED[name]
    assert {key: shape for key, shape in shapes.items() if not key.endswith("weight")} == {
        f"{key}.bias": shape[:1] for key, shape in EXPECTED[name].items()
    }


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_one_score_per_class_or_one_angle(name):
    with torch.no_grad():
        assert ARCHITECTURES[name]().eval()(images_for(name)).shape == (1, OUTPUTS[data_of(name)])


def test_the_residual_network_has_millions_of_parameters_and_few_bytes():
    model = ARCHITECTURES["cifar10_resnet18"]()
    assert sum(parameter.numel() for parameter in model.parameters()) >= 3_000_000
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) < 16_000_000
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert sum(1 for layer in layers if getattr(layer, "kernel_size", (1, 1)) != (1, 1)) == 17
    assert sum(isinstance(layer, torch.nn.Linear) for layer in layers) == 1


def test_the_shallow_residual_network_has_nine_layers_and_three_million_parameters():
    model = ARCHITECTURES["cifar10_resnet9"]()
    assert sum(parameter.numel() for parameter in model.parameters()) >= 3_000_000
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 9


@pytest.mark.parametrize(
    ("data", "mean", "deviation"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("tinyimagenet", [0.4799, 0.4480, 0.3975], [0.2766, 0.2691, 0.2818]),
        ("driving", [0.3544, 0.3644, 0.3824], [0.2437, 0.2262, 0.2175]),
        ("cifar10_resnet20", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ],
)
def test_the_input_is_normalized_inside(data, mean, deviation):
    average = torch.tensor(mean).view(1, -1, 1, 1)
    for name in ARCHITECTURES:
        if data == (name if name == "cifar10_resnet20" else data_of(name)):
            normalize = ARCHITECTURES[name]().normalize
            assert torch.equal(normalize(average), torch.zeros_like(average))
            assert torch.allclose(normalize(average + torch.tensor(deviation).view(1, -1, 1, 1)), torch.ones(()))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_normalization_comes_first(name):
    """The first convolution sees an image of the mean color as zero."""
    model, seen = ARCHITECTURES[name]().eval(), []
    model.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(model.normalize.mean.expand(1, *SHAPES[data_of(name)]))
    assert not seen[0].any()


@pytest.mark.parametrize(("build", "shape"), [(mnist_cnn, (1, 28, 28)), (cifar10_cnn, (3, 32, 32))])
def test_every_layer_but_the_last_has_a_relu(build, shape):
    model = build()
    with torch.no_grad():
        model.fc1.weight.zero_()
        model.fc1.bias.fill_(-1.0)
    assert torch.equal(model(torch.rand(1, *shape))[0], model.fc2.bias)


@pytest.mark.parametrize("layer", ["fc1", "fc2", "fc3"])
def test_hidden_layers_of_the_driving_network_have_a_relu(layer):
    model = ARCHITECTURES["driving_cnn"]()
    with torch.no_grad():
        model.get_submodule(layer).weight.zero_()
        angles = []
        for bias in (-1.0, -2.0):  # both below zero: equal after a ReLU
            model.get_submodule(layer).bias.fill_(bias)
            angles.append(model(images_for("driving_cnn", 1)))
    assert torch.allclose(*angles, atol=1e-6)


def test_a_wide_block_is_the_papers_formula():
    block = WideBlock(2, 3, 2).eval()
    values = torch.rand(1, 2, 6, 6) - 0.5
    with torch.no_grad():
        block.norm1.bias.fill_(0.1)
        inner = torch.relu(block.norm2(block.conv1(torch.relu(block.norm1(values)))))
        expected = torch.nn.functional.conv2d(inner, block.conv2.weight, block.conv2.bias, 2, 1)
        expected += torch.nn.functional.conv2d(values, block.shortcut.weight, block.shortcut.bias, 2)
        assert torch.allclose(block(values), expected, atol=1e-6)


def test_half_of_the_hidden_neurons_is_dropped_in_training_alone():
    model, images = ARCHITECTURES["driving_cnn_dropout"](), images_for("driving_cnn_dropout")
    seen = []
    model.fc2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.fc1.weight.zero_()
        model.fc1.bias.fill_(1.0)
        model.train()(images.expand(50, -1, -1, -1))
        first, second = model.eval()(images), model(images)
    assert 0.45 < float((seen[0] == 0).float().mean()) < 0.55
    assert seen[0].max() == 2, "what is left makes up for what is dropped"
    assert torch.equal(seen[1], torch.ones(1, 100))
    assert torch.equal(first, second)


def test_resnet20_has_twenty_layers_and_the_names_of_public_files():
    model = ARCHITECTURES["cifar10_resnet20"]()
    layers = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 20
    assert {"conv1", "layer2.0.conv1", "layer3.2.conv2", "linear"} <= set(layers)
    halved = model.layer2[0](torch.rand(1, 16, 4, 4))
    assert halved.shape == (1, 32, 2, 2)
