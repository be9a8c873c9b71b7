"""Networks with a planted counterexample, and their exact evaluation.

A random linear reading L of the pixels is a continuous function of the transformation's parameters. ReLUs build a hat
function around the value of L at the chosen parameters; the margin `rest - drop * hat` is positive except in a sliver.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import nn

from tests.support.oracle import Exact, exact_image, transformed

fractions = np.vectorize(Fraction, otypes=[object])


def exact_logits(model: nn.Sequential, image: Exact) -> list[Fraction]:
    """Compute the logits of a chain of Flatten, Linear and ReLU in rational arithmetic."""
    value = image.fractions().ravel()
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight, bias = (fractions(tensor.detach().double().numpy()) for tensor in (layer.weight, layer.bias))
            value = weight @ value + bias
        elif isinstance(layer, nn.ReLU):
            value = np.maximum(value, Fraction(0))
        else:
            assert isinstance(layer, nn.Flatten)
    return list(value)


def exact_margin(model: nn.Sequential, image: Exact, label: int) -> Fraction:
    logits = exact_logits(model, image)
    return logits[label] - max(logit for k, logit in enumerate(logits) if k != label)


def reading(weights: np.ndarray, image: np.ndarray, letters: Sequence[str], theta: Sequence, padding: str) -> Fraction:
    """Return L at these parameters, exactly."""
    return fractions(weights) @ transformed(image, letters, theta, padding).fractions().ravel()


def dip(rows: np.ndarray, offsets: Sequence[float], rest: float, drop: float, dtype: torch.dtype) -> nn.Sequential:
    """Build logits (rest - drop * hat, 0) with hat = relu(1 - sum_k |rows_k . x + offsets_k|)."""
    number = len(rows)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(rows.shape[1], 2 * number),
        nn.ReLU(),
        nn.Linear(2 * number, 1),
        nn.ReLU(),
        nn.Linear(1, 2),
    ).to(dtype)
    with torch.no_grad():
        row, offset = torch.tensor(rows, dtype=dtype), torch.tensor(offsets, dtype=dtype)
        model[1].weight.copy_(torch.cat([row, -row]))
        model[1].bias.copy_(torch.cat([offset, -offset]))
        model[3].weight.fill_(-1)
        model[3].bias.fill_(1)
        model[5].weight.copy_(torch.tensor([[-drop], [0.0]]))
        model[5].bias.copy_(torch.tensor([rest, 0.0]))
    return model.eval()


def plant(
    letters: Sequence[str],
    low: Sequence[float],
    high: Sequence[float],
    theta: Sequence[float],
    *,
    share: float = 1e-3,
    rest: float = 1.0,
    drop: float = 2.0,
    padding: str = "zeros",
    seed: int = 0,
    size: tuple[int, int] = (5, 5),
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Sequential, torch.Tensor]:
    """Return a network and an image whose margin dips to rest - drop at theta, in a sliver of `share` of each range.

    One reading per parameter, scaled so that half of `share` of the range in that parameter moves it by at least a half.
    """
    rng = np.random.default_rng(seed)
    image = rng.random((1, *size)).astype(np.float32).astype(np.float64)
    exact_theta = [Fraction(value) for value in theta]
    rows, offsets = [], []
    for k in range(len(letters)):
        step = Fraction(high[k] - low[k]) * Fraction(share) / 2
        for _ in range(100):
            weights = rng.standard_normal(size[0] * size[1])
            here = reading(weights, image, letters, exact_theta, padding)
            aside = [
                reading(
                    weights, image, letters, [t + sign * step * (j == k) for j, t in enumerate(exact_theta)], padding
                )
                for sign in (-1, 1)
            ]
            moved = min(abs(float(value - here)) for value in aside)
            if moved > 0.05 * float(step) / max(abs(high[k]), abs(low[k])) * np.abs(weights).mean():
                break
        else:
            raise AssertionError("no reading sees the parameter")
        rows.append(weights / (2 * moved))
        offsets.append(-float(here) / (2 * moved))
    return dip(np.stack(rows), offsets, rest, drop, dtype), torch.tensor(image, dtype=dtype)


def margin_at(model, image: torch.Tensor, letters, theta, padding="zeros", label=0) -> Fraction:
    return exact_margin(model, transformed(image.double().numpy(), letters, theta, padding), label)


def clean_margin(model, image: torch.Tensor, label=0) -> Fraction:
    return exact_margin(model, exact_image(image.double().numpy()), label)
