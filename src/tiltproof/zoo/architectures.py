"""The paper's networks for MNIST and CIFAR-10 (its appendix "Network Architectures"), normalisation inside.

They take pictures with pixels in [0, 1]. Parameters are named ``conv1, conv2[, conv3], fc1, fc2``; the normalisation's
constants belong to the architecture and are not part of a weight file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(NamedTuple):
    """A convolutional layer as the paper writes it."""

    filters: int
    kernel: int
    stride: int
    padding: int


class Normalise(nn.Module):
    """Subtract the training set's mean and divide by its standard deviation, channel by channel."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation


class ConvolutionalNetwork(nn.Module):
    """Normalisation, convolutions and two linear layers, with a ReLU after every layer but the last.

    ``batch_norm``: between each convolution and its ReLU. ``pool``: windows of so many pixels are averaged before the linear layers.
    """

    def __init__(
        self,
        normalise: Normalise,
        image_size: int,
        convolutions: Sequence[Convolution],
        hidden: int,
        classes: int = 10,
        *,
        batch_norm: bool = False,
        pool: int = 1,
    ) -> None:
        super().__init__()
        self.normalise, self.batch_norm, self.pool = normalise, batch_norm, pool
        self.convolution_names = [f"conv{k}" for k in range(1, len(convolutions) + 1)]
        channels, size = normalise.mean.shape[1], image_size
        for name, layer in zip(self.convolution_names, convolutions, strict=True):
            self.add_module(name, nn.Conv2d(channels, layer.filters, layer.kernel, layer.stride, layer.padding))
            channels, size = layer.filters, (size + 2 * layer.padding - layer.kernel) // layer.stride + 1
            if batch_norm:
                self.add_module(f"norm_{name}", nn.BatchNorm2d(channels))
        self.fc1 = nn.Linear(channels * (size // pool) ** 2, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        values = self.normalise(images)
        for name in self.convolution_names:
            values = self.get_submodule(name)(values)
            if self.batch_norm:
                values = self.get_submodule(f"norm_{name}")(values)
            values = torch.relu(values)
        if self.pool > 1:
            values = F.avg_pool2d(values, self.pool)
        values = torch.relu(self.fc1(values.flatten(1)))
        return self.fc2(values)


def mnist_cnn() -> nn.Module:
    """The paper's MNIST network: two convolutions, 200 hidden neurons, 28 x 28 grey pictures."""
    convolutions = [Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(Normalise([0.1307], [0.3081]), 28, convolutions, hidden=200)


def _cifar10_normalise() -> Normalise:
    return Normalise([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


def cifar10_cnn() -> nn.Module:
    """The paper's CIFAR-10 network: three convolutions, 150 hidden neurons, 32 x 32 RGB pictures."""
    convolutions = [Convolution(32, 3, 1, 1), Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(_cifar10_normalise(), 32, convolutions, hidden=150)


def cifar10_wide() -> nn.Module:
    """As shallow as the paper's CIFAR-10 network, and wider; averages before the linear layers keep it small."""
    convolutions = [Convolution(64, 3, 1, 1), Convolution(128, 4, 2, 1), Convolution(256, 4, 2, 1)]
    return ConvolutionalNetwork(_cifar10_normalise(), 32, convolutions, hidden=128, pool=2)


def cifar10_cnn7() -> nn.Module:
    """Seven layers with batch norm: the paper's CNN7 for Tiny ImageNet, with averages before the linear layers."""
    convolutions = [Convolution(n, 3, s, 1) for n, s in ((64, 1), (64, 1), (128, 2), (128, 1), (128, 2))]
    return ConvolutionalNetwork(_cifar10_normalise(), 32, convolutions, hidden=256, batch_norm=True, pool=2)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "mnist_cnn": mnist_cnn,
    "cifar10_cnn": cifar10_cnn,
    "cifar10_wide": cifar10_wide,
    "cifar10_cnn7": cifar10_cnn7,
}
