"""The architectures: their shapes (of the first two: the paper's), the weight names, and the normalisation inside."""

import pytest
import torch

from tiltproof.zoo import ARCHITECTURES, cifar10_cnn, mnist_cnn

EXPECTED = {
    "mnist_cnn": {
        "conv1.weight": (32, 1, 4, 4),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 4, 4),
        "conv2.bias": (64,),
        "fc1.weight": (200, 3136),
        "fc1.bias": (200,),
        "fc2.weight": (10, 200),
        "fc2.bias": (10,),
    },
    "cifar10_cnn": {
        "conv1.weight": (32, 3, 3, 3),
        "conv1.bias": (32,),
        "conv2.weight": (32, 32, 4, 4),
        "conv2.bias": (32,),
        "conv3.weight": (64, 32, 4, 4),
        "conv3.bias": (64,),
        "fc1.weight": (150, 4096),
        "fc1.bias": (150,),
        "fc2.weight": (10, 150),
        "fc2.bias": (10,),
    },
    "cifar10_wide": {
        "conv1.weight": (64, 3, 3, 3),
        "conv1.bias": (64,),
        "conv2.weight": (128, 64, 4, 4),
        "conv2.bias": (128,),
        "conv3.weight": (256, 128, 4, 4),
        "conv3.bias": (256,),
        "fc1.weight": (128, 4096),
        "fc1.bias": (128,),
        "fc2.weight": (10, 128),
        "fc2.bias": (10,),
    },
}
CNN7_CONVOLUTIONS = [(64, 3), (64, 64), (128, 64), (128, 128), (128, 128)]
"""Output and input channels; kernels of 3 x 3, each followed by batch norm."""


@pytest.mark.parametrize("name", EXPECTED)
def test_parameters_have_names_and_shapes(name):
    state = ARCHITECTURES[name]().state_dict()
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == EXPECTED[name]


def test_parameters_of_the_seven_layers():
    shapes = {key: tuple(tensor.shape) for key, tensor in ARCHITECTURES["cifar10_cnn7"]().state_dict().items()}
    for k, (outputs, inputs) in enumerate(CNN7_CONVOLUTIONS, 1):
        assert shapes.pop(f"conv{k}.weight") == (outputs, inputs, 3, 3)
        assert shapes.pop(f"conv{k}.bias") == (outputs,)
        statistics = {key: shapes.pop(key) for key in list(shapes) if key.startswith(f"norm_conv{k}.")}
        assert statistics.pop(f"norm_conv{k}.num_batches_tracked") == ()
        assert len(statistics) == 4
        assert set(statistics.values()) == {(outputs,)}
    assert shapes == {"fc1.weight": (256, 2048), "fc1.bias": (256,), "fc2.weight": (10, 256), "fc2.bias": (10,)}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ten_scores_per_image(name):
    shape = (2, 1, 28, 28) if name.startswith("mnist") else (2, 3, 32, 32)
    assert ARCHITECTURES[name]()(torch.rand(shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("build", "mean", "deviation"),
    [
        (mnist_cnn, [0.1307], [0.3081]),
        (cifar10_cnn, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_the_input_is_normalised_inside(build, mean, deviation):
    normalise = build().normalise
    average = torch.tensor(mean).view(1, -1, 1, 1)
    assert torch.equal(normalise(average), torch.zeros_like(average))
    assert torch.allclose(normalise(average + torch.tensor(deviation).view(1, -1, 1, 1)), torch.ones(()))


def test_every_layer_but_the_last_has_a_relu():
    model = mnist_cnn()
    with torch.no_grad():
        model.fc1.weight.zero_()
        model.fc1.bias.fill_(-1.0)
    assert torch.equal(model(torch.rand(1, 1, 28, 28))[0], model.fc2.bias)
