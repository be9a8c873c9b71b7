"""Networks without branches: normalisation, convolutions, linear layers.

They take pictures with pixels in [0, 1]. Parameters are named ``conv1, conv2, ..., fc1, fc2, ...``, those of batch norm
``norm_conv1, ...``; the normalisation's constants belong to the architecture and are not part of a weight file.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def output_size(self, size: int) -> int:
        """Of so many pixels in height or width."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


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
    """Normalisation, convolutions and linear layers, with a ReLU after every layer but the last.

    ``hidden``: neurons of the linear layers but the last, which has ``outputs``. ``batch_norm``: between each convolution and its ReLU.
    ``pool``: windows of so many pixels are averaged before the linear layers. ``dropout``: this share of the hidden linear layers'
    neurons is dropped while training.
    """

    def __init__(
        self,
        normalise: Normalise,
        image_size: tuple[int, int],
        convolutions: Sequence[Convolution],
        hidden: Sequence[int],
        outputs: int = 10,
        *,
        batch_norm: bool = False,
        pool: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.normalise, self.batch_norm, self.pool, self.dropout = normalise, batch_norm, pool, dropout
        self.convolution_names = [f"conv{k}" for k in range(1, len(convolutions) + 1)]
        self.hidden_names = [f"fc{k}" for k in range(1, len(hidden) + 1)]
        self.last_name = f"fc{len(hidden) + 1}"
        channels, (height, width) = normalise.mean.shape[1], image_size
        for name, layer in zip(self.convolution_names, convolutions, strict=True):
            self.add_module(name, nn.Conv2d(channels, layer.filters, layer.kernel, layer.stride, layer.padding))
            channels, height, width = layer.filters, layer.output_size(height), layer.output_size(width)
            if batch_norm:
                self.add_module(f"norm_{name}", nn.BatchNorm2d(channels))
        features = channels * (height // pool) * (width // pool)
        for name, neurons in zip([*self.hidden_names, self.last_name], [*hidden, outputs], strict=True):
            self.add_module(name, nn.Linear(features, neurons))
            features = neurons

    def forward(self, images: Tensor) -> Tensor:
        values = self.normalise(images)
        for name in self.convolution_names:
            values = self.get_submodule(name)(values)
            if self.batch_norm:
                values = self.get_submodule(f"norm_{name}")(values)
            values = torch.relu(values)
        if self.pool > 1:
            values = F.avg_pool2d(values, self.pool)
        values = values.flatten(1)
        for name in self.hidden_names:
            values = torch.relu(self.get_submodule(name)(values))
            if self.dropout:
                values = F.dropout(values, self.dropout, self.training)
        return self.get_submodule(self.last_name)(values)
