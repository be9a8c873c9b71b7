"""Attention: softmax inside the network, and products of two matrices that both depend on the image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import batch_entries
from tiltproof.enclosures.affine_form import AffineForm, absolute_sum
from tiltproof.enclosures.rounding import SMALLEST, UNIT, gamma, widen
from tiltproof.errors import UnsupportedOperation
from tiltproof.network.graph import Operation, Reference
from tiltproof.network.ops.base import (
    FLOOR,
    BackwardResult,
    Built,
    Input,
    Masked,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    evaluated,
    farthest,
    lengths,
    row_size,
    rule,
    total,
)
from tiltproof.network.ops.contraction import constant_times, times_constant
from tiltproof.network.ops.gather import gathered
from tiltproof.network.ops.products import narrower, shared_symbols

ENTRIES_CPU, ENTRIES_GPU = 2**22, 2**26
"""Differences x_j - x_i at a time."""
PRECISION = 2.0**-46
"""Far exceeds the error of float64 library functions and of the few float64 operations around them; a sum counts its terms as well."""


def _second_order(first: AffineForm, second: AffineForm) -> tuple[list[Tensor], Tensor]:
    """(H, t): the products of deviations D1 @ D2 are within t of sum_k H_k e_k^2.

    With D1 = sum_j F_j e_j + R1 and D2 = sum_k G_k e_k + R2, H_k = F_k @ G_k, and F_j @ G_k + F_k @ G_j is the factor of e_j e_k: sums
    in which the terms' shares cancel. The rest is at most (sum_j |F_j|) @ r2 + r1 @ (sum_k |G_k| + r2).
    """
    rest = first.radius @ second.radius
    if first.symbols:
        rest = rest + absolute_sum(first.slopes) @ second.radius + first.radius @ absolute_sum(second.slopes)
    own = [f @ g for f, g in zip(first.slopes, second.slopes, strict=True)]
    for k in range(first.symbols):
        for j in range(k):
            rest = rest + (first.slopes[j] @ second.slopes[k] + first.slopes[k] @ second.slopes[j]).abs()
    return own, rest


@rule("matmul")
class MatMul(Rule):
    """Y = X1 @ X2 over the last two dimensions: C1 @ C2 + C1 @ D2 + D1 @ C2 + D1 @ D2.

    A sum of n products is off by at most gamma_n times the product of the magnitudes, in any order; with the other sums of this rule, by
    at most gamma_(n + 2 d^2 + 16).
    """

    expensive = True

    def _terms(self, operation: Operation, first: AffineForm) -> int:
        return first.shape[-1] + 2 * first.symbols * (first.symbols + 1) + 16

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """e_k^2 is in [0, 1]; of quadratic forms, e_1^2 = 1/2 + (2 e_1^2 - 1) / 2."""
        first, second = shared_symbols(*inputs)
        a, b = first.center, second.center
        quadratic = (first.quadratic or second.quadratic) and first.symbols > 1
        own, rest = _second_order(first, second)
        planes = [a @ b, *(a @ g + f @ b for f, g in zip(first.slopes, second.slopes, strict=True))]
        for k, square in enumerate(own):
            planes[0] = planes[0] + square / 2
            if quadratic and k == 0:
                planes[2] = planes[2] + square / 2
            else:
                rest = rest + square.abs() / 2
        radius = a.abs() @ second.radius + first.radius @ b.abs() + rest
        magnitude = first.magnitude() @ second.magnitude()
        radius = widen(radius, magnitude, 2 * self._terms(operation, first), first.unit)
        result = AffineForm(torch.stack(planes), radius, first.unit, quadratic)
        size = farthest(first) @ farthest(second)
        return evaluated(result, first.shape[-1] + 24, operation.evaluation, size)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a . Y = a . (C1 @ X2 + X1 @ C2 - C1 @ C2 + D1 @ D2): planes through the center; D1 @ D2 at its lower end where a >= 0."""
        first, second = inputs
        one, two = shared_symbols(first, second)
        own, rest = _second_order(one, two)
        middle = sum(own, torch.zeros_like(rest)) / 2
        for square in own:
            rest = rest + square.abs() / 2
        center = first.center @ second.center
        shares = [a @ second.center.mT, first.center.mT @ a]
        result = BackwardResult(shares, constant=dot(a, middle) - dot(a, center) - dot(a.abs(), rest))
        if first.unit:
            size = farthest(first) @ farthest(second)
            count = self._terms(operation, one) + a.shape[-1] + a.shape[-2]
            # |C1| @ |X2|, |X1| @ |C2|, |C1| @ |C2|, |middle| and twice the rest: each is at most the product of the sizes
            result.rounding_budget = lengths(size) * (6 * backward_gamma(count, row_size(a), first.unit))
            if operation.evaluation:
                theirs = gamma(first.shape[-1] + 24, operation.evaluation)
                result.rounding_budget = result.rounding_budget + lengths(size) * (theirs * (1 + 2.0**-10))
        return result


@dataclass
class Exponentials:
    """For some outputs i: lines around every exp(x_j - x_i), and the form of S_i = sum_j exp(x_j - x_i), all float64 [P, N, I, ...].

    The difference of an entry from itself is 0, without any remainder.
    """

    chosen: slice
    fixed: Tensor
    """Terms that are 0 or 1 at every x."""
    terms: Tensor
    """Their values, and 0 elsewhere."""
    low: Tensor
    high: Tensor
    """Ends of x_j - x_i."""
    at: Tensor
    """x_j - x_i at the centers."""
    chord: Tensor
    above: Tensor
    """exp(t) <= chord t + above."""
    center: Tensor
    slopes: list[Tensor]
    radius: Tensor
    least: Tensor
    most: Tensor
    """The form of S_i [P, N, I], and the ends of S_i."""


@rule("softmax")
class Softmax(Rule):
    """y_i = exp(x_i) / sum_j exp(x_j) = 1 / sum_j exp(x_j - x_i), in whose differences shared symbols cancel.

    exp and 1 / S are convex: on [l, h] below the chord and above every tangent. Everything is worked out in float64.

    ``mask``, a constant: where it is false, x_j takes no part. The term of such a j is 0 in every S_i, and y_j = 0.
    """

    def _rows(self, operation: Operation, x: Tensor) -> Tensor:
        """[P, ...] -> [P, N, T]: the entries that are normalized together come last."""
        return x.movedim(operation.settings["dim"], -1).flatten(1, -2) if x.ndim > 2 else x.unsqueeze(1)

    def _back(self, operation: Operation, rows: Tensor, like: torch.Size) -> Tensor:
        """The inverse of `_rows`."""
        dim = operation.settings["dim"]
        if len(like) == 2:
            return rows.squeeze(1)
        shape = [size for place, size in enumerate(like) if place != dim]
        return rows.reshape(len(rows), *shape[1:], like[dim]).movedim(-1, dim)

    def _absent(self, operation: Operation, form: AffineForm) -> Tensor:
        """Entries that take no part [1, N or 1, T]."""
        mask = operation.settings.get("mask")
        if mask is None:
            return torch.zeros(1, 1, form.shape[operation.settings["dim"]], dtype=torch.bool, device=form.device)
        absent: Tensor = operation.once("absent", lambda: self._rows(operation, ~mask.to(form.device).unsqueeze(0)))
        return absent

    def _chunks(self, operation: Operation, form: AffineForm) -> Iterator[Exponentials]:
        absent = self._absent(operation, form)
        center, radius = (self._rows(operation, each).double() for each in (form.center, form.radius))
        slopes = [self._rows(operation, plane).double() for plane in form.slopes]
        size = center.abs() + radius + sum((slope.abs() for slope in slopes), torch.zeros_like(radius))
        count, length = center.shape[1:]
        precision = PRECISION + (length + 64) * 2.0**-52
        most = max(1, batch_entries(center, ENTRIES_CPU, ENTRIES_GPU) // max(1, len(center) * count * length))
        for begin in range(0, length, most):
            chosen = slice(begin, min(length, begin + most))
            own = torch.zeros(length, length, dtype=torch.bool, device=center.device).fill_diagonal_(True)[chosen]
            fixed = own | absent.unsqueeze(2)
            terms = own.double()

            def apart(x: Tensor, sign: int = -1, chosen: slice = chosen, fixed: Tensor = fixed) -> Tensor:
                """x_j - x_i or x_j + x_i, [P, N, I, T]; 0 where the term is fixed."""
                pairs = x.unsqueeze(2) + sign * x[:, :, chosen].unsqueeze(3)
                return pairs.masked_fill(fixed, 0.0)

            at, sizes = apart(center), apart(size, 1)
            differences = [apart(slope) for slope in slopes]
            reach = apart(radius, 1) + sum((each.abs() for each in differences), torch.zeros_like(at))
            reach = reach + sizes * precision
            low, high = at - reach, at + reach
            first, last = low.exp(), high.exp()
            # the slope of the chord, which lies between those at the ends
            chord = torch.where(high > low, (last - first) / (high - low), first)
            chord = torch.minimum(torch.maximum(chord, first), last).masked_fill(fixed, 0.0)
            slack = precision * (last + chord * (low.abs() + high.abs()))
            above = torch.maximum(first - chord * low, last - chord * high) + slack
            # exp(t) - s t >= s (1 - log s), by the tangent where exp has that slope
            below = chord * (1 - chord.clamp(min=2.0**-1000).log()) - slack
            above, below, first, last = (torch.where(fixed, terms, each) for each in (above, below, first, last))
            summed = chord.sum(3)
            middle = (chord * at + (above + below) / 2).sum(3)
            planes = [(chord * each).sum(3) for each in differences]
            rest = (chord * radius.unsqueeze(2)).sum(3) + summed * radius[:, :, chosen] + ((above - below) / 2).sum(3)
            rest = rest + precision * (chord * sizes + above.abs() + below.abs()).sum(3)
            spread = rest + sum((plane.abs() for plane in planes), torch.zeros_like(rest))
            inward, outward = (1 - 4 * precision), (1 + 4 * precision)
            least = torch.maximum((middle - spread) - 4 * precision * (middle.abs() + spread), first.sum(3) * inward)
            largest = torch.minimum((middle + spread) + 4 * precision * (middle.abs() + spread), last.sum(3) * outward)
            # its own term is 1
            yield Exponentials(
                chosen,
                fixed,
                terms,
                low,
                high,
                at,
                chord,
                above,
                middle,
                planes,
                rest * outward,
                least.clamp(min=1.0),
                largest,
            )

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        """1 / S by its chord and the tangent of the same slope s = -1 / (l h), where S^2 = l h: 1 / S - s S >= 2 sqrt(-s)."""
        (form,) = inputs
        if not form.symbols:
            return self._finished(operation, form, *self._intervals(operation, form))
        parts: list[list[Tensor]] = []
        precision = PRECISION + form.shape[operation.settings["dim"]] * 2.0**-52
        absent = self._absent(operation, form)
        for e in self._chunks(operation, form):
            slope = -1 / (e.least * e.most)
            above = torch.maximum(1 / e.least - slope * e.least, 1 / e.most - slope * e.most)
            below = 2 * (-slope).sqrt()
            size = above + slope.abs() * (e.center.abs() + e.radius + sum((p.abs() for p in e.slopes), 0 * e.radius))
            radius = slope.abs() * e.radius + (above - below) / 2 + 4 * precision * size
            ends = (1 / e.most) * (1 - 4 * precision), (1 / e.least) * (1 + 4 * precision)
            planes = [slope * e.center + (above + below) / 2, *(slope * plane for plane in e.slopes)]
            silent = absent[:, :, e.chosen] & radius.isfinite()
            parts.append([each.masked_fill(silent, 0.0) for each in (*planes, radius, *ends)])
        *planes, radius, low, high = (
            self._back(operation, torch.cat(each, 2), form.shape) for each in zip(*parts, strict=True)
        )
        dtype, stack = form.radius.dtype, torch.stack(planes)
        radius = widen(radius.to(dtype), absolute_sum(stack).to(dtype), 4, form.unit)
        radius = torch.where(form.reach() < torch.inf, radius, torch.inf)
        result = AffineForm(stack.to(dtype), radius, form.unit)
        return self._finished(operation, form, low, high, result)

    def _intervals(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor]:
        """The ends of y without symbols: S_i goes from 1 + sum exp(l_j - h_i) to 1 + sum exp(h_j - l_i), the sums over the j other than i.

        exp(h_j - l_i) = exp(h_j - M) exp(M - l_i); the sums of all but one are sums of those before and those after it.
        """
        center, radius = (self._rows(operation, each).double() for each in (form.center, form.radius))
        absent, length = self._absent(operation, form), center.shape[2]
        size = center.abs() + radius
        precision = PRECISION + (length + 64) * 2.0**-52
        slack = 16 * precision * (1 + size.amax(2, keepdim=True))
        low, high = center - radius, center + radius

        def others(ends: Tensor, own: Tensor, flushed: float) -> Tensor:
            top = ends.masked_fill(absent, -torch.inf).amax(2, keepdim=True)
            terms = (ends - top).exp().masked_fill(absent, 0.0)
            none = torch.zeros_like(terms[:, :, :1])
            before = torch.cat([none, terms.cumsum(2)[:, :, :-1]], 2)
            after = torch.cat([terms.flip(2).cumsum(2).flip(2)[:, :, 1:], none], 2)
            return (before + after + flushed) * (top - own).exp()

        least = (1 + others(low, high, 0.0) * (1 - slack)).nan_to_num(nan=1.0).clamp(1.0, 2.0**1000)
        most = 1 + others(high, low, length * 2.0**-1020) * (1 + slack)  # with what was flushed to zero
        fine, known = slack < 0.5, size.isfinite().all(2, keepdim=True)
        ends = torch.where(fine, 1 / most, 0.0) * (1 - 4 * precision), torch.where(fine, 1 / least, 1.0)
        ends = ends[0].masked_fill(absent, 0.0), (ends[1] * (1 + 4 * precision)).masked_fill(absent, 0.0)
        first, last = (self._back(operation, torch.where(known, each, torch.nan), form.shape) for each in ends)
        return first, last

    def _finished(
        self, operation: Operation, form: AffineForm, low: Tensor, high: Tensor, result: AffineForm | None = None
    ) -> AffineForm:
        """The narrower of a form and its ends, with the roundings of an evaluation."""
        dtype = form.radius.dtype
        if result is None:
            result = AffineForm(torch.zeros_like(form.stack), torch.full_like(form.radius, torch.inf), form.unit)
        result = narrower(result, low.to(dtype), high.to(dtype))
        if operation.evaluation:
            error = self._evaluation_error(operation, form, high)
            result.radius = widen(result.radius + error.to(dtype), error.to(dtype), 4, form.unit)
        return result

    def _evaluation_error(self, operation: Operation, form: AffineForm, high: Tensor) -> Tensor:
        """An assumption about libraries, which compute exp(x - max) / sum, perhaps in blocks that are scaled anew: with B >= |x_j - x_i|,
        an argument is off by at most 2 u B, an exponential by 64 u, a sum of T terms by (2 T + 8) u, all relative to y. What is flushed to
        zero is at most T times the smallest number, since the largest term is 1."""
        dim, unit = operation.settings["dim"], operation.evaluation
        length = form.shape[dim]
        share = unit * (16 * farthest(form).double().amax(dim, keepdim=True) + 8 * length + 512)
        error = share * high.clamp(max=1) * (1 + 2.0**-10) + length * 2.0**-120
        return torch.where(share < 2.0**-5, error, torch.inf)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        """a_i / S_i: for a_i >= 0 above the tangent of 1 / S, else above a_i times its chord; each has a coefficient b_i of S_i with the
        other sign. Then b_i exp(x_j - x_i) likewise: the tangent serves b_i >= 0 and the chord b_i < 0. Coefficients of x_j - x_i are added
        to that of x_j and subtracted from that of x_i. The error is worked out from the numbers themselves.
        """
        (form,) = inputs
        rows = self._rows(operation, a).double().masked_fill(self._absent(operation, form), 0.0)
        shares, sizes = torch.zeros_like(rows), torch.zeros_like(rows)
        constant = error = rows.new_zeros(len(rows))
        for e in self._chunks(operation, form):
            weight = rows[:, :, e.chosen]
            up = weight > 0
            point = (e.least * e.most).sqrt()
            b = torch.where(up, -weight / (point * point), -weight / (e.least * e.most))
            free = torch.where(up, 2 * weight / point, weight * (1 / e.least + 1 / e.most))
            constant = constant + total(free)
            error = error + total(free.abs() + b.abs() * e.most)
            b = b.unsqueeze(3)
            here = e.at.exp()
            slope = torch.where(b > 0, here, e.chord).masked_fill(e.fixed, 0.0)
            offset = torch.where(e.fixed, e.terms, torch.where(b > 0, here * (1 - e.at), e.above))
            parts = torch.where(b > 0, here * (1 + e.at.abs()), e.high.exp() + e.chord * (e.low.abs() + e.high.abs()))
            constant, error = constant + total(b * offset), error + total(b.abs() * parts)
            share = b * slope
            shares, sizes = shares + share.sum(2), sizes + share.abs().sum(2)
            shares[:, :, e.chosen] -= share.sum(3)
            sizes[:, :, e.chosen] += share.abs().sum(3)
        result = BackwardResult([self._back(operation, shares, form.shape).to(a.dtype)], constant=constant)
        if form.unit:
            far = self._rows(operation, farthest(form)).double()
            precision = 4 * (PRECISION + (math.prod(rows.shape[1:]) * rows.shape[2] + 64) * 2.0**-52)
            error = error * precision + total(far * (shares.abs() * (2 * UNIT[a.dtype]) + sizes * precision))
            if operation.evaluation:
                theirs = self._rows(
                    operation, self._evaluation_error(operation, form, torch.ones_like(form.center).double())
                )
                error = error + total(rows.abs() * theirs)
            result.error = error + total(a.abs()) * (FLOOR[a.dtype] + SMALLEST[a.dtype])
        return result


@converter("softmax.int", "_softmax.default")
def softmax(shape: Any, x: Any, dim: int, dtype: Any = None) -> Built:
    if not isinstance(x, (Input, Masked)):
        raise Refused("a softmax of constants")
    dim %= len(shape) + 1
    if dim == 0 or dtype not in (None, False):
        raise Refused("a softmax over the batch or in another dtype")
    built = Built("softmax", (x.name,), {"dim": dim})
    if isinstance(x, Masked):
        taking = x.taking
        built.derived["mask"] = lambda constants: _something_left(taking(constants), dim - 1)
    return built


def _something_left(taking: Tensor, dim: int) -> Tensor:
    if not bool(taking.any(dim).all()):
        raise UnsupportedOperation(
            "a softmax of which a mask takes out every entry", do="let every query attend to something, e.g. to itself"
        )
    return taking


def matrix_product(x: Input, other: Input) -> Built:
    """The product of two branches over their last two dimensions."""
    if len(x.shape) < 2 or len(x.shape) != len(other.shape):
        raise Refused(f"a product of matrices of shapes {x.shape} and {other.shape}; as many dimensions have a rule")
    many = tuple(torch.broadcast_shapes(x.shape[:-2], other.shape[:-2]))
    return Built("matmul", (_repeated(x, many), _repeated(other, many)))


def _repeated(x: Input, many: tuple[int, ...]) -> str | Built:
    """One matrix repeated for each of several of the other branch."""
    if x.shape[:-2] == many:
        return x.name
    wanted = (*many, *x.shape[-2:])
    built = gathered(x, torch.Tensor.expand, (-1, *wanted))
    built.shape = wanted
    return built


@converter("matmul.default", "bmm.default")
def matmul(shape: Any, x: Any, other: Any) -> Built:
    if isinstance(x, Input) and isinstance(other, Input):
        return matrix_product(x, other)
    return times_constant(x, other) if isinstance(x, Input) else constant_times(x, other)


def taking_part(mask: Any, shape: tuple[int, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of a constant mask, one for all images: which scores take part, and what is added to them.

    A mask of truth values says which take part; one of numbers is added, and minus infinity takes an entry out.
    """
    if not isinstance(mask, Reference) or mask.shape is None:
        raise Refused("attention with a mask that depends on the image")
    extra = max(0, len(mask.shape) - len(shape))
    if any(size != 1 for size in mask.shape[:extra]) or extra > 1:
        raise Refused(f"attention with a mask of shape {list(mask.shape)}, which may differ by image")

    def fitted(constants: dict[str, Tensor]) -> Tensor:
        value = constants[mask.name]
        return value.flatten(0, extra) if extra else value

    def part(constants: dict[str, Tensor]) -> Tensor:
        value = fitted(constants)
        taking = value if value.dtype == torch.bool else value > -torch.inf
        if not bool(taking.expand(shape).any(-1).all()) or bool((value == torch.inf).any() | value.isnan().any()):
            raise UnsupportedOperation(
                "attention with a mask that is not a number, or leaves a query nothing to attend to",
                do="let every query attend to something, e.g. to itself",
            )
        return taking.expand(shape)

    def added(constants: dict[str, Tensor]) -> Tensor:
        value = fitted(constants)
        value = torch.zeros_like(value, dtype=torch.float64) if value.dtype == torch.bool else value.double()
        return value.masked_fill(value == -torch.inf, 0.0)

    return part, added


@converter("baddbmm.default")
def baddbmm(shape: Any, added: Any, x: Any, other: Any, beta: float = 1, alpha: float = 1) -> Built:
    """A product of two branches and a constant, such as the scores of attention and a mask of numbers."""
    if not isinstance(x, Input) or not isinstance(other, Input) or not isinstance(added, Reference):
        raise Refused("a sum other than of a constant and a product of branches")
    if (beta, alpha) != (1, 1) or added.shape is None or len(added.shape) > len(shape) + 1:
        raise Refused(f"baddbmm with beta = {beta}, alpha = {alpha} and a constant of shape {added.shape}")
    extra = max(0, len(added.shape) - len(shape))
    if any(size != 1 for size in added.shape[:extra]):
        raise Refused("a constant that may differ by image")

    def shift(constants: dict[str, Tensor]) -> Tensor:
        value = constants[added.name].double()
        if not bool(value.isfinite().all()):
            raise UnsupportedOperation(
                "attention whose weights are kept, with a mask of minus infinity",
                do="call nn.MultiheadAttention with need_weights=False, or torch's scaled_dot_product_attention",
            )
        return value.flatten(0, extra) if extra else value

    product = matrix_product(x, other)
    product.shape = shape
    one = torch.ones((), dtype=torch.float64)
    return Built("scale", (product,), {"scale": one}, {"shift": shift, "constants": shift})


@converter("scaled_dot_product_attention.default")
def attention(
    shape: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Built:
    """softmax(scale Q K^T + mask) V."""
    if not all(isinstance(each, Input) for each in (query, key, value)):
        raise Refused("attention to constants")
    if dropout or enable_gqa:
        raise Refused("attention with dropout in training, or to groups of heads")
    if not (query.shape[:-2] == key.shape[:-2] == value.shape[:-2]):
        raise Refused(f"attention between shapes {query.shape}, {key.shape} and {value.shape}")
    rank = len(key.shape)
    turned = (*key.shape[:-2], key.shape[-1], key.shape[-2])
    scores = (*query.shape[:-1], key.shape[-2])
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if not 2.0**-40 <= abs(factor) <= 2.0**40:
        raise Refused(f"attention with scale {factor}")
    dims = [*range(rank - 1), rank, rank - 1]
    transposed = Built("permute", (key.name,), {"dims": dims}, shape=turned)
    product = Built("matmul", (query.name, transposed), shape=scores)
    number = torch.tensor(factor, dtype=torch.float64)
    scaled = Built("scale", (product,), {"scale": number, "shift": None}, shape=scores)
    weights = Built("softmax", (scaled,), {"dim": rank}, shape=scores)
    if mask is not None:
        weights.derived["mask"], scaled.derived["shift"] = taking_part(mask, scores)
        scaled.derived["constants"] = scaled.derived["shift"]
    elif causal:
        weights.settings["mask"] = torch.ones(scores[-2:], dtype=torch.bool).tril().expand(scores)
    return Built("matmul", (weights, value.name))
