"""A small network of the block that makes each family of published image networks, for `small_networks.SUPPORTED`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.building_blocks import Function, head


def conv(inputs: int, outputs: int, kernel: int, groups: int = 1) -> nn.Module:
    """A convolution that keeps the size, and its batch norm."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def inverted_residual() -> nn.Module:
    """Wider, then depthwise, squeezed and excited, then narrow again: MobileNet, EfficientNet, MNASNet, RegNet."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        y = F.hardswish(m.deep(F.hardswish(m.wide(x))))
        gate = F.hardsigmoid(m.excite(F.relu(m.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return m.head((x + m.narrow(gate * y)).flatten(1))

    return Function(
        block,
        wide=conv(2, 4, 1),
        deep=conv(4, 4, 3, 4),
        squeeze=nn.Conv2d(4, 2, 1),
        excite=nn.Conv2d(2, 4, 1),
        narrow=conv(4, 2, 1),
        head=head(60),
    )


def dense() -> nn.Module:
    """Every layer reads all before it, and a transition halves them: DenseNet."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = torch.cat([x, layer(x)], 1)
        return m.head(F.avg_pool2d(m.transition(x), 2).flatten(1))

    def layer(inputs: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(True), nn.Conv2d(inputs, 2, 3, padding=1, bias=False))

    return Function(block, layers=nn.ModuleList([layer(2), layer(4)]), transition=nn.Conv2d(6, 3, 1), head=head(18))


def shuffled() -> nn.Module:
    """Half of the channels go through the block, then the halves are shuffled: ShuffleNet."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        first, second = F.relu(m.a(x)).chunk(2, 1)
        y = torch.cat([first, m.b(second)], 1)
        return m.head(y.view(len(y), 2, 2, 6, 5).transpose(1, 2).contiguous().view(len(y), -1))

    return Function(block, a=conv(2, 4, 1), b=nn.Sequential(conv(2, 2, 3, 2), conv(2, 2, 1), nn.ReLU()), head=head(120))


def fire() -> nn.Module:
    """Squeezed to few channels, then expanded by two kernels: SqueezeNet."""
    return Function(
        lambda m, x: m.head(torch.cat([F.relu(m.b(F.relu(m.a(x)))), F.relu(m.c(F.relu(m.a(x))))], 1).mean((2, 3))),
        a=nn.Conv2d(2, 1, 1),
        b=nn.Conv2d(1, 2, 1),
        c=nn.Conv2d(1, 2, 3, padding=1),
        head=head(4),
    )


def inception() -> nn.Module:
    """Branches of several kernels and a pooling, joined: GoogLeNet, Inception."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        branches = [m.a(x), m.c(m.b(x)), m.d(F.max_pool2d(x, 3, 1, 1)), m.e(F.avg_pool2d(x, 3, 1, 1))]
        return m.head(F.max_pool2d(F.relu(torch.cat(branches, 1)), 3, 2, ceil_mode=True).flatten(1))

    return Function(
        block,
        a=conv(2, 1, 1),
        b=nn.Conv2d(2, 2, (1, 3), padding=(0, 1)),
        c=nn.Conv2d(2, 1, (3, 1), padding=(1, 0)),
        d=conv(2, 1, 1),
        e=conv(2, 1, 1),
        head=head(24),
    )


def convnext() -> nn.Module:
    """Depthwise, layer norm over channels last, two layers on channels, a factor for each: ConvNeXt."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        y = m.narrow(F.gelu(m.wide(m.norm(m.deep(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)
        return m.head((x + m.scale * y).mean((2, 3)))

    return Function(
        block,
        deep=nn.Conv2d(2, 2, 3, padding=1, groups=2),
        norm=nn.LayerNorm(2, eps=0.1),
        wide=nn.Linear(2, 4),
        narrow=nn.Linear(4, 2),
        scale=torch.tensor([0.3, -0.2]).view(2, 1, 1),
        head=head(2),
    )


def windows_of(x: Tensor, size: int) -> Tensor:
    """[N, H, W, C] -> [N, windows, size * size, C]."""
    n, height, width, channels = x.shape
    x = x.view(n, height // size, size, width // size, size, channels).transpose(2, 3)
    return x.reshape(n, -1, size * size, channels)


def relative(size: int) -> Tensor:
    """The number of each pair's offset in a window."""
    places = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
    offset = places[:, :, None] - places[:, None] + size - 1
    return offset[0] * (2 * size - 1) + offset[1]


def self_attention(m: nn.Module, tokens: Tensor, bias: Tensor) -> Tensor:
    """One head over the last dimensions but one."""
    query, key, value = m.all(tokens).chunk(3, -1)
    return (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + bias).softmax(-1) @ value


def shifted_windows() -> nn.Module:
    """Attention in windows of a rolled image, with a bias for each offset; what the roll brought together does not meet: Swin."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        x = x[..., :4].permute(0, 2, 3, 1)
        rolled = windows_of(x.roll((-1, -1), (1, 2)), 2)
        region = torch.zeros(1, 6, 4, 1)
        region[:, -2:, :] += 1
        region[:, :, -2:] += 2
        region[:, -1:, :] += 4
        region = windows_of(region, 2)
        apart = (region != region.transpose(2, 3)).float() * -9.0
        y = self_attention(m, m.norm(rolled), m.table[relative(2).view(-1)].view(4, 4) + apart)
        y = y.view(len(x), 3, 2, 2, 2, 2).transpose(2, 3).reshape(len(x), 6, 4, 2).roll((1, 1), (1, 2))
        return m.head((x + y).flatten(1))

    return Function(block, norm=nn.LayerNorm(2, eps=0.1), all=nn.Linear(2, 6), table=torch.randn(9), head=head(48))


def grid() -> nn.Module:
    """Attention between entries that lie far apart, on a grid: MaxViT."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        x = x[..., :4].permute(0, 2, 3, 1)
        n, height, width, channels = x.shape
        far = (
            x.reshape(n, 2, height // 2, 2, width // 2, channels).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, 4, channels)
        )
        y = self_attention(m, far, m.table[relative(2).view(-1)].view(4, 4))
        back = y.view(n, height // 2, width // 2, 2, 2, channels).permute(0, 3, 1, 4, 2, 5)
        return m.head(back.reshape(n, -1) + x.flatten(1))

    return Function(block, all=nn.Linear(2, 6), table=torch.randn(9), head=head(48))


def cosine_attention() -> nn.Module:
    """Attention by angles, whose factor is learned: Swin of the second version. Shifted, so that no query may be of length zero,
    at which bounds of 1 / length are infinite."""

    def block(m: nn.Module, x: Tensor) -> Tensor:
        tokens = x.flatten(1, 2).transpose(1, 2)[..., :4]
        query, key, value = m.all(tokens).chunk(3, -1)
        scores = F.normalize(query + 3, dim=-1) @ F.normalize(key + 3, dim=-1).transpose(-2, -1)
        return m.head(((scores * m.factor.clamp(max=4.6).exp()).softmax(-1) @ value).flatten(1))

    return Function(block, all=nn.Linear(4, 12), factor=torch.tensor(0.7), head=head(20))


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "block of MobileNet": inverted_residual,
    "block of DenseNet": dense,
    "block of ShuffleNet": shuffled,
    "block of SqueezeNet": fire,
    "block of Inception": inception,
    "block of ConvNeXt": convnext,
    "block of Swin": shifted_windows,
    "block of Swin, version 2": cosine_attention,
    "block of MaxViT": grid,
}
