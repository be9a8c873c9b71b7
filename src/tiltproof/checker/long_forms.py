"""Deep forms whose center and polynomial columns are kept in digits (`digits`), for networks that multiply float64's roundings beyond
their margins.

A `LongForm` is a `DeepForm` of the other symbols around zero, its tail, and ``head``: digits [6, 5, 1, ...] of the center and of the
columns T_1(e) to T_4(e), whose symbols have the numbers 0 to 3. Each operation is applied to both: the tail goes through the rule of
`deep`, without its shift; the head is exact but for what is dropped far behind the point, which joins what is left over. For a function
without a rule here, the form becomes a `DeepForm` again, whose columns are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker import digits
from tiltproof.checker.deep import DEEP, MOST_SYMBOLS, UP, DeepForm, length
from tiltproof.checker.form import TINY, UNIT, Form, constant, gamma, no_rule
from tiltproof.checker.operations import exact, pair

COLUMNS = 5
LONG: dict[Any, Callable[..., Any]] = {}
"""A torch function -> its rule for long forms."""


class Precise(NamedTuple):
    """Digits of constants, and how far each may be off."""

    digits: Tensor
    off: float

    @classmethod
    def of(cls, value: Tensor) -> Precise:
        return cls(digits.of_floats(value), digits.LAST)


def long(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the rule for these torch functions."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        LONG.update(dict.fromkeys(functions, function))
        return function

    return register


class LongForm(DeepForm):
    """A tail with its head."""

    head: Tensor

    @classmethod
    def join(cls, tail: DeepForm, head: Tensor, off: float = 0.0) -> LongForm:
        """The tail and the head, each number of which may be off by ``off``: five columns of it in each entry."""
        errors = torch.full_like(tail.radius, COLUMNS * off * UP)
        rows = torch.cat([tail.rows[:-1], ((tail.radius + errors) * UP)[None]])
        form = cls(rows, (tail.ball + length(errors)) * UP, tail.numbers, tail.counter)
        form.head = head
        if tail.made is not None:
            form.made = tail.made._replace(errors=(tail.made.errors + errors) * UP)
        return form

    @classmethod
    def of_pixels(cls, form: Form, head: Tensor) -> LongForm:
        """Pixels: the form's rows are zeros, columns and radii; radii that rounding leaves where paths cross lines get symbols."""
        radius = form.radius.flatten()
        large = (radius > ALONE).nonzero().flatten()
        planes = form.rows.new_zeros(len(large), radius.numel())
        planes[torch.arange(len(large)), large] = radius[large]
        radius = radius.clone()
        radius[large] = 0.0
        rows = torch.cat([form.rows[:-1], planes.view(-1, *form.shape), radius.view(1, *form.shape)])
        count = len(rows) - 2
        tail = DeepForm(rows, length(radius), torch.arange(4, 4 + count, device=form.device), [4 + count])
        return cls.join(tail, head)

    @property
    def tail(self) -> DeepForm:
        tail = DeepForm(self.rows, self.ball, self.numbers, self.counter)
        tail.made = self.made
        return tail

    def whole(self) -> DeepForm:
        """A deep form, with the head's columns as floats."""
        values, off = digits.floats(self.head)
        errors = off.sum(0) * UP + self.rows[0].abs() + TINY  # the tail's center is zero
        rows = torch.cat([values, self.rows[1:-1], ((self.radius + errors) * UP)[None]])
        numbers = torch.cat([torch.arange(COLUMNS - 1, device=self.device), self.numbers])
        return DeepForm(rows, (self.ball + length(errors)) * UP, numbers, self.counter)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return applied(function, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        method = getattr(torch.Tensor, name, None)
        if method not in LONG and method not in DEEP:
            return super().__getattr__(name)
        return lambda *args, **kwargs: applied(method, self, *args, **kwargs)

    def __add__(self, other: Any) -> DeepForm:
        if isinstance(other, Form):
            return applied(torch.add, self, other)
        return shifted(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> DeepForm:
        return shifted(self, other, -1)

    def __mul__(self, other: Any) -> DeepForm:
        return times(self, other, False)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DeepForm:
        return times(self, other, True)

    def __iadd__(self, other: Any) -> DeepForm:
        return self.become(self + other, "+=")

    def become(self, other: Form, name: str) -> DeepForm:
        if not isinstance(other, LongForm):
            raise no_rule(name, "in place, in long forms")
        return super().become(other, name)

    def __getitem__(self, index: Any) -> DeepForm:
        tail = self.tail[index]
        result = LongForm.join(tail, each_image(self.head, lambda x: x[index]))
        self.viewed = result.viewed = True
        return result


ALONE = 2.0**-65
"""Radii of single pixels that deserve symbols: those that float64's roundings leave where a path crosses a line."""


def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The rule for long forms, or that for deep ones."""
    if function in LONG:
        return LONG[function](*args, **kwargs)
    if function not in DEEP:
        raise no_rule(getattr(function, "__name__", str(function)), "in deep networks")
    return DEEP[function](*(each.whole() if isinstance(each, LongForm) else each for each in args), **kwargs)


def each_image(head: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of images [n, ...] to digits [6, 5, 1, ...]."""
    result = function(head.flatten(0, 2))
    return result.view(*head.shape[:3], *result.shape[1:])


def shifted(x: LongForm, other: Any, sign: int) -> DeepForm:
    """Plus or minus numbers that do not depend on the image."""
    if isinstance(other, Form):
        raise no_rule("sub", "in deep networks")
    value = constant(other, x)
    return with_shift(LongForm.join(x.tail, x.head), Precise.of(sign * value))


def with_shift(x: LongForm, shift: Precise) -> LongForm:
    """Plus constants, in the center alone."""
    head = x.head.clone()
    total = head[:, 0] + shift.digits.view(
        digits.COUNT, *[1] * (head.ndim - 1 - shift.digits.ndim), *shift.digits.shape[1:]
    )
    if total.shape != head[:, 0].shape:
        raise no_rule("arithmetic", "that repeats numbers, in deep networks")
    head[:, 0] = total
    return LongForm.join(x.tail, digits.carried(head), shift.off)


def times(x: LongForm, other: Any, over: bool) -> DeepForm:
    """Times numbers that do not depend on the image, or divided by them."""
    if isinstance(other, Form):
        raise no_rule("mul", "in deep networks")
    value = constant(other, x)
    tail = x.tail / value if over else x.tail * value
    if over:
        inverse = [1 / Fraction(each) for each in value.flatten().tolist()]
        factor = Precise(digits.of_fractions(inverse, value.shape, value.device), digits.LAST)
    else:
        factor = Precise.of(value)
    return LongForm.join(tail, *multiplied(x.head, factor))


def multiplied(head: Tensor, factor: Precise) -> tuple[Tensor, float]:
    """Entry by entry, and how far the products may be off."""
    found, off = digits.product(head, factor.digits, 1, lambda weight, x: weight * x)
    return found, (off + factor.off * largest(head)) * UP


def largest(head: Tensor) -> float:
    """At least every |x|."""
    return float(head[0].abs().max()) + 1.0


@long(torch.add, torch.Tensor.add)
def plus(a: Any, b: Any) -> DeepForm:
    """Digits add."""
    a, b = (a, b) if isinstance(a, LongForm) else (b, a)
    if not isinstance(b, Form):
        return shifted(a, b, 1)
    if not isinstance(b, LongForm):
        result: DeepForm = DEEP[torch.add](a.whole(), b)
        return result
    tail = DEEP[torch.add](a.tail, b.tail)
    return LongForm.join(tail, digits.carried(a.head + b.head))


@long(F.conv2d, torch.conv2d)
def conv2d(
    input: LongForm, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> DeepForm:  # fmt: skip
    """The digits of the weights times those of the head: matrix products of the numbers under the kernel."""
    x = input
    tail = DEEP[F.conv2d](x.tail, weight, None, stride, padding, dilation, groups)
    wide = exact(weight, x)
    n, (high, right) = wide[0].numel(), tail.shape[2:]
    factor = Precise.of(wide)

    def multiply(part: Tensor, image: Tensor) -> Tensor:
        columns = F.unfold(image.flatten(0, 1), tuple(wide.shape[2:]), dilation, padding, stride)
        found = part.reshape(len(wide), n) @ columns
        return found.view(*image.shape[:2], len(wide), high, right)

    head, off = digits.product(x.head, factor.digits, n, multiply)
    result = LongForm.join(tail, head, (off + n * factor.off * largest(x.head)) * UP)
    return result if bias is None else with_shift(result, Precise.of(exact(bias, x).view(-1, 1, 1)))


@long(F.batch_norm, torch.batch_norm)
def batch_norm(
    input: LongForm, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> DeepForm:  # fmt: skip
    """(x - mean) s + bias with s = weight / sqrt(variance + eps), from whole numbers: the root has 200 places, and is off by less than one
    in the last."""
    x = input
    zero = torch.zeros_like(exact(running_var, x))
    tail = DEEP[F.batch_norm](x.tail, zero, running_var, weight, None, training, momentum, eps, cudnn_enabled)
    shape, scales = (len(zero), *[1] * (x.ndim - 2)), []
    gains = [1.0] * len(zero) if weight is None else exact(weight, x).tolist()
    for variance, gain in zip(exact(running_var, x).tolist(), gains, strict=True):
        spread = Fraction(variance) + Fraction(eps)
        if spread <= 0 or abs(gain) > 2.0**50:
            raise no_rule("batch_norm", "with such a variance")
        root = math.isqrt((spread.denominator << 400) // spread.numerator)
        scales.append(Fraction(root, 1 << 200) * Fraction(gain))
    # 2^50 times less than 2^-200 is nothing beside the last digit
    factor = Precise(digits.of_fractions(scales, torch.Size(shape), x.device), 2 * digits.LAST)
    centered = with_shift(LongForm.join(x.tail, x.head), Precise.of(-exact(running_mean, x).view(shape)))
    size = max(abs(float(scale)) for scale in scales) + 1.0
    head, off = multiplied(centered.head, factor)
    result = LongForm.join(tail, head, (off + digits.LAST * size) * UP)
    return result if bias is None else with_shift(result, Precise.of(exact(bias, x).view(shape)))


@long(torch.relu, F.relu, torch.Tensor.relu)
def relu(input: LongForm, inplace: bool = False) -> DeepForm:
    result = with_kinks(input)
    return input.become(result, "relu") if inplace else result


@long(torch.relu_, F.relu_, torch.Tensor.relu_)
def relu_(input: LongForm) -> DeepForm:
    return relu(input, inplace=True)


def with_kinks(x: LongForm) -> LongForm:
    """As `deep.with_kinks`, with slopes of 20 bits, so that digits times slopes are whole. Where the sign is certain, the slope is 0 or 1
    and nothing is lost; elsewhere the tail rounds, and the head drops less than `LAST`."""
    values, off = digits.floats(x.head)
    around = (values[1:].abs().sum(0) + off.sum(0) + x.rows.abs().sum(0)) * UP
    around = around + values[0].abs() * (4 * UNIT)
    low, high = values[0] - around, values[0] + around
    certain = (low >= 0) | (high <= 0)
    slope = (high / (high - low)).clamp(0, 1)
    whole = torch.where(low >= 0, digits.BASE, torch.where(high <= 0, 0.0, torch.round(slope * digits.BASE)))
    s = whole / digits.BASE
    half = torch.maximum(-s * low, (1 - s) * high).clamp(min=0) / 2 * UP
    half = torch.where(certain, 0.0, half)
    chosen = (half > x.radius).flatten()
    count = int(chosen.sum())
    if len(x.rows) - 2 + count > MOST_SYMBOLS:
        raise no_rule("relu", "with so many kinks in a box")
    # digit k times the slope's whole number is in place k + 1
    head = digits.carried(torch.cat([torch.zeros_like(x.head[:1]), x.head * whole]))
    middle = digits.of_floats(half)
    head[:, 0] += middle
    head = digits.carried(head)
    rows = torch.cat([x.rows[:-1] * s, x.rows.new_zeros(count, *x.shape)])
    where = chosen.nonzero().flatten()
    rows[-count or len(rows) :].flatten(1)[torch.arange(count), where] = half.flatten()[where]
    size = x.rows.abs().sum(0) * UP + 2 * half
    errors = torch.where(chosen.view_as(half), 0.0, half) + gamma(16, UNIT) * size + 4 * COLUMNS * digits.LAST
    errors = torch.where(certain, 0.0, errors) + TINY
    ball = x.ball * UP + length(errors)
    radius = (x.radius * s + errors) * UP
    numbers = torch.cat([x.numbers, x.fresh(count)])
    return LongForm.join(DeepForm(torch.cat([rows, radius[None]]), ball, numbers, x.counter), head)


@long(torch.mean, torch.Tensor.mean)
def mean(x: LongForm, dim: Any = None, keepdim: bool = False) -> DeepForm:
    """Of n numbers: 2^20 / n, if whole, times their sum in the next place."""
    tail = DEEP[torch.mean](x.tail, dim, keepdim)
    dims = [dim] if isinstance(dim, int) else list(dim)
    n = math.prod(x.shape[d] for d in dims)
    if digits.BASE % n:
        result: DeepForm = DEEP[torch.mean](x.whole(), dim, keepdim)
        return result
    total = digits.carried(x.head.sum([d + 2 for d in dims], keepdim=keepdim))
    head = torch.cat([torch.zeros_like(total[:1]), total * (digits.BASE / n)])
    return LongForm.join(tail, digits.carried(head), digits.LAST)


@long(F.avg_pool2d, torch._C._nn.avg_pool2d)
def avg_pool2d(input: LongForm, kernel_size: Any, stride: Any = None, *rest: Any, **more: Any) -> DeepForm:
    """The same for windows that do not overlap."""
    x, kernel = input, pair(kernel_size, "avg_pool2d")
    n = math.prod(kernel)
    if digits.BASE % n:
        result: DeepForm = DEEP[F.avg_pool2d](x.whole(), kernel_size, stride, *rest, **more)
        return result
    tail = DEEP[F.avg_pool2d](x.tail, kernel_size, stride, *rest, **more)
    steps = pair(stride or kernel_size, "avg_pool2d")

    def sums(image: Tensor) -> Tensor:
        # whole numbers: their sum is exact
        columns = F.unfold(image.flatten(0, 1).unsqueeze(1), kernel, stride=steps).sum(1)
        return columns.view(*image.shape[:2], *tail.shape[2:])

    total = digits.carried(each_image(x.head, sums))
    head = torch.cat([torch.zeros_like(total[:1]), total * (digits.BASE / n)])
    return LongForm.join(tail, digits.carried(head), digits.LAST)


@long(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(input: LongForm, output_size: Any) -> DeepForm:
    if output_size not in (1, (1, 1), [1, 1]):
        raise no_rule("adaptive_avg_pool2d", "to more than one number, in deep networks")
    return mean(input, (2, 3), keepdim=True)


def moving(*functions: Any) -> None:
    """Functions that only move numbers, or put zeros beside them."""
    for function in functions:

        def moved(x: LongForm, *args: Any, function: Any = function, **kwargs: Any) -> DeepForm:
            tail = DEEP[function](x.tail, *args, **kwargs)
            # the same entries of every image
            head = torch.stack([_moved(function, column, args, kwargs) for column in x.head.flatten(0, 1)])
            result = LongForm.join(tail, head.view(*x.head.shape[:2], *head.shape[1:]))
            if function is not F.pad:
                result.viewed = x.viewed = True
            return result

        LONG[function] = moved


def _moved(function: Any, image: Tensor, args: Any, kwargs: Any) -> Tensor:
    result: Tensor = function(image, *args, **kwargs)
    return result


moving(torch.Tensor.view, torch.Tensor.reshape, torch.reshape, torch.flatten, torch.Tensor.flatten, F.pad)
for plain in (torch.Tensor.size, torch.Tensor.dim):
    LONG[plain] = DEEP[plain]
