"""Functions that are written as others, which have rules: log-softmax, variance, GLU, expm1 and the like.

Where a library takes other steps, those written here round at least as much.
"""

from __future__ import annotations

import math
from typing import Any

from tiltproof.network.ops.arithmetic import mul
from tiltproof.network.ops.base import Built, Input, Refused, converter, require_constants
from tiltproof.network.ops.piecewise import number, scaled


@converter("tanhshrink.default")
def tanhshrink(shape: Any, x: Any) -> Built:
    return Built("sub", (x.name, Built("tanh", (x.name,), shape=shape)))


@converter("addcmul.default")
def addcmul(shape: Any, x: Any, first: Any, second: Any, value: float = 1) -> Built:
    """x + first * second."""
    if value != 1 or not all(isinstance(each, Input) and each.shape == shape for each in (x, first, second)):
        raise Refused("a sum with a product of constants, of branches of different shapes, or with a factor")
    product = mul(shape, first, second)
    product.shape = shape
    return Built("add", (x.name, product))


@converter("lerp.Scalar")
def lerp(shape: Any, x: Any, other: Any, weight: Any) -> Built:
    """(1 - w) x + w z."""
    if not all(isinstance(each, Input) and each.shape == shape for each in (x, other)):
        raise Refused("an interpolation with constants, or of branches of different shapes")
    weight = number("weight", weight, 0.0, 1.0)
    return Built("add", (scaled(x.name, shape, 1 - weight), scaled(other.name, shape, weight)))


@converter("log_sigmoid.default", "log_sigmoid_forward.default")
def log_sigmoid(shape: Any, x: Any) -> Built:
    """log(1 / (1 + e^-x)) = -softplus(-x)."""
    soft = Built("softplus", (scaled(x.name, shape, -1.0),), {"beta": 1.0, "threshold": 2.0**20}, shape=shape)
    return scaled(soft, None, -1.0)


@converter("expm1.default")
def expm1(shape: Any, x: Any) -> Built:
    return scaled(Built("exp", (x.name,), shape=shape), None, shift=-1.0)


@converter("log1p.default")
def log1p(shape: Any, x: Any) -> Built:
    return Built("log", (scaled(x.name, shape, shift=1.0),))


@converter("exp2.default", "special_exp2.default")
def exp2(shape: Any, x: Any) -> Built:
    return constant_power(shape, 2.0, x)


@converter("pow.Scalar")
def constant_power(shape: Any, base: Any, x: Any) -> Built:
    """b^x = exp(x log b). A float32 evaluation that rounds b moves x log b by x u, which is less than 8 u |x log b|, the error that is
    allowed for, unless b is close to 1."""
    require_constants(x, base)
    base = number("base", base, 2.0**-20, 2.0**20)
    if 2 / 3 < base < 3 / 2:
        raise Refused(f"powers of {base}; bases up to 2/3 or from 3/2 have a rule")
    return Built("exp", (scaled(x.name, shape, math.log(base)),))


def _inner(shape: tuple[int, ...], dims: list[int]) -> tuple[int, ...]:
    """The shape, each of these dimensions, counted with the batch, reduced to 1."""
    return tuple(1 if place + 1 in dims else size for place, size in enumerate(shape))


def _dimensions(x: Any, dim: Any) -> list[int]:
    """Dimensions counted with the batch; never the batch."""
    require_constants(x)
    if dim is None:
        raise Refused("a reduction over the batch")
    dims = sorted(d % (len(x.shape) + 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim]))
    if not dims or 0 in dims:
        raise Refused("a reduction over the batch")
    return dims


def _log_sum_exp(x: Input, dims: list[int]) -> Built:
    """log(sum_i e^(x_i)), keeping the dimensions: the sum is n times a mean.

    A library adds up e^(x_i - m) for the largest x_i and adds m to the logarithm. Relative to the sum, its roundings of x_i - m are at most
    u sum_i p_i |x_i - m| <= n u, p_i the share of the term; the logarithm here is allowed 32 units of 1 and of itself.
    """
    small = _inner(x.shape, dims)
    count = math.prod(x.shape[dim - 1] for dim in dims)
    mean = Built("mean", (Built("exp", (x.name,), shape=x.shape),), {"dim": dims, "keepdim": True}, shape=small)
    return Built("log", (scaled(mean, small, float(count)),), shape=small)


@converter("logsumexp.default")
def logsumexp(shape: Any, x: Any, dim: Any, keepdim: bool = False) -> Built:
    return Built("reshape", (_log_sum_exp(x, _dimensions(x, dim)),))


@converter("log_softmax.int", "_log_softmax.default")
def log_softmax(shape: Any, x: Any, dim: int, dtype: Any = None) -> Built:
    """x less the logarithm of the sum, which cancels between outputs."""
    if dtype not in (None, False):
        raise Refused("a log-softmax in another dtype")
    return Built("sub", (x.name, _log_sum_exp(x, _dimensions(x, dim))))


@converter("glu.default")
def glu(shape: Any, x: Any, dim: int = -1) -> Built:
    """The first half times the sigmoid of the second."""
    (dim,) = _dimensions(x, dim)
    half = shape[dim - 1]

    def part(start: int) -> Built:
        return Built("slice", (x.name,), {"dim": dim, "start": start, "end": start + half, "step": 1}, shape=shape)

    return Built("product", (part(0), Built("sigmoid", (part(half),), shape=shape)))


def _variance(x: Input, dims: list[int], correction: Any) -> Built:
    """mean((x - mean(x))^2) n / (n - correction), keeping the dimensions."""
    count = math.prod(x.shape[dim - 1] for dim in dims)
    correction = 1 if correction is None else correction
    if count < 2 or not 0 <= correction < count:
        raise Refused(f"a variance of {count} numbers with correction {correction}")
    small = _inner(x.shape, dims)
    centered = Built("centered", (x.name,), {"dim": dims}, shape=x.shape)
    square = Built("mean_square", (centered, x.name), {"dim": dims}, shape=small)
    return scaled(square, small, count / (count - correction)) if correction else square


@converter("var.correction")
def variance(shape: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Built:
    return Built("reshape", (_variance(x, _dimensions(x, dim), correction),))


@converter("var.dim")
def variance_of(shape: Any, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Built:
    return variance(shape, x, dim, int(unbiased))


@converter("std.correction")
def deviation(shape: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Built:
    found = _variance(x, _dimensions(x, dim), correction)
    return Built("reshape", (Built("sqrt", (found,), shape=found.shape),))


@converter("std.dim")
def deviation_of(shape: Any, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Built:
    return deviation(shape, x, dim, int(unbiased))


@converter("linalg_vector_norm.default")
def norm(shape: Any, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Built:
    """sqrt(n mean(x^2))."""
    dims = _dimensions(x, dim)
    if order != 2 or dtype is not None:
        raise Refused(f"a norm of order {order}; 2 has a rule")
    count, small = math.prod(x.shape[d - 1] for d in dims), _inner(x.shape, dims)
    square = Built("mean_square", (x.name,), {"dim": dims}, shape=small)
    return Built("reshape", (Built("sqrt", (scaled(square, small, float(count)),), shape=small),))
