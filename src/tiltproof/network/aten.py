"""The table from torch's ATen operations to this package's operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiltproof.network.arithmetic import Window
from tiltproof.network.graph import Reference


class Refused(Exception):
    """The operation is known but not in this use; the text says why."""


class Input(NamedTuple):
    """An argument that depends on the picture: the operation that makes it, and its shape without the batch."""

    name: str
    shape: tuple[int, ...]


@dataclass
class Built:
    """What a converter makes of a call; ``derived`` are constants to compute from the live ones."""

    kind: str
    inputs: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = field(default_factory=dict)


CONVERTERS: dict[str, Callable[..., Built]] = {}


def supported() -> str:
    return ", ".join(sorted({name.split(".")[0] for name in CONVERTERS if not name.startswith("_")}))


def converter(*names: str) -> Callable[[Callable[..., Built]], Callable[..., Built]]:
    def register(function: Callable[..., Built]) -> Callable[..., Built]:
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def _one_input(x: Any, *constants: Any) -> None:
    if not isinstance(x, Input) or any(isinstance(constant, Input) for constant in constants):
        raise Refused("the weights must not depend on the picture")


def _pair(value: Any) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    first, second = values * 2 if len(values) == 1 else values
    return first, second


@converter("conv2d.default", "conv2d.padding")
def conv2d(
    shape: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Built:
    _one_input(x, weight, bias)
    if isinstance(padding, str):
        if padding != "valid":
            raise Refused("padding='same'; give the padding as numbers")
        padding = 0
    window = Window(_pair(stride), _pair(padding), _pair(dilation), groups)
    return Built("conv2d", (x.name,), {"weight": weight, "bias": bias, "window": window})


@converter("linear.default")
def linear(shape: Any, x: Any, weight: Any, bias: Any = None) -> Built:
    _one_input(x, weight, bias)
    if len(x.shape) != 1:
        raise Refused(f"a fully connected layer on inputs of shape {x.shape}; flatten them first")
    return Built("linear", (x.name,), {"weight": weight, "bias": bias})


@converter("_native_batch_norm_legit_no_training.default")
def batch_norm(
    shape: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Built:
    _one_input(x, weight, bias, mean, variance)
    view = (-1, *[1] * (len(shape) - 1))

    def scale(constants: dict[str, Tensor]) -> Tensor:
        gain = (_value(variance, constants) + epsilon).rsqrt()
        return (gain if weight is None else gain * _value(weight, constants)).view(view)

    def parts(constants: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        product = _value(mean, constants).view(view) * scale(constants)
        return torch.zeros_like(product) if bias is None else _value(bias, constants).view(view), product

    def shift(constants: dict[str, Tensor]) -> Tensor:
        start, product = parts(constants)
        return start - product

    def size(constants: dict[str, Tensor]) -> Tensor:
        """What the shift's own rounding is relative to: its two parts may nearly cancel."""
        start, product = parts(constants)
        return start.abs() + product.abs()

    def constants_used(constants: dict[str, Tensor]) -> Tensor:
        """All that an evaluation may multiply, add or divide by; the factor makes the limit for 1 / sqrt(variance) 2^20."""
        spread = _value(variance, constants) + epsilon
        used = [_value(mean, constants), spread, spread.rsqrt() * 2.0**20]
        return torch.cat(
            [tensor.flatten() for tensor in [*used, *(_value(c, constants) for c in (weight, bias) if c is not None)]]
        )

    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = {
        "scale": scale,
        "shift": shift,
        "shift_size": size,
        "constants": constants_used,
    }
    return Built("scale", (x.name,), derived=derived)


@converter("batch_norm.default")
def batch_norm_module(
    shape: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
    cudnn: bool,
) -> Built:
    if training:
        raise Refused("batch norm that uses the batch's own statistics")
    return batch_norm(shape, x, weight, bias, mean, variance, momentum, epsilon)


def _value(constant: Any, constants: dict[str, Tensor]) -> Tensor:
    """A live constant in float64; a Python number stands for exactly the float64 number it is."""
    if isinstance(constant, Reference):
        return constants[constant.name].double()
    return torch.full(
        (), constant, dtype=torch.float64, device=_device(constants)
    )  # filled there: no copy from the host


def _scaled(
    shape: tuple[int, ...], x: Any, other: Any, scale: Callable[[Tensor], Any], shift: Callable[[Tensor], Any] | None
) -> Built:
    if shape != x.shape:
        raise Refused(f"a constant that changes the shape from {x.shape} to {shape}")

    def fitted(constants: dict[str, Tensor]) -> Tensor:
        value = _value(other, constants)
        return value.flatten(0, value.ndim - len(shape)) if value.ndim > len(shape) > 0 else value

    def make(function: Callable[[Tensor], Any]) -> Callable[[dict[str, Tensor]], Any]:
        def made(constants: dict[str, Tensor]) -> Tensor:
            value = function(fitted(constants))
            return value if isinstance(value, Tensor) else _value(value, constants)

        return made

    def constants_used(constants: dict[str, Tensor]) -> Tensor:
        made = [fitted(constants), *(make(function)(constants) for function in (scale, shift) if function is not None)]
        return torch.cat([value.flatten() for value in made])

    derived = {"scale": make(scale), "constants": constants_used} | ({"shift": make(shift)} if shift else {})
    return Built("scale", (x.name,), {} if shift else {"shift": None}, derived)


def _device(constants: dict[str, Tensor]) -> torch.device | None:
    return next((value.device for value in constants.values() if isinstance(value, Tensor)), None)


def _sum(shape: Any, x: Any, other: Any, kind: str, alpha: float) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        if alpha != 1 or x.shape != other.shape:
            raise Refused(f"a sum of branches of shapes {x.shape} and {other.shape} with factor {alpha}")
        return Built(kind, (x.name, other.name))
    sign = alpha if kind == "add" else -alpha
    if isinstance(x, Input):
        return _scaled(shape, x, other, lambda c: 1.0, lambda c: sign * c)
    return _scaled(shape, other, x, lambda c: float(sign), lambda c: c)


@converter("add.Tensor", "add.Scalar")
def add(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, x, other, "add", alpha)


@converter("sub.Tensor", "sub.Scalar")
def sub(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, x, other, "sub", alpha)


@converter("rsub.Scalar", "rsub.Tensor")
def rsub(shape: Any, x: Any, other: Any, alpha: float = 1) -> Built:
    return _sum(shape, other, x, "sub", alpha)


@converter("mul.Tensor", "mul.Scalar")
def mul(shape: Any, x: Any, other: Any) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        raise Refused("a product of two branches")
    x, other = (x, other) if isinstance(x, Input) else (other, x)
    return _scaled(shape, x, other, lambda c: c, None)


@converter("div.Tensor", "div.Scalar")
def div(shape: Any, x: Any, other: Any) -> Built:
    if isinstance(other, Input):
        raise Refused("a division by something that depends on the picture")
    return _scaled(shape, x, other, lambda c: c.reciprocal(), None)


@converter("neg.default")
def neg(shape: Any, x: Any) -> Built:
    return _scaled(shape, x, -1.0, lambda c: c, None)


@converter("relu.default")
def relu(shape: Any, x: Any) -> Built:
    return Built("relu", (x.name,))


@converter("leaky_relu.default")
def leaky_relu(shape: Any, x: Any, negative_slope: float = 0.01) -> Built:
    if not (math.isfinite(negative_slope) and negative_slope <= 1):
        raise Refused(f"a negative slope of {negative_slope}; it must be at most 1")
    if 0 < abs(negative_slope) < 2.0**-100:
        raise Refused(f"a negative slope of {negative_slope}; write 0 instead")
    return Built("relu", (x.name,), {"negative_slope": float(negative_slope)})


@converter("sigmoid.default")
def sigmoid(shape: Any, x: Any) -> Built:
    return Built("sigmoid", (x.name,))


@converter("tanh.default")
def tanh(shape: Any, x: Any) -> Built:
    return Built("tanh", (x.name,))


@converter("max_pool2d.default")
def max_pool2d(
    shape: Any, x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Built:
    if ceil_mode:
        raise Refused("max pooling with ceil_mode")
    if _pair(dilation) != (1, 1) and _pair(padding) != (0, 0):
        raise Refused("max pooling with both dilation and padding, whose windows may hold padding only")
    kernel = _pair(kernel_size)
    settings = {"kernel_size": kernel, "stride": _pair(stride) if stride else kernel, "padding": _pair(padding)}
    return Built("max_pool2d", (x.name,), settings | {"dilation": _pair(dilation)})


@converter("max_pool2d_with_indices.default")
def max_pool2d_with_indices(shape: Any, *args: Any, **kwargs: Any) -> Built:
    return max_pool2d(shape, *args, **kwargs)


@converter("avg_pool2d.default")
def avg_pool2d(
    shape: Any,
    x: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    include: bool = True,
    divisor: Any = None,
) -> Built:
    if divisor is not None and divisor <= 0:
        raise Refused(f"average pooling with divisor {divisor}")
    kernel = _pair(kernel_size)
    settings = {"kernel_size": kernel, "stride": _pair(stride) if stride else kernel, "padding": _pair(padding)}
    return Built(
        "avg_pool2d", (x.name,), settings | {"ceil_mode": ceil_mode, "count_include_pad": include, "divisor": divisor}
    )


@converter("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(shape: Any, x: Any, output_size: Any) -> Built:
    return Built("adaptive_avg_pool2d", (x.name,), {"output_size": _pair(output_size)})


@converter("mean.dim")
def mean(shape: Any, x: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Built:
    dims = [d % (len(x.shape) + 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    if 0 in dims or dtype is not None:
        raise Refused("a mean over the batch or in another dtype")
    return Built("mean", (x.name,), {"dim": dims, "keepdim": keepdim})


@converter(
    "view.default",
    "reshape.default",
    "flatten.using_ints",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "_unsafe_view.default",
)
def reshape(shape: Any, x: Any, *_: Any) -> Built:
    if math.prod(shape) != math.prod(x.shape):
        raise Refused(f"a reshape from {x.shape} to {shape} that mixes pictures of the batch")
    return Built("reshape", (x.name,))


@converter("permute.default")
def permute(shape: Any, x: Any, dims: Any) -> Built:
    dims = [d % (len(x.shape) + 1) for d in dims]
    if dims[0] != 0:
        raise Refused("a permutation that moves the batch dimension")
    return Built("permute", (x.name,), {"dims": dims})


@converter("transpose.int")
def transpose(shape: Any, x: Any, first: int, second: int) -> Built:
    dims = list(range(len(x.shape) + 1))
    dims[first], dims[second] = dims[second], dims[first]
    return permute(shape, x, dims)


@converter("slice.Tensor")
def slice_(shape: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Built:
    dim %= len(x.shape) + 1
    if dim == 0:
        if not start and (end is None or end > 2**31):
            return Built("identity", (x.name,))
        raise Refused("a slice of the batch")
    return Built("slice", (x.name,), {"dim": dim, "start": start, "end": end, "step": step})


@converter("cat.default")
def concat(shape: Any, parts: Any, dim: int = 0) -> Built:
    if not all(isinstance(part, Input) for part in parts):
        raise Refused("a concatenation with constants")
    dim %= len(shape) + 1
    if dim == 0:
        raise Refused("a concatenation along the batch")
    return Built("concat", tuple(part.name for part in parts), {"dim": dim})


@converter(
    "clone.default",
    "contiguous.default",
    "alias.default",
    "detach.default",
    "dropout.default",
    "lift_fresh_copy.default",
)
def identity(shape: Any, x: Any, *settings: Any, **options: Any) -> Built:
    if len(settings) == 2 and settings[1] is True:
        raise Refused("dropout in training mode")
    return Built("identity", (x.name,))
