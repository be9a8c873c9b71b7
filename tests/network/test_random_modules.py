# ruff: noqa: ARG001, ARG005 - every step takes the same arguments, and few need all of them
"""Random modules with aliases, reused layers, tied weights and in-place writes: prover and checker read what torch evaluates."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.readings import assert_same_network
from tiltproof import UnsupportedOperation

SHAPE, SIZE = (2, 3, 3), 6


class Network(nn.Module):
    """A few vectors computed from each other by random functions; the output depends on all of them."""

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.first = nn.Linear(18, SIZE)
        self.layers = nn.ModuleList([nn.Linear(SIZE, SIZE) for _ in range(3)])
        self.layers[2].weight = self.layers[0].weight  # one tensor with two names
        self.register_buffer("shift", torch.randn(SIZE))
        self.register_buffer("same", self.shift)
        self.identity, self.dropout = nn.Identity(), nn.Dropout(0.5)
        self.last = nn.Linear(SIZE, 3)
        with torch.no_grad():
            self.last.weight.mul_(10.0 ** torch.randint(-3, 3, (3, 1)))  # outputs of very different magnitudes
        self.plan = [(draw.choice(sorted(STEPS)), draw.randrange(99), draw.randrange(99)) for _ in range(14)]

    def forward(self, x):
        values = [self.first(x.flatten(1))]
        for name, one, other in self.plan:
            made = STEPS[name](self, values[one % len(values)], values[other % len(values)], one)
            values += made if isinstance(made, list) else [made]
        total = values[0]
        for k, value in enumerate(values[1:]):
            total = total + value * (0.5 + 0.1 * (k % 7))
        return self.last(total)


def written(function):
    """Write to a copy in place: neither the original nor its later readers may see another value."""

    def step(module, x, y, one):
        copied = x.clone()
        view = copied[:]
        function(copied, module)
        return [copied, view + 0.0]

    return step


STEPS = {
    "linear": lambda m, x, y, one: m.layers[one % 3](x) * 0.4,
    "no bias": lambda m, x, y, one: F.linear(x, m.layers[one % 3].weight) * 0.3,
    "no bias, bias later": lambda m, x, y, one: two_readers(F.linear(x, m.layers[0].weight), m.layers[0].bias),
    "relu": lambda m, x, y, one: torch.relu(x),
    "leaky": lambda m, x, y, one: F.leaky_relu(x, 0.1),
    "sigmoid": lambda m, x, y, one: torch.sigmoid(x),
    "add": lambda m, x, y, one: x + y,
    "sub": lambda m, x, y, one: x - y,
    "shift": lambda m, x, y, one: x + m.shift,
    "the same shift": lambda m, x, y, one: m.same - x,
    "scale": lambda m, x, y, one: x * 0.7 / 1.3,
    "identity": lambda m, x, y, one: m.identity(x),
    "dropout": lambda m, x, y, one: m.dropout(x),
    "view": lambda m, x, y, one: x.view(-1, 2, 3).reshape(-1, SIZE),
    "transposed": lambda m, x, y, one: x.view(-1, 2, 3).transpose(1, 2).flatten(1),
    "halves": lambda m, x, y, one: torch.cat([x[:, 3:], y[:, :3]], 1),
    "add in place": written(lambda x, m: x.add_(m.shift)),
    "relu in place": written(lambda x, m: F.relu(x, inplace=True)),
    "scaled in place": written(lambda x, m: x.mul_(-0.5)),
}


def two_readers(product, bias):
    return [product + bias, torch.relu(product), product - bias]


def images(seed):
    return torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(seed))


def check(seeds):
    read, widest = 0, 0.0
    for seed in seeds:
        model = Network(seed).eval()
        try:
            widest = max(widest, assert_same_network(model, images(seed)))
        except UnsupportedOperation:  # refused by name, never misread
            continue
        read += 1
    return read, widest


def test_readings_agree():
    read, widest = check(range(24))
    assert read >= 16
    assert widest < 1e-2, "bounds that say nothing would agree with everything"


@pytest.mark.slow
def test_many_readings_agree():
    read, _ = check(range(100, 700))
    assert read >= 300
