"""The table from torch's ATen operations to this package's operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from tiltproof.network.arithmetic import Window


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


def one_input(x: Any, *constants: Any) -> None:
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
    one_input(x, weight, bias)
    if isinstance(padding, str):
        if padding != "valid":
            raise Refused("padding='same'; give the padding as numbers")
        padding = 0
    window = Window(_pair(stride), _pair(padding), _pair(dilation), groups)
    return Built("conv2d", (x.name,), {"weight": weight, "bias": bias, "window": window})


@converter("linear.default")
def linear(shape: Any, x: Any, weight: Any, bias: Any = None) -> Built:
    one_input(x, weight, bias)
    if len(x.shape) != 1:
        raise Refused(f"a fully connected layer on inputs of shape {x.shape}; flatten them first")
    return Built("linear", (x.name,), {"weight": weight, "bias": bias})


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


@converter("pad.default")
def pad(shape: Any, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Built:
    if mode != "constant" or value not in (None, 0) or any(not isinstance(n, int) or n < 0 for n in pad):
        raise Refused(f"padding by {list(pad)} of mode {mode!r} with {value}; zeros around the picture have a rule")
    if len(pad) > 2 * len(x.shape):
        raise Refused("padding of the batch")
    return Built("pad", (x.name,), {"pad": tuple(pad)})


@converter("constant_pad_nd.default")
def constant_pad(shape: Any, x: Any, sizes: Any, value: Any = 0) -> Built:
    return pad(shape, x, sizes, "constant", value)


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
    "lift_fresh_copy.default",
)
def identity(shape: Any, x: Any, *settings: Any, **options: Any) -> Built:
    return Built("identity", (x.name,))


@converter("dropout.default")
def dropout(shape: Any, x: Any, p: float, train: bool) -> Built:
    if train and p != 0:
        raise Refused("dropout in training mode")
    return Built("identity", (x.name,))
