"""Rules for piecewise linear functions, some of which jump, and for the larger and the smaller of two forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import (
    LARGE32,
    TINY32,
    UNIT,
    Condition,
    Form,
    Scores,
    alike,
    constant,
    enclose,
    no_rule,
    plus,
    rule,
    times,
    unbounded,
)
from tiltproof.checker.operations import clamp, exact, lifted

Piece = tuple[Any, Any]
"""Slope and offset: numbers, or tensors that spread over the form."""


def in_pieces(x: Form, pieces: Sequence[Piece], kinks: Sequence[Any]) -> Form:
    """Relax y = a_i x + b_i for x between the kinks t_i and t_(i + 1), with either value where x is a kink, to a zonotope.

    Over [l, h], y - s x is linear on each piece that [l, h] meets, so for any s it is extreme at an end of one. A float32 evaluation may
    take a number next to a kink for one beyond it, since it rounds the kink and may flush x to zero: each piece is taken to reach as far
    beyond its ends. The numbers are rounded once each, and so are a product and a sum.
    """
    low, high, size = x.lower(), x.upper(), x.magnitude
    ends = [torch.full_like(low, -math.inf), *(0 * low + kink for kink in kinks), torch.full_like(low, math.inf)]
    beyond = [
        8 * UNIT * end.abs().clamp(max=1e300) + (2.0**-22 * end.abs().clamp(max=1e300) + TINY32) * bool(x.unit)
        for end in ends
    ]
    slack = torch.zeros_like(low)
    for a, b in pieces:
        slack = torch.maximum(slack, abs(a) * size + abs(b))

    def value(point: Tensor) -> Tensor:
        result = torch.zeros_like(point)
        for (a, b), end in zip(pieces, ends, strict=False):
            result = torch.where(point >= end, a * point + b, result)
        return result

    def offsets(slope: Tensor) -> tuple[Tensor, Tensor]:
        least, most = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
        for k, (a, b) in enumerate(pieces):
            first = torch.maximum(low, ends[k] - beyond[k])
            last = torch.minimum(high, ends[k + 1] + beyond[k + 1])
            met = ~(first > last)  # true for a NaN
            for point in (first, last):
                here = (a - slope) * point + b
                least = torch.where(met, torch.minimum(least, here), least)
                most = torch.where(met, torch.maximum(most, here), most)
        room = 16 * UNIT * (slack + slope.abs() * size)
        return least - room, most + room

    zero = torch.zeros_like(low)
    chord = torch.nan_to_num((value(high) - value(low)) / (high - low), 0.0, 0.0, 0.0)
    steepest = torch.stack([abs(a) + zero for a, _ in pieces]).amax(0)
    chord = torch.where(high - low > 0, chord, zero).clamp(-steepest, steepest)
    inside = zero + pieces[0][0]
    for (a, _), end in zip(pieces, ends, strict=False):
        inside = torch.where(low >= end, a + zero, inside)
    best = (zero, *offsets(zero))
    for slope in (chord, inside):
        other = (slope, *offsets(slope))
        rests = [each[0].abs() * x.radius + (each[2] - each[1]) / 2 for each in (other, best)]
        better = rests[0] <= rests[1]  # false for a NaN
        best = (
            torch.where(better, other[0], best[0]),
            torch.where(better, other[1], best[1]),
            torch.where(better, other[2], best[2]),
        )
    result = lifted(x, *best)
    if x.unit:
        result.rows[-1] += torch.where(slack < LARGE32, 2.0**-21 * slack + TINY32, math.inf)
    return unbounded(result)


def jumping(x: Form, pieces: Sequence[Piece], kinks: Sequence[Any]) -> Form:
    """Relax a function that jumps: `Form.stepped` tells the comparison with the network's own answers."""
    Form.stepped = True
    return in_pieces(x, pieces, kinks)


def number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not abs(value) < 2.0**40:
        raise no_rule(name, f"with {value!r}")
    return float(value)


@rule(torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip)
def clamp_between(input: Form, min: Any = None, max: Any = None) -> Form:
    if min is not None and max is not None:
        return clamp(input, min, max)
    if max is None:
        return clamp_min(input, min)
    return clamp_max(input, max)


@rule(torch.clamp_min, torch.Tensor.clamp_min)
def clamp_min(input: Form, min: Any) -> Form:
    bound = number(min, "clamp")
    return in_pieces(input, [(0.0, bound), (1.0, 0.0)], [bound])


@rule(torch.clamp_max, torch.Tensor.clamp_max)
def clamp_max(input: Form, max: Any) -> Form:
    bound = number(max, "clamp")
    return in_pieces(input, [(1.0, 0.0), (0.0, bound)], [bound])


@rule(torch.abs, torch.Tensor.abs, torch.absolute, torch.Tensor.absolute, torch.Tensor.__abs__)
def absolute(input: Form) -> Form:
    return in_pieces(input, [(-1.0, 0.0), (1.0, 0.0)], [0.0])


@rule(F.prelu, torch.prelu, torch.Tensor.prelu)
def prelu(input: Form, weight: Any) -> Form:
    """a x below 0, one a for all or one for each channel."""
    a = exact(weight, input).flatten()
    if a.numel() != 1:
        if input.ndim < 2 or a.numel() != input.shape[1]:
            raise no_rule("prelu", f"with {a.numel()} slopes on {list(input.shape)}")
        a = a.view(-1, *[1] * (input.ndim - 2))
    return in_pieces(input, [(a, 0.0), (1.0, 0.0)], [0.0])


@rule(F.hardsigmoid, torch._C._nn.hardsigmoid)
def hardsigmoid(input: Form, inplace: bool = False) -> Form:
    """x / 6 + 1 / 2 between -3 and 3, of which an evaluation rounds the sum x + 3."""
    result = in_pieces(input, [(0.0, 0.0), (1 / 6, 0.5), (0.0, 1.0)], [-3.0, 3.0])
    return input.become(result, "hardsigmoid") if inplace else result


@rule(F.threshold, torch.threshold, torch._C._nn.threshold_ if hasattr(torch._C._nn, "threshold_") else torch.threshold)
def threshold(input: Form, threshold: Any, value: Any, inplace: bool = False) -> Form:
    bound, other = number(threshold, "threshold"), number(value, "threshold")
    make = in_pieces if bound == other else jumping
    result = make(input, [(0.0, other), (1.0, 0.0)], [bound])
    return input.become(result, "threshold") if inplace else result


@rule(F.softshrink)
def softshrink(input: Form, lambd: float = 0.5) -> Form:
    bound = number(lambd, "softshrink")
    if not bound > 0:
        raise no_rule("softshrink", f"with {lambd}")
    return in_pieces(input, [(1.0, bound), (0.0, 0.0), (1.0, -bound)], [-bound, bound])


@rule(F.hardshrink, torch.hardshrink, torch.Tensor.hardshrink)
def hardshrink(input: Form, lambd: float = 0.5) -> Form:
    bound = number(lambd, "hardshrink")
    if not bound > 0:
        raise no_rule("hardshrink", f"with {lambd}")
    return jumping(input, [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0)], [-bound, bound])


@rule(torch.sign, torch.Tensor.sign, torch.sgn, torch.Tensor.sgn)
def sign(input: Form) -> Form:
    return jumping(input, [(0.0, -1.0), (0.0, 1.0)], [0.0])


@rule(torch.gt, torch.Tensor.gt, torch.ge, torch.Tensor.ge)
def above(input: Form, other: Any) -> Condition:
    return Condition(jumping(input, [(0.0, 0.0), (0.0, 1.0)], [number(other, "a comparison")]))


@rule(torch.lt, torch.Tensor.lt, torch.le, torch.Tensor.le)
def below(input: Form, other: Any) -> Condition:
    return Condition(jumping(input, [(0.0, 1.0), (0.0, 0.0)], [number(other, "a comparison")]))


@rule(torch.where)
def where(condition: Any, input: Any, other: Any) -> Form | Scores:
    """other + condition (input - other), or by a constant condition the entries of the one or of the other."""
    forms = [each for each in (input, other) if isinstance(each, Form)]
    if not forms or any(each.shape != forms[0].shape for each in forms):
        raise no_rule("where", "but for a choice between two branches, or a branch and constants")
    if isinstance(condition, Condition):
        if condition.form.shape != forms[0].shape:
            raise no_rule("where", f"by a comparison of shape {list(condition.form.shape)}")
        input, other = (each if isinstance(each, Form) else _standing(each, forms[0]) for each in (input, other))
        return plus(other, times(condition.form, plus(input, -other)))
    taking = _chosen(condition, forms[0])
    for form, value, part in ((input, other, taking), (other, input, ~taking)):
        if isinstance(form, Form) and type(value) is float and value == -math.inf:
            return Scores(form, part)
    input, other = (each if isinstance(each, Form) else _standing(each, forms[0]) for each in (input, other))
    return Form(torch.where(taking, input.rows, other.rows), forms[0].unit)


@rule(torch.masked_fill, torch.Tensor.masked_fill)
def masked_fill(input: Form, mask: Any, value: Any) -> Form | Scores:
    return where(mask, value, input)


def _chosen(condition: Any, form: Form) -> Tensor:
    """A constant condition, the same for every image."""
    if not isinstance(condition, Tensor) or condition.dtype != torch.bool:
        raise no_rule("where", "by something else than truth values")
    if condition.ndim > form.ndim or (condition.ndim == form.ndim and condition.shape[0] != 1):
        raise no_rule("where", f"by a constant of shape {list(condition.shape)} on {list(form.shape)}")
    return condition.to(form.device).expand(form.shape)


def _standing(value: Any, form: Form) -> Form:
    """Constants as a form; an evaluation has them rounded to float32."""
    center = constant(value, form).expand(form.shape)
    if not bool((center.abs() < 2.0**120).all()):
        raise no_rule("where", "with constants that are no finite numbers")
    rows = torch.zeros(len(form.rows), *form.shape, dtype=torch.float64, device=form.device)
    rows[0] = center
    rows[-1] = (center.float().double() - center).abs() + (TINY32 if form.unit else 0.0)
    return Form(rows, form.unit)


@rule(torch.maximum, torch.Tensor.maximum)
def maximum(input: Any, other: Any) -> Form:
    """Relax max(a, b) to s a + (1 - s) b + [0, t]: with d = a - b in [l, h], max(d, 0) - s d is convex, 0 at d = 0 and at most
    t = max(-s l, (1 - s) h). Or to the interval of the larger ends, where that leaves a smaller radius."""
    a, b = (input, other) if isinstance(input, Form) else (other, input)
    if not isinstance(b, Form):
        b = constant(b, a)
        if b.ndim > a.ndim - 1:
            b = b.reshape(b.shape[1:])
        if torch.broadcast_shapes(b.shape, a.shape) != a.shape:
            raise no_rule("maximum", f"of {list(a.shape)} and a constant of shape {list(b.shape)}")
        return in_pieces(a, [(0.0, b), (1.0, 0.0)], [b])
    alike(a, b)
    if a.shape != b.shape:
        raise no_rule("maximum", f"of {list(a.shape)} and {list(b.shape)}")
    apart = plus(Form(a.rows), Form(-b.rows))
    apart.rows[-1] = apart.rows[-1].abs()
    low, high = apart.lower(), apart.upper()
    s = torch.nan_to_num(high.clamp(min=0) / (high.clamp(min=0) - low.clamp(max=0)), 0.0).clamp(0, 1)
    s = torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, s))
    top = torch.maximum(-s * low, (1 - s) * high).clamp(min=0)
    data = a.rows * s + b.rows * (1 - s)
    data[0] += top / 2
    data[-1] = a.radius * s + b.radius * (1 - s) + top / 2
    size = a.magnitude + b.magnitude + top
    ends = torch.maximum(a.lower(), b.lower()), torch.maximum(a.upper(), b.upper())
    narrow = (ends[1] - ends[0]) / 2 < data[-1]  # false for a NaN
    data[:-1] = torch.where(narrow, 0.0, data[:-1])
    data[0] = torch.where(narrow, (ends[0] + ends[1]) / 2, data[0])
    data[-1] = torch.where(narrow, (ends[1] - ends[0]) / 2, data[-1])
    return unbounded(enclose(data, size, 16, a.unit, 0))


@rule(torch.minimum, torch.Tensor.minimum)
def minimum(input: Any, other: Any) -> Form:
    return -maximum(-input, -other)
