"""Networks whose margin lies near the rounding noise, and their exact evaluation (after Jia & Rinard's construction).

A family is a way to build layers in which floating point goes wrong: sums that cancel, chained scales, values near overflow
or among the denormal numbers, batch norm of tiny variance, branches that cancel. `tune` then sets the two last biases so that
the exact margin's least value over sampled parameters is as requested, to 48 bits (float32) or 106 (float64): zero, a hair
below zero, or well above it. The truth is computed in rational arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

from tests.support.oracle import Exact
from tests.support.planted import fractions


class Times(nn.Module):
    """Multiplies x by a Python number, which stands for exactly that float64 number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


NO_EPS = 1e-300
"""Of a batch norm: lost in the sum with any variance; torch before 2.13 refuses 0."""


def exactly(tensor: Tensor) -> np.ndarray:
    return fractions(tensor.detach().double().numpy())


def root(value: Fraction) -> Fraction:
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    assert Fraction(top * top, bottom * bottom) == value, "the variance must be the square of a rational number"
    return Fraction(top, bottom)


def evaluate(layers: nn.Module, value: np.ndarray) -> np.ndarray:
    """Evaluate the layers in rational arithmetic."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            value = exactly(layer.weight) @ value + exactly(layer.bias)
        elif isinstance(layer, nn.ReLU):
            value = np.maximum(value, Fraction(0))
        elif isinstance(layer, nn.LeakyReLU):
            slope = Fraction(layer.negative_slope)
            value = np.array([x if x > 0 else slope * x for x in value] + [None], dtype=object)[:-1]
        elif isinstance(layer, nn.BatchNorm1d):
            assert layer.eps == NO_EPS  # and is left out here
            deviation = np.array([root(x) for x in exactly(layer.running_var)] + [None], dtype=object)[:-1]
            value = (value - exactly(layer.running_mean)) / deviation * exactly(layer.weight) + exactly(layer.bias)
        elif isinstance(layer, Times):
            value = value * Fraction(layer.factor)
        elif isinstance(layer, Residual):
            value = value + evaluate(layer.body, value)
        else:
            assert isinstance(layer, nn.Flatten)
    return value


def margin_of(model: nn.Sequential, image: Exact) -> Fraction:
    logits = evaluate(model, image.fractions().ravel())
    return logits[0] - logits[1]


def linear(weight: object, bias: object = None, dtype: torch.dtype = torch.float32) -> nn.Linear:
    weight = torch.as_tensor(np.asarray(weight, dtype=float))
    layer = nn.Linear(*reversed(weight.shape)).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.zeros(len(weight)) if bias is None else torch.as_tensor(np.asarray(bias, dtype=float)))
    return layer


def tune(model: nn.Sequential, margins: Sequence[Fraction], target: Fraction) -> None:
    """Shift the margin by the two last biases so that the least of ``margins`` becomes ``target``, or a hair less."""
    bias = model[-1].bias
    number = np.float32 if bias.dtype == torch.float32 else np.float64
    wanted = target - min(margins) + Fraction(bias[0].item()) - Fraction(bias[1].item())
    first = number(float(wanted))
    second = number(float(Fraction(float(first)) - wanted))
    while Fraction(float(first)) - Fraction(float(second)) > wanted:
        second = np.nextafter(second, number(np.inf))
    with torch.no_grad():
        bias.copy_(torch.tensor([float(first), float(second)], dtype=torch.float64))


Rng = np.random.Generator
Maker = Callable[[Rng, int], list[nn.Module]]


def plain(rng: Rng, n: int) -> list[nn.Module]:
    sizes = [n, 7, 5, 2]
    layers = [linear(rng.normal(size=(b, a)) / a**0.5, rng.normal(size=b) / 4) for a, b in itertools.pairwise(sizes)]
    return [layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]]


def cancelling(rng: Rng, n: int) -> list[nn.Module]:
    """Build pairs of weights of size 1e3 to 1e7 that cancel to a millionth."""
    big = 10.0 ** rng.uniform(3, 7)
    row = np.repeat(rng.normal(size=(6, 1)), n, 1) * big
    row[:, 1::2] *= -(1 + 1e-6 * rng.random())
    wide = rng.normal(size=(2, 12)) * big
    wide[:, 6:] = -wide[:, :6] * (1 + 1e-6)
    twice = np.concatenate([row, row])
    return [linear(twice / big, rng.normal(size=12) * 0.1), nn.ReLU(), linear(wide)]


def chained(rng: Rng, n: int) -> list[nn.Module]:
    """Scale by 1e12 and back, several times over, with cancellation at the top."""
    layers: list[nn.Module] = [linear(rng.normal(size=(6, n)), rng.normal(size=6) / 3), nn.ReLU()]
    for up in (10.0 ** rng.uniform(4, 12), 10.0 ** -rng.uniform(4, 12)):
        weight = rng.normal(size=(6, 6))
        layers += [
            linear(weight * up, weight.sum(1) * up * -0.2),
            nn.ReLU(),
            linear(rng.normal(size=(6, 6)) / up),
            nn.ReLU(),
        ]
    return [*layers, linear(rng.normal(size=(2, 6)))]


def near_overflow(rng: Rng, n: int) -> list[nn.Module]:
    up = 10.0 ** rng.uniform(30, 36)
    return [
        linear(rng.normal(size=(5, n)) * up / n),
        nn.ReLU(),
        linear(rng.normal(size=(4, 5)) / up),
        nn.ReLU(),
        linear(rng.normal(size=(2, 4))),
    ]


def near_underflow(rng: Rng, n: int) -> list[nn.Module]:
    """Build activations around the smallest normal number, scaled back to size one."""
    down = 10.0 ** -rng.uniform(30, 42)
    back = rng.normal(size=(4, 5)) * 10.0 ** rng.uniform(25, 35)
    return [linear(rng.normal(size=(5, n)) * down), nn.ReLU(), linear(back), nn.ReLU(), linear(rng.normal(size=(2, 4)))]


def tiny_variance(rng: Rng, n: int) -> list[nn.Module]:
    norm = nn.BatchNorm1d(6, eps=NO_EPS)
    first = linear(rng.normal(size=(6, n)) / n)
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor(4.0 ** -rng.integers(2, 20, 6)))
        norm.running_mean.copy_(torch.tensor(rng.normal(size=6) * 0.3))
        norm.weight.copy_(torch.tensor(rng.normal(size=6)))
        norm.bias.copy_(norm.running_mean * norm.running_var.rsqrt() * norm.weight)  # nearly cancels the shift
    return [first, norm, nn.ReLU(), linear(rng.normal(size=(2, 6)))]


def cancelling_shift(rng: Rng, n: int) -> list[nn.Module]:
    """Build batch norm of tiny activations whose bias cancels the mean, to the last digit of float64."""
    norm = nn.BatchNorm1d(4, eps=NO_EPS).double()
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor((rng.integers(1, 2000, 4) / 1024) ** 2))
        norm.running_mean.copy_(torch.tensor(rng.normal(size=4)))
        norm.weight.copy_(torch.tensor(rng.normal(size=4)))
        norm.bias.copy_(norm.running_mean / norm.running_var.sqrt() * norm.weight)
    first, last = rng.normal(size=(4, n)) * 1e-15, rng.normal(size=(2, 4))
    return [linear(first, dtype=torch.float64), norm, linear(last, dtype=torch.float64)]


def cancelling_branches(rng: Rng, n: int) -> list[nn.Module]:
    """Compute x - (1 + 1e-6) x + a little, twice, and scale it up."""
    size = 10.0 ** rng.uniform(2, 5)
    minus = -np.eye(n) * (1 + 1e-6) + rng.normal(size=(n, n)) * 1e-6
    return [
        Residual(linear(minus, rng.normal(size=n) * 1e-6)), Times(size), nn.LeakyReLU(0.25),
        Residual(linear(np.eye(n), rng.normal(size=n)), nn.ReLU(), linear(-np.eye(n))),
        linear(rng.normal(size=(2, n)) * size),
    ]  # fmt: skip


def underflowing_coefficients(rng: Rng, n: int) -> list[nn.Module]:
    """Build activations of 1e37 and weights whose product is below the smallest denormal number.

    Going backwards, the margin's coefficients underflow to zero although they matter.
    """
    return _vanishing(rng, n, (1e37, 1e-25, 1e-21), torch.float32)


def underflowing_coefficients_in_float64(rng: Rng, n: int) -> list[nn.Module]:
    return _vanishing(rng, n, (1e299, 1e-170, 1e-155), torch.float64)


def _vanishing(rng: Rng, n: int, sizes: tuple[float, float, float], dtype: torch.dtype) -> list[nn.Module]:
    up, down, last = (np.exp(rng.normal(size=size) * 0.3) for size in ((3, n), (3, 3), (1, 3)))
    weights = up * sizes[0], down * sizes[1], np.concatenate([-last, 0 * last]) * sizes[2]
    first, second, third = (linear(weight, dtype=dtype) for weight in weights)
    return [first, nn.ReLU(), second, nn.ReLU(), third]


def denormal_factor(rng: Rng, n: int) -> list[nn.Module]:
    """Build a factor that float32 holds to three digits only, and activations large enough to show it."""
    factor = Times(float(10.0 ** -rng.uniform(41, 44)))
    return [linear(rng.random(size=(2, n)) * 1e37), factor, linear(rng.normal(size=(2, 2)))]


def denormal_batch_norm(rng: Rng, n: int) -> list[nn.Module]:
    norm = nn.BatchNorm1d(2, eps=NO_EPS)
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor(rng.integers(1000, 4000, 2) ** 2.0 * 2.0**60))
        norm.weight.copy_(torch.tensor(rng.random(2) * 1e-30))
    return [linear(rng.random(size=(2, n)) * 1e37), norm, linear(rng.normal(size=(2, 2)))]


FAMILIES: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        plain,
        cancelling,
        chained,
        near_overflow,
        near_underflow,
        tiny_variance,
        cancelling_shift,
        cancelling_branches,
    )
}
UNDERFLOW: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        underflowing_coefficients,
        underflowing_coefficients_in_float64,
        denormal_factor,
        denormal_batch_norm,
    )
}
"""Factors and coefficients below the smallest normal number, times activations near the largest."""
