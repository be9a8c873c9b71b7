"""The paper's networks for MNIST and CIFAR-10 (its appendix "Network Architectures"), normalisation inside.

They take pictures with pixels in [0, 1]. Parameters are named ``conv1, conv2[, conv3], fc1, fc2``; the normalisation's
constants belong to the architecture and are not part of a weight file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
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
    """Normalisation, convolutions and two linear layers, with a ReLU after every layer but the last."""

    def __init__(
        self, normalise: Normalise, image_size: int, convolutions: Sequence[Convolution], hidden: int, classes: int = 10
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.convolution_names = [f"conv{k}" for k in range(1, len(convolutions) + 1)]
        channels, size = normalise.mean.shape[1], image_size
        for name, layer in zip(self.convolution_names, convolutions, strict=True):
            self.add_module(name, nn.Conv2d(channels, layer.filters, layer.kernel, layer.stride, layer.padding))
            channels, size = layer.filters, (size + 2 * layer.padding - layer.kernel) // layer.stride + 1
        self.fc1 = nn.Linear(channels * size * size, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        values = self.normalise(images)
        for name in self.convolution_names:
            values = torch.relu(self.get_submodule(name)(values))
        values = torch.relu(self.fc1(values.flatten(1)))
        return self.fc2(values)


def mnist_cnn() -> nn.Module:
    """The paper's MNIST network: two convolutions, 200 hidden neurons, 28 x 28 grey pictures."""
    convolutions = [Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(Normalise([0.1307], [0.3081]), 28, convolutions, hidden=200)


def cifar10_cnn() -> nn.Module:
    """The paper's CIFAR-10 network: three convolutions, 150 hidden neurons, 32 x 32 RGB pictures."""
    normalise = Normalise([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    convolutions = [Convolution(32, 3, 1, 1), Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(normalise, 32, convolutions, hidden=150)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {"mnist_cnn": mnist_cnn, "cifar10_cnn": cifar10_cnn}
