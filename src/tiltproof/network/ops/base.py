"""Rules: how one operation maps affine forms forward and linear lower bounds backward; the tables of rules and of converters.

Forward: from affine forms of the inputs to an affine form that contains every output. Backward: from a linear lower bound ``a . y`` of
the margin in the operation's output y to one in its inputs: ``a . y >= sum_i a_i . x_i + constant - error`` for every x inside the
forward bounds; ``error`` covers rounding (`BackwardResult.rounding_budget`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tiltproof.device import has_kernel, launch_bound
from tiltproof.enclosures.affine_form import AffineForm, GatheredForm, added_lengths, row_length
from tiltproof.enclosures.rounding import SMALLEST, UNIT, gamma, widen
from tiltproof.network.graph import Operation, Reference


@dataclass
class BackwardResult:
    """Result of a backward rule: coefficients of the inputs and a ``constant``, float64 [Q], one for each (box, class) pair.

    ``quadratic_terms`` (float64 [2, Q]): adds quadratic_terms[0] e + quadratic_terms[1] (2 e^2 - 1) to the constant, in the symbols of
    quadratic forms.
    ``rounding_budget`` (shaped like `lengths` of the operation's result): roundings take at most the sum over all positions of the
    budget times the length of a. If each coefficient a_i costs e |a_i| |x_i|, the budget is e times the length of x.
    """

    inputs: list[Tensor]
    constant: Tensor | float = 0.0
    rounding_budget: Tensor | None = None
    quadratic_terms: Tensor | None = None
    error: Tensor | None = None
    """Instead of a budget: the total effect of roundings and underflows, float64 [Q], including `FLOOR` times the sum of |a|."""
    size: Tensor | None = None
    """With ``error``: at least the sum of |x| over all entries of the one input, [Q]."""


class Rule:
    """How one kind of operation treats bounds; `rule` registers it."""

    activation = False
    """Elementwise and nonlinear: a relaxation adds to the radius. Branching scores and symbol pruning consider these operations."""
    expensive = False
    """Many products: a backward pass tests for early exit before it goes through one."""
    discontinuous = False
    """A rounding of the input may move the output by a whole step, so a coarse bound of roundings says nothing about it."""

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        raise NotImplementedError

    def norm(self, operation: Operation, shape: torch.Size) -> float | None:
        """Of a linear operation: at least its largest singular value for inputs of ``shape``; None: not known."""
        return None

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """``a`` [Q, ...]; ``inputs``: the forward forms of its rows' boxes."""
        raise NotImplementedError


def row_size(a: Tensor) -> int:
    """Number of entries in a row."""
    return math.prod(a.shape[1:])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Row-wise sum of products, summed in float64 so that only the products round (relatively, once each)."""
    return total(a * b)


def norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """An upper bound of the Euclidean norm over some dimensions, n entries each.

    The sum of squares and its root round at most n + 8 times. Entries whose squares underflow are below 2^-62 (float64: 2^-510) and add at
    most sqrt(n) times that; n times is added. A square that overflows makes the norm infinite, which proves nothing. On a GPU the norm is
    computed in float64, where no square of a float32 number underflows and `MORE` covers the roundings.
    """
    if launch_bound(x) and x.dtype == torch.float32:
        return torch.linalg.vector_norm(x, 2, dims, dtype=torch.float64)
    count = math.prod(x.shape[dim] for dim in dims)
    vanishing = 2.0**-62 if x.dtype == torch.float32 else 2.0**-510
    # vector_norm is slow on CPUs
    length = torch.linalg.vector_norm(x, 2, dims) if launch_bound(x) else (x * x).sum(dims).sqrt_()
    return length.mul_(1 + 2 * gamma(count + 8, UNIT[x.dtype])).add_(count * vanishing)


def lengths(x: Tensor) -> Tensor:
    """`norm` over the channels at each position: [P, C, H, W] -> [P, H, W]; of [P, C], |x| itself.

    Roundings are small, so a coarse bound at each position is enough: sum_c |a_c| |x_c| <= |a|_2 |x|_2.
    """
    return norm(x, (1,)) if x.ndim > 2 else x.abs()


def form_lengths(form: AffineForm) -> Tensor:
    """`lengths` of |x| for every x in the form, up to roundings that `MORE` covers; cached."""
    if form.lengths is None:
        extent = form.extent()
        form.lengths = lengths(extent) if extent.ndim > 2 else extent
    return form.lengths


def row_norm(x: Tensor) -> Tensor:
    """`norm` of all entries of each row, float64 [P]. `MORE` covers the roundings of float64 sums of any length; squares of float64 entries
    below 2^-510 may underflow."""
    length = torch.linalg.vector_norm(x, 2, tuple(range(1, x.ndim)), dtype=torch.float64)
    return length if x.dtype == torch.float32 else length.add_(row_size(x) * 2.0**-510)


def form_norm(form: AffineForm) -> Tensor:
    """`row_norm` of |x| for every x in the form, up to roundings that `MORE` covers; cached. Computed for all rows that a gathered form
    selects from, since each row is selected for several margins."""
    if isinstance(form, GatheredForm):
        return form_norm(form.form).index_select(0, form.rows)
    if form.norms is None:
        form.norms = row_norm(form.extent())
    return form.norms


def backward_gamma(count: int, entries: int, unit: float) -> float:
    """Relative error of a backward step: ``count`` roundings in the bounds' dtype, and the float64 sums of `dot`.

    A sum of ``entries`` products in float64 is off by at most gamma_entries(2^-53) of their sizes, in any order; 1024 more
    cover the additions of up to that many steps' constants.
    """
    return gamma(count, unit) + gamma(entries + 1024, 2.0**-53) if unit else 0.0


FLOOR = {torch.float32: 2.0**-50, torch.float64: 2.0**-400}
"""Added to the rounding budget of every position; covers underflows (`largest_sum`)."""
MORE = 1 + 2.0**-16
"""Final factor on the errors of a backward pass: sums of terms >= 0, rounded dozens of times in the bounds' dtype."""


def largest_sum(like: Tensor, form: AffineForm, forms: int) -> float:
    """Largest sum of `form_lengths`, for each of a step's ``forms`` inputs, for which `FLOOR` covers underflows; ``like``: coefficients.

    A product that underflows is off by at most the smallest normal number m; a product with a weight that is flushed to zero, by m |a|.
    So each coefficient of x_i is off by at most n m (1 + sum |a|), and the constant by as much; SMALLEST stands for n m. Multiplied by
    |x_i|, which may be huge, that is SMALLEST (1 + sum |a|) (sum |x| + n) in total. A coefficient of y_j that is flushed loses at most
    m |y_j|, and y_j is an input of the step before this one. A sum over channels is at most the root of their number times the length.
    So FLOOR times the sum of the lengths of a covers sum |a|, and one more FLOOR covers the 1.
    """
    most = FLOOR[like.dtype] / (SMALLEST[like.dtype] * MORE * ones_length(like)) - row_size(like)
    return max(most / (forms * MORE * ones_length(form.like)), 1.0)


def total(x: Tensor) -> Tensor:
    """Sum of each row, in float64."""
    return x.sum(tuple(range(1, x.ndim)), dtype=torch.float64) if x.ndim > 1 else x.double()


def ones_length(a: Tensor) -> float:
    """An upper bound of `lengths` of a tensor of ones shaped like ``a``."""
    return math.sqrt(a.shape[1]) * (1 + 2.0**-20) if a.ndim > 2 else 1.0


def reduced(a: Tensor, shape: torch.Size) -> Tensor:
    """Coefficients of a branch of this shape, each the sum over the entries that it serves by broadcasting."""
    return a.sum_to_size(len(a), *shape[1:])


def farthest(form: AffineForm) -> Tensor:
    """An upper bound of |x| over the form."""
    return form.center.abs() + form.reach()


OVERFLOW = 2.0**120
"""float32 semantics: beyond this size of its terms an evaluation may overflow in between; the bound is then infinite."""
UNDERFLOW = SMALLEST[torch.float32]
"""float32 semantics: added to a size, so that its product with a gamma >= 2^-24 exceeds any underflow (2^-126)."""


def evaluated(form: AffineForm, roundings: int, unit: float, size: Tensor | None = None) -> AffineForm:
    """Enclose a floating-point evaluation of results in ``form``: it may be off by gamma_roundings times ``size`` (default: the largest
    result)."""
    if not unit:
        return form
    size = (farthest(form) if size is None else size) + UNDERFLOW
    radius = widen(form.radius + size * gamma(roundings, unit), form.radius, 4, form.unit)
    radius = torch.where(size < OVERFLOW, radius, torch.inf)
    result = AffineForm(form.stack, radius, form.unit, form.quadratic)
    if form.ball is None:
        return result
    more = row_length(size * (gamma(roundings, unit) * (1 + 2.0**-20)))
    return result.with_ball(added_lengths(form.ball, more, form.unit))


@has_kernel("linear_epilogue:shift_and_widen")
def shift_and_widen(center: Tensor, radius: Tensor, shift: Tensor, factor: float, extra: Tensor) -> None:
    """center + shift, and radius * factor + extra, in place; ``shift`` and ``extra`` have a number for each channel."""
    center.add_(shift)
    radius.mul_(factor).add_(extra)


class LinearRule(Rule):
    """y = L x + shift. Subclasses define L, |L| (entrywise absolute values), the transpose and the number of terms of its sums."""

    def signed(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def absolute(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def transposed(self, operation: Operation, a: Tensor, shape: torch.Size) -> Tensor:
        raise NotImplementedError

    def terms(self, operation: Operation, shape: torch.Size) -> tuple[int, int]:
        """Number of products that each sum adds, forward and backward."""
        raise NotImplementedError

    def shift(self, operation: Operation, like: Tensor) -> Tensor | None:
        return None

    def divisor(self, operation: Operation, shape: torch.Size) -> int:
        """The divisor of an average, else 1."""
        return 1

    def shift_size(self, operation: Operation, shift: Tensor) -> Tensor:
        """The size that roundings of the shift itself are relative to."""
        return shift.abs()

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """Center and slopes through L, radius through |L|. Roundings (method, section 7): with the shift s as one more term of
        the sum, every entry of L c + s and L G_k is off by at most gamma_{n+2} (|L| (|c| + sum_k |G_k|) + |s|), so that
        magnitude joins the radius before the |L| product, which is needed anyway. A float32 evaluation is off by at most
        gamma_{n+8} (|L| |x| + |s|) in its own unit roundoff, in any order of summation; 8 also covers the products
        and divisions of a batch norm.
        """
        (form,) = inputs
        rows = self.signed(operation, form.stack.flatten(0, 1))
        stack = rows.view(len(form.stack), len(form), *rows.shape[1:])
        if form.ball is not None:
            errors = self._remainder(operation, form, torch.zeros_like(form.radius), stack)
            return self._with_ball(operation, form, errors, stack)
        radius = self._remainder(operation, form, form.radius, stack)
        return AffineForm(stack, radius, form.unit, form.quadratic)

    def _remainder(self, operation: Operation, form: AffineForm, radius: Tensor, stack: Tensor) -> Tensor:
        """|L| ``radius`` and all roundings (`forward`); adds the shift to ``stack``, the form's stack through L."""
        count = self.terms(operation, form.shape)[0]
        own, theirs = gamma(count + 4, form.unit), gamma(count + 8, operation.evaluation)
        if form.unit:
            radius = torch.add(radius, form.magnitude(), alpha=own)
        if operation.evaluation:
            radius = torch.add(radius, farthest(form) + UNDERFLOW, alpha=theirs)
        radius = self.absolute(operation, radius)
        shift = self.shift(operation, stack)
        if not form.unit:
            if shift is not None:
                stack[0].add_(shift)
        else:
            # the |L| product and its inputs round too (relatively, as all terms are >= 0), and products may underflow
            extra = count * 4 * (UNDERFLOW if operation.evaluation else SMALLEST[stack.dtype])
            factor = 1 + 2 * gamma(count + len(stack) + 16, form.unit)
            if shift is None:
                radius = radius.mul_(factor).add_(extra)
            else:
                more = operation.once(
                    "extra", lambda: self.shift_size(operation, shift) * ((own + theirs) * (1 + 2.0**-20)) + extra
                )
                shift_and_widen(stack[0], radius, shift, factor, more)
        if operation.vanishing and form.unit:
            # a weight w that is flushed to zero loses |w x| <= m |x|, m the smallest normal number
            smallest = UNDERFLOW if operation.evaluation else SMALLEST[stack.dtype]
            lost = farthest(form).flatten(1).sum(1) * smallest
            radius = radius + lost.view(-1, *[1] * (radius.ndim - 1))
        if operation.evaluation:
            # radius / theirs, times the divisor of an average, bounds every partial sum of the evaluation
            limit = theirs * OVERFLOW / self.divisor(operation, form.shape)
            radius = torch.where((radius < limit) & (not operation.fragile), radius, torch.inf)
        return radius

    def _with_ball(self, operation: Operation, form: AffineForm, errors: Tensor, stack: Tensor) -> AffineForm:
        """What is left over becomes L x and the errors: |(L x)_i| <= min((|L| r)_i, `local`) and |L x|_2 <= min(sigma(L) |x|_2, the
        length of these radii); the errors add to both."""
        assert form.ball is not None
        count = self.terms(operation, form.shape)[0]
        moved = self.absolute(operation, form.radius) * (1 + 2 * gamma(count + 16, form.unit))
        local = self.local(operation, form)
        if local is not None:
            moved = torch.minimum(moved, local)
        ball, sigma = row_length(moved), self.norm(operation, form.shape)
        if sigma is not None:
            ball = torch.minimum(ball, form.ball * (sigma * (1 + 8 * form.unit)))
        ball = added_lengths(ball, row_length(errors), form.unit)
        radius = (moved + errors) * (1 + 4 * form.unit)
        return AffineForm(stack, radius, form.unit, form.quadratic).with_ball(ball)

    def local(self, operation: Operation, form: AffineForm) -> Tensor | None:
        """At least |w_i|_2 min(ball, length of the radii in the receptive field of i) for each output i; None: not known."""
        return None

    def shifted(self, operation: Operation, a: Tensor, shift: Tensor) -> Tensor:
        """a . shift, summed in float64."""
        return dot(a, shift.expand_as(a))

    def sizes(self, operation: Operation, form: AffineForm) -> Tensor:
        """An upper bound of `lengths` of |L| |x|."""
        size = self.absolute(operation, form.extent())
        return lengths(size) if size.ndim > 2 else size

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a . (L x + s) = (L^T a) . x + a . s; the computed L^T a is off by at most gamma |L^T| |a|, times |x|."""
        (form,) = inputs
        result = BackwardResult([self.transposed(operation, a, form.shape[1:])])
        shift = self.shift(operation, a)
        if shift is not None:
            result.constant = self.shifted(operation, a, shift)
        if form.unit:
            terms = self.terms(operation, form.shape)
            theirs = gamma(terms[0] + 8, operation.evaluation)
            count = backward_gamma(terms[1] + 8, row_size(a), form.unit) + theirs
            # the sizes are rounded sums of terms >= 0: at least 1 - n u of the true ones, and 1 / (1 - n u) = 1 + gamma_n
            count *= 1 + 2 * gamma(sum(terms) + 32, form.unit)
            size = self.sizes(operation, form)
            least = operation.once("least", lambda: self._least(operation, shift, a) * count)
            result.rounding_budget = torch.add(least, size, alpha=count)
            if operation.vanishing and operation.evaluation:
                # a weight w that an evaluation flushes to zero loses |w x| <= m |x| in each y, m the smallest normal number
                lost = total(form_lengths(form)).to(size.dtype) * (form.shape[1] * 2 * UNDERFLOW * ones_length(a))
                result.rounding_budget = result.rounding_budget + lost.view(-1, *[1] * (size.ndim - 1))
        return result

    def _least(self, operation: Operation, shift: Tensor | None, a: Tensor) -> Tensor:
        """The part of the sizes that does not depend on x."""
        least = UNDERFLOW * ones_length(a)
        if shift is None:
            return a.new_full((), least)
        return lengths(self.shift_size(operation, shift).expand(1, *a.shape[1:])) + least


class MoveRule(Rule):
    """Entries are only rearranged: nothing rounds, and the transpose is the inverse rearrangement."""

    def move(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """A matrix of zeros and ones with at most one 1 in each row; sigma is the root of the largest number of ones in a column."""
        (form,) = inputs
        result = form.exactly(lambda x: self.move(operation, x))
        if form.ball is None:
            return result
        most = operation.once("norm", lambda: math.sqrt(float(self._uses(operation, form.like[:1]).max())))
        return result.with_ball(form.ball * (most * (1 + 8 * form.unit)))

    def _uses(self, operation: Operation, like: Tensor) -> Tensor:
        """How often each entry of the input is used."""
        result = torch.func.vjp(lambda x: self.move(operation, x), torch.zeros_like(like))
        uses: Tensor = result[1](torch.ones_like(result[0]))[0]
        return uses

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        zeros = a.new_zeros(len(a), *inputs[0].shape[1:])
        transpose = torch.func.vjp(lambda x: self.move(operation, x), zeros)[1]
        return BackwardResult([transpose(a.contiguous())[0]])


REGISTRY: dict[str, Rule] = {}
"""Operation kind -> its rule."""


def rule(kind: str) -> Any:
    """Class decorator: one instance of the class serves operations of this kind."""

    def register(cls: type) -> type:
        assert kind not in REGISTRY, f"two rules for {kind}"
        REGISTRY[kind] = cls()
        return cls

    return register


# The table from torch's ATen calls to operations: each module of this package registers its own converters.
# A converter takes the output's shape and the call's arguments and returns the operation to build, or raises
# `Refused`.


class Refused(Exception):
    """The operation is known but not in this use; the text says why."""


class Input(NamedTuple):
    """An argument that depends on the image: the operation that makes it, and its shape without the batch."""

    name: str
    shape: tuple[int, ...]


@dataclass(eq=False)
class Built:
    """The operation that a converter builds; ``derived`` holds settings to compute from the constants of the live network.

    An input is the name of an operation or an operation built here as well, which must state its ``shape``; None stands for that of the
    call.
    """

    kind: str
    inputs: tuple[str | Built, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None


class Masked(NamedTuple):
    """What a converter gives for values of which some are minus infinity; a softmax alone reads them."""

    name: str
    shape: tuple[int, ...]
    taking: Callable[[dict[str, Tensor]], Tensor]
    """Which entries of one image are numbers, those of the operation with this name."""


READS_MASKED = {"softmax.int", "_softmax.default"}

CONVERTERS: dict[str, Callable[..., Built | Masked]] = {}
"""ATen overload (without ``aten.``) -> its converter."""


CONDITIONS = {"gt.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar"}
"""Calls that give truth values, which stand for 0 and 1."""
MASKED_FILLS = ("masked_fill.Scalar", "masked_fill.Tensor")
READS_CONDITIONS = {"mul.Tensor", "where.self", "where.ScalarOther", "where.ScalarSelf", *MASKED_FILLS}
"""Calls that may read truth values; elsewhere they would not be numbers (1 + 1 = 1)."""


Converter = TypeVar("Converter", bound=Callable[..., Built | Masked])


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Decorator: the function converts calls of these ATen overloads."""

    def register(function: Converter) -> Converter:
        taken = [name for name in names if name in CONVERTERS]
        assert not taken, f"two converters of {taken}"
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def supported() -> str:
    """The supported ATen operations, for error messages."""
    return ", ".join(sorted({name.split(".")[0] for name in CONVERTERS if not name.startswith("_")}))


def require_constants(x: Any, *constants: Any) -> None:
    """Refuse weights that depend on the image."""
    if not isinstance(x, Input) or any(isinstance(constant, Input) for constant in constants):
        raise Refused("the weights must not depend on the image")


def pair(value: Any) -> tuple[int, int]:
    """A size in both dimensions; one number stands for two."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    first, second = values * 2 if len(values) == 1 else values
    return first, second


def shape_of(constant: Any) -> tuple[int, ...]:
    """The shape of a constant; a number has none."""
    if not isinstance(constant, Reference) or constant.shape is None:
        raise Refused("a product with something that is not a tensor")
    return constant.shape


def same_padding(padding: Any, kernel: tuple[int, ...], dilation: Any) -> list[tuple[int, int]]:
    """Padding before and after each dimension, as numbers or one of torch's words for it."""
    if padding == "same":
        steps = dilation if len(dilation) == len(kernel) else dilation * len(kernel)
        steps = [step[0] if isinstance(step, (list, tuple)) else step for step in steps]
        totals = [step * (size - 1) for step, size in zip(steps, kernel, strict=True)]
        return [(whole // 2, whole - whole // 2) for whole in totals]
    if padding == "valid":
        padding = 0
    values = tuple(padding) if isinstance(padding, (list, tuple)) else (padding,)
    values = values * len(kernel) if len(values) == 1 else values
    return [(value, value) for value in values]
