"""118 constructs that PyTorch networks are made of, a small network each: which are accepted, and which are refused and why.

A row of `ACCEPTED` gives a construct its network: the name of one in `small_networks.SUPPORTED`, or one defined here, which joins that
table under the construct's own name. So the tests of bounds forward and backward, planted counterexamples, float32 semantics, the checker
and ONNX files, which iterate over the table, see every construct. ``scripts/docs_constructs.py`` writes ``docs/constructs.md`` from here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.building_blocks import Function, between_layers, chain, head, numbered

Network = Callable[[], nn.Module]


def function(of: Callable[[Tensor], Tensor], features: int) -> Network:
    return partial(numbered, of, features)


def elementwise(of: Callable[[Tensor], Tensor]) -> Network:
    return partial(between_layers, lambda: Function(lambda _, x: of(x)))


def tokens(x: Tensor) -> Tensor:
    """Five tokens of four numbers from a batch of images."""
    return x.flatten(1, 2).transpose(1, 2)[..., :4]


def attending(**options: object) -> nn.Module:
    """Multi-head attention of five tokens to each other."""
    return Function(
        lambda m, x: m.head((lambda y: m.a(y, y, y, need_weights=False, **options)[0])(tokens(x)).flatten(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        head=head(20),
    )


LATER = torch.ones(5, 5).triu(1).bool()
"""For each of five tokens, those after it."""


LINEAR: dict[str, str | Network] = {
    "nn.Linear on tokens": "linear on tokens",
    "nn.Conv2d(stride, padding)": "conv stride",
    "nn.Conv2d(groups)": "conv groups",
    'nn.Conv2d(padding="same")': "conv same",
    'nn.Conv2d(padding_mode="reflect")': "conv reflected",
    'nn.Conv2d(padding_mode="replicate")': lambda: chain(
        nn.Conv2d(2, 3, 3, 2, padding=1, padding_mode="replicate"), features=27
    ),
    'nn.Conv2d(padding_mode="circular")': lambda: chain(
        nn.Conv2d(2, 3, 3, 2, padding=1, padding_mode="circular"), features=27
    ),
    "nn.Conv1d": "conv 1d",
    "nn.ConvTranspose1d": "conv transpose 1d",
    "nn.ConvTranspose2d(stride=2)": lambda: chain(nn.ConvTranspose2d(2, 2, 2, 2), nn.ReLU(), features=240),
    "nn.ConvTranspose2d(padding, output_padding)": "conv transpose",
    "nn.ConvTranspose2d(groups, dilation)": "conv transpose groups",
    'nn.Upsample(mode="nearest")': "nearest",
    'interpolate(mode="nearest-exact")': "nearest to a size",
    'nn.Upsample(mode="bilinear")': "bilinear",
    'nn.Upsample(mode="bilinear", align_corners=True)': "bilinear with aligned corners",
    'interpolate(mode="bilinear", scale_factor=(1.3, 0.7))': "bilinear by a factor",
    'interpolate(mode="linear")': "linear interpolation",
    'interpolate(mode="area")': "area",
    "nn.PixelShuffle": "pixel shuffle",
    "nn.PixelUnshuffle": "pixel unshuffle",
    "nn.ChannelShuffle": "channel shuffle",
    "nn.Unfold": "patches",
    "nn.ConstantPad2d": "constant padding",
    "nn.ReflectionPad2d": "reflection",
    "nn.ReplicationPad2d": "replication",
    "nn.CircularPad2d": "circular padding",
    "x.split": function(lambda x: torch.cat(x.split([2, 3, 1], 2)[::-1], 2), 60),
    "x.chunk": function(lambda x: (lambda a, b: 2 * a - b)(*x.chunk(2, 2)), 30),
    "x.select": "select",
    "x.unbind": function(lambda x: (lambda a, b: a - 2 * b)(*x.unbind(1)), 30),
    "torch.stack": function(lambda x: torch.stack([x, F.relu(x)], 2), 120),
    "x[:, [1, 0, 1]]": "index",
    "x.index_select": function(lambda x: x.index_select(3, torch.tensor([4, 4, 0])), 36),
    "x.gather by constants": function(lambda x: x.gather(3, torch.tensor([4, 1, 0]).expand(len(x), 2, 6, 3)), 36),
    "x.flip": function(lambda x: x.flip(2, 3), 60),
    "x.roll": function(lambda x: x.roll((-1, 2), (2, 3)), 60),
    "torch.rot90": function(lambda x: torch.rot90(x, 1, (2, 3)), 60),
    "x.repeat": function(lambda x: x.repeat(1, 2, 1, 2), 240),
    "x.repeat_interleave": "repeat interleave",
    "x.expand": "expand",
    "x.permute": "permute",
    "x.sum": "sum",
    "x.mean": "mean",
    "x.cumsum": "running sum",
    "x @ constant": "product with a matrix",
    "torch.einsum with a constant": "einsum",
    "torch.tensordot with a constant": "tensordot",
    "torch.cat": "concat",
    "torch.cat with constants": "class token",
    "x + positions, x * constant": lambda: Function(
        lambda m, x: m.head(F.relu((m.a(x) + m.p) * m.q).flatten(1)),
        a=nn.Conv2d(2, 2, 1),
        p=torch.randn(1, 2, 6, 5),
        q=torch.rand(2, 1, 1),
        head=head(60),
    ),
    "nn.BatchNorm2d": "batch norm 2d",
    "nn.BatchNorm1d of tokens": "batch norm of tokens",
    "nn.InstanceNorm2d(track_running_stats=True)": "instance norm by running statistics",
    "nn.AvgPool2d(count_include_pad=False)": "average without padding",
    "nn.AvgPool2d(ceil_mode=True)": "average over the edge",
    "nn.AdaptiveAvgPool2d": "adaptive avg pool uneven",
}
"""Constructs that need no relaxation."""

PIECEWISE: dict[str, str | Network] = {
    "nn.ReLU": "relu",
    "nn.LeakyReLU": "leaky relu",
    "nn.ReLU6": "relu6",
    "nn.Hardtanh": "hardtanh",
    "nn.PReLU, a slope for each channel": "prelu by channel",
    "nn.Hardsigmoid": "hard sigmoid",
    "x.clamp": "clamp",
    "x.abs": "abs",
    "torch.sign": "sign",
    "torch.maximum of two branches": "maximum",
    "torch.minimum with constants": "maximum with constants",
    "torch.where(x > 0, a, b)": function(lambda x: torch.where(x > 0, x - 1, -0.5 * x), 60),
    "nn.MaxPool2d(ceil_mode=True)": "maximum over the edge",
    "nn.MaxPool2d(dilation, padding)": function(lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), 24),
    "nn.MaxPool1d": "maximum 1d",
    "nn.AdaptiveMaxPool2d": "adaptive maximum",
    "x.amax": "largest over dimensions",
    "x.amin": function(lambda x: x.amin((1, 3)), 6),
}
"""Piecewise linear constructs."""

SMOOTH: dict[str, str | Network] = {
    "nn.Sigmoid": "sigmoid",
    "nn.Tanh": "tanh",
    "nn.GELU": "gelu",
    'nn.GELU("tanh")': "gelu by tanh",
    "nn.SiLU": "silu",
    "nn.Hardswish": "hardswish",
    "nn.Mish": "mish",
    "nn.ELU": "elu",
    "nn.SELU": "selu",
    "nn.CELU": "celu",
    "nn.Softplus": "softplus",
    "torch.exp": "exp",
    "torch.log": "log",
    "torch.sqrt": "sqrt",
    "torch.reciprocal": "reciprocal",
    "x ** 2": "square",
    "torch.erf": "erf",
    "torch.sin": "sin",
    "torch.cos": "cos",
}
"""Smooth functions of one variable."""

BRANCHES: dict[str, str | Network] = {
    "x + block(x)": "residual add",
    "a * b": "product of branches",
    "a / b": "quotient",
    "x * sigmoid(x)": "x sigmoid(x)",
    "squeeze and excite": "squeeze and excite",
    "nn.GLU": "glu",
    "nn.LayerNorm": "layer norm",
    "nn.GroupNorm": "group norm",
    "nn.RMSNorm": "rms norm",
    "nn.Softmax inside": "softmax",
    "torch.bmm": "batched product",
    "torch.einsum of two branches": function(lambda x: torch.einsum("bhid,bhjd->bihj", x, F.relu(x)), 72),
    "scaled_dot_product_attention": "attention",
    "scaled_dot_product_attention(is_causal=True)": function(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), 60
    ),
    "scaled_dot_product_attention(attn_mask)": function(
        lambda x: F.scaled_dot_product_attention(x, x, 2 * x, torch.linspace(-1, 1, 36).view(6, 6)), 60
    ),
    "nn.MultiheadAttention": "multi-head attention",
    "nn.MultiheadAttention(attn_mask)": lambda: attending(attn_mask=LATER),
    "nn.TransformerEncoderLayer": "transformer",
}
"""Constructs in which branches meet."""

ACCEPTED = {
    "Linear, or only rearranging": LINEAR,
    "Piecewise linear": PIECEWISE,
    "Smooth in one variable": SMOOTH,
    "Branches meet": BRANCHES,
}

REFUSED: dict[str, tuple[Network, str]] = {
    'interpolate(mode="bicubic")': (
        function(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 240),
        "linear, but without a rule; bilinear has one",
    ),
    "nn.Conv3d": (function(lambda x: F.conv3d(x.unsqueeze(1), torch.ones(1, 1, 1, 3, 3)), 24), "no rule for volumes"),
    "nn.LocalResponseNorm": (
        function(lambda x: F.local_response_norm(x, 2), 60),
        "pools volumes inside; group norm has a rule",
    ),
    "grid_sample": (
        function(lambda x: F.grid_sample(x, torch.zeros(len(x), 6, 5, 2), align_corners=False), 60),
        "no rule; resizing and rolling have one",
    ),
    "x.topk": (function(lambda x: x.topk(2, 3).values, 24), "no rule for orders; the largest entry has one"),
    "nn.LSTM": (
        lambda: Function(
            lambda m, x: m.head(m.a(x[:, 0])[0].flatten(1)), a=nn.LSTM(5, 2, batch_first=True), head=head(12)
        ),
        "no rule for recurrent layers; their steps, written out, have one",
    ),
}
"""Refused constructs: a network each, and why there is no rule."""

CONSTRUCTS = {
    name: network for rows in ACCEPTED.values() for name, network in rows.items() if not isinstance(network, str)
}
"""The networks defined here, for `small_networks.SUPPORTED`."""
