"""Readers of Keras's activations, as layers and as settings of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.errors import UnsupportedOperation, shown
from tiltproof.keras.archive import Weights
from tiltproof.keras.module import Draft, Value
from tiltproof.keras.settings import (
    Build,
    Settings,
    elementwise,
    layer,
    only_value,
)


def identity(x: Tensor) -> Tensor:
    return x


def hard_swish(x: Tensor) -> Tensor:
    return F.hardswish(x)


ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "linear": (identity, {}),
    "relu": (F.relu, {}),
    "relu6": (F.hardtanh, {"min_val": 0.0, "max_val": 6.0}),
    "leaky_relu": (F.leaky_relu, {"negative_slope": 0.2}),
    "sigmoid": (torch.sigmoid, {}),
    "tanh": (torch.tanh, {}),
    "elu": (F.elu, {}),
    "selu": (F.selu, {}),
    "softplus": (F.softplus, {}),
    "exponential": (torch.exp, {}),
    "gelu": (F.gelu, {}),
    "silu": (F.silu, {}),
    "swish": (F.silu, {}),
    "mish": (F.mish, {}),
    "hard_silu": (hard_swish, {}),
    "hard_swish": (hard_swish, {}),
    "softsign": (F.softsign, {}),
    "log_sigmoid": (F.logsigmoid, {}),
    "hard_shrink": (F.hardshrink, {}),
    "soft_shrink": (F.softshrink, {}),
    "tanh_shrink": (F.tanhshrink, {}),
    "celu": (F.celu, {}),
}
"""Keras's names. ``hard_sigmoid`` is not among them: it means two functions, by the version that wrote the file."""


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def over_channels(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
    """The softmax of Keras's last axis, which of an image are the channels."""
    (x,) = only_value(values)
    if len(x.shape) not in (1, 3):
        raise UnsupportedOperation(
            f"layer {shown(group, 80)!r} has a softmax along axis 2", got=f"shape {list(x.shape)}"
        )
    return draft.add(group, softmax, (x,))


def activation(settings: Settings, name: Any) -> Build:
    """An activation by its name in the file; softmax is over the channels."""
    if isinstance(name, dict) and name.get("module") in ("keras.activations", "builtins", "keras.src.activations"):
        name = name.get("config")
    if name == "softmax":
        return over_channels
    if name is None or name == "linear":
        return lambda draft, values, weights, group: only_value(values)[0]
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise settings.refusal(f"has the activation {shown(name, 60)}, which has no rule")
    function, more = ACTIVATIONS[name]
    return elementwise(function, **more)


@layer("Activation")
def activation_layer(settings: Settings) -> Build:
    return activation(settings, settings.take("activation"))


@layer("Softmax")
def softmax_layer(settings: Settings) -> Build:
    settings.only(axis=-1)
    return over_channels


@layer("ReLU")
def relu(settings: Settings) -> Build:
    settings.only(threshold=0.0)
    most, slope = settings.take("max_value"), settings.number("negative_slope", 0.0)
    if most is None:
        return elementwise(F.leaky_relu, negative_slope=slope) if slope else elementwise(F.relu)
    if slope or type(most) not in (int, float) or not 0 < most < math.inf:
        raise settings.refusal(f"has max_value = {shown(most, 40)} and negative_slope = {slope}")
    return elementwise(F.hardtanh, min_val=0.0, max_val=float(most))


@layer("LeakyReLU")
def leaky_relu(settings: Settings) -> Build:
    """Keras 2 called the slope alpha."""
    slope = settings.number("alpha", 0.3) if "alpha" in settings.values else settings.number("negative_slope", 0.3)
    return elementwise(F.leaky_relu, negative_slope=slope)


def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    return F.prelu(x, alpha)


@layer("PReLU")
def prelu_layer(settings: Settings) -> Build:
    """One slope for each channel, shared along rows and columns."""
    shared = settings.take("shared_axes")
    settings.values.pop("alpha_initializer", None)

    def build(draft: Draft, values: tuple[Value, ...], weights: Weights, group: str) -> Value:
        (x,) = only_value(values)
        alpha = weights.take(group, ["alpha"])["alpha"]
        if alpha.numel() != x.shape[0] or (len(x.shape) == 3 and list(shared or []) != [1, 2]):
            raise settings.refusal(f"has slopes of shape {list(alpha.shape)}; one for each channel has a rule")
        return draft.add(group, prelu, (x,), {"alpha": alpha.reshape(-1)})

    return build


@layer("ELU")
def elu(settings: Settings) -> Build:
    settings.only(alpha=1.0)
    return elementwise(F.elu)
