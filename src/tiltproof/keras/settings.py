"""A Keras layer's settings, and the table of the readers of layers.

A reader takes every setting that can change what the layer computes; one that is left over refuses the layer. Values keep Keras's shapes
but for images, whose channels stand first here: Keras's axes 1, 2, 3 of an image are 2, 3, 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tiltproof.errors import UnsupportedOperation, shown
from tiltproof.keras.archive import Weights
from tiltproof.keras.module import Draft, Value
from tiltproof.refusals import Refusal

Build = Callable[[Draft, tuple[Value, ...], Weights, str], Value]
"""(draft, what the layer reads, the file's weights, the layer's group in them) -> what the layer gives."""
LAYERS: dict[str, Callable[[Settings], Build]] = {}
"""Keras class -> the reader of its settings."""
NO_EFFECT = {
    "name", "trainable", "dtype", "batch_size", "batch_input_shape", "momentum", "synchronized", "renorm_clipping",
    "renorm_momentum", "seed", "autocast",
    "kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer", "activity_regularizer",
    "kernel_constraint", "bias_constraint", "depthwise_initializer", "depthwise_regularizer", "depthwise_constraint",
    "pointwise_initializer", "pointwise_regularizer", "pointwise_constraint", "beta_initializer", "gamma_initializer",
    "moving_mean_initializer", "moving_variance_initializer", "beta_regularizer", "gamma_regularizer", "beta_constraint",
    "gamma_constraint", "quantization_config",
}  # fmt: skip
"""Settings of training, and of how weights began."""
MOST = 2**15


class Settings:
    """A layer's settings, to be taken one by one."""

    def __init__(self, name: str, kind: str, values: dict[str, Any]) -> None:
        self.name, self.kind, self.values = name, kind, {k: v for k, v in values.items() if k not in NO_EFFECT}
        policy = values.get("dtype", "float32")
        policy = policy["config"].get("name") if isinstance(policy, dict) else policy
        if policy not in ("float32", None):
            raise self.refusal(f"computes in {policy!r}; float32 has a rule")

    def refusal(self, why: str) -> UnsupportedOperation:
        what = f"{shown(self.kind, 60)} at layer {shown(self.name, 80)!r} {why}"
        return UnsupportedOperation(what, refusals=(Refusal(self.kind, self.name, why, part="layer"),))

    def take(self, name: str, default: Any = None) -> Any:
        return self.values.pop(name, default)

    def only(self, **allowed: Any) -> None:
        """Settings with one value alone that has a rule."""
        for name, wanted in allowed.items():
            value = self.take(name, wanted)
            if value != wanted:
                raise self.refusal(f"has {name} = {shown(value, 40)}; only {wanted} has a rule")

    def flag(self, name: str, default: bool = True) -> bool:
        value = self.take(name, default)
        if type(value) is not bool:
            raise self.refusal(f"has {name} = {shown(value, 40)}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.take(name, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refusal(f"has {name} = {shown(value, 40)}")
        return float(value)

    def pair(self, name: str, default: Any = 1) -> tuple[int, int]:
        value = self.take(name, default)
        values = [value, value] if type(value) is int else value
        if (
            not isinstance(values, (list, tuple))
            or len(values) != 2
            or not all(type(n) is int and 1 <= n <= MOST for n in values)
        ):
            raise self.refusal(f"has {name} = {shown(value, 40)}")
        return values[0], values[1]

    def finish(self) -> None:
        if self.values:
            raise self.refusal(f"has settings that are not understood: {shown(', '.join(self.values), 120)}")


def layer(*kinds: str) -> Callable[[Callable[[Settings], Build]], Callable[[Settings], Build]]:
    """Decorator: the function reads layers of these classes."""

    def register(function: Callable[[Settings], Build]) -> Callable[[Settings], Build]:
        LAYERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def elementwise(function: Callable[..., Tensor], **settings: Any) -> Build:
    return lambda draft, values, weights, group: draft.add(group, function, only_value(values), **settings)


def only_value(values: tuple[Value, ...]) -> tuple[Value]:
    if len(values) != 1:
        raise UnsupportedOperation("a Keras layer of one input is given several", got=len(values))
    return (values[0],)


def only_image(values: tuple[Value, ...], group: str) -> Value:
    (value,) = only_value(values)
    if len(value.shape) != 3:
        raise UnsupportedOperation(f"layer {shown(group, 80)!r} takes images", got=f"shape {list(value.shape)}")
    return value


def axis_here(axis: int, shape: tuple[int, ...]) -> int:
    """The dimension of [N, C, H, W] (or of [N, ...] in Keras's order) that Keras calls ``axis``."""
    axis = axis + len(shape) + 1 if axis < 0 else axis
    if not 1 <= axis <= len(shape):
        raise UnsupportedOperation("a Keras layer works across the batch", got=f"axis {axis}")
    return (0, 2, 3, 1)[axis] if len(shape) == 3 else axis
