"""One box of pixels and one label as VNN-LIB text, versions 1.0 and 2.0; bounds are rounded outwards, never inwards.

Tools read the decimals into float32, float64 or rationals. Bounds are therefore float32 numbers b to begin with, and a decimal d lies
beyond b by less than 1e-8 |b|, which is less than half the distance from b to the next float32 (at least 2^-25 |b| = 2.9e-8 |b|). So
a reader in float32 gets exactly b; one in float64 gets something between d and b, because rounding keeps the order; a rational reader d.
"""

from __future__ import annotations

import functools
import itertools
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import torch
from torch import Tensor

DIGITS = 9
TINY = 2.0**-40
"""Bounds nearer to zero are moved out, to 0 or to this: neither parser reads exponents, and 149 zeros help nobody."""
_BELOW, _ABOVE = Context(prec=DIGITS, rounding=ROUND_FLOOR), Context(prec=DIGITS, rounding=ROUND_CEILING)


def pixel_box(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The float32 box around a float64 one, inside [0, 1]: every transformed pixel is a mean of pixels in [0, 1], or clamped to it."""
    lower, upper = lower.double().nan_to_num(nan=0.0).clamp(0, 1), upper.double().nan_to_num(nan=1.0).clamp(0, 1)
    below, above = lower.float(), upper.float()  # to the nearest: perhaps inwards
    below = torch.where(below.double() > lower, torch.nextafter(below, torch.tensor(-torch.inf)), below)
    above = torch.where(above.double() < upper, torch.nextafter(above, torch.tensor(torch.inf)), above)
    below = torch.where(below < TINY, 0.0, below)
    above = torch.where((above > 0) & (above < TINY), TINY, above)
    return below, above


def decimal_below(bound: float) -> str:
    """A decimal without exponent, at most ``bound`` and as near as the head of this file says.

    >>> decimal_below(0.0), decimal_below(1.0), decimal_below(0.10000000149011612), decimal_below(-0.10000000149011612)
    ('0.0', '1.0', '0.100000001', '-0.100000002')
    """
    return _plain(_BELOW.create_decimal_from_float(bound))


def decimal_above(bound: float) -> str:
    """A decimal without exponent, at least ``bound``.

    >>> decimal_above(0.10000000149011612)
    '0.100000002'
    """
    return _plain(_ABOVE.create_decimal_from_float(bound))


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    return text if "." in text else text + ".0"


def vnnlib_1(comments: list[str], lower: Tensor, upper: Tensor, classes: int, label: int) -> str:
    """The box [C, H, W] and "some other output is at least the label's", in the form of VNN-COMP up to 2025."""
    inputs, outputs = [f"X_{k}" for k in range(lower.numel())], [f"Y_{k}" for k in range(classes)]
    declared = [f"(declare-const {name} Real)" for name in (*inputs, *outputs)]
    return _text(comments, declared, inputs, outputs, lower, upper, label)


def vnnlib_2(comments: list[str], lower: Tensor, upper: Tensor, classes: int, label: int) -> str:
    """The same in version 2.0, whose variables are entries of tensors."""
    shape = [1, *lower.shape]
    outputs = [f"Y[0,{k}]" for k in range(classes)]
    declared = [
        "(vnnlib-version <2.0>)",
        "(declare-network network",
        f"  (declare-input X float32 [{','.join(map(str, shape))}])",
        f"  (declare-output Y float32 [1,{classes}])",
        ")",
    ]
    return _text(comments, declared, list(_entries(tuple(shape))), outputs, lower, upper, label)


VERSIONS = {"1.0": vnnlib_1, "2.0": vnnlib_2}


@functools.cache
def _entries(shape: tuple[int, ...]) -> tuple[str, ...]:
    """``X[0,0,0,0]`` and so on, the last index running fastest, as ONNX lays a tensor out."""
    return tuple(f"X[{','.join(map(str, index))}]" for index in itertools.product(*map(range, shape)))


def _text(
    comments: list[str],
    declared: list[str],
    inputs: list[str],
    outputs: list[str],
    lower: Tensor,
    upper: Tensor,
    label: int,
) -> str:
    lines = [f"; {comment}" for comment in comments] + ["", *declared, "", "; the pixels"]
    for name, low, high in zip(inputs, lower.flatten().tolist(), upper.flatten().tolist(), strict=True):
        lines += [f"(assert (<= {name} {decimal_above(high)}))", f"(assert (>= {name} {decimal_below(low)}))"]
    others = [name for k, name in enumerate(outputs) if k != label]
    lines += ["", f"; another output is at least {outputs[label]}", "(assert (or"]
    lines += [f"  (and (>= {other} {outputs[label]}))" for other in others]
    return "\n".join([*lines, "))"]) + "\n"
