"""One table of small networks, at least one for each operation; the tests of every operation take their cases from it.

Bounds forward and backward, planted counterexamples, float32 semantics, the checker's rules and ONNX files, written and read: each of
these tests iterates over `SUPPORTED`. A new operation needs an entry here (an elementwise one a line in `ACTIVATIONS`), and its defects in
`tests/soundness/mutation_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.blocks_of_families import FAMILIES
from tests.support.building_blocks import SHAPE, Function, between_layers, chain, head, numbered, slopes
from tests.support.constructs import CONSTRUCTS
from tiltproof import fixed_point

assert fixed_point.requantize  # which torch.ops.tiltproof finds

__all__ = ["ACTIVATIONS", "SHAPE", "SUPPORTED", "Function", "build", "chain", "head", "settle", "slopes"]


def settle(model: nn.Module, seed: int = 0) -> nn.Module:
    """Randomize weights, biases and batch-norm statistics, and switch to eval mode."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.05, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.uniform_(module.bias, -1, 1)
        elif isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -1.5, 1.5)
        elif isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            nn.init.normal_(module.weight, std=1.2 / module.weight[0].numel() ** 0.5)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()


def whole_convolution() -> nn.Module:
    """Weights and biases that are whole numbers; `settle` leaves what is not a layer of torch alone."""
    weight = torch.arange(54.0).view(3, 2, 3, 3) * 7 % 11 - 5
    return Function(lambda m, x: F.conv2d(x, m.weight, m.bias), weight=weight, bias=torch.tensor([30.0, -50.0, 0.0]))


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky relu": lambda: nn.LeakyReLU(0.125),
    "falling leaky relu": lambda: nn.LeakyReLU(-0.5),
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "clamp": lambda: Function(lambda _, x: x.clamp(-0.3, 0.7)),
    "clamp from below": lambda: Function(lambda _, x: x.clamp(min=-0.3)),
    "clamp from above": lambda: Function(lambda _, x: torch.clamp_max(x, 0.7)),
    "abs": lambda: Function(lambda _, x: x.abs()),
    "prelu": lambda: Function(lambda m, x: m.p(x), p=nn.PReLU(init=-0.4)),
    "hard sigmoid": nn.Hardsigmoid,
    "threshold": lambda: nn.Threshold(0.3, 0.3),
    "threshold with a jump": lambda: nn.Threshold(0.3, -0.2),
    "soft shrink": lambda: nn.Softshrink(0.4),
    "hard shrink": lambda: nn.Hardshrink(0.4),
    "tanh shrink": nn.Tanhshrink,
    "sign": lambda: Function(lambda _, x: torch.sign(x)),
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "quantized": lambda: Function(lambda _, x: torch.fake_quantize_per_tensor_affine(x, 0.0625, 3, -128, 127)),
    "quantized coarsely": lambda: Function(lambda _, x: torch.fake_quantize_per_tensor_affine(x, 0.5, 129, 0, 255)),
    "requantized": lambda: Function(lambda _, x: torch.ops.tiltproof.requantize(90 * x, [1503238553], [-1], -25, 40)),
    "rounded": lambda: Function(lambda _, x: torch.ops.tiltproof.rounded(x, 7.3, 5, -9, 12, 2.0**-13)),
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "mish": nn.Mish,
    "elu": lambda: nn.ELU(0.7),
    "selu": nn.SELU,
    "celu": lambda: nn.CELU(0.6),
    "softplus": lambda: nn.Softplus(2.0),
    "erf": lambda: Function(lambda _, x: torch.erf(x)),
    "sin": lambda: Function(lambda _, x: torch.sin(3 * x)),
    "cos": lambda: Function(lambda _, x: torch.cos(x)),
    "exp": lambda: Function(lambda _, x: torch.exp(x)),
    "square": lambda: Function(lambda _, x: x**2),
    "cube": lambda: Function(lambda _, x: torch.pow(x, 3)),
    "log": lambda: Function(lambda _, x: torch.log(torch.sigmoid(x) + 0.1)),
    "sqrt": lambda: Function(lambda _, x: torch.sqrt(torch.sigmoid(x))),
    "rsqrt": lambda: Function(lambda _, x: torch.rsqrt(torch.sigmoid(x) + 0.2)),
    "reciprocal": lambda: Function(lambda _, x: 2 / (torch.sigmoid(x) - 1.3)),
    "atan": lambda: Function(lambda _, x: torch.atan(2 * x)),
    "log sigmoid": nn.LogSigmoid,
    "expm1": lambda: Function(lambda _, x: torch.expm1(x)),
    "log1p": lambda: Function(lambda _, x: torch.log1p(torch.sigmoid(x))),
    "power of a number": lambda: Function(lambda _, x: 2**x),
    "exp2": lambda: Function(lambda _, x: torch.exp2(x)),
    "power": lambda: Function(lambda _, x: (torch.sigmoid(x) + 0.1) ** -1.5),
}
"""Elementwise functions; each gets a network of its own in `SUPPORTED`."""


REARRANGED: dict[str, tuple[Callable, int]] = {
    "select": (lambda x: x[:, 1, ..., 2] - x.select(3, -1).select(1, 0), 6),
    "split": (lambda x: torch.cat([x.split([2, 3, 1], 2)[1], x.chunk(2, 2)[0]], 2) * 2, 60),
    "unbind and stack": (lambda x: torch.stack(x.unbind(2)[1:4] + x.narrow(2, 0, 3).unbind(2), -1), 60),
    "index": (lambda x: x[:, [1, 0, 1]], 90),
    "index by a tensor": (lambda x: x.index_select(3, torch.tensor([4, 4, 0])) + x[..., torch.tensor([1, 2, 2])], 36),
    "flip, roll, turn": (
        lambda x: x.flip(3) + x.roll((1, 2), (2, 3)) - torch.rot90(x[:, :, :5], 1, (2, 3)).repeat(1, 1, 2, 1)[:, :, :6],
        60,
    ),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3) + x.tile(2, 1, 3).repeat_interleave(1, 2), 360),
    "repeat interleave": (lambda x: x.repeat_interleave(2, 3), 120),
    "expand": (lambda x: x.mean((1, 3), keepdim=True).expand(-1, 2, -1, 4), 48),
    "reflection": (lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), 2 * 9 * 8),
    "replication": (lambda x: F.pad(x, (2, 0, 1, 1), mode="replicate"), 2 * 8 * 7),
    "circular padding": (lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"), 2 * 9 * 8),
    "constant padding": (lambda x: F.relu(F.pad(x, (1, 0, 2, -1), value=0.3)), 2 * 7 * 6),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2), 120),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x[..., :4], 2), 48),
    "channel shuffle": (lambda x: F.channel_shuffle(torch.cat([x, -x, 2 * x], 1), 2), 180),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), 240),
    "nearest to a size": (lambda x: F.interpolate(x, size=(4, 7), mode="nearest-exact"), 56),
    "patches": (lambda x: F.unfold(x, (3, 2), stride=(2, 1), padding=(1, 0)), 12 * 12),
    "moved dimensions": (lambda x: x.movedim(1, -1).swapaxes(1, 2).mT.unflatten(3, (2, 3)), 60),
    "zeros beside": (lambda x: torch.cat([x, torch.zeros_like(x)], 1), 120),
    "squeeze and excite by indexing": (lambda x: x * torch.sigmoid(x.mean((2, 3)))[:, :, None, None], 60),
    "length of a value": (lambda x: F.relu(x).reshape(len(F.relu(x)), -1), 60),
}
"""Functions that rearrange images, and how many numbers they give; each stands before a linear layer in `SUPPORTED`."""

SUMMED: dict[str, tuple[Callable, int]] = {
    "sum": (lambda x: x.sum((1, 3)) - x.sum(-1).sum(1), 6),
    "mean of all": (lambda x: F.relu(x).mean((1, 2, 3)).unsqueeze(1), 1),
    "running sum": (lambda x: x.cumsum(2), 60),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 240),
    "bilinear with aligned corners": (lambda x: F.interpolate(x, size=(4, 9), mode="bilinear", align_corners=True), 72),
    "bilinear to a size": (lambda x: F.interpolate(F.relu(x), size=(4, 7), mode="bilinear"), 56),
    "bilinear by a factor": (lambda x: F.interpolate(x, scale_factor=(1.3, 0.7), mode="bilinear"), 42),
    "linear interpolation": (lambda x: F.interpolate(x.flatten(2), size=17, mode="linear"), 34),
    "area": (lambda x: F.interpolate(x, size=(4, 3), mode="area"), 24),
    "average over the edge": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), 24),
    "average with a divisor": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3), 18),
    "average 1d": (lambda x: F.avg_pool1d(x.flatten(2), 4, 3, 1), 20),
    "maximum over the edge": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), 2 * 3 * 2),
    "maximum over the edge, padded": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), 2 * 4 * 3),
    "maximum with gaps": (lambda x: F.max_pool2d(x, 2, 1, dilation=2), 2 * 4 * 3),
    "maximum 1d": (lambda x: F.max_pool1d(x.flatten(2), 3, 2, 1), 30),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (4, 2)), 16),
    "largest over dimensions": (lambda x: x.amax((1, 3)) - x.max(2, keepdim=True).values.sum((1, 3)), 6),
    "smallest over dimensions": (lambda x: x.amin((2, 3)) + x.min(1).values.mean((1, 2)).unsqueeze(1), 2),
    "tanhshrink and softmin": (lambda x: F.softmin(F.tanhshrink(x), 1), 60),
    "one matrix for several": (lambda x: x @ x[:, :1].transpose(2, 3), 72),
}
"""Functions that add up or compare entries, likewise."""


BOARD = torch.arange(30).view(6, 5) % 3 == 0

CHOSEN: dict[str, tuple[Callable, int]] = {
    "choice by a mask": (lambda x: torch.where(BOARD, x, F.relu(-x)), 60),
    "choice of constants": (
        lambda x: torch.where(BOARD, x, 0.3) + torch.where(BOARD.flip(0), torch.linspace(-1, 1, 5), x),
        60,
    ),
    "constants by comparison": (
        lambda x: torch.where(x > 0.1, x, 0.3) + torch.where(x < 0.2, torch.linspace(-1, 1, 30).view(6, 5), x),
        60,
    ),
    "filled by a mask": (lambda x: x.masked_fill(BOARD, -0.7), 60),
    "filled by comparison": (lambda x: x.masked_fill(x < -0.1, 0.4), 60),
    "softmax of masked scores": (lambda x: x.masked_fill(BOARD, -torch.inf).softmax(-1), 60),
    "softmax of chosen scores": (lambda x: F.softmax(torch.where(BOARD, -torch.inf, 2 * x), 2), 60),
    "softmax of scores that are kept": (lambda x: torch.softmax(torch.where(BOARD, x, -torch.inf), 3) @ x.mT, 72),
}
"""Choices by constants and of constants, likewise."""

SUPPORTED: dict[str, Callable[[], nn.Module]] = {
    **CONSTRUCTS,
    **FAMILIES,
    **{name: partial(between_layers, activation) for name, activation in ACTIVATIONS.items()},
    **{name: partial(numbered, *case) for name, case in (REARRANGED | SUMMED).items()},
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 7), nn.Linear(7, 3)),
    "linear without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3, bias=False)),
    "conv": lambda: chain(nn.Conv2d(2, 3, 3), features=3 * 4 * 3),
    "conv padding": lambda: chain(nn.Conv2d(2, 3, 3, padding=1), features=3 * 6 * 5),
    "conv stride": lambda: chain(nn.Conv2d(2, 3, 3, stride=2, padding=1), features=3 * 3 * 3),
    "conv uneven": lambda: chain(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(0, 1)), features=3 * 2 * 6),
    "conv dilation": lambda: chain(nn.Conv2d(2, 3, 2, dilation=2), features=3 * 4 * 3),
    "conv groups": lambda: chain(nn.Conv2d(2, 4, 3, groups=2, bias=False), features=4 * 4 * 3),
    "conv functional": lambda: Function(
        lambda m, x: F.linear(F.relu(F.conv2d(x, m.w, m.b, stride=2, padding=1)).flatten(1), m.v, m.c),
        w=torch.randn(3, 2, 3, 3),
        b=torch.randn(3),
        v=torch.randn(3, 27),
        c=torch.randn(3),
    ),
    "batch norm 2d": lambda: chain(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), features=36),
    "batch norm first": lambda: chain(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), features=36),
    "batch norm without weights": lambda: chain(nn.BatchNorm2d(2, affine=False), features=60),
    "batch norm 1d": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 6), nn.BatchNorm1d(6), nn.ReLU(), head(6)),
    "batch norm functional": lambda: Function(
        lambda m, x: m.head(F.batch_norm(x, m.mean, m.var, m.w, m.b, False, 0.1, 1e-3).flatten(1)),
        mean=torch.randn(2),
        var=torch.rand(2) + 0.1,
        w=torch.randn(2),
        b=torch.randn(2),
        head=head(60),
    ),
    "relu twice": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU(), head(5)),
    "relu functional": lambda: Function(lambda m, x: m.b(F.relu(m.a(x.flatten(1)))), a=nn.Linear(60, 9), b=head(9)),
    "relu torch": lambda: Function(
        lambda m, x: m.b(torch.relu(m.a(torch.flatten(x, 1)))), a=nn.Linear(60, 9), b=head(9)
    ),
    "relu method": lambda: Function(
        lambda m, x: m.b(m.a(x.flatten(start_dim=1)).relu()), a=nn.Linear(60, 9), b=head(9)
    ),
    "relu last": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3), nn.ReLU()),
    "leaky relu functional": lambda: Function(
        lambda m, x: m.b(F.leaky_relu(m.a(x.flatten(1)), 0.25)), a=nn.Linear(60, 9), b=head(9)
    ),
    "leaky relu default": lambda: Function(
        lambda m, x: m.b(F.leaky_relu(m.a(x.flatten(1)))), a=nn.Linear(60, 9), b=head(9)
    ),
    "clamp last": lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3), nn.Hardtanh(-0.3, 0.7)),
    "relu6 in place": lambda: chain(nn.Conv2d(2, 3, 3), nn.ReLU6(inplace=True), features=36),
    "sigmoid functional": lambda: Function(
        lambda m, x: m.b(torch.sigmoid(m.a(x.flatten(1)))), a=nn.Linear(60, 9), b=head(9)
    ),
    "sigmoid method": lambda: Function(lambda m, x: m.b(m.a(x.flatten(1)).sigmoid()), a=nn.Linear(60, 9), b=head(9)),
    "tanh functional": lambda: Function(lambda m, x: m.b(torch.tanh(m.a(x.flatten(1)))), a=nn.Linear(60, 9), b=head(9)),
    "smooth functional": lambda: Function(
        lambda m, x: m.b(
            F.gelu(F.silu(m.a(x.flatten(1))), approximate="tanh") + F.softplus(x.flatten(1)[:, :9], 3, 18)
        ),
        a=nn.Linear(60, 9),
        b=head(9),
    ),
    "smooth in place": lambda: Function(
        lambda m, x: m.b(sum(each(m.a(x.flatten(1)) * 1) for each in m.parts)),
        parts=nn.ModuleList(
            [nn.SiLU(True), nn.Hardswish(True), nn.ELU(inplace=True), nn.Mish(True), nn.SELU(True), nn.CELU(0.5, True)]
        ),
        a=nn.Linear(60, 9),
        b=head(9),
    ),
    "smooth in-place functions": lambda: Function(
        lambda m, x: m.b(
            sum(
                function(torch.sigmoid(m.a(x.flatten(1))) * 1)
                for function in (
                    torch.exp_,
                    F.selu_,
                    F.elu_,
                    F.celu_,
                    torch.sqrt_,
                    torch.log_,
                    torch.sin_,
                    torch.cos_,
                    torch.square_,
                )
            )
        ),
        a=nn.Linear(60, 9),
        b=head(9),
    ),
    "whole numbers": lambda: Function(
        lambda m, x: m.head(m.sum(m.scaled(m.a(torch.ops.tiltproof.rounded(x, 30.0, 0, -128, 127, 0.0)))).flatten(1)),
        a=whole_convolution(),
        scaled=partial(
            torch.ops.tiltproof.requantize,
            multipliers=[2**30 + 77, 1503238553, 2**31 - 1],
            shifts=[-3, -4, 1],
            low=-90,
            high=127,
        ),
        sum=lambda y: torch.ops.tiltproof.rescaled_sum(
            y, y.flip(3)[:, :1], [2**30, 1288490188, 1717986918], [0, -1, -19], True, -100, 80
        ),
        head=head(36),
    ),
    "prelu by channel": lambda: Function(
        lambda m, x: m.head(m.p(m.a(x)).flatten(1)), a=nn.Conv2d(2, 3, 3), p=slopes(0.3, -0.5, 1.4), head=head(36)
    ),
    "maximum": lambda: Function(
        lambda m, x: m.head(torch.maximum(m.a(x), m.b(x)).flatten(1)),
        a=nn.Conv2d(2, 3, 3),
        b=nn.Conv2d(2, 3, 3),
        head=head(36),
    ),
    "minimum": lambda: Function(
        lambda m, x: m.c(torch.min(F.relu(m.a(x.flatten(1))), m.b(x.flatten(1)))),
        a=nn.Linear(60, 7),
        b=nn.Linear(60, 7),
        c=head(7),
    ),
    "maximum with constants": lambda: Function(
        lambda m, x: m.head(torch.minimum(torch.maximum(m.a(x), m.low), m.high).flatten(1)),
        a=nn.Conv2d(2, 3, 3),
        low=torch.linspace(-0.5, 0.2, 3).view(3, 1, 1),
        high=torch.tensor(0.4),
        head=head(36),
    ),
    "quotient": lambda: Function(
        lambda m, x: m.c(m.a(x.flatten(1)) / (2 + torch.sigmoid(m.b(x.flatten(1))))),
        a=nn.Linear(60, 7),
        b=nn.Linear(60, 7),
        c=head(7),
    ),
    "softsign": lambda: Function(lambda m, x: m.b(F.softsign(m.a(x.flatten(1)))), a=nn.Linear(60, 9), b=head(9)),
    "quotient by a smaller branch": lambda: Function(
        lambda m, x: m.head((m.a(x) / (1 + m.a(x).abs().mean((2, 3), keepdim=True))).flatten(1)),
        a=nn.Conv2d(2, 2, 1),
        head=head(60),
    ),
    "choice": lambda: Function(
        lambda m, x: m.b((lambda y: torch.where(y > 0.1, y, 0.3 * y) + y * (y <= -0.2))(m.a(x.flatten(1)))),
        a=nn.Linear(60, 9),
        b=head(9),
    ),
    **{name: partial(numbered, *case) for name, case in CHOSEN.items()},
    "glu": lambda: Function(lambda m, x: m.head(F.glu(m.a(x), 1).flatten(1)), a=nn.Conv2d(2, 6, 3), head=head(36)),
    "log-softmax": lambda: Function(
        lambda m, x: m.head(F.log_softmax(m.a(x), 1).flatten(1)), a=nn.Conv2d(2, 3, 3), head=head(36)
    ),
    "logsumexp": lambda: Function(
        lambda m, x: m.head(torch.cat([m.a(x).logsumexp((2, 3)), m.a(x).logsumexp(1, True).flatten(1)], 1)),
        a=nn.Conv2d(2, 3, 3),
        head=head(15),
    ),
    "layer norm by parts": lambda: Function(
        lambda m, x: m.b(
            (lambda y: (y - y.mean(1, keepdim=True)) / torch.sqrt(y.var(1, keepdim=True, correction=0) + 0.1))(
                m.a(x.flatten(1))
            )
        ),
        a=nn.Linear(60, 9),
        b=head(9),
    ),
    "standard deviation": lambda: Function(
        lambda m, x: m.head(torch.cat([(1 + m.a(x)).std((2, 3)), m.a(x).var(1, unbiased=False).flatten(1)], 1)),
        a=nn.Conv2d(2, 3, 3),
        head=head(15),
    ),
    "norm": lambda: Function(
        lambda m, x: m.head(torch.linalg.vector_norm(2 + F.relu(m.a(x)), dim=1).flatten(1)),
        a=nn.Conv2d(2, 3, 3),
        head=head(12),
    ),
    "interpolated": lambda: Function(
        lambda m, x: m.head(torch.lerp(F.relu(m.a(x)), m.a(x), 0.3).addcmul(m.a(x), m.a(x).tanh()).flatten(1)),
        a=nn.Conv2d(2, 3, 3),
        head=head(36),
    ),
    "max pool": lambda: chain(nn.MaxPool2d(2), features=2 * 3 * 2),
    "max pool padding": lambda: chain(nn.MaxPool2d(3, stride=2, padding=1), features=2 * 3 * 3),
    "max pool overlapping": lambda: chain(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2, stride=1), features=3 * 3 * 2),
    "max pool functional": lambda: Function(lambda m, x: m.head(F.max_pool2d(x, 2, 2).flatten(1)), head=head(12)),
    "max pool all negative": lambda: chain(
        nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.MaxPool2d(2, padding=1), features=24
    ),
    "avg pool": lambda: chain(nn.AvgPool2d(2), features=12),
    "avg pool padding": lambda: chain(nn.AvgPool2d(3, stride=2, padding=1), features=18),
    "avg pool functional": lambda: Function(
        lambda m, x: m.head(F.avg_pool2d(x, (3, 2), (2, 1)).flatten(1)), head=head(16)
    ),
    "average without padding": lambda: chain(nn.AvgPool2d(3, 2, 1, count_include_pad=False), features=18),
    "adaptive avg pool": lambda: chain(nn.AdaptiveAvgPool2d(1), features=2),
    "adaptive avg pool uneven": lambda: chain(nn.AdaptiveAvgPool2d((4, 3)), features=24),
    "adaptive avg pool functional": lambda: Function(
        lambda m, x: m.head(F.adaptive_avg_pool2d(x, (2, 2)).flatten(1)), head=head(8)
    ),
    "mean": lambda: Function(lambda m, x: m.head(x.mean((2, 3))), head=head(2)),
    "slice": lambda: Function(lambda m, x: m.head(x[:, :, 1:5:2, -3:].flatten(1)), head=head(12)),
    "view": lambda: Function(lambda m, x: m.head(x.view(x.size(0), -1)), head=head(60)),
    "reshape": lambda: Function(lambda m, x: m.head(x.reshape(x.shape[0], 4, 15).reshape(-1, 60)), head=head(60)),
    "permute": lambda: Function(lambda m, x: m.head(x.permute(0, 2, 3, 1).flatten(1)), head=head(60)),
    "transpose negative dims": lambda: Function(lambda m, x: m.head(x.transpose(-1, -3).flatten(1)), head=head(60)),
    "residual add": lambda: Function(
        lambda m, x: m.head((x + m.b(F.relu(m.a(x)))).relu().flatten(1)),
        a=nn.Conv2d(2, 3, 3, padding=1),
        b=nn.Conv2d(3, 2, 3, padding=1),
        head=head(60),
    ),
    "residual torch.add": lambda: Function(
        lambda m, x: m.head(torch.add(x, m.a(x)).flatten(1)), a=nn.Conv2d(2, 2, 1), head=head(60)
    ),
    "residual sub": lambda: Function(
        lambda m, x: m.head((x - F.relu(m.a(x))).flatten(1)), a=nn.Conv2d(2, 2, 1), head=head(60)
    ),
    "sum with a smaller branch": lambda: Function(
        lambda m, x: m.head((F.relu(x) - x.mean((2, 3), keepdim=True) + m.a(x)).flatten(1)),
        a=nn.Conv2d(2, 1, 1),
        head=head(60),
    ),
    "squeeze and excite": lambda: Function(
        lambda m, x: m.head((x * torch.sigmoid(m.b(F.relu(m.a(x.mean((2, 3), keepdim=True)))))).flatten(1)),
        a=nn.Conv2d(2, 3, 1),
        b=nn.Conv2d(3, 2, 1),
        head=head(60),
    ),
    "gate over channels": lambda: Function(
        lambda m, x: m.head((torch.sigmoid(m.a(x)) * m.b(x)).flatten(1)),
        a=nn.Conv2d(2, 1, 1),
        b=nn.Conv2d(2, 3, 3, padding=1),
        head=head(90),
    ),
    "product of branches": lambda: Function(
        lambda m, x: m.c(F.relu(m.a(x.flatten(1))) * m.b(x.flatten(1))),
        a=nn.Linear(60, 5),
        b=nn.Linear(60, 5),
        c=head(5),
    ),
    "x sigmoid(x)": lambda: Function(
        lambda m, x: m.b((lambda y: y * y.sigmoid())(m.a(x.flatten(1)))), a=nn.Linear(60, 9), b=head(9)
    ),
    "layer norm": lambda: Function(
        lambda m, x: m.b(F.relu(m.n(m.a(x.flatten(1))))), a=nn.Linear(60, 9), n=nn.LayerNorm(9, eps=1e-2), b=head(9)
    ),
    "layer norm of pictures": lambda: Function(
        lambda m, x: m.head(F.layer_norm(m.n(x), (6, 5), None, None, 0.1).flatten(1)),
        n=nn.LayerNorm(5, eps=1e-2, bias=False),
        head=head(60),
    ),
    "group norm": lambda: chain(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, eps=1e-2), nn.ReLU(), features=48),
    "instance norm": lambda: chain(nn.InstanceNorm2d(2, eps=1e-2, affine=True), nn.Conv2d(2, 3, 3), features=36),
    "rms norm": lambda: Function(
        lambda m, x: m.b(F.relu(m.n(m.a(x.flatten(1))))), a=nn.Linear(60, 9), n=nn.RMSNorm(9, eps=1e-2), b=head(9)
    ),
    "softmax": lambda: Function(lambda m, x: m.b(torch.softmax(m.a(x.flatten(1)), 1)), a=nn.Linear(60, 6), b=head(6)),
    "softmax over channels": lambda: Function(
        lambda m, x: m.head(F.softmax(m.a(x), 1).flatten(1)), a=nn.Conv2d(2, 3, 3), head=head(36)
    ),
    "softmin": lambda: Function(lambda m, x: m.b(F.softmin(m.a(x.flatten(1)), 1)), a=nn.Linear(60, 6), b=head(6)),
    "softmax last": lambda: Function(lambda m, x: m.a(x.flatten(1)).softmax(-1), a=head(60)),
    "product of matrices": lambda: Function(
        lambda m, x: m.head((F.relu(m.a(x)) @ m.b(x).transpose(2, 3)).flatten(1)),
        a=nn.Conv2d(2, 2, 1),
        b=nn.Conv2d(2, 2, 1),
        head=head(72),
    ),
    "batched product": lambda: Function(
        lambda m, x: m.head(torch.bmm(m.a(x).flatten(2), x.flatten(2).transpose(1, 2)).flatten(1)),
        a=nn.Conv2d(2, 3, 1),
        head=head(6),
    ),
    "attention": lambda: Function(
        lambda m, x: m.head(F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x)).flatten(1)),
        q=nn.Conv2d(2, 2, 1),
        k=nn.Conv2d(2, 2, 1),
        v=nn.Conv2d(2, 2, 1),
        head=head(60),
    ),
    "multi-head attention": lambda: Function(
        lambda m, x: m.head((lambda y: m.a(y, y, y)[0])(x.flatten(1, 2).transpose(1, 2)[..., :4]).flatten(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        head=head(20),
    ),
    "attention, the sequence first": lambda: Function(
        lambda m, x: m.head(
            (lambda y: m.a(y, y, y, need_weights=False)[0])(x[:, 0].permute(1, 0, 2)).transpose(0, 1).flatten(1)
        ),
        a=nn.MultiheadAttention(5, 1, bias=False),
        head=head(30),
    ),
    "transformer": lambda: Function(
        lambda m, x: m.head(m.a(x.flatten(1, 2).transpose(1, 2)[..., :4]).flatten(1)),
        a=nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, activation="gelu"),
        head=head(20),
    ),
    "queries, keys and values at once": lambda: Function(
        lambda m, x: m.head(
            F.scaled_dot_product_attention(
                *m.a(x.flatten(2)).reshape(len(x), 2, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
            )
            .transpose(1, 2)
            .reshape(len(x), -1)
        ),
        a=nn.Linear(30, 12),
        head=head(8),
    ),
    "square": lambda: Function(lambda m, x: m.b((lambda y: y * y)(m.a(x.flatten(1)))), a=nn.Linear(60, 5), b=head(5)),
    "product last": lambda: Function(lambda m, x: m.a(x.flatten(1)) * m.b(x.flatten(1)), a=head(60), b=head(60)),
    "concat": lambda: Function(
        lambda m, x: m.head(torch.cat([x, F.relu(m.a(x)), x], dim=1).flatten(1)), a=nn.Conv2d(2, 3, 1), head=head(210)
    ),
    "concat negative dim": lambda: Function(lambda m, x: m.head(torch.cat((x, -x), -1).flatten(1)), head=head(120)),
    "class token": lambda: Function(
        lambda m, x: m.head(torch.cat([m.k.expand(len(x), -1, -1), m.a(x).flatten(2).transpose(1, 2)], 1).flatten(1)),
        a=nn.Conv2d(2, 2, 1),
        k=torch.randn(1, 1, 2),
        head=head(62),
    ),
    "constants between branches": lambda: Function(
        lambda m, x: m.head(
            torch.cat([m.k.expand(len(x), -1, -1, -1), x, m.k.expand(len(x), -1, -1, -1), m.a(x)], 1).flatten(1)
        ),
        a=nn.Conv2d(2, 2, 1),
        k=torch.randn(1, 1, 6, 5).double(),
        head=head(180),
    ).float(),
    "linear on tokens": lambda: Function(
        lambda m, x: m.head(F.relu(m.b(F.relu(m.a(x.flatten(2).transpose(1, 2))))).flatten(1)),
        a=nn.Linear(2, 3),
        b=nn.Linear(3, 2, bias=False),
        head=head(60),
    ),
    "product with a matrix": lambda: Function(
        lambda m, x: m.head(((m.v @ F.relu(x @ m.w)) @ m.u).flatten(1)),
        v=torch.randn(3, 6),
        w=torch.randn(5, 4),
        u=torch.randn(2, 4, 2),
        head=head(12),
    ),
    "product of a flat input": lambda: Function(
        lambda m, x: torch.addmm(m.b, F.relu(x.flatten(1) @ m.w), m.v),
        w=torch.randn(60, 7) / 8,
        v=torch.randn(7, 3),
        b=torch.randn(3),
    ),
    "einsum": lambda: Function(
        lambda m, x: m.head((torch.einsum("nchw,oc->nohw", x, m.w) + torch.einsum("wk,nchw->nkhw", m.v, x)).flatten(1)),
        w=torch.randn(3, 2),
        v=torch.randn(5, 3),
        head=head(90),
    ),
    "tensordot": lambda: Function(
        lambda m, x: m.head(torch.tensordot(x, m.w, dims=([1, 3], [1, 0])).flatten(1)),
        w=torch.randn(5, 2, 3),
        head=head(18),
    ),
    "conv transpose": lambda: chain(nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), nn.ReLU(), features=3 * 12 * 10),
    "conv transpose groups": lambda: chain(
        nn.ConvTranspose2d(2, 4, (3, 2), (1, 2), (0, 1), groups=2, dilation=(2, 3), bias=False), features=4 * 10 * 10
    ),
    "conv transpose, far padding": lambda: chain(nn.ConvTranspose2d(2, 2, 2, 1, 0, 1, dilation=2), features=2 * 9 * 8),
    "conv transpose 1d": lambda: nn.Sequential(
        nn.Flatten(2), nn.ConvTranspose1d(2, 3, 3, 2, 1, 1), nn.Flatten(), head(180)
    ),
    "conv 1d": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(2, 3, 3, 2, 1), nn.Conv1d(3, 2, 4, padding="same"), nn.Flatten(), head(30)
    ),
    "conv same": lambda: chain(
        nn.Conv2d(2, 3, 3, padding="same"),
        nn.ReLU(),
        nn.Conv2d(3, 2, (4, 3), padding="same", dilation=(1, 2)),
        features=60,
    ),
    "conv reflected": lambda: chain(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), features=90),
    "batch norm of tokens": lambda: nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(2), nn.Flatten(), head(60)),
    "instance norm by running statistics": lambda: chain(
        nn.InstanceNorm2d(2, affine=True, track_running_stats=True), nn.Conv2d(2, 3, 3), features=36
    ),
    "normalization": lambda: Function(
        lambda m, x: m.head(((x - m.mean) / m.std).flatten(1)),
        mean=torch.rand(2, 1, 1),
        std=torch.rand(1, 2, 1, 1) + 0.2,
        head=head(60),
    ),
    "constant arithmetic": lambda: Function(
        lambda m, x: m.head((1 - 2 * x / 3 + 0.1 - x * 0.7).flatten(1)), head=head(60)
    ),
    "zeros around": lambda: Function(
        lambda m, x: m.head(F.pad(F.relu(F.pad(x, (1, 0, 0, 2)) - 0.3), (0, 1)).flatten(1)), head=head(2 * 8 * 7)
    ),
    "negation": lambda: Function(lambda m, x: m.head((-x).flatten(1)), head=head(60)),
    "dropout": lambda: nn.Sequential(nn.Dropout2d(0.5), nn.Flatten(), nn.Dropout(0.3), head(60)),
    "dropout functional": lambda: Function(
        lambda m, x: m.head(F.dropout(x.flatten(1), 0.5, m.training)), head=head(60)
    ),
    "identity": lambda: nn.Sequential(nn.Identity(), nn.Flatten(), head(60), nn.Identity()),
    "in-place relu, input used again": lambda: Function(
        lambda m, x: m.head((lambda y: F.relu(y, inplace=True) + y)(m.a(x)).flatten(1)),
        a=nn.Conv2d(2, 2, 3, padding=1),
        head=head(60),
    ),
    "in-place relu module, input used again": lambda: Function(
        lambda m, x: m.head((lambda y: m.relu(y) - 3 * y)(m.a(x)).flatten(1)),
        a=nn.Conv2d(2, 2, 1),
        relu=nn.ReLU(inplace=True),
        head=head(60),
    ),
    "in-place relu in a sequence": lambda: chain(
        nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 2), nn.ReLU(True), features=12
    ),
    "one module used twice": lambda: Function(
        lambda m, x: m.head(F.relu(m.a(F.relu(m.a(x)))).flatten(1)), a=nn.Conv2d(2, 2, 3, padding=1), head=head(60)
    ),
    "deep": lambda: chain(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(10, 8),
        nn.Sigmoid(),
        features=8,
    ),
}

CHECKER_REFUSES = {"falling leaky relu"}
"""Networks whose operations the checker has no rule for."""
READ_IN_PARTS = {
    *("smallest over dimensions", "maximum over the edge, padded", "transformer"),
    *("layer norm", "layer norm of pictures", "group norm", "instance norm", "rms norm"),
    *(
        "gelu",
        "gelu by tanh",
        "hardswish",
        "quotient",
        "quotient by a smaller branch",
        "smooth functional",
        "smooth in place",
        "x sigmoid(x)",
        "nn.MaxPool2d(dilation, padding)",
    ),
    *("block of MobileNet", "block of ConvNeXt", "block of Swin"),
}
"""Networks that are written or read as other operations (a product with sigmoid is read as SiLU), with other bounds."""
NOT_WRITTEN = {"conv transpose, far padding", "requantized", "rounded", "whole numbers"}
"""Networks that cannot be written as ONNX."""
NOT_READ = {"falling leaky relu"}
"""Networks that can be written as ONNX and not be read again."""


def in_turn(names: Iterable[str], part: int, of: int) -> list:
    """All names as parameters of a test, of which the short form takes those of one part: sweeps share the networks among them."""
    return [pytest.param(name, marks=[] if k % of == part else pytest.mark.slow) for k, name in enumerate(names)]


def build(maker: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return settle(maker(), seed)
