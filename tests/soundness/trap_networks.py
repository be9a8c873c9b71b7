# ruff: noqa: ARG005 - the networks are lambdas of (modules, x), and many need no modules
"""Networks that a careless verifier gets wrong, grouped by what is unusual about them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.small_networks import Function, head


class TwiceReLU(nn.ReLU):
    def forward(self, x):
        return 2 * F.relu(x) - 1


class ShiftedLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 3


class FlippedConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, -self.weight, self.bias)


class AliasedReLU(nn.Module):
    def forward(self, x):
        y = x.flatten(1)
        y.relu_()
        return x.flatten(1)


class Accumulating(nn.Module):
    def forward(self, x):
        y = x
        x += 1
        x *= 2
        return y.flatten(1)


class Assigning(nn.Module):
    def forward(self, x):
        y = x * 1
        y[:, 0] = 5
        return y.flatten(1)


class Branching(nn.Module):
    def forward(self, x):
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


class Optional(nn.Module):
    def forward(self, x, negate=True):
        return -x.flatten(1) if negate else x.flatten(1)


def hooked(change: str) -> nn.Module:
    linear = head(60)
    if change == "forward":
        linear.register_forward_hook(lambda module, inputs, output: output + 100)
    else:
        linear.register_forward_pre_hook(lambda module, inputs: (inputs[0] * -1,))
    return nn.Sequential(nn.Flatten(), linear)


def no_statistics() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten(), head(60))


def function(body, **members):
    return lambda: Function(body, **members)


def of_pixels(body, **members):
    """Build an image-to-image function, flattened."""
    return lambda: Function(lambda m, x: body(m, x).flatten(1), **members)


TRAPS = {
    # in-place and aliasing
    "relu_ on a view": AliasedReLU,
    "in-place arithmetic on a second name": Accumulating,
    "slice assignment": Assigning,
    "relu_ method, input used again": of_pixels(lambda m, x: (x * 1).relu_() + x),
    "relu_ of the input, input used again": of_pixels(lambda m, x: x.relu_() + x),
    "in-place relu module on the input": of_pixels(lambda m, x: m.relu(x) + x, relu=nn.ReLU(inplace=True)),
    "add_ then old name": of_pixels(lambda m, x: (lambda y: y.add_(1) + y)(x * 2)),
    "in-place leaky relu": of_pixels(lambda m, x: (lambda y: F.leaky_relu(y, 0.5, inplace=True) + y)(x * 2)),
    "in-place tanh": of_pixels(lambda m, x: (lambda y: y.tanh_() + y)(x * 2)),
    "in-place sigmoid": of_pixels(lambda m, x: (lambda y: torch.sigmoid_(y) - y)(x * 2)),
    "in-place relu of a reshape": of_pixels(lambda m, x: (lambda y: (F.relu_(y.view(-1, 60)), y)[1])(x * 2)),
    "in-place relu of a permute": of_pixels(
        lambda m, x: (lambda y: (F.relu(y.permute(0, 2, 3, 1), inplace=True), y)[1])(x * 2)
    ),
    "in-place relu of an identity": of_pixels(
        lambda m, x: (lambda y: (F.relu_(m.identity(y)), y)[1])(x * 2), identity=nn.Identity()
    ),
    "in-place relu of dropout in eval mode": of_pixels(
        lambda m, x: (lambda y: (F.relu_(m.drop(y)), y)[1])(x * 2), drop=nn.Dropout()
    ),
    "in-place relu of a slice": of_pixels(lambda m, x: (lambda y: (F.relu_(y[:, :1]), y)[1])(x * 2)),
    "view taken before, read after in-place": of_pixels(
        lambda m, x: (lambda y: (lambda v: (F.relu_(y), v)[1])(y.flatten(1)))(x * 2)
    ),
    "in-place dropout": of_pixels(lambda m, x: (lambda y: F.dropout(y, 0.5, False, True) + y)(x * 2)),
    # subclasses, hooks, arguments
    "relu subclass": lambda: nn.Sequential(nn.Flatten(), TwiceReLU(), head(60)),
    "linear subclass": lambda: nn.Sequential(nn.Flatten(), ShiftedLinear(60, 3)),
    "conv subclass": lambda: nn.Sequential(FlippedConv(2, 3, 3), nn.Flatten(), head(36)),
    "forward hook": lambda: hooked("forward"),
    "forward pre-hook": lambda: hooked("pre"),
    "default argument": Optional,
    "spectral norm": lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(head(60))),
    "weight norm": lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(head(60))),
    "weights computed in forward": function(
        lambda m, x: F.linear(x.flatten(1), torch.tanh(m.w) * 2), w=torch.randn(3, 60)
    ),
    "weights from the input": function(lambda m, x: F.linear(x.flatten(1), x.flatten(1))),
    "conv with weights from the input": of_pixels(lambda m, x: F.conv2d(x, x[:2])),
    # data-dependent or not a function
    "branch on the data": Branching,
    "branch on one entry": lambda: Function(lambda m, x: x.flatten(1) * (1 if x[0, 0, 0, 0] > 0 else 2)),
    "item": of_pixels(lambda m, x: x * x.max().item()),
    "dropout that is always on": function(lambda m, x: F.dropout(x.flatten(1), 0.5)),
    "random noise": function(lambda m, x: x.flatten(1) + torch.rand_like(x.flatten(1))),
    "torch.rand": function(lambda m, x: x.flatten(1) + torch.rand(60)),
    # the batch is not an image
    "batch mean": function(lambda m, x: (x - x.mean(0)).flatten(1)),
    "mean of everything": function(lambda m, x: (x - x.mean()).flatten(1)),
    "batch sum, keepdim": function(lambda m, x: (x - x.sum(0, keepdim=True)).flatten(1)),
    "batch flip": function(lambda m, x: x.flip(0).flatten(1)),
    "batch roll": function(lambda m, x: x.roll(1, 0).flatten(1)),
    "batch index": function(lambda m, x: x[[1, 2, 0]].flatten(1)),
    "first row for all": function(lambda m, x: (x - x[0]).flatten(1)),
    "first row for all, kept": function(lambda m, x: (x - x[:1]).flatten(1)),
    "concat over the batch": function(lambda m, x: torch.cat([x, 2 * x], 0).flatten(1)),
    "concat over the batch, sliced": function(lambda m, x: torch.cat([2 * x, x], 0)[1:4].flatten(1)),
    "reshape over the batch": function(lambda m, x: x.reshape(2, 3, 30).permute(1, 0, 2).reshape(3, 60)),
    "reshape over the batch and back": function(lambda m, x: F.relu(x.reshape(-1, 20)).reshape(3, 60)),
    "flatten over the batch": function(lambda m, x: x.flatten().reshape(60, 3).t()),
    "flatten from 0": function(lambda m, x: torch.flatten(x).view(3, 60)),
    "permute the batch": function(lambda m, x: x.permute(1, 0, 2, 3).reshape(3, 60)),
    "transpose the batch": function(lambda m, x: x.transpose(0, 1).reshape(3, 60)),
    "transpose the batch, negative": function(lambda m, x: x.transpose(-4, 1).reshape(3, 60)),
    "batch norm without statistics": no_statistics,
    "unbatched pooling": function(lambda m, x: F.max_pool2d(x.flatten(1)[None], 2, padding=1)[0]),
    "pool over the batch": function(lambda m, x: F.avg_pool2d(x.flatten(1)[None, None], (3, 1), 1, (1, 0))[0, 0]),
    "conv over the batch": function(
        lambda m, x: F.conv2d(x.flatten(1)[None, None], m.w, padding=(1, 0))[0, 0], w=torch.randn(1, 1, 3, 1)
    ),
    "linear over the batch": function(lambda m, x: m.l(x.flatten(1).t()).t(), l=nn.Linear(3, 3)),
    # activations that are not monotone, or not of slope one
    "leaky relu, negative slope": of_pixels(lambda m, x: F.leaky_relu(x, -0.5)),
    "leaky relu, slope above one": of_pixels(lambda m, x: F.leaky_relu(x, 2.5)),
    "leaky relu, slope one": of_pixels(lambda m, x: F.leaky_relu(x, 1.0)),
    "prelu": of_pixels(lambda m, x: m.p(x), p=nn.PReLU(2)),
    "relu6": of_pixels(lambda m, x: F.relu6(x * 9)),
    "hardtanh": of_pixels(lambda m, x: F.hardtanh(x, -0.2, 0.3)),
    "elu": of_pixels(lambda m, x: F.elu(x)),
    "gelu": of_pixels(lambda m, x: F.gelu(x)),
    "silu": of_pixels(lambda m, x: F.silu(x)),
    "softplus": of_pixels(lambda m, x: F.softplus(x)),
    "hardswish": of_pixels(lambda m, x: F.hardswish(4 * x)),
    "hardsigmoid": of_pixels(lambda m, x: F.hardsigmoid(4 * x)),
    "clamp": of_pixels(lambda m, x: x.clamp(-0.3, 0.4)),
    "clamp, one side": of_pixels(lambda m, x: torch.clamp(x, max=0.1)),
    "abs": of_pixels(lambda m, x: x.abs()),
    "square": of_pixels(lambda m, x: x**2),
    "product with itself": of_pixels(lambda m, x: x * x),
    "product of two": of_pixels(lambda m, x: x * m.a(x), a=nn.Conv2d(2, 2, 1)),
    "quotient": of_pixels(lambda m, x: x / (x * x + 1)),
    "constant over x": of_pixels(lambda m, x: 1 / (x + 9)),
    "division by zero": of_pixels(lambda m, x: x / m.z, z=torch.zeros(2, 1, 1)),
    "times zero": of_pixels(lambda m, x: x * 0 + 1),
    "times minus two": of_pixels(lambda m, x: -2 * x),
    "division by a negative": of_pixels(lambda m, x: x / -3),
    "rounding division": of_pixels(lambda m, x: torch.div(x, 0.3, rounding_mode="floor")),
    "floor division": of_pixels(lambda m, x: x // 0.3),
    "remainder": of_pixels(lambda m, x: x % 0.3),
    "add with alpha": of_pixels(lambda m, x: torch.add(x, x, alpha=3)),
    "add with alpha, constant": of_pixels(lambda m, x: torch.add(x, m.k, alpha=-2), k=torch.randn(2, 1, 1)),
    "sub with alpha": of_pixels(lambda m, x: torch.sub(x, x * 2, alpha=-2)),
    "sub with alpha, method": of_pixels(lambda m, x: x.sub(m.k, alpha=5), k=torch.randn(2, 1, 1)),
    "rsub": of_pixels(lambda m, x: torch.rsub(x, 2, alpha=3)),
    "exp": of_pixels(lambda m, x: x.exp()),
    "round": of_pixels(lambda m, x: x.round()),
    "sign": of_pixels(lambda m, x: x.sign()),
    "comparison": of_pixels(lambda m, x: (x > 0).to(x.dtype)),
    "where": of_pixels(lambda m, x: torch.where(x > 0.1, x, -x)),
    "maximum": of_pixels(lambda m, x: torch.maximum(x, -x)),
    "half precision": of_pixels(lambda m, x: x.half().to(x.dtype)),
    "integers": of_pixels(lambda m, x: (x * 5).long().to(x.dtype)),
    "sort": function(lambda m, x: x.flatten(1).sort(1)[0]),
    "topk": function(lambda m, x: x.flatten(1).topk(3)[0]),
    "log softmax": function(lambda m, x: F.log_softmax(x.flatten(1), 1)),
    "normalize": function(lambda m, x: F.normalize(x.flatten(1))),
    # reductions, shapes
    "mean over the image": function(lambda m, x: x.mean((2, 3))),
    "mean, negative dims": function(lambda m, x: x.mean(dim=(-1, -2))),
    "mean, keepdim": of_pixels(lambda m, x: x - x.mean((2, 3), keepdim=True)),
    "mean, one dim": function(lambda m, x: x.mean(3).flatten(1)),
    "mean over dim -4 (the batch)": function(lambda m, x: (x - x.mean(-4)).flatten(1)),
    "sum": function(lambda m, x: x.sum((1, 2))),
    "amax": function(lambda m, x: x.amax((2, 3))),
    "max over a dim": function(lambda m, x: x.flatten(1).max(1, keepdim=True)[0]),
    "index": of_pixels(lambda m, x: x[:, 1:, ::2]),
    "index, ellipsis": of_pixels(lambda m, x: x[..., 1]),
    "channel swap": of_pixels(lambda m, x: x[:, [1, 0]]),
    "chunk": of_pixels(lambda m, x: (lambda a, b: a - 2 * b)(*x.chunk(2, 1))),
    "split": of_pixels(lambda m, x: (lambda a, b: a + F.relu(b))(*x.split(1, dim=1))),
    "unsqueeze and squeeze": of_pixels(lambda m, x: x.unsqueeze(1).squeeze(1)),
    "squeeze": function(lambda m, x: F.adaptive_avg_pool2d(x, 1).squeeze()),
    "expand": of_pixels(lambda m, x: x[:, :1].expand(-1, 4, -1, -1)),
    "repeat": of_pixels(lambda m, x: x.repeat(1, 2, 1, 1)),
    "repeat the batch": function(lambda m, x: x.repeat(2, 1, 1, 1).flatten(1)),
    "stack": of_pixels(lambda m, x: torch.stack([x, -x], 1)),
    "stack over the batch": function(lambda m, x: torch.stack([x, -x], 0).flatten(1)),
    "pad": of_pixels(lambda m, x: F.pad(x, (1, 2, 0, 1))),
    "pad with a value": of_pixels(lambda m, x: F.pad(x, (1, 1), value=2.0)),
    "pad, reflect": of_pixels(lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "pad the batch": function(lambda m, x: F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0)).flatten(1)),
    "upsample": of_pixels(lambda m, x: F.interpolate(x, scale_factor=2)),
    "matmul": function(lambda m, x: x.flatten(1) @ m.w, w=torch.randn(60, 3)),
    "matmul with itself": of_pixels(lambda m, x: x @ x.transpose(2, 3)),
    "linear on images": of_pixels(lambda m, x: m.l(x), l=nn.Linear(5, 3)),
    "linear on vectors of one": function(lambda m, x: m.l(x.flatten(1).unsqueeze(-1)).flatten(1), l=nn.Linear(1, 2)),
    "batch norm 1d over sequences": function(lambda m, x: m.n(x.flatten(2)).flatten(1), n=nn.BatchNorm1d(2)),
    # convolutions and pools with options
    "conv, circular padding": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten()
    ),
    "conv, reflect padding": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
    "conv, replicate padding": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate"), nn.Flatten()
    ),
    "conv, same padding": lambda: nn.Sequential(nn.Conv2d(2, 3, (2, 3), padding="same"), nn.Flatten()),
    "conv, valid padding": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding="valid"), nn.Flatten()),
    "conv functional, same padding": of_pixels(
        lambda m, x: F.conv2d(x, m.w, padding="same"), w=torch.randn(3, 2, 2, 2)
    ),
    "transposed conv": lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.Flatten()),
    "conv 1d": function(lambda m, x: m.c(x.flatten(2)).flatten(1), c=nn.Conv1d(2, 3, 4, stride=2)),
    "max pool, ceil mode": lambda: nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()),
    "max pool, dilation": lambda: nn.Sequential(nn.MaxPool2d(2, stride=1, dilation=2), nn.Flatten()),
    "max pool, indices": of_pixels(lambda m, x: F.max_pool2d(x, 2, return_indices=True)[0]),
    "max pool, uneven": lambda: nn.Sequential(nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0)), nn.Flatten()),
    "adaptive max pool": lambda: nn.Sequential(nn.AdaptiveMaxPool2d((2, 2)), nn.Flatten()),
    "avg pool, ceil mode": lambda: nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.Flatten()),
    "avg pool, ceil mode and padding": lambda: nn.Sequential(nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.Flatten()),
    "avg pool, padding not counted": lambda: nn.Sequential(
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten()
    ),
    "avg pool, divisor": lambda: nn.Sequential(nn.AvgPool2d(2, divisor_override=3), nn.Flatten()),
    "avg pool functional, all positional": of_pixels(lambda m, x: F.avg_pool2d(x, 3, 2, 1, False, False, 5)),
    "adaptive pool, one side kept": lambda: nn.Sequential(nn.AdaptiveAvgPool2d((None, 2)), nn.Flatten()),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(5), nn.Flatten()),
    "instance norm": lambda: nn.Sequential(nn.InstanceNorm2d(2), nn.Flatten()),
    "batch norm functional, training": of_pixels(lambda m, x: F.batch_norm(x, None, None, training=True)),
}
