"""Networks with branches: what goes into a block is added to what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.models.convnet import Normalise


class WideBlock(nn.Module):
    """The paper's wide basic block: batch norm, ReLU and convolution, twice, plus a 1 x 1 convolution of the input.

    The second convolution carries the stride.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, after, 3, 1, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(after), nn.Conv2d(after, after, 3, stride, 1)
        self.shortcut = nn.Conv2d(before, after, 1, stride, 0)

    def forward(self, values: Tensor) -> Tensor:
        inner = self.conv1(torch.relu(self.norm1(values)))
        return self.conv2(torch.relu(self.norm2(inner))) + self.shortcut(values)


class WideResidualNetwork(nn.Module):
    """The paper's WideResNet: a convolution of 16 filters, three wide blocks, averages of 7 x 7 pixels, one linear layer.

    ``image_size`` is a multiple of 28: two of the blocks halve it before the averages are taken.
    """

    def __init__(self, normalise: Normalise, image_size: int, outputs: int) -> None:
        super().__init__()
        self.normalise = normalise
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1)
        self.block1, self.block2, self.block3 = WideBlock(16, 160, 1), WideBlock(160, 320, 2), WideBlock(320, 640, 2)
        self.norm = nn.BatchNorm2d(640)
        self.fc = nn.Linear(640 * (image_size // 28) ** 2, outputs)

    def forward(self, images: Tensor) -> Tensor:
        values = self.conv1(self.normalise(images))
        values = self.block3(self.block2(self.block1(values)))
        values = F.avg_pool2d(torch.relu(self.norm(values)), 7)
        return self.fc(values.flatten(1))


class BasicBlock(nn.Module):
    """Convolution and batch norm, twice, with a ReLU between; the input, brought to the same shape, is added before the last ReLU."""

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
    """The depth of ResNet-18: a convolution, stages of two basic blocks each, the average of every channel, one linear layer.

    ``channels``: of the stages; each but the first halves the picture, whose size must be divisible by so many halvings.
    """

    def __init__(self, normalise: Normalise, image_size: int, channels: Sequence[int], outputs: int = 10) -> None:
        super().__init__()
        self.normalise = normalise
        self.conv1, self.norm1 = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False), nn.BatchNorm2d(channels[0])
        self.stage_names = [f"stage{k}" for k in range(1, len(channels) + 1)]
        for name, (before, after) in zip(self.stage_names, pairwise([channels[0], *channels]), strict=True):
            stride = 1 if name == "stage1" else 2
            self.add_module(name, nn.Sequential(BasicBlock(before, after, stride), BasicBlock(after, after, 1)))
        self.last_size = image_size // 2 ** (len(channels) - 1)
        self.fc = nn.Linear(channels[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        values = torch.relu(self.norm1(self.conv1(self.normalise(images))))
        for name in self.stage_names:
            values = self.get_submodule(name)(values)
        return self.fc(F.avg_pool2d(values, self.last_size).flatten(1))


class ShallowResidualNetwork(nn.Module):
    """Nine layers: four convolutions, a basic block after the second and the fourth, the average of every channel, one linear layer.

    Each convolution but the first is followed by averages of 2 x 2 pixels. ``image_size`` is a multiple of 8.
    """

    def __init__(self, normalise: Normalise, image_size: int, channels: Sequence[int], outputs: int = 10) -> None:
        super().__init__()
        self.normalise, self.last_size = normalise, image_size // 8
        for k, (before, after) in enumerate(pairwise([3, *channels]), start=1):
            self.add_module(f"conv{k}", nn.Conv2d(before, after, 3, 1, 1, bias=False))
            self.add_module(f"norm{k}", nn.BatchNorm2d(after))
        self.block2, self.block4 = (BasicBlock(n, n, 1) for n in (channels[1], channels[3]))
        self.fc = nn.Linear(channels[3], outputs)

    def layer(self, k: int, values: Tensor) -> Tensor:
        values = torch.relu(self.get_submodule(f"norm{k}")(self.get_submodule(f"conv{k}")(values)))
        return values if k == 1 else F.avg_pool2d(values, 2)

    def forward(self, images: Tensor) -> Tensor:
        values = self.block2(self.layer(2, self.layer(1, self.normalise(images))))
        values = self.block4(self.layer(4, self.layer(3, values)))
        return self.fc(F.avg_pool2d(values, self.last_size).flatten(1))
