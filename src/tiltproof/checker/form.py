"""Affine forms: every value a number takes over a box is c + sum_k G_k e_k + rho with e_k in [-1, 1] and |rho| <= r.

The symbols e_k are the box's parameters and all numbers share them. A `Form` holds P x ... such numbers in one float64
tensor ``rows`` [2 + d, P, ...]: row 0 is c, rows 1 ... d are G, the last row is r. P counts (image, box) pairs, which
never mix.

Rounding. Every operation computes c and G with at most n roundings of numbers whose magnitudes add up to at most
``size``, so the result is off by at most gamma_n size, gamma_n = n u / (1 - n u), u = 2^-53. `enclose` adds that error and
TINY (for underflow) to r, and inflates r by (1 + gamma_(2n + 64)) because r itself is computed with rounding. NaN and
infinity propagate and end in bounds for which ``lower > 0`` is false.

``unit`` is 0 if the form stands for real numbers. It is 2^-24 if the form must hold for every float32 evaluation: each
operation then also adds gamma_m(2^-24) size for the m roundings of that evaluation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.checker.branches import interval_product, second_order
from tiltproof.errors import UnsupportedOperation

UNIT, UNIT32 = 2.0**-53, 2.0**-24
TINY, TINY32, LARGE32 = 1e-200, 2.0**-100, 2.0**120
RULES: dict[Callable[..., Any] | str, Callable[..., Any]] = {}
"""A torch function, or the name of one that is registered with torch -> its rule."""


def rule(*functions: Callable[..., Any] | str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the rule for these torch functions."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(functions, function))
        return function

    return register


REFUSED: list[str] = []
"""Every refusal so far, so that a forward pass cannot hide one by catching the exception."""


def no_rule(name: str, why: str = "") -> UnsupportedOperation:
    REFUSED.append(f"the checker has no rule for torch function {name}{why and ' ' + why}")
    return UnsupportedOperation(REFUSED[-1])


def gamma(n: float, unit: float) -> float:
    """Bound the relative error of a sum after n roundings, relative to its terms' magnitudes, in any order and with FMA."""
    return n * unit / (1 - n * unit) if n * unit < 0.5 else math.inf


class Form:
    """A batch of affine forms, laid out as the module docstring says.

    ``made_by`` is the linear layer that produced the form; ``shared`` says that it has a view other than a reshape. Reshapes
    of one form share one ``store``, so an in-place write through one is visible in all.
    """

    shown_dtype = torch.float64
    """The dtype that a forward pass sees on its input: the model's own."""
    is_nested = False
    strided = False
    """Whether the forward pass has made a view that is not a reshape; from then on a reshape may copy instead."""
    stepped = False
    """Whether the forward pass has rounded to whole numbers, where a rounding may decide for one step or the next."""

    def __init__(
        self,
        data: Tensor,
        unit: float = 0.0,
        made_by: tuple[Form, Tensor, Tensor] | None = None,
        store: list[Tensor] | None = None,
    ) -> None:
        self.unit, self.shared, self.aliased = unit, False, False
        self.store, self.size_now = [data] if store is None else store, data.shape
        self.origin = (made_by, self.store[0])

    @property
    def rows(self) -> Tensor:
        return self.store[0].reshape(self.size_now)

    @property
    def made_by(self) -> tuple[Form, Tensor, Tensor] | None:
        """Return the linear layer that produced this form, unless it has been written to since."""
        layer, numbers = self.origin
        return layer if numbers is self.store[0] else None

    center = property(lambda self: self.rows[0])
    slopes = property(lambda self: self.rows[1:-1])
    radius = property(lambda self: self.rows[-1])
    shape = property(lambda self: self.size_now[1:])
    ndim = property(lambda self: len(self.size_now) - 1)
    device = property(lambda self: self.store[0].device)
    dtype = property(lambda self: self.shown_dtype)
    is_cuda = property(lambda self: self.store[0].is_cuda)

    @property
    def reach(self) -> Tensor:
        """Bound |x - c| by sum |G| + r, rounded up; pixels with noise have hundreds of symbols."""
        return self.rows[1:].abs().sum(0) * (1 + (64 + 2 * len(self.rows)) * UNIT)

    @property
    def magnitude(self) -> Tensor:
        """Bound |x| by |c| + sum |G| + r, rounded up."""
        return self.rows.abs().sum(0) * (1 + (64 + 2 * len(self.rows)) * UNIT)

    def lower(self) -> Tensor:
        return self.center - self.reach - (8 * UNIT * self.magnitude + TINY)

    def upper(self) -> Tensor:
        return self.center + self.reach + (8 * UNIT * self.magnitude + TINY)

    def __add__(self, other: Any) -> Form:
        return plus(self, other)

    __radd__ = __add__

    def __neg__(self) -> Form:
        return times(self, -1.0)

    def __sub__(self, other: Any) -> Form:
        return plus(self, -other)

    def __rsub__(self, other: Any) -> Form:
        return plus(-self, other)

    def __mul__(self, other: Any) -> Form:
        return times(self, other)

    __rmul__ = __mul__

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def mT(self) -> Form:  # noqa: N802 (torch's name)
        return RULES[torch.Tensor.transpose](self, -2, -1)

    def __matmul__(self, other: Any) -> Form:
        return RULES[torch.matmul](self, other)

    def __rmatmul__(self, other: Any) -> Form:
        return RULES[torch.matmul](other, self)

    def __truediv__(self, other: Any) -> Form:
        return divided(self, other)

    def __rtruediv__(self, other: Any) -> Form:
        return times(RULES[torch.reciprocal](self), other)

    def __pow__(self, exponent: Any) -> Form:
        return RULES[torch.pow](self, exponent)

    def __rpow__(self, base: Any) -> Form:
        return RULES[torch.Tensor.__rpow__](self, base)

    def __abs__(self) -> Form:
        return RULES[torch.abs](self)

    def __iadd__(self, other: Any) -> Form:
        return self.become(self + other, "+=")

    def __isub__(self, other: Any) -> Form:
        return self.become(self - other, "-=")

    def __imul__(self, other: Any) -> Form:
        return self.become(self * other, "*=")

    def __itruediv__(self, other: Any) -> Form:
        return self.become(self / other, "/=")

    def become(self, other: Form, name: str) -> Form:
        """Apply an in-place operation by replacing the stored tensor, which is never written to."""
        if self.shared or (self.aliased and Form.strided):
            raise no_rule(name, "in place on a tensor that is a view or has one")
        if self.shape != other.shape:
            raise no_rule(name, "in place with another shape")
        self.store[0] = other.rows.reshape(self.store[0].shape)
        return self

    def __getitem__(self, index: Any) -> Form:
        return RULES[torch.Tensor.__getitem__](self, index)

    def __getattr__(self, name: str) -> Any:
        """Resolve tensor methods that have a rule."""
        method = getattr(torch.Tensor, name, None)
        if method not in RULES:
            raise AttributeError(f"the checker has no rule for torch function Tensor.{name}")
        return functools.partial(_followed, RULES[method], method, self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = RULES.get(function) or RULES.get(str(function))
        if found is None:
            raise no_rule(getattr(function, "__name__", str(function)))
        return _followed(found, function, *args, **(kwargs or {}))

    def _value(self, *_: Any) -> Any:
        raise UnsupportedOperation(
            "the forward pass depends on values: a form has no single value to compare or branch on"
        )

    __bool__ = __float__ = __int__ = __index__ = __iter__ = _value
    __eq__ = __ne__ = _value

    def __gt__(self, other: Any) -> Condition:
        found: Condition = RULES[torch.gt](self, other)
        return found

    def __lt__(self, other: Any) -> Condition:
        found: Condition = RULES[torch.lt](self, other)
        return found

    __ge__, __le__ = __gt__, __lt__
    __hash__ = None  # type: ignore[assignment]


class Unvalued:
    """What has no single value to compare or branch on."""

    no_value: str

    def _value(self, *_: Any) -> Any:
        raise UnsupportedOperation(f"the forward pass depends on values: {self.no_value} no single value")

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _value
    __eq__ = __ne__ = _value
    __hash__ = None  # type: ignore[assignment]


class Condition(Unvalued):
    """Truth values as a form of numbers from 0 to 1; nothing but a choice or a product reads them."""

    no_value = "a condition on a form has"

    def __init__(self, form: Form) -> None:
        self.form = form

    def __mul__(self, other: Any) -> Form:
        return times(self.form, other)

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Form.__torch_function__(function, types, args, kwargs)


class Scores(Unvalued):
    """A form, and the entries of it that are its numbers; the others are minus infinity. Nothing but a softmax reads it."""

    no_value = "masked scores have"

    def __init__(self, form: Form, taking: Tensor) -> None:
        self.form, self.taking = form, taking

    def softmax(self, dim: int, dtype: Any = None) -> Form:
        found: Form = RULES[torch.softmax](self, dim, dtype=dtype)
        return found

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the checker has no rule for torch function Tensor.{name} of minus infinity")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in READS_SCORES:
            raise no_rule(getattr(function, "__name__", str(function)), "of minus infinity; softmax alone has one")
        return Form.__torch_function__(function, types, args, kwargs)


READS_SCORES: set[Callable[..., Any]] = set()


TURNS = (
    "permute",
    "transpose",
    "view",
    "reshape",
    "flatten",
    "movedim",
    "moveaxis",
    "swapaxes",
    "swapdims",
    "unbind",
    "select",
)
"""Functions that may move the batch dimension, which `moved` then keeps track of."""


def _followed(found: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    refused = len(REFUSED)
    try:
        return found(*args, **kwargs)
    except UnsupportedOperation:
        if getattr(function, "__name__", "") not in TURNS or not args or not isinstance(args[0], Form):
            raise
        del REFUSED[refused:]
        return RULES["elsewhere"](function, *args, **kwargs)


def enclose(data: Tensor, size: Tensor, n: int, unit: float, m: int) -> Form:
    """Return the form with these freshly computed rows, after n roundings here and m in a float32 evaluation."""
    data[-1].abs_().add_(gamma(n, UNIT) * size + TINY).mul_(1 + gamma(2 * n + 64, UNIT))
    if unit and m:
        error = 1.001 * gamma(m, unit) * size + TINY32
        data[-1].add_(torch.where(size < LARGE32, error, math.inf))
    return Form(data, unit)


def unbounded(form: Form) -> Form:
    """Give entries of which nothing is known an infinite radius, and no numbers that would make a NaN of others."""
    known = form.rows.isfinite().all(0)
    form.rows[:-1] = torch.where(known, form.rows[:-1], 0.0)
    form.rows[-1] = torch.where(known, form.rows[-1], math.inf)
    return form


def tame(form: Form, *constants: Tensor) -> Tensor:
    """Return where a float32 evaluation with these constants cannot overflow, divide by zero or lose a constant on the way.

    For real numbers that is everywhere; for float32, where |x| < 2^60 and every constant is zero or a normal number up to 2^40.
    """
    if not form.unit:
        return torch.ones_like(form.center, dtype=torch.bool)
    sizes = [c.abs() for c in constants]
    good = all(bool(((size == 0) | ((size >= 2.0**-126) & (size <= 2.0**40))).all()) for size in sizes)
    return (form.magnitude < 2.0**60) & good


def constant(value: Any, form: Form) -> Tensor:
    """Convert a number or tensor to float64 exactly; refuse one that distinguishes (image, box) pairs."""
    if isinstance(value, Tensor):
        if value.dtype in (torch.int64, torch.bool) or value.is_complex():
            raise no_rule("arithmetic", f"with a constant of type {value.dtype}")
        if value.ndim > form.ndim or (value.ndim == form.ndim and value.shape[0] != 1):
            raise no_rule("arithmetic", f"with a constant of shape {list(value.shape)} on {list(form.shape)}")
        return value.detach().to(form.device, torch.float64)
    if type(value) not in (int, float) or float(value) != value:
        raise no_rule("arithmetic", f"with {value!r}")
    return torch.tensor(float(value), dtype=torch.float64, device=form.device)


def alike(a: Form, b: Form) -> None:
    if a.ndim != b.ndim or a.shape[0] != b.shape[0]:
        raise no_rule("arithmetic", f"on shapes {list(a.shape)} and {list(b.shape)}")


@rule(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
def plus(a: Any, b: Any, *, alpha: Any = 1) -> Form:
    """Add forms: centers, slopes and radii add."""
    a, b = (a, b) if isinstance(a, Form) else (b, a)
    if alpha != 1:
        raise no_rule("add", "with alpha")
    if isinstance(b, Form):
        alike(a, b)
        return enclose(a.rows + b.rows, a.magnitude + b.magnitude, 4, a.unit, 2)
    b = constant(b, a)
    size = torch.where(tame(a, b), a.magnitude + b.abs(), math.inf)
    data = a.rows.expand(len(a.rows), *size.shape).clone()
    data[0] += b
    return enclose(data, size, 4, a.unit, 4)


@rule(torch.sub, torch.Tensor.sub, torch.Tensor.__sub__)
def minus(a: Any, b: Any, *, alpha: Any = 1) -> Form:
    return plus(a, -b, alpha=alpha)


@rule(torch.rsub, torch.Tensor.__rsub__)
def minus_from(a: Any, b: Any) -> Form:
    return plus(-a, b)


@rule(torch.neg, torch.Tensor.neg, torch.Tensor.__neg__)
def negative(a: Form) -> Form:
    return -a


@rule(torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__)
def times(a: Any, b: Any) -> Form:
    """Multiply: (c1 + t1)(c2 + t2) = c1 c2 + c1 t2 + c2 t1 + t1 t2, with t1 t2 from `second_order`; or the interval product where it is
    narrower than the radius."""
    a, b = (each.form if isinstance(each, Condition) else each for each in (a, b))
    a, b = (a, b) if isinstance(a, Form) else (b, a)
    if not isinstance(b, Form):
        b = constant(b, a)
        return enclose(a.rows * b, torch.where(tame(a, b), a.magnitude * b.abs(), math.inf), 4, a.unit, 4)
    alike(a, b)
    middle, rest = second_order(a, b)
    data = a.center * b.rows + b.center * a.rows
    data[0] = a.center * b.center + middle
    data[-1] = a.center.abs() * b.radius + b.center.abs() * a.radius + rest
    low, high = interval_product(a, b)
    narrow = (high - low) / 2 < data[-1]  # false for a NaN
    data[:-1] = torch.where(narrow, 0.0, data[:-1])
    data[0] = torch.where(narrow, (low + high) / 2, data[0])
    data[-1] = torch.where(narrow, (high - low) / 2, data[-1])
    return unbounded(enclose(data, a.magnitude * b.magnitude, 8 + 2 * len(data), a.unit, 4))


@rule(torch.div, torch.Tensor.div, torch.true_divide, torch.Tensor.true_divide, torch.Tensor.__truediv__)
def divided(a: Any, b: Any) -> Form:
    """Divide by a constant, or by a form that stays away from 0: multiply with its reciprocal."""
    if isinstance(b, Form):
        return times(RULES[torch.reciprocal](b), a)
    b = constant(b, a)
    return enclose(a.rows / b, torch.where(tame(a, b, 1 / b), a.magnitude / b.abs(), math.inf), 4, a.unit, 4)
