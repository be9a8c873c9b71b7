"""Activations and maxima: y = s x + [low, high] for a slope s and the exact range of y - s x."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose, no_rule, rule
from tiltproof.checker.layers import pair, windows


def lifted(x: Form, slope: Tensor, low: Tensor, high: Tensor, m: int = 0) -> Form:
    """The form of s x + [low, high]."""
    data = x.rows * slope
    data[0] += (low + high) / 2
    data[-1] += (high - low) / 2
    return enclose(data, x.magnitude * slope.abs() + low.abs() + high.abs(), 8, x.unit, m)


def bend(x: Form, a: float, m: int = 0) -> Form:
    """y = max(x, a x) for 0 <= a <= 1, x in [l, h].

    For every s in [a, 1] the function y - s x is convex with its minimum 0 at x = 0, so over [l, h] it lies in [0, t] with
    t = max((a - s) l, (1 - s) h, 0), taken at an end. That holds for s as rounded. s = 1 gives t = 0 when l >= 0, and
    s = a when h <= 0; otherwise the chord's slope (h - a l) / (h - l), or a where that leaves a smaller radius.
    """
    low, high = x.lower(), x.upper()

    def top(s: Tensor) -> Tensor:
        return torch.maximum((a - s) * low, (1 - s) * high).clamp(min=0) * (1 + 8 * UNIT)

    chord = ((high - a * low) / (high - low)).clamp(a, 1.0)
    flat = torch.full_like(chord, a)
    chord = torch.where(flat * x.radius + top(flat) / 2 < chord * x.radius + top(chord) / 2, flat, chord)
    slope = torch.where(low >= 0, torch.ones_like(chord), torch.where(high <= 0, flat, chord))
    return lifted(x, slope, torch.zeros_like(low), top(slope), m)


@rule(F.relu, torch.relu, torch.Tensor.relu)
def relu(input: Form, inplace: bool = False) -> Form:
    result = bend(input, 0.0)
    return input.become(result, "relu") if inplace else result


@rule(F.relu_, torch.relu_, torch.Tensor.relu_)
def relu_(input: Form) -> Form:
    return relu(input, inplace=True)


@rule(F.leaky_relu, torch._C._nn.leaky_relu)
def leaky_relu(input: Form, negative_slope: float = 0.01, inplace: bool = False) -> Form:
    if not 0 <= negative_slope <= 1:
        raise no_rule("leaky_relu", f"with slope {negative_slope}")
    result = bend(input, float(negative_slope), 4)
    return input.become(result, "leaky_relu") if inplace else result


def s_shaped(x: Form, value: Any, derivative: Any) -> Form:
    """The derivative rises and then falls, so over [l, h] it is at least s = min(f'(l), f'(h)) >= 0. Hence f(x) - s x does
    not fall, and it lies between its values at l and h. Library functions are right to 16 u.
    """
    low, high = x.lower(), x.upper()
    at_low, at_high = value(low), value(high)
    slope = (torch.minimum(derivative(at_low), derivative(at_high)) - 32 * UNIT).clamp(min=0)
    slack = 64 * UNIT * (1 + slope * x.magnitude)
    result = lifted(x, slope, at_low - slope * low - slack, at_high - slope * high + slack)
    result.rows[-1] += 2.0**-20 if x.unit else 0.0  # a float32 library function is right to 2^-20
    return result


@rule(torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid)
def sigmoid(x: Form) -> Form:
    return s_shaped(x, torch.sigmoid, lambda f: f * (1 - f))


@rule(torch.tanh, torch.Tensor.tanh, F.tanh)
def tanh(x: Form) -> Form:
    return s_shaped(x, torch.tanh, lambda f: (1 - f) * (1 + f))


@rule(F.max_pool2d, torch.max_pool2d)
def max_pool2d(
    input: Form, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Form:  # fmt: skip
    """max_j x_j = x_i + max_j (x_j - x_i) for any i, and the second term lies in [0, max(0, max_j upper(x_j - x_i))], in which
    shared symbols cancel. Where it leaves a smaller radius: the interval [max_j lower(x_j), max_j upper(x_j)].
    """
    x, (high, wide) = input, pair(padding, "max_pool2d")
    if ceil_mode or return_indices or x.ndim != 4 or pair(dilation, "max_pool2d") != (1, 1):
        raise no_rule("max_pool2d", "with ceil_mode, return_indices, dilation or without a batch")
    data = F.pad(x.rows, (wide, wide, high, high))
    if high or wide:  # a padded place never wins: give it a number that no other is below
        outside = F.pad(torch.zeros_like(x.centre[0, 0]), (wide, wide, high, high), value=1.0) > 0
        data[0] = torch.where(outside, x.lower().min(), data[0])
    columns = windows(data.flatten(0, 1), kernel_size, stride or kernel_size)
    every = Form(columns.unflatten(1, (x.shape[1], -1)).unflatten(0, x.rows.shape[:2]), x.unit)
    best = every.centre.argmax(2, keepdim=True)
    chosen = Form(every.rows.gather(3, best.expand(len(x.rows), *best.shape)), x.unit)
    ahead = Form(every.rows - chosen.rows)
    ahead.rows[-1] = (every.radius + chosen.radius + 4 * UNIT * (every.magnitude + chosen.magnitude)) * (1 + 8 * UNIT)
    lead = ahead.upper().scatter(2, best, 0.0).amax(2).clamp(min=0)
    chosen = Form(chosen.rows.squeeze(3), x.unit)
    linear = lifted(chosen, torch.ones_like(lead), torch.zeros_like(lead), lead)
    interval = lifted(chosen, torch.zeros_like(lead), every.lower().amax(2), every.upper().amax(2))
    return Form(torch.where(interval.radius < linear.radius, interval.rows, linear.rows), x.unit)
