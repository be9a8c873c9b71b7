"""Rules for functions of several steps, each of which has a rule: log-softmax, variance, GLU, expm1 and the like."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from tiltproof.checker.attention import softmax
from tiltproof.checker.curves import EXP, LIBRARY, LOG, Curve, distance, power, relaxed
from tiltproof.checker.curves import softplus as soft
from tiltproof.checker.form import RULES, Form, divided, no_rule, plus, rule, times
from tiltproof.checker.operations import mean, positive, sigmoid, tanh
from tiltproof.checker.statistics import centered, mean_of_squares


@rule(F.tanhshrink)
def tanhshrink(input: Form) -> Form:
    return input - tanh(input)


@rule(F.softsign)
def softsign(input: Form) -> Form:
    """x / (1 + |x|)."""
    return divided(input, RULES[torch.abs](input) + 1.0)


@rule(torch.addcmul, torch.Tensor.addcmul)
def addcmul(input: Form, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Form:
    if value != 1:
        raise no_rule("addcmul", "with a factor")
    return input + tensor1 * tensor2


@rule(torch.lerp, torch.Tensor.lerp)
def lerp(input: Form, end: Form, weight: Any) -> Form:
    if (
        not isinstance(input, Form)
        or not isinstance(end, Form)
        or type(weight) not in (int, float)
        or not 0 <= weight <= 1
    ):
        raise no_rule("lerp", f"with weight {weight!r}")
    return plus(times(input, 1.0 - weight), times(end, float(weight)))


@rule(F.logsigmoid)
def logsigmoid(input: Form) -> Form:
    return -soft(-input, threshold=2.0**20)


@rule(torch.expm1, torch.Tensor.expm1, torch.special.expm1)
def expm1(input: Form) -> Form:
    return relaxed(input, EXP) - 1.0


@rule(torch.log1p, torch.Tensor.log1p, torch.special.log1p)
def log1p(input: Form) -> Form:
    return relaxed(input + 1.0, LOG)


@rule(torch.exp2, torch.Tensor.exp2, torch.special.exp2)
def exp2(input: Form) -> Form:
    return relaxed(times(input, math.log(2)), EXP)


@rule(torch.Tensor.__rpow__)
def raised(input: Form, base: Any) -> Form:
    """b^x = e^(x log b); a float32 evaluation rounds b, which moves x log b by less than 4 u of itself if b is not close to 1."""
    if type(base) not in (int, float) or not 2.0**-20 <= base <= 2.0**20 or 2 / 3 < base < 3 / 2:
        raise no_rule("pow", f"with base {base!r}")
    return relaxed(times(input, math.log(base)), EXP)


# f'' = -2 x / (1 + x^2)^2, at most 0.65, and falling from |x| = 1 on
ATAN = Curve(
    torch.atan,
    lambda x: 1 / (1 + x * x),
    lambda a, b: torch.where(
        distance(a, b) >= 1, 2 * distance(a, b) / (1 + distance(a, b) ** 2) ** 2, torch.full_like(a, 0.65)
    ),
    lambda a, _: torch.full_like(a, LIBRARY),
)


@rule(torch.atan, torch.Tensor.atan, torch.arctan, torch.Tensor.arctan)
def atan(input: Form) -> Form:
    return relaxed(input, ATAN)


def dimensions(x: Form, dim: Any, name: str) -> list[int]:
    """Return dimensions counted from the front; never the batch."""
    if dim is None:
        raise no_rule(name, "over the batch dimension")
    return [positive(d, x, name) for d in ([dim] if isinstance(dim, int) else dim)]


def without(x: Form, dims: list[int], keepdim: bool) -> Form:
    """Return the form without dimensions of size 1."""
    if keepdim:
        return x
    sizes = [size for d, size in enumerate(x.shape) if d not in dims]
    return Form(x.rows.reshape(len(x.rows), *sizes), x.unit)


def log_sum_exp(x: Form, dims: list[int]) -> Form:
    """Return log(n mean(e^x)). A library adds up e^(x - max) and adds max: x - max is off by u |x - max|, which moves the sum by less
    than n u of itself; the logarithm is allowed 64 u of 1 and of itself."""
    n = math.prod(x.shape[d] for d in dims)
    return relaxed(times(mean(relaxed(x, EXP), dims, True), float(n)), LOG)


@rule(torch.logsumexp, torch.Tensor.logsumexp, torch.special.logsumexp)
def logsumexp(input: Form, dim: Any, keepdim: bool = False) -> Form:
    dims = dimensions(input, dim, "logsumexp")
    return without(log_sum_exp(input, dims), dims, keepdim)


@rule(torch.log_softmax, torch.Tensor.log_softmax, F.log_softmax, torch.special.log_softmax)
def log_softmax(input: Form, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Form:
    if dtype is not None:
        raise no_rule("log_softmax", "in another dtype")
    dim = (0 if input.ndim in (1, 3) else 1) if dim is None else dim
    return input - log_sum_exp(input, dimensions(input, dim, "log_softmax"))


@rule(F.glu)
def glu(input: Form, dim: int = -1) -> Form:
    """The first half times the sigmoid of the second."""
    place = positive(dim, input, "glu")
    halves = input.rows.chunk(2, place + 1)
    if input.shape[place] % 2:
        raise no_rule("glu", f"of {list(input.shape)}")
    first, second = (Form(half.contiguous(), input.unit) for half in halves)
    return times(first, sigmoid(second))


def variances(x: Form, dims: list[int], correction: Any) -> Form:
    n = math.prod(x.shape[d] for d in dims)
    correction = 1 if correction is None else correction
    if n < 2 or type(correction) not in (int, bool) or not 0 <= correction < n:
        raise no_rule("var", f"of {n} numbers with correction {correction!r}")
    square, _ = mean_of_squares(centered(x, dims, n), x, dims, n)
    return times(square, n / (n - correction))


@rule(torch.var, torch.Tensor.var)
def var(input: Form, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None) -> Form:
    dims = dimensions(input, dim, "var")
    return without(variances(input, dims, int(unbiased) if correction is None else correction), dims, keepdim)


@rule(torch.std, torch.Tensor.std)
def std(input: Form, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None) -> Form:
    dims = dimensions(input, dim, "std")
    found = variances(input, dims, int(unbiased) if correction is None else correction)
    return without(relaxed(found, power(0.5)), dims, keepdim)


@rule(torch.linalg.vector_norm)
def vector_norm(x: Form, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Form:
    """sqrt(n mean(x^2))."""
    dims = dimensions(x, dim, "vector_norm")
    if ord != 2 or dtype is not None:
        raise no_rule("vector_norm", f"of order {ord}")
    n = math.prod(x.shape[d] for d in dims)
    square, _ = mean_of_squares(x, x, dims, n)
    return without(relaxed(times(square, float(n)), power(0.5)), dims, keepdim)


@rule(F.normalize)
def normalize(input: Form, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Form:
    """x / max(norm, eps)."""
    if p != 2 or out is not None:
        raise no_rule("normalize", f"by the norm of order {p}")
    return divided(input, RULES[torch.clamp](vector_norm(input, 2, dim, True), min=eps))


@rule(F.softmin)
def softmin(input: Form, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Form:
    return softmax(-input, dim, dtype=dtype)
