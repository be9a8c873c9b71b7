"""Architectures by name: those of the paper's appendix "Network Architectures", and others.

They take images with pixels in [0, 1]; normalization is their first layer. Its constants, the mean and standard deviation of the
training images by channel, belong to the architecture and are not in weight files. Parameters are named ``conv1, conv2, ...,
fc1, fc2, ...``, those of batch norm ``norm_conv1, ...``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(NamedTuple):
    """A convolutional layer in the paper's notation."""

    filters: int
    kernel: int
    stride: int
    padding: int

    def output_size(self, size: int) -> int:
        """Return the height or width of the output for that of the input."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


class Normalize(nn.Module):
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
    """Normalization, convolutions and linear layers, with a ReLU after every layer but the last.

    Parameters
    ----------
    normalize : Normalize
        The first layer.
    image_size : (int, int)
        Height and width of the images.
    convolutions : sequence of Convolution
        The convolutions.
    hidden : sequence of int
        Widths of the linear layers except the last.
    outputs : int
        Width of the last layer.
    batch_norm : bool
        Insert batch norm between each convolution and its ReLU.
    pool : int
        Kernel size of an average pooling before the linear layers; 1 for none.
    dropout : float
        Probability of dropout after the hidden linear layers.
    """

    def __init__(
        self,
        normalize: Normalize,
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
        self.normalize, self.batch_norm, self.pool, self.dropout = normalize, batch_norm, pool, dropout
        self.convolution_names = [f"conv{k}" for k in range(1, len(convolutions) + 1)]
        self.hidden_names = [f"fc{k}" for k in range(1, len(hidden) + 1)]
        self.last_name = f"fc{len(hidden) + 1}"
        channels, (height, width) = normalize.mean.shape[1], image_size
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
        values = self.normalize(images)
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


class WideBlock(nn.Module):
    """The paper's wide basic block: batch norm, ReLU and convolution, twice, plus a 1 x 1 convolution of the input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, after, 3, 1, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(after), nn.Conv2d(after, after, 3, stride, 1)
        self.shortcut = nn.Conv2d(before, after, 1, stride, 0)

    def forward(self, values: Tensor) -> Tensor:
        inner = self.conv1(torch.relu(self.norm1(values)))
        return self.conv2(torch.relu(self.norm2(inner))) + self.shortcut(values)


class WideResidualNetwork(nn.Module):
    """The paper's WideResNet: a convolution, three wide blocks, 7 x 7 average pooling, one linear layer.

    ``image_size`` is a multiple of 28, because two of the blocks halve it before the pooling.
    """

    def __init__(self, normalize: Normalize, image_size: int, outputs: int) -> None:
        super().__init__()
        self.normalize = normalize
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1)
        self.block1, self.block2, self.block3 = WideBlock(16, 160, 1), WideBlock(160, 320, 2), WideBlock(320, 640, 2)
        self.norm = nn.BatchNorm2d(640)
        self.fc = nn.Linear(640 * (image_size // 28) ** 2, outputs)

    def forward(self, images: Tensor) -> Tensor:
        values = self.conv1(self.normalize(images))
        values = self.block3(self.block2(self.block1(values)))
        values = F.avg_pool2d(torch.relu(self.norm(values)), 7)
        return self.fc(values.flatten(1))


class BasicBlock(nn.Module):
    """The basic block of ResNet: convolution and batch norm, twice, and a shortcut added before the last ReLU."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, values: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(values)))))
        return torch.relu(inner + self.shortcut(values))


class ResidualNetwork(nn.Module):
    """A network as deep as ResNet-18: a convolution, stages of two basic blocks, global average pooling, one linear layer.

    ``channels`` has one entry per stage; every stage except the first halves the image.
    """

    def __init__(self, normalize: Normalize, image_size: int, channels: Sequence[int], outputs: int = 10) -> None:
        super().__init__()
        self.normalize = normalize
        self.conv1, self.norm1 = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False), nn.BatchNorm2d(channels[0])
        self.stage_names = [f"stage{k}" for k in range(1, len(channels) + 1)]
        for name, (before, after) in zip(self.stage_names, pairwise([channels[0], *channels]), strict=True):
            stride = 1 if name == "stage1" else 2
            self.add_module(name, nn.Sequential(BasicBlock(before, after, stride), BasicBlock(after, after, 1)))
        self.last_size = image_size // 2 ** (len(channels) - 1)
        self.fc = nn.Linear(channels[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        values = torch.relu(self.norm1(self.conv1(self.normalize(images))))
        for name in self.stage_names:
            values = self.get_submodule(name)(values)
        return self.fc(F.avg_pool2d(values, self.last_size).flatten(1))


class ShallowResidualNetwork(nn.Module):
    """A network of nine layers: four convolutions, basic blocks after the second and fourth, global pooling, one linear layer.

    Every convolution except the first is followed by 2 x 2 average pooling; ``image_size`` is a multiple of 8.
    """

    def __init__(self, normalize: Normalize, image_size: int, channels: Sequence[int], outputs: int = 10) -> None:
        super().__init__()
        self.normalize, self.last_size = normalize, image_size // 8
        for k, (before, after) in enumerate(pairwise([3, *channels]), start=1):
            self.add_module(f"conv{k}", nn.Conv2d(before, after, 3, 1, 1, bias=False))
            self.add_module(f"norm{k}", nn.BatchNorm2d(after))
        self.block2, self.block4 = (BasicBlock(n, n, 1) for n in (channels[1], channels[3]))
        self.fc = nn.Linear(channels[3], outputs)

    def layer(self, k: int, values: Tensor) -> Tensor:
        values = torch.relu(self.get_submodule(f"norm{k}")(self.get_submodule(f"conv{k}")(values)))
        return values if k == 1 else F.avg_pool2d(values, 2)

    def forward(self, images: Tensor) -> Tensor:
        values = self.block2(self.layer(2, self.layer(1, self.normalize(images))))
        values = self.block4(self.layer(4, self.layer(3, values)))
        return self.fc(F.avg_pool2d(values, self.last_size).flatten(1))


class ZeroPaddedBlock(nn.Module):
    """A basic block whose shortcut has no weights: where the image is halved, every other pixel, and zeros for the new channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.stride, self.new = stride, after - before

    def forward(self, values: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(values)))))
        if self.stride != 1:
            values = F.pad(values[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new // 2))
        return torch.relu(inner + values)


class CifarResidualNetwork(nn.Module):
    """The ResNet paper's CIFAR-10 networks, 6 ``blocks`` + 2 layers deep with 16, 32 and 64 channels; names as in public weight files."""

    def __init__(self, normalize: Normalize, blocks: int, outputs: int = 10) -> None:
        super().__init__()
        self.normalize = normalize
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for k, (before, after) in enumerate(pairwise([16, 16, 32, 64]), start=1):
            first = ZeroPaddedBlock(before, after, 1 if k == 1 else 2)
            rest = [ZeroPaddedBlock(after, after, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{k}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        values = torch.relu(self.bn1(self.conv1(self.normalize(images))))
        for k in (1, 2, 3):
            values = self.get_submodule(f"layer{k}")(values)
        return self.linear(values.mean((2, 3)))


CNN7 = [Convolution(n, 3, s, 1) for n, s in ((64, 1), (64, 1), (128, 2), (128, 1), (128, 2))]
"""The convolutions of the paper's CNN7."""


def mnist_cnn() -> nn.Module:
    """Build the paper's MNIST network: two convolutions, 200 hidden neurons, 28 x 28 gray images.

    Returns
    -------
    torch.nn.Module
        The network with random weights.
    """
    convolutions = [Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(Normalize([0.1307], [0.3081]), (28, 28), convolutions, [200])


def _cifar10_normalize() -> Normalize:
    return Normalize([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


def cifar10_cnn() -> nn.Module:
    """Build the paper's CIFAR-10 network: three convolutions, 150 hidden neurons, 32 x 32 RGB images.

    Returns
    -------
    torch.nn.Module
        The network with random weights.
    """
    convolutions = [Convolution(32, 3, 1, 1), Convolution(32, 4, 2, 1), Convolution(64, 4, 2, 1)]
    return ConvolutionalNetwork(_cifar10_normalize(), (32, 32), convolutions, [150])


def cifar10_wide() -> nn.Module:
    """A network as shallow as the paper's for CIFAR-10, but wider; pooling before the linear layers keeps it small."""
    convolutions = [Convolution(64, 3, 1, 1), Convolution(128, 4, 2, 1), Convolution(256, 4, 2, 1)]
    return ConvolutionalNetwork(_cifar10_normalize(), (32, 32), convolutions, [128], pool=2)


def cifar10_cnn7() -> nn.Module:
    """The paper's CNN7 for Tiny ImageNet, with average pooling before the linear layers."""
    return ConvolutionalNetwork(_cifar10_normalize(), (32, 32), CNN7, [256], batch_norm=True, pool=2)


def cifar10_resnet18() -> nn.Module:
    """A narrow ResNet-18, with less than 16 MB of weights."""
    return ResidualNetwork(_cifar10_normalize(), 32, [48, 96, 192, 256])


def cifar10_resnet9() -> nn.Module:
    """A network with two residual blocks: half as deep as ResNet-18, and almost as accurate on CIFAR-10."""
    return ShallowResidualNetwork(_cifar10_normalize(), 32, [48, 96, 192, 340])


def cifar10_resnet20() -> nn.Module:
    """The ResNet paper's 20 layers for CIFAR-10, normalized by ImageNet's constants as its public weights are."""
    return CifarResidualNetwork(Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), 3)


def _tinyimagenet_normalize() -> Normalize:
    """Return the constants measured on 80,000 training images, 400 per class, before cropping (64 x 64)."""
    return Normalize([0.4799, 0.4480, 0.3975], [0.2766, 0.2691, 0.2818])


def tinyimagenet_cnn7() -> nn.Module:
    """The paper's CNN7: five convolutions with batch norm, 512 hidden neurons, 200 classes of 56 x 56 RGB images."""
    return ConvolutionalNetwork(_tinyimagenet_normalize(), (56, 56), CNN7, [512], 200, batch_norm=True)


def tinyimagenet_wide() -> nn.Module:
    """A network shallower than CNN7, with larger strides and more channels: a quarter of the activations, cheaper proofs."""
    layers = [Convolution(*layer) for layer in ((96, 5, 2, 2), (192, 4, 2, 1), (256, 3, 1, 1), (192, 4, 2, 1))]
    return ConvolutionalNetwork(_tinyimagenet_normalize(), (56, 56), layers, [256], 200, batch_norm=True, dropout=0.3)


def tinyimagenet_wide_resnet() -> nn.Module:
    """The paper's WideResNet: three wide residual blocks with batch norm, 200 classes of 56 x 56 RGB images."""
    return WideResidualNetwork(_tinyimagenet_normalize(), 56, 200)


def _driving(dropout: float) -> nn.Module:
    convolutions = [Convolution(n, 5, 2, 0) for n in (24, 36, 48)] + [Convolution(64, 3, 1, 0)] * 2
    # measured on the 4,514 training frames at 66 x 200
    normalize = Normalize([0.3544, 0.3644, 0.3824], [0.2437, 0.2262, 0.2175])
    return ConvolutionalNetwork(normalize, (66, 200), convolutions, [100, 50, 10], 1, dropout=dropout)


def driving_cnn() -> nn.Module:
    """The paper's driving network: five convolutions, 100, 50 and 10 hidden neurons, one angle for a 66 x 200 RGB image."""
    return _driving(dropout=0.0)


def driving_cnn_dropout() -> nn.Module:
    """The paper's Dropout baseline: the driving network with dropout 0.5 in its hidden linear layers."""
    return _driving(dropout=0.5)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    build.__name__: build
    for build in (
        *(mnist_cnn, cifar10_cnn, cifar10_wide, cifar10_cnn7, cifar10_resnet9, cifar10_resnet18, cifar10_resnet20),
        *(tinyimagenet_cnn7, tinyimagenet_wide, tinyimagenet_wide_resnet, driving_cnn, driving_cnn_dropout),
    )
}
"""The architectures that ``--arch`` and recipes name; each function builds one with random weights."""
