"""What a real number is behind the networks of `tests.support.very_deep`, in 400 bits."""

from __future__ import annotations

import numpy as np
from mpmath import mp, mpf
from torch import Tensor, nn

PRECISION = 400


def numbers(x: Tensor) -> np.ndarray:
    return np.array([mpf(each) for each in x.double().flatten().tolist()], dtype=object).reshape(tuple(x.shape))


def convolved(layer: nn.Conv2d, x: np.ndarray) -> np.ndarray:
    """[C, H, W] with kernel 3 and padding 1."""
    weight, step = numbers(layer.weight.detach()), layer.stride[0]
    channels, height, width = x.shape
    padded = np.full((channels, height + 2, width + 2), mpf(0), dtype=object)
    padded[:, 1:-1, 1:-1] = x
    result = 0
    for i in range(3):
        for j in range(3):
            part = padded[:, i : i + height : step, j : j + width : step]
            result = result + np.tensordot(weight[:, :, i, j], part, 1)
    return result if layer.bias is None else result + numbers(layer.bias.detach())[:, None, None]


def normed(layer: nn.BatchNorm2d, x: np.ndarray) -> np.ndarray:
    mean, variance, gain, bias = (
        numbers(each.detach())[:, None, None]
        for each in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    )
    roots = np.array([mp.sqrt(v + mpf(layer.eps)) for v in variance.flatten()], dtype=object).reshape(variance.shape)
    return (x - mean) / roots * gain + bias


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, mpf(0))


def features(model: nn.Module, pixels: np.ndarray) -> np.ndarray:
    """What the last linear layer reads, of pixels [3, H, W]."""
    x = (pixels - numbers(model.mean)[0]) / numbers(model.deviation)[0]
    x = relu(normed(model.norm, convolved(model.head, x)))
    for block in model.blocks:
        y = relu(normed(block.norms[0], convolved(block.first, x)))
        y = normed(block.norms[1], convolved(block.second, y))
        if block.stride > 1:
            x = x[:, ::2, ::2]
            x = np.concatenate([x, np.full((block.more, *x.shape[1:]), mpf(0), dtype=object)])
        x = relu(x + y)
    return x.reshape(len(x), -1).sum(1) / x[0].size


def rotated(image: Tensor, degrees: object) -> np.ndarray:
    """Pixels [C, H, W] of the bilinear image, rotated counter-clockwise, zero outside."""
    channels, height, width = image.shape
    source = np.full((channels, height + 4, width + 4), mpf(0), dtype=object)
    source[:, 2:-2, 2:-2] = numbers(image)
    angle = degrees * mp.pi / 180
    cosine, sine = mp.cos(angle), mp.sin(angle)
    result = np.empty((channels, height, width), dtype=object)
    for i in range(height):
        for j in range(width):
            u, v = mpf(2 * j - width + 1) / 2, mpf(height - 1 - 2 * i) / 2
            x = u * cosine + v * sine + mpf(width - 1) / 2
            y = mpf(height - 1) / 2 - (v * cosine - u * sine)
            a, b = int(mp.floor(x)), int(mp.floor(y))
            s, t = x - a, y - b
            a, b = (min(max(each, -2), size) + 2 for each, size in ((a, width), (b, height)))
            four = source[:, b : b + 2, a : a + 2]
            result[:, i, j] = (1 - t) * ((1 - s) * four[:, 0, 0] + s * four[:, 0, 1]) + t * (
                (1 - s) * four[:, 1, 0] + s * four[:, 1, 1]
            )
    return result


def margin(model: nn.Module, pixels: np.ndarray, label: int) -> object:
    weight, bias = numbers(model.last.weight.detach()), numbers(model.last.bias.detach())
    outputs = weight @ features(model, pixels) + bias
    return min(outputs[label] - other for k, other in enumerate(outputs) if k != label)
