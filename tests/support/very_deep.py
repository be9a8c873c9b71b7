"""A residual network so deep that float64's roundings alone exceed its margins: random weights, batch norms that fit its inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))
        return F.relu(x + y)


class VeryDeep(nn.Module):
    """Normalization, a convolution, blocks of which the middle one has a stride, an average and a linear layer."""

    def __init__(self, blocks: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("deviation", torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1))
        self.register_buffer("mean", torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1))
        self.head, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        half = blocks // 2
        sizes = [(channels, channels, 1)] * half + [(channels, channels + 1, 2)]
        sizes += [(channels + 1, channels + 1, 1)] * (blocks - half - 1)
        self.blocks = nn.Sequential(*(Block(*each) for each in sizes))
        self.last = nn.Linear(channels + 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.head((x - self.mean) / self.deviation)))
        return self.last(self.blocks(x).mean((2, 3)))


@torch.no_grad()
def very_deep(blocks: int, channels: int = 3, size: int = 8, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A network in eval mode, an image [1, 3, size, size] that is smooth, and the network's answer to it."""
    torch.manual_seed(seed)
    model = VeryDeep(blocks, channels)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None  # the mean of all batches
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.3, 0.3)
    images = F.interpolate(torch.rand(64, 3, 4, 4), (size, size), mode="bilinear").clamp(0, 1)
    model.train()(images)
    model.eval()
    return model, images[:1], model(images[:1]).argmax(1)
