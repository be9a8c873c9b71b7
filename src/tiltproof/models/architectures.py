"""The networks that are known by name: the paper's (its appendix "Network Architectures") and some of our own, normalisation inside.

The constants of the normalisation are channel by channel the mean and the standard deviation of all pixels of the training images.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from tiltproof.models.convnet import Convolution, ConvolutionalNetwork, Normalise
from tiltproof.models.resnet import ResidualNetwork, ShallowResidualNetwork, WideResidualNetwork

CNN7 = [Convolution(n, 3, s, 1) for n, s in ((64, 1), (64, 1), (128, 2), (128, 1), (128, 2))]
"""The convolutions of the paper's CNN7."""


def mnist_cnn() -> nn.Module:
    """The paper's MNIST network: two convolutions, 200 hidden neurons, 28 x 28 grey pictures."""
    convolutions = [Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(Normalise([0.1307], [0.3081]), (28, 28), convolutions, [200])


def _cifar10_normalise() -> Normalise:
    return Normalise([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


def cifar10_cnn() -> nn.Module:
    """The paper's CIFAR-10 network: three convolutions, 150 hidden neurons, 32 x 32 RGB pictures."""
    convolutions = [Convolution(32, 3, 1, 1), Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(_cifar10_normalise(), (32, 32), convolutions, [150])


def cifar10_wide() -> nn.Module:
    """As shallow as the paper's CIFAR-10 network, and wider; averages before the linear layers keep it small."""
    convolutions = [Convolution(64, 3, 1, 1), Convolution(128, 4, 2, 1), Convolution(256, 4, 2, 1)]
    return ConvolutionalNetwork(_cifar10_normalise(), (32, 32), convolutions, [128], pool=2)


def cifar10_cnn7() -> nn.Module:
    """Seven layers with batch norm: the paper's CNN7 for Tiny ImageNet, with averages before the linear layers."""
    return ConvolutionalNetwork(_cifar10_normalise(), (32, 32), CNN7, [256], batch_norm=True, pool=2)


def cifar10_resnet18() -> nn.Module:
    """As deep as ResNet-18, with batch norm and residual blocks, and slim: its weights take less than 16 MB."""
    return ResidualNetwork(_cifar10_normalise(), 32, [48, 96, 192, 256])


def cifar10_resnet9() -> nn.Module:
    """Nine layers with batch norm and two residual blocks: almost as accurate as ResNet-18 on CIFAR-10, half as deep."""
    return ShallowResidualNetwork(_cifar10_normalise(), 32, [48, 96, 192, 340])


def _tinyimagenet_normalise() -> Normalise:
    """Of 80,000 training images, 400 of each class, whole (64 x 64)."""
    return Normalise([0.4799, 0.4480, 0.3975], [0.2766, 0.2691, 0.2818])


def tinyimagenet_cnn7() -> nn.Module:
    """The paper's CNN7: five convolutions with batch norm, 512 hidden neurons, 200 classes of 56 x 56 RGB pictures."""
    return ConvolutionalNetwork(_tinyimagenet_normalise(), (56, 56), CNN7, [512], 200, batch_norm=True)


def tinyimagenet_wide() -> nn.Module:
    """Shallower than CNN7, with larger steps and more channels: a quarter of its activations, and cheaper proofs."""
    convolutions = [
        Convolution(96, 5, 2, 2),
        Convolution(192, 4, 2, 1),
        Convolution(256, 3, 1, 1),
        Convolution(192, 4, 2, 1),
    ]
    return ConvolutionalNetwork(
        _tinyimagenet_normalise(), (56, 56), convolutions, [256], 200, batch_norm=True, dropout=0.3
    )


def tinyimagenet_wide_resnet() -> nn.Module:
    """The paper's WideResNet: three wide residual blocks with batch norm, 200 classes of 56 x 56 RGB pictures."""
    return WideResidualNetwork(_tinyimagenet_normalise(), 56, 200)


def _driving(dropout: float) -> nn.Module:
    convolutions = [Convolution(n, 5, 2, 0) for n in (24, 36, 48)] + [Convolution(64, 3, 1, 0)] * 2
    normalise = Normalise(
        [0.3544, 0.3644, 0.3824], [0.2437, 0.2262, 0.2175]
    )  # of the 4,514 training frames at 66 x 200
    return ConvolutionalNetwork(normalise, (66, 200), convolutions, [100, 50, 10], 1, dropout=dropout)


def driving_cnn() -> nn.Module:
    """The paper's driving network: five convolutions, 100, 50 and 10 hidden neurons, one angle for a 66 x 200 RGB picture."""
    return _driving(dropout=0.0)


def driving_cnn_dropout() -> nn.Module:
    """The paper's Dropout baseline: the driving network, half of whose hidden neurons in linear layers are dropped in training."""
    return _driving(dropout=0.5)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "mnist_cnn": mnist_cnn,
    "cifar10_cnn": cifar10_cnn,
    "cifar10_wide": cifar10_wide,
    "cifar10_cnn7": cifar10_cnn7,
    "cifar10_resnet9": cifar10_resnet9,
    "cifar10_resnet18": cifar10_resnet18,
    "tinyimagenet_cnn7": tinyimagenet_cnn7,
    "tinyimagenet_wide": tinyimagenet_wide,
    "tinyimagenet_wide_resnet": tinyimagenet_wide_resnet,
    "driving_cnn": driving_cnn,
    "driving_cnn_dropout": driving_cnn_dropout,
}
