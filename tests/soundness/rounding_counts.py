"""A tensor that counts roundings: running error analysis of the package's own formulas.

A bound is computed in floating point and gets an allowance for all roundings on the way. Roundings rarely conspire, so true
errors are far smaller than the allowance, and no sampling test notices an allowance that is too small or missing. Here the
formula itself runs on tensors that carry two more numbers with each value v:

    error      e with |v - v*| <= e however each operation rounds; v* is the result of the same operations in exact arithmetic, without
               allowances. An operation adds u |result| to what it makes of its operands' errors in the worst case, a sum of n
               products n u times the sum of their magnitudes (any order, with or without fused multiply-add), a library function
               LIBRARY u |result|. This is running error analysis (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.3).
    allowance  what constants such as ``32 * UNIT``, ``1 + 2**-47`` and ``2**-53`` added to v, to first order in them. A constant below
               TINY counts as zero plus an allowance, and one very close to an 8-bit number as that number plus an allowance, wherever it
               comes from: nothing in the package has to be replaced.

So one run gives the formula's bare value, the worst case of its roundings, and the allowance made for them. An enclosure
center + sum_k slopes[k] e_k + [-radius, radius] is as good as in exact arithmetic if

    allowance(radius) >= error(radius) + error(center) + sum_k error(slopes[k]),

and an interval is if its ends' allowances, which point outwards, are at least their errors. The count is of first order:
products of errors with errors are kept, those with allowances are not. They are below 2^-40 of either, for which
`SECOND_ORDER` demands a surplus.

Numbers that may take any value (a relaxation's slope, say, as long as the same one is used throughout) are declared beforehand
by their values (``free``): where one is first computed its error is recorded, and the count continues with the number as it is.
Branches (comparisons, floor) are those that the given inputs take. A torch function that is not listed here raises.

With ``Counting(underflow=True)`` products lose up to the smallest normal number and nothing else, and only the allowances for
that count, constants such as `rounding.SMALLEST`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}
SMALLEST_NORMAL = {torch.float64: 2.0**-1022, torch.float32: 2.0**-126}
LIBRARY = 4
"""Units roundoff (two in the last place) by which a library's sines, exponentials and the like are assumed to be off at most."""
TINY, BITS = 2.0**-29, 8
VANISHING = 2.0**-500
"""Constants below this are allowances for underflow."""
SECOND_ORDER = 1 + 2.0**-20
ROUNDED = {abs(k): UNIT[torch.float64] * abs(k) for k in (math.pi, math.pi / 2, math.pi / 180)}
"""Constants that are themselves rounded, and by how much at most."""


class Parts(NamedTuple):
    """A value, its error and its allowance."""

    value: Tensor
    error: Tensor
    allowance: Tensor

    def each(self, function: Callable[[Tensor], Any]) -> Parts:
        return Parts(*map(function, self))

    @property
    def nothing(self) -> Tensor:
        """Where it is exactly zero, so that adding it rounds nothing."""
        return (self.value == 0) & (self.error == 0) & (self.allowance == 0)


class Counted(Tensor):
    """A tensor of float64 (or float32) values with `Parts`; views of it are views of all three."""

    parts: Parts

    @staticmethod
    def __new__(cls, value: Tensor, error: Tensor | None = None, allowance: Tensor | None = None) -> Counted:
        made = Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
        )
        zeros = (torch.zeros_like(value) if part is None else part for part in (error, allowance))
        made.parts = Parts(value, *zeros)
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"{function} of a counted tensor outside of Counting")

    def __repr__(self) -> str:
        return f"Counted{tuple(self.parts)}"


def counted(*tensors: Tensor) -> Any:
    """Wrap exactly known inputs; returns one, or several in a row."""
    with _disable_current_modes():
        made = [Counted(value(each).detach().clone()) for each in tensors]
    return made[0] if len(made) == 1 else made


def value(x: Tensor) -> Tensor:
    return x.parts.value if isinstance(x, Counted) else x


def error(x: Tensor) -> Tensor:
    return x.parts.error if isinstance(x, Counted) else torch.zeros_like(x)


def allowance(x: Tensor) -> Tensor:
    return x.parts.allowance if isinstance(x, Counted) else torch.zeros_like(x)


class Counting(TorchDispatchMode):
    """Within this context floating-point tensors are counted, including new ones."""

    def __init__(self, free: Sequence[Tensor] = (), underflow: bool = False, watch: Sequence[str] = ()) -> None:
        super().__init__()
        self.underflow = underflow
        self.free = list(free)
        self.noted: list[Parts | None] = [None] * len(self.free)
        self.cut: list[Parts] = []  # inexact values that were rounded to integers
        self.watch, self.watched = watch, []  # the values of these operations
        self._more = ExitStack()

    def __enter__(self) -> Counting:
        self._more.enter_context(torch.no_grad())
        super().__enter__()
        return self

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self._more.close()

    def found(self, k: int = 0) -> Parts:
        """Return what was recorded of the k-th free number."""
        noted = self.noted[k]
        assert noted is not None, "the formula no longer computes the number that was to be free"
        return noted

    # what one operation costs

    def rounded(self, value: Tensor, error: Tensor, units: float = 1.0) -> Tensor:
        """Add the rounding of a result to its error."""
        return error if self.underflow else error + (value.abs() + error) * (units * UNIT[value.dtype])

    def lost(self, value: Tensor, error: Tensor, products: float | Tensor = 1.0) -> Tensor:
        """Add the underflow of this many products to a result's error."""
        return error + products * SMALLEST_NORMAL[value.dtype] if self.underflow else error

    def constant(self, number: float | int) -> tuple[float, float, float]:
        """Return value, error and allowance of a constant."""
        number = float(number)
        if not math.isfinite(number) or number == 0:
            return number, 0.0, 0.0
        if abs(number) < TINY:
            return 0.0, 0.0, number if (abs(number) < VANISHING) == self.underflow else 0.0
        mantissa, exponent = math.frexp(number)
        short = math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)
        if abs(number - short) <= TINY * abs(short):
            return short, 0.0, 0.0 if self.underflow else number - short
        return number, 0.0 if self.underflow else ROUNDED.get(abs(number), 0.0), 0.0

    def parts(self, x: Any, like: Tensor | None = None) -> Parts:
        if isinstance(x, Counted):
            return x.parts
        if isinstance(x, Tensor):
            zero = torch.zeros((), dtype=torch.float64).expand(x.shape)
            return Parts(x, zero, zero)
        dtype = torch.float64 if like is None else like.dtype
        return Parts(*(torch.tensor(part, dtype=dtype) for part in self.constant(x)))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        if name in PLAIN or not (name in MAKERS or any(_floating(x) for x in _flat((args, kwargs)))):
            return function(*_values(args), **_values(kwargs))
        into = kwargs.pop("out", None)
        inplace = name.endswith("_") and not name.endswith("__")
        short = name[:-1] if inplace else name
        if short in MAKERS:
            result = self._made(short, function, args, kwargs)
        elif short in VIEWS:
            result = _each_part(function, args, kwargs)
        elif short in MOVES:
            result = self._moved(
                function._overloadpacket if not inplace else getattr(torch.ops.aten, short), args, kwargs
            )
        elif short in RULES:
            result = RULES[short](self, *_counted(args), **_counted(kwargs))
        else:
            raise NotImplementedError(f"the roundings of {function} are not known")
        if isinstance(result, Parts):
            if short in self.watch:
                self.watched.append(result.value.clone())
            result = Counted(*self._as_free(result))
        if inplace:
            into = args[0]
        if into is not None:
            if not isinstance(into, Counted):
                raise NotImplementedError(f"{function} writes what is counted into a tensor that cannot hold it")
            for mine, theirs in zip(into.parts, result.parts, strict=True):
                mine.copy_(theirs)
            return into
        return result

    def _as_free(self, result: Parts) -> Parts:
        for k, number in enumerate(self.free):
            if number.shape == result.value.shape and torch.equal(number.nan_to_num(), result.value.nan_to_num()):
                if self.noted[k] is None:
                    self.noted[k] = result.each(torch.clone)
                zero = torch.zeros_like(result.value)
                return Parts(result.value, zero, zero.clone())
        return result

    def _made(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        made = function(*_values(args), **_values(kwargs))
        if not made.is_floating_point():
            return made
        if name in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"):
            made.fill_(torch.nan)
        parts = Counted(made)
        if name in ("full", "new_full", "full_like", "scalar_tensor", "fill"):
            number = kwargs.get("fill_value", args[0] if name == "scalar_tensor" else args[-1])
            parts = Counted(*(made.clone().fill_(part) for part in self.constant(number)))
        return parts

    def _moved(self, function: Any, args: Any, kwargs: Any) -> Parts:
        """Reorder entries, possibly of several tensors; constants among them are exact."""
        return Parts(*(function(*_part(k, args), **_part(k, kwargs)) for k in range(3)))


def _floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for branch in tree.values() for leaf in _flat(branch)]
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in _flat(branch)]
    return [tree]


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(branch, change) for key, branch in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(branch, change) for branch in tree)
    return change(tree)


def _counted(tree: Any) -> Any:
    return _mapped(tree, lambda x: Counted(x) if _floating(x) and not isinstance(x, Counted) else x)


def _values(tree: Any) -> Any:
    return _mapped(tree, lambda x: x.parts.value if isinstance(x, Counted) else x)


def _part(k: int, tree: Any) -> Any:
    """Return this part of every counted tensor; other floating-point tensors are exact."""

    def part(x: Any) -> Any:
        if isinstance(x, Counted):
            return x.parts[k]
        return torch.zeros_like(x) if k and _floating(x) else x

    return _mapped(tree, part)


def _each_part(function: Any, args: Any, kwargs: Any) -> Any:
    results = [function(*_part(k, args), **_part(k, kwargs)) for k in range(3)]
    if isinstance(results[0], tuple | list):
        return [Counted(*parts) for parts in zip(*results, strict=True)]
    return Counted(*results)


PLAIN = {
    "equal",
    "_local_scalar_dense",
    "is_pinned",
    "is_same_size",
    "allclose",
    "stride",
    "size",
    "_has_compatible_shallow_copy_type",
} | {
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "argmax", "argmin", "nonzero"),
    *("bitwise_and", "bitwise_or", "unique_dim", "_unique2", "_unique"),
}
"""These inspect values and return no floating-point numbers."""
MAKERS = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros"),
    *("ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor", "arange", "fill", "zero"),
}
VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "select",
        "slice",
        "unsqueeze",
        "squeeze",
        "expand",
        "permute",
        "transpose",
        "t",
    ),
    *(
        "diagonal",
        "unbind",
        "split",
        "split_with_sizes",
        "detach",
        "alias",
        "as_strided",
        "unfold",
        "lift_fresh",
        "chunk",
    ),
}
MOVES = {
    *("clone", "cat", "stack", "index_select", "index", "gather", "repeat", "flip", "constant_pad_nd", "im2col", "neg"),
    *("index_put", "scatter", "index_copy", "masked_select", "roll", "copy", "reflection_pad2d", "replication_pad2d"),
}
"""These reorder or negate entries; constants among their arguments are exact."""
RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _exact_factor(x: Any) -> bool:
    """Return whether a Python number is a power of two: multiplying by it rounds nothing."""
    return not isinstance(x, Tensor) and (x == 0 or abs(math.frexp(float(x))[0]) == 0.5)


def _like(*numbers: Any) -> Tensor:
    return next(x for x in numbers if isinstance(x, Tensor))


def _product(mode: Counting, a: Parts, b: Parts, exact: bool = False) -> Parts:
    made = a.value * b.value
    off = a.error * b.value.abs() + a.value.abs() * b.error + a.error * b.error
    off = off if exact else mode.lost(made, mode.rounded(made, off))
    return Parts(made, off + torch.zeros_like(made), a.allowance * b.value + a.value * b.allowance)


def _exact_sum(a: Parts, b: Parts) -> Tensor:
    """Return where a sum does not round, whatever the digits.

    These are: a sum with zero; sums of integers; a number plus an integer if the result is no further from zero than the number,
    whose last digit then holds it too; and the difference of two numbers within a factor of two (Sterbenz).
    """
    x, y = a.value, b.value
    known = (a.error == 0) & (a.allowance == 0) & (b.error == 0) & (b.allowance == 0)
    whole = (x == x.floor()), (y == y.floor())
    nearer = (whole[1] & ((x + y).abs() <= x.abs())) | (whole[0] & ((x + y).abs() <= y.abs()))
    close = (x * y < 0) & (x.abs() <= 2 * y.abs()) & (y.abs() <= 2 * x.abs())
    return a.nothing | b.nothing | (known & ((whole[0] & whole[1]) | nearer | close))


def _sum(mode: Counting, a: Parts, b: Parts) -> Parts:
    made, off = a.value + b.value, a.error + b.error
    off = torch.where(_exact_sum(a, b), off, mode.rounded(made, off))
    return Parts(made, off, a.allowance + b.allowance + torch.zeros_like(made))


def _scaled(mode: Counting, a: Parts, factor: float) -> Parts:
    return a if factor == 1 else _product(mode, a, mode.parts(factor), _exact_factor(factor))


@rule("add")
def _add(mode: Counting, a: Any, b: Any, alpha: float = 1) -> Parts:
    like = _like(a, b)
    return _sum(mode, mode.parts(a, like), _scaled(mode, mode.parts(b, like), alpha))


@rule("sub")
def _sub(mode: Counting, a: Any, b: Any, alpha: float = 1) -> Parts:
    return _add(mode, a, b, -alpha)


@rule("rsub")
def _rsub(mode: Counting, a: Any, b: Any, alpha: float = 1) -> Parts:
    return _add(mode, b, a, -alpha)


@rule("mul")
def _mul(mode: Counting, a: Any, b: Any) -> Parts:
    like = _like(a, b)
    return _product(mode, mode.parts(a, like), mode.parts(b, like), _exact_factor(a) or _exact_factor(b))


@rule("div")
def _div(mode: Counting, a: Any, b: Any) -> Parts:
    like = _like(a, b)
    x, y = mode.parts(a, like), mode.parts(b, like)
    made = x.value / y.value
    off = (x.error + made.abs() * y.error) / (y.value.abs() - y.error).clamp(min=0)
    off = off if _exact_factor(b) else mode.lost(made, mode.rounded(made, off))
    return Parts(made, off, (x.allowance - made * y.allowance) / y.value)


@rule("reciprocal")
def _reciprocal(mode: Counting, x: Any) -> Parts:
    return _div(mode, 1.0, x)


@rule("addcmul")
def _addcmul(mode: Counting, x: Any, a: Any, b: Any, value: float = 1) -> Parts:
    """Count two roundings, of which a fused multiply-add saves one; a factor of +-1 is exact."""
    x, a, b = (mode.parts(each) for each in (x, a, b))
    result = _sum(mode, x, _scaled(mode, _product(mode, a, b), value))
    return result._replace(value=torch.addcmul(x.value, a.value, b.value, value=mode.constant(value)[0]))


@rule("lerp")
def _lerp(mode: Counting, a: Any, b: Any, weight: Any) -> Parts:
    """a + w (b - a) for w < 1/2, else b - (1 - w) (b - a): a difference, a product, and a sum; 1 - w is exact for w in [1/2, 2]."""
    x, y, w = (mode.parts(each) for each in (a, b, weight))
    apart, rest = y.value - x.value, 1 - w.value
    made, size = torch.lerp(x.value, y.value, w.value), apart.abs() + x.error + y.error
    off = rest.abs() * x.error + w.value.abs() * y.error + size * w.error
    if not mode.underflow:
        units = 2 * torch.where(w.value < 0.5, w.value.abs(), rest.abs()) + torch.where(w.value > 2, rest.abs(), 0.0)
        off = mode.rounded(made, off + size * (units * UNIT[made.dtype]))
    return Parts(made, mode.lost(made, off), rest * x.allowance + w.value * y.allowance + apart * w.allowance)


@rule("abs")
def _abs(mode: Counting, x: Any) -> Parts:
    a = x.parts
    return Parts(
        a.value.abs(), a.error.clone(), torch.where(a.value == 0, a.allowance.abs(), a.value.sign() * a.allowance)
    )


@rule("sgn", "sign")
def _sign(mode: Counting, x: Any) -> Parts:
    a = x.parts
    if bool(((a.error >= a.value.abs()) & (a.error > 0)).any()):
        raise NotImplementedError("the sign of a number that may be rounding noise")
    return Counted(a.value.sign()).parts


def _whole(name: str) -> Callable[..., Parts]:
    """Record inexact values, for the test to check that their allowance points the safe way."""

    def cut(mode: Counting, x: Any) -> Parts:
        if bool((x.parts.error != 0).any()):
            mode.cut.append(x.parts.each(torch.clone))
        return Counted(getattr(x.parts.value, name)()).parts

    return cut


RULES["floor"], RULES["ceil"] = _whole("floor"), _whole("ceil")


def _extreme(mode: Counting, a: Parts, b: Parts, sign: int) -> Parts:
    """Return the larger (sign 1) or the smaller.

    Where either may win, the larger error counts and, of allowances that point the same way, the one that leaves more of the
    error uncovered: the allowance of one operand does not help if the other wins.
    """
    x, y = (Parts(each.value * sign, each.error, each.allowance * sign) for each in (a, b))
    first = (x.value > y.value) | ((x.value == y.value) & (x.allowance > y.allowance)) | x.value.isnan()
    off = torch.where(
        x.value - x.error > y.value + y.error,
        x.error,
        torch.where(y.value - y.error > x.value + x.error, y.error, torch.maximum(x.error, y.error)),
    )
    made, more = torch.maximum(x.value, y.value), torch.where(first, x.allowance, y.allowance)
    either = ((x.value - y.value).abs() <= x.error + y.error) & (off > 0)
    up = off - torch.maximum(x.error - x.allowance, y.error - y.allowance)
    down = torch.maximum(x.error + x.allowance, y.error + y.allowance) - off
    more = torch.where(either & (x.allowance >= 0) & (y.allowance >= 0), up, more)
    more = torch.where(either & (x.allowance <= 0) & (y.allowance <= 0), down, more)
    return Parts(made * sign, off + torch.zeros_like(made), more * sign)


@rule("maximum")
def _maximum(mode: Counting, a: Any, b: Any) -> Parts:
    return _extreme(mode, mode.parts(a), mode.parts(b), 1)


@rule("minimum")
def _minimum(mode: Counting, a: Any, b: Any) -> Parts:
    return _extreme(mode, mode.parts(a), mode.parts(b), -1)


@rule("clamp")
def _clamp(mode: Counting, x: Any, min: Any = None, max: Any = None) -> Parts:
    result = x.parts
    for bound, sign in ((min, 1), (max, -1)):
        if bound is not None:
            other = (
                mode.parts(bound)
                if isinstance(bound, Tensor)
                else Parts(*(torch.tensor(v, dtype=x.dtype) for v in (bound, 0.0, 0.0)))
            )
            result = _extreme(mode, result, other, sign)
    return result


@rule("clamp_min")
def _clamp_min(mode: Counting, x: Any, bound: Any) -> Parts:
    return _clamp(mode, x, min=bound)


@rule("clamp_max")
def _clamp_max(mode: Counting, x: Any, bound: Any) -> Parts:
    return _clamp(mode, x, max=bound)


@rule("relu")
def _relu(mode: Counting, x: Any) -> Parts:
    return _clamp(mode, x, min=0.0)


@rule("threshold_backward")
def _threshold_backward(mode: Counting, gradient: Any, x: Any, threshold: float) -> Parts:
    return gradient.parts.each(lambda part: torch.where(value(x) > threshold, part, torch.zeros_like(part)))


@rule("where")
def _where(mode: Counting, condition: Tensor, a: Any, b: Any) -> Parts:
    x, y = mode.parts(a), mode.parts(b)
    return Parts(*(torch.where(condition, mine, theirs) for mine, theirs in zip(x, y, strict=True)))


@rule("nan_to_num")
def _nan_to_num(
    mode: Counting, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Parts:
    a = x.parts
    known = a.value.isfinite()
    zero = torch.zeros_like(a.value)
    return Parts(
        a.value.nan_to_num(nan, posinf, neginf),
        torch.where(known, a.error, zero),
        torch.where(known, a.allowance, zero),
    )


@rule("masked_fill")
def _masked_fill(mode: Counting, x: Any, mask: Tensor, number: Any) -> Parts:
    return _where(mode, mask, mode.parts(number, x), x)


@rule("amax")
def _amax(mode: Counting, x: Any, dim: Any = (), keepdim: bool = False, sign: int = 1) -> Parts:
    dims = sorted(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim)) or list(range(x.ndim))
    rest = [d for d in range(x.ndim) if d not in dims]
    shape = [x.shape[d] for d in rest]
    flat = x.parts.each(lambda part: part.permute(*dims, *rest).reshape(-1, *shape))
    result = flat.each(lambda part: part[0])
    for k in range(1, len(flat.value)):
        result = _extreme(mode, result, flat.each(lambda part, k=k: part[k]), sign)
    if keepdim:
        result = result.each(lambda part: part.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]))
    return result


@rule("amin")
def _amin(mode: Counting, x: Any, dim: Any = (), keepdim: bool = False) -> Parts:
    return _amax(mode, x, dim, keepdim, -1)


@rule("max")
def _max(mode: Counting, x: Any) -> Parts:
    return _amax(mode, x)


@rule("min")
def _min(mode: Counting, x: Any) -> Parts:
    return _amin(mode, x)


@rule("sum")
def _total(mode: Counting, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Parts:
    dims = list(range(x.ndim)) if dim is None or dim == [] else dim if isinstance(dim, list | tuple) else [dim]
    a = x.parts if dtype is None else _to_copy(mode, x, dtype=dtype)
    terms = math.prod(x.shape[d] for d in dims)
    made, off, more = a.each(lambda part: part.sum(dims, keepdim))
    size = a.value.abs().sum(dims, keepdim) + off
    off = off if mode.underflow else off + size * (max(0, terms - 1) * UNIT[made.dtype])
    return Parts(made, off, more)


@rule("mean")
def _mean(mode: Counting, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Parts:
    dims = list(range(x.ndim)) if dim is None else dim
    return _div(
        mode, Counted(*_total(mode, x, dims, keepdim, dtype)), float(3 * math.prod(x.shape[d] for d in dims)) / 3
    )


def _bilinear(mode: Counting, a: Parts, b: Parts, product: Callable[[Tensor, Tensor], Tensor]) -> Parts:
    """Sum n products: n roundings of each, in any order, where n counts the terms that are not zero by construction."""
    made, size = product(a.value, b.value), product(a.value.abs(), b.value.abs())
    off = product(a.error, b.value.abs()) + product(a.value.abs(), b.error) + product(a.error, b.error)
    terms = product(torch.ones_like(a.value), torch.ones_like(b.value))
    off = off + terms * (SMALLEST_NORMAL[made.dtype] if mode.underflow else (size + off) * UNIT[made.dtype])
    return Parts(made, off, product(a.allowance, b.value) + product(a.value, b.allowance))


@rule("mm", "bmm", "mv", "dot")
def _matrix_product(mode: Counting, a: Any, b: Any) -> Parts:
    return _bilinear(mode, mode.parts(a), mode.parts(b), torch.matmul)


@rule("addmm", "baddbmm", "addmv")
def _sum_and_product(mode: Counting, x: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Parts:
    """The sum may come first, so it takes part in every rounding."""
    product = _scaled(mode, _matrix_product(mode, a, b), alpha)
    first = _scaled(mode, mode.parts(x), beta)
    result = _sum(mode, first, product)
    if not mode.underflow:
        more = (first.value.abs() + first.error) * (a.shape[-1] * UNIT[result.value.dtype])
        result = Parts(result.value, result.error + more, result.allowance)
    return result


@rule("convolution")
def _convolution(mode: Counting, x: Any, weight: Any, bias: Any, *geometry: Any) -> Parts:
    result = _bilinear(
        mode, mode.parts(x), mode.parts(weight), lambda a, b: torch.ops.aten.convolution(a, b, None, *geometry)
    )
    if bias is None:
        return result
    return _sum(mode, result, bias.parts.each(lambda part: part.view(-1, *[1] * (x.ndim - 2))))


@rule("avg_pool2d")
def _avg_pool2d(mode: Counting, x: Any, kernel: Any, *geometry: Any) -> Parts:
    made, off, more = x.parts.each(lambda part: torch.ops.aten.avg_pool2d(part, kernel, *geometry))
    size = torch.ops.aten.avg_pool2d(x.parts.value.abs(), kernel, *geometry) + off
    return Parts(made, off if mode.underflow else off + size * (math.prod(kernel) * UNIT[made.dtype]), more)


@rule("max_pool2d_with_indices")
def _max_pool2d(mode: Counting, x: Any, *geometry: Any) -> Any:
    _, index = torch.ops.aten.max_pool2d_with_indices(x.parts.value, *geometry)
    chosen = x.parts.each(lambda part: part.flatten(2).gather(2, index.flatten(2)).view(index.shape))
    return Counted(*chosen), index


@rule("scatter_add")
def _scatter_add(mode: Counting, x: Any, dim: int, index: Tensor, source: Any) -> Parts:
    a, b = mode.parts(x), mode.parts(source)
    made, off, more = (mine.scatter_add(dim, index, theirs) for mine, theirs in zip(a, b, strict=True))
    size = a.value.abs().scatter_add(dim, index, b.value.abs()) + off
    terms = torch.zeros_like(made).scatter_add(dim, index, torch.ones_like(b.value))
    return Parts(made, off if mode.underflow else off + size * terms * UNIT[made.dtype], more)


@rule("linalg_vector_norm")
def _norm(mode: Counting, x: Any, order: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Parts:
    x = Counted(*_to_copy(mode, x, dtype=dtype or x.dtype))
    if order == 1:
        return _total(mode, Counted(*_abs(mode, x)), dim, keepdim)
    assert order == 2
    return _sqrt(mode, Counted(*_total(mode, Counted(*_mul(mode, x, x)), dim, keepdim)))


def _smooth(slope: Callable[[Tensor, Tensor], Tensor], units: float = LIBRARY, name: str = "") -> Callable[..., Parts]:
    """Return the rule of a function; ``slope`` (argument, value) bounds its derivative near the argument, with its sign."""

    def apply(mode: Counting, x: Any) -> Parts:
        a = x.parts
        made = getattr(torch, name)(a.value)
        steep = slope(a.value, made)
        off = torch.where(a.error == 0, 0.0, a.error * steep.abs() * (1 + 2.0**-30))
        return Parts(made, mode.rounded(made, off, units), torch.where(a.allowance == 0, 0.0, a.allowance * steep))

    return apply


RULES |= {
    "sqrt": _smooth(lambda x, y: 0.5 / y, 1, "sqrt"),
    "square": lambda mode, x: _mul(mode, x, x),
    "exp": _smooth(lambda x, y: y, name="exp"),
    "log": _smooth(lambda x, y: 1 / x, name="log"),
    "sin": _smooth(lambda x, y: x.cos(), name="sin"),
    "cos": _smooth(lambda x, y: -x.sin(), name="cos"),
    "tanh": _smooth(lambda x, y: 1 - y * y, name="tanh"),
    "sigmoid": _smooth(lambda x, y: y * (1 - y), name="sigmoid"),
    "deg2rad": _smooth(lambda x, y: torch.full_like(x, math.pi / 180), 2, "deg2rad"),
}
_sqrt = RULES["sqrt"]


@rule("pow")
def _pow(mode: Counting, x: Any, power: Any) -> Parts:
    if not isinstance(power, Tensor) and power in (2, 3):
        square = _mul(mode, x, x)
        return square if power == 2 else _product(mode, square, x.parts)
    a, b = mode.parts(x, _like(x, power)), mode.parts(power, _like(x, power))
    made = a.value**b.value
    by_base, by_power = b.value * a.value ** (b.value - 1), made * a.value.log()
    off = sum(
        torch.where(part.error == 0, 0.0, part.error * steep.abs()) for part, steep in ((a, by_base), (b, by_power))
    )
    more = sum(
        torch.where(part.allowance == 0, 0.0, part.allowance * steep) for part, steep in ((a, by_base), (b, by_power))
    )
    return Parts(made, mode.rounded(made, off + torch.zeros_like(made), LIBRARY), more + torch.zeros_like(made))


@rule("_to_copy")
def _to_copy(mode: Counting, x: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
    a = mode.parts(x)
    if dtype is None or dtype == a.value.dtype:
        return a.each(torch.clone)
    made = value(x).to(dtype)
    if not made.is_floating_point():
        return made
    if not a.value.is_floating_point():
        return Counted(made).parts
    off, more = a.error.double(), a.allowance.double()
    if UNIT[dtype] > UNIT[a.value.dtype]:
        off = mode.lost(made, mode.rounded(made, off))
    return Parts(made, off, more)


def form_error(form: Any) -> Tensor:
    """Return what roundings may take from an affine form: in the center, every slope, and the radius."""
    with _disable_current_modes():
        return error(form.stack).sum(0) + error(form.radius)


class Report(NamedTuple):
    """The largest fraction of an allowance that the worst case uses, and where."""

    share: float
    count: float
    allowed: float


def report(needed: Tensor, allowed: Tensor, where: Tensor | None = None) -> Report:
    """Find where the allowance is used most; entries that are not finite prove nothing, so nothing is demanded of them."""
    with _disable_current_modes():
        asked = torch.isfinite(needed) & torch.isfinite(allowed) & (needed > 0)
        asked = asked if where is None else asked & where
        assert bool(asked.any()), "nothing was counted"
        need, have = needed[asked], allowed[asked]
        share = torch.where(have > 0, need / have, torch.inf)
        worst = int(share.argmax())
        return Report(float(share[worst]), float(need[worst]), float(have[worst]))
