"""One reader for each Keras layer: from its settings to the torch functions that compute the same on [N, C, H, W]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.errors import UnsupportedOperation, shown
from tiltproof.keras.activations import activation
from tiltproof.keras.archive import Weights
from tiltproof.keras.module import Draft, Value
from tiltproof.keras.settings import (
    MOST,
    Build,
    Settings,
    axis_here,
    layer,
    only_image,
    only_value,
)
from tiltproof.step_module import convolve

ONLY_IN_TRAINING = (
    "Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianNoise", "GaussianDropout", "AlphaDropout", "ActivityRegularization",
    "RandomFlip", "RandomRotation", "RandomZoom", "RandomTranslation", "RandomContrast", "RandomBrightness",
)  # fmt: skip
"""Layers that do nothing when a network answers."""


@layer(*ONLY_IN_TRAINING)
def only_in_training(settings: Settings) -> Build:
    settings.values.clear()
    return lambda draft, values, weights, group: only_value(values)[0]


# Layers with weights


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def pad_zeros(x: Tensor, *, pad: tuple[int, ...]) -> Tensor:
    return F.pad(x, pad)


Window = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Kernel, stride and dilation."""


def same(shape: tuple[int, ...], window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    """Keras's padding "same", before and after: as many outputs as strides fit in, and the odd one of the zeros at the end."""
    total = [
        max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
        for size, k, s, d in zip(shape[1:], *window, strict=True)
    ]
    return (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)


def _padded(draft: Draft, x: Value, window: Window, padding: str, group: str) -> tuple[Value, tuple[int, int]]:
    """The image with the zeros that torch's layers cannot add, and the padding that they can."""
    if padding == "valid":
        return x, (0, 0)
    before, after = same(x.shape, window)
    if before == after:
        return x, before
    return draft.add(group, pad_zeros, (x,), pad=(before[1], after[1], before[0], after[0])), (0, 0)


def _padding(settings: Settings) -> str:
    padding = settings.take("padding", "valid")
    if padding not in ("same", "valid"):
        raise settings.refusal(f"has padding {shown(padding, 20)}")
    return str(padding)


@layer("Conv2D", "DepthwiseConv2D", "SeparableConv2D", "Convolution2D", "SeparableConvolution2D")
def convolution(settings: Settings) -> Build:
    """Kernels are [height, width, inputs, outputs]; depthwise ones [height, width, inputs, multiplier]."""
    settings.only(data_format="channels_last")
    padding, use_bias = _padding(settings), settings.flag("use_bias")
    window = settings.pair("kernel_size", None), settings.pair("strides"), settings.pair("dilation_rate")
    groups, after = settings.take("groups", 1), activation(settings, settings.take("activation"))
    kind = settings.kind.replace("Convolution", "Conv")
    filters, multiplier = settings.take("filters"), settings.take("depth_multiplier", 1)
    if type(groups) is not int or groups < 1 or type(multiplier) is not int or multiplier < 1:
        raise settings.refusal(f"has groups = {shown(groups, 20)} and depth_multiplier = {shown(multiplier, 20)}")
    first = "kernel" if kind == "Conv2D" else "depthwise_kernel"
    also = {} if kind == "Conv2D" else {"kernel": "depthwise_kernel"}  # Keras 3 calls a depthwise layer's so
    names = [first, *(["pointwise_kernel"] if kind == "SeparableConv2D" else []), *(["bias"] if use_bias else [])]

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        x, given = only_image(values, group), weights.take(group, names, also)
        channels, kernel, parts = x.shape[0], given[first], groups
        if kind == "Conv2D":
            expected = (*window[0], channels // groups, filters)
            weight = kernel.permute(3, 2, 0, 1).contiguous() if kernel.ndim == 4 else kernel
        else:
            parts, expected = channels, (*window[0], channels, multiplier)
            weight = kernel.permute(2, 3, 0, 1).flatten(0, 1).unsqueeze(1) if kernel.ndim == 4 else kernel
        if tuple(kernel.shape) != expected:
            raise settings.refusal(f"has a kernel of shape {list(kernel.shape)} instead of {list(expected)}")
        bias = {"bias": given["bias"]} if use_bias else {}
        x, pad = _padded(draft, x, window, padding, group)
        last = kind != "SeparableConv2D"
        result = draft.add(
            group, convolve, (x,), {"weight": weight.contiguous()} | (bias if last else {}),
            stride=window[1], padding=pad, dilation=window[2], groups=parts,
        )  # fmt: skip
        if not last:
            weight = given["pointwise_kernel"].permute(3, 2, 0, 1).contiguous()
            result = draft.add(
                group, convolve, (result,), {"weight": weight} | bias, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1
            )  # fmt: skip
        return after(draft, (result,), weights, group)

    return build


@layer("Dense")
def dense(settings: Settings) -> Build:
    """On an image Keras multiplies the channels at each position: a 1 x 1 convolution."""
    use_bias, after = settings.flag("use_bias"), activation(settings, settings.take("activation"))
    settings.take("units")
    settings.only(lora_rank=None, quantization_mode=None)
    names = ["kernel", *(["bias"] if use_bias else [])]

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        (x,), given = only_value(values), weights.take(group, names)
        weight, bias = given["kernel"].t().contiguous(), {"bias": given["bias"]} if use_bias else {}
        if len(x.shape) == 3:
            result = draft.add(
                group, convolve, (x,), {"weight": weight[:, :, None, None]} | bias,
                stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1,
            )  # fmt: skip
        else:
            result = draft.add(group, linear, (x,), {"weight": weight} | bias)
        return after(draft, (result,), weights, group)

    return build


def normalise(
    x: Tensor,
    moving_mean: Tensor,
    moving_variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    epsilon: float,
) -> Tensor:
    return F.batch_norm(x, moving_mean, moving_variance, gamma, beta, False, 0.0, epsilon)


@layer("BatchNormalization")
def batch_norm(settings: Settings) -> Build:
    axis, epsilon = settings.take("axis", -1), settings.number("epsilon", 1e-3)
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    scale, center = settings.flag("scale"), settings.flag("center")
    settings.only(fused=settings.values.get("fused"), virtual_batch_size=None, adjustment=None, renorm=False)
    names = [*(["gamma"] if scale else []), *(["beta"] if center else []), "moving_mean", "moving_variance"]

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        (x,) = only_value(values)
        if type(axis) is not int or axis_here(axis, x.shape) != 1 or len(x.shape) == 2:
            raise settings.refusal(f"normalizes along axis {shown(axis, 20)} of {list(x.shape)}")
        given = weights.take(group, names)
        variance = given["moving_variance"]
        if bool((variance < 0).any()) or bool((variance + epsilon <= 0).any()):
            raise settings.refusal("divides by a variance that is not positive")
        return draft.add(group, normalise, (x,), given, epsilon=epsilon)

    return build


# Arithmetic with constants, and branches


def scale_and_shift(x: Tensor, *, scale: float, offset: float) -> Tensor:
    return x * scale + offset


def scale_and_shift_channels(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return x * scale + offset


def standardise(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return (x - mean) / deviation


def _numbers(settings: Settings, name: str, default: float) -> list[float]:
    value = settings.take(name, default)
    values = value if isinstance(value, list) else [value]
    if not values or any(type(n) not in (int, float) or not math.isfinite(n) for n in values):
        raise settings.refusal(f"has {name} = {shown(value, 60)}")
    return [float(n) for n in values]


def _by_channel(numbers: Sequence[float] | Tensor, shape: tuple[int, ...]) -> Tensor:
    tensor = torch.as_tensor(numbers, dtype=torch.float32)
    if tensor.numel() not in (1, shape[0]) or len(shape) not in (1, 3):
        raise UnsupportedOperation(
            "a Keras layer has constants for other channels", got=f"{tensor.numel()} for {shape[0]}"
        )
    return tensor.reshape(-1, *[1] * (len(shape) - 1))


@layer("Rescaling")
def rescaling(settings: Settings) -> Build:
    scale, offset = _numbers(settings, "scale", 1.0), _numbers(settings, "offset", 0.0)

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        (x,) = only_value(values)
        if len(scale) == len(offset) == 1:
            return draft.add(group, scale_and_shift, (x,), scale=scale[0], offset=offset[0])
        constants = {"scale": _by_channel(scale, x.shape), "offset": _by_channel(offset, x.shape)}
        return draft.add(group, scale_and_shift_channels, (x,), constants)

    return build


@layer("Normalization")
def normalization(settings: Settings) -> Build:
    """(x - mean) / max(sqrt(variance), 1e-7); mean and variance are settings, or were found from data and are weights."""
    axis, invert = settings.take("axis", -1), settings.flag("invert", False)
    mean, variance = settings.take("mean"), settings.take("variance")
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    if invert or axis not in (-1, 3):
        raise settings.refusal(f"has axis {shown(axis, 20)} and invert = {invert}")

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        (x,) = only_value(values)
        if axis_here(axis, x.shape) != 1:
            raise settings.refusal(f"normalizes along axis {axis} of {list(x.shape)}")
        if mean is None:
            given = weights.take(group, ["mean", "variance", "count"])
            numbers = [given["mean"].flatten(), given["variance"].flatten()]
        else:
            numbers = [
                torch.tensor(mean, dtype=torch.float32).flatten(),
                torch.tensor(variance, dtype=torch.float32).flatten(),
            ]
        if not all(bool(each.isfinite().all()) for each in numbers) or bool((numbers[1] < 0).any()):
            raise settings.refusal("has a mean or a variance that is not a number, or below zero")
        deviation = numbers[1].sqrt().clamp(min=1e-7)
        constants = {"mean": _by_channel(numbers[0], x.shape), "deviation": _by_channel(deviation, x.shape)}
        return draft.add(group, standardise, (x,), constants)

    return build


def _branches(function: Callable[[Tensor, Tensor], Tensor], most: int = MOST) -> Callable[[Settings], Build]:
    def read(settings: Settings) -> Build:
        def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
            if not 2 <= len(values) <= most or any(value.shape != values[0].shape for value in values):
                raise settings.refusal(f"joins branches of shapes {[list(value.shape) for value in values]}")
            result = values[0]
            for value in values[1:]:
                result = draft.add(group, function, (result, value))
            return result

        return build

    return read


layer("Add")(_branches(torch.add))
layer("Subtract")(_branches(torch.sub, 2))
layer("Multiply")(_branches(torch.mul))
layer("Maximum")(_branches(torch.maximum))
layer("Minimum")(_branches(torch.minimum))


def join(*values: Tensor, dim: int) -> Tensor:
    return torch.cat(values, dim)


@layer("Concatenate")
def concatenate(settings: Settings) -> Build:
    axis = settings.take("axis", -1)

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        if type(axis) is not int or len({len(value.shape) for value in values}) != 1:
            raise settings.refusal(f"joins branches of shapes {[list(value.shape) for value in values]}")
        return draft.add(group, join, values, dim=axis_here(axis, values[0].shape))

    return build


# Pooling


def largest(x: Tensor, *, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding)


def average(x: Tensor, *, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    return F.avg_pool2d(x, kernel, stride)


def average_inside(x: Tensor, count: Tensor, *, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Sums over the zero-padded image, divided by how many entries of a window lie inside of it."""
    return F.avg_pool2d(x, kernel, stride) * (kernel[0] * kernel[1]) / count


def every_other(x: Tensor, *, start: tuple[int, int], step: tuple[int, int]) -> Tensor:
    return x[:, :, start[0] :: step[0], start[1] :: step[1]]


def _pooling(settings: Settings) -> tuple[Window, str]:
    settings.only(data_format="channels_last")
    kernel = settings.pair("pool_size", 2)
    if settings.values.get("strides") is None:
        settings.take("strides")
    stride = settings.pair("strides", kernel)
    return (kernel, stride, (1, 1)), _padding(settings)


@layer("MaxPooling2D", "MaxPool2D")
def max_pooling(settings: Settings) -> Build:
    """With uneven padding: the windows at every position, of which those are kept that Keras has. What pads never wins."""
    window, padding = _pooling(settings)

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        x = only_image(values, group)
        before, after = same(x.shape, window) if padding == "same" else ((0, 0), (0, 0))
        if any(2 * after[i] > window[0][i] for i in (0, 1)):
            raise settings.refusal("pads by more than half of its kernel")
        if before == after:
            return draft.add(group, largest, (x,), kernel=window[0], stride=window[1], padding=before)
        every = draft.add(group, largest, (x,), kernel=window[0], stride=(1, 1), padding=after)
        start = (after[0] - before[0], after[1] - before[1])
        return draft.add(group, every_other, (every,), start=start, step=window[1])

    return build


@layer("AveragePooling2D", "AvgPool2D")
def average_pooling(settings: Settings) -> Build:
    """Averages are over what lies inside of the image."""
    window, padding = _pooling(settings)

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        x = only_image(values, group)
        before, after = same(x.shape, window) if padding == "same" else ((0, 0), (0, 0))
        geometry: dict[str, Any] = {"kernel": window[0], "stride": window[1]}
        if before == after == (0, 0):
            return draft.add(group, average, (x,), **geometry)
        pad = (before[1], after[1], before[0], after[0])
        inside = F.pad(torch.ones(1, 1, *x.shape[1:], dtype=torch.float64), pad)
        count = (F.avg_pool2d(inside, *window[:2]) * math.prod(window[0])).round()[0].float()
        padded = draft.add(group, pad_zeros, (x,), pad=pad)
        return draft.add(group, average_inside, (padded,), {"count": count}, **geometry)

    return build


def mean_of_image(x: Tensor, *, keep: bool) -> Tensor:
    return torch.mean(x, (2, 3), keep)


@layer("GlobalAveragePooling2D", "GlobalAvgPool2D")
def global_average(settings: Settings) -> Build:
    settings.only(data_format="channels_last")
    keep = settings.flag("keepdims", False)
    return lambda draft, values, weights, group: draft.add(
        group, mean_of_image, (only_image(values, group),), keep=keep
    )


@layer("GlobalMaxPooling2D", "GlobalMaxPool2D")
def global_max(settings: Settings) -> Build:
    settings.only(data_format="channels_last")
    keep = settings.flag("keepdims", False)

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        x = only_image(values, group)
        size = (x.shape[1], x.shape[2])
        result = draft.add(group, largest, (x,), kernel=size, stride=size, padding=(0, 0))
        return result if keep else draft.add(group, reshaped, (result,), shape=(x.shape[0],))

    return build


# Shapes


def reshaped(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(x.shape[0], *shape)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def _reshape(draft: Draft, x: Value, shape: tuple[int, ...], group: str) -> Value:
    """In Keras's order of entries: channels last before, and first again after if the result is an image."""
    if len(x.shape) == 3 and (len(shape) != 1 or x.shape[1:] != (1, 1)):
        x = draft.add(group, channels_last, (x,))
    x = draft.add(group, reshaped, (x,), shape=shape)
    return draft.add(group, channels_first, (x,)) if len(shape) == 3 else x


@layer("Flatten")
def flatten(settings: Settings) -> Build:
    settings.only(data_format="channels_last")
    return lambda draft, values, weights, group: _reshape(
        draft, only_value(values)[0], (math.prod(values[0].shape),), group
    )


@layer("Reshape")
def reshape(settings: Settings) -> Build:
    target = settings.take("target_shape")

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        (x,) = only_value(values)
        shape, total = list(target), math.prod(x.shape)
        if any(type(size) is not int for size in shape) or shape.count(-1) > 1 or not 1 <= len(shape) <= 4:
            raise settings.refusal(f"has the target {shown(target, 60)}")
        if -1 in shape:
            rest = -math.prod(shape)
            shape[shape.index(-1)] = total // rest if rest > 0 else 0
        if math.prod(shape) != total or min(shape) < 1:
            raise settings.refusal(f"makes {shown(target, 60)} of {list(x.shape)}")
        return _reshape(draft, x, tuple(shape), group)

    return build


@layer("ZeroPadding2D")
def zero_padding(settings: Settings) -> Build:
    settings.only(data_format="channels_last")
    value = settings.take("padding", 1)
    pads: Any = [value, value] if type(value) is int else value
    pads = [[n, n] if type(n) is int else n for n in pads]
    if len(pads) != 2 or any(
        len(two) != 2 or any(type(n) is not int or not 0 <= n <= MOST for n in two) for two in pads
    ):
        raise settings.refusal(f"has padding {shown(value, 40)}")
    pad = (*pads[1], *pads[0])
    return lambda draft, values, weights, group: draft.add(group, pad_zeros, (only_image(values, group),), pad=pad)
