"""Smooth functions of one variable, which `smooth` bounds: GELU, SiLU, exp, log, powers, sin and their like."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops.activations import LIBRARY
from tiltproof.network.ops.base import UNDERFLOW, Built, Refused, converter, require_constants, rule
from tiltproof.network.ops.smooth import PIECES, PRECISION, Outline, Smooth

LARGEST_SETTING = 2.0**20


def _reach(lower: Tensor, upper: Tensor) -> Tensor:
    return torch.maximum(lower.abs(), upper.abs())


class Gate(Smooth):
    """x times an S-shaped function of x: convex between two inflection points, concave outside of them.

    In float32, the S-shaped factor is off by some ``steps`` units of 1, so that the product is off by as many units of |x|.
    """

    ends = (0.0, 0.0)
    steps = LIBRARY + 8

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        return list(self.ends)

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        first, last = a.asinh(), b.asinh()
        return (first + (last - first) * share).sinh()

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return self.steps * _reach(lower, upper)


@rule("gelu")
class Gelu(Gate):
    """x Phi(x), f'' = phi(x) (2 - x^2)."""

    ends = (-math.sqrt(2), math.sqrt(2))

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x / 2 * (1 + (x * math.sqrt(0.5)).erf())

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return (1 + (x * math.sqrt(0.5)).erf()) / 2 + x * (-x * x / 2).exp() * math.sqrt(0.5 / math.pi)


@rule("gelu_tanh")
class GeluTanh(Gate):
    """x sigmoid(v), v = c x (1 + k x^2) with c = sqrt(8 / pi), k = 0.044715.

    f'' has the sign of 2 v' + x v'' - x v'^2 tanh(v / 2), for x > 0 that of 2 - c x tanh(v / 2) (1 + 3 k x^2)^2 / (1 + 6 k x^2), of which
    every factor increases; f'' is even.
    """

    ends = (-1.4185040087908283602, 1.4185040087908283602)
    FACTOR, CUBE = math.sqrt(8 / math.pi), 0.044715

    def _v(self, x: Tensor) -> Tensor:
        return self.FACTOR * x * (1 + self.CUBE * x * x)

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x * self._v(x).sigmoid()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        v, near = self._v(x), x.clamp(-30, 30)  # farther out the second term vanishes
        steep = self._v(near).sigmoid() * (-self._v(near)).sigmoid()
        return v.sigmoid() + near * steep * self.FACTOR * (1 + 3 * self.CUBE * near * near)


@rule("silu")
class Silu(Gate):
    """x sigmoid(x), f'' = sigmoid'(x) (2 - x tanh(x / 2)), and x tanh(x / 2) increases with |x|."""

    ends = (-2.3993572805154676678, 2.3993572805154676678)

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x * x.sigmoid()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return x.sigmoid() * (1 + x * (-x).sigmoid())


@rule("mish")
class Mish(Gate):
    """x T(x), T = tanh(log(1 + e^x)) = n / (n + 2) with n = e (e + 2), e = e^x.

    f'' = T' (2 + x r) with r = T'' / T' = 1 + e / (1 + e) - 4 e (1 + e) / (n + 2), which decreases in e from 1 to -2: x r increases where
    r > 0 > x and decreases where r < 0 < x, and is positive in between.
    """

    ends = (-2.25637639636079312, 1.4905711794854284593)
    steps = 4 * LIBRARY  # of exp, log(1 + x) and tanh

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        e = x.clamp(max=40).exp()
        n = e * (e + 2)
        return x * (n / (n + 2))

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        near = x.clamp(-700, 40)
        e = near.exp()
        n = e * (e + 2)
        return n / (n + 2) + near * e * (1 + e) * (2 / (n + 2)) ** 2


@rule("hardswish")
class Hardswish(Smooth):
    """0 up to -3, x (x + 3) / 6 up to 3, x from there on; kinks at both."""

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        return [-3.0, 3.0]

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x * ((x + 3).clamp(0, 6) / 6)

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return torch.where(inside.abs() < 3, x / 3 + 0.5, (inside > 0).to(x.dtype))

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return 8 * _reach(lower, upper)


@rule("elu")
class Elu(Smooth):
    """scale x for x >= 0, scale alpha (e^(x / width) - 1) below, which may have a kink at 0: ELU, SELU, CELU."""

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        return [0.0]

    def _settings(self, operation: Operation) -> tuple[float, float, float]:
        s = operation.settings
        return s["scale"], s["scale"] * s["alpha"], s["width"]

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        scale, low, width = self._settings(operation)
        return torch.where(x > 0, scale * x, low * (x.clamp(max=0) / width).expm1())

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        scale, low, width = self._settings(operation)
        return torch.where(inside > 0, scale, low / width * (x.clamp(max=0) / width).exp())

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        """Even steps of e^(x / 2 width)."""
        first, last = (((end - b) / (2 * operation.settings["width"])).exp() for end in (a, b))
        return b + 2 * operation.settings["width"] * (first + (last - first) * share).log()

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        scale, low, _ = self._settings(operation)
        return (LIBRARY + 8) * abs(low) + 8 * abs(scale) * upper.clamp(min=0)


@rule("softplus")
class Softplus(Smooth):
    """log(1 + e^(b x)) / b, convex; torch returns x instead where b x > threshold, which is less by at most log(1 + e^-threshold) / b."""

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        beta = operation.settings["beta"]
        return x.clamp(min=0) + (-(beta * x).abs()).exp().log1p() / beta

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return (operation.settings["beta"] * x).sigmoid()

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        first, last = ((operation.settings["beta"] * end).asinh() for end in (a, b))
        return (first + (last - first) * share).sinh() / operation.settings["beta"]

    def outline(self, operation: Operation, lower: Tensor, upper: Tensor, pieces: int = PIECES) -> Outline:
        """Corners below the graph where the threshold may be passed, which rounding may shift by a few units."""
        made = super().outline(operation, lower, upper, pieces)
        beta, threshold = operation.settings["beta"], operation.settings["threshold"]
        drop = math.log1p(math.exp(-threshold * (1 - 2.0**-10))) / beta * (1 + 2.0**-10)
        passed = beta * upper >= threshold * (1 - 2.0**-10)
        made.corner_x, lowered = torch.cat([made.corner_x, made.x, made.corner_x]), made.corner_y - drop * passed
        made.corner_y = torch.cat([made.corner_y, made.y - drop * passed, lowered])
        return made

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        """e^t is off by 32 + 2 |t| units of itself, log(1 + e^t) by as many e^t / (1 + e^t) <= 1 and 32 (1 + its value)."""
        beta = operation.settings["beta"]
        return (4 * LIBRARY + (LIBRARY + 8) * (beta * upper).clamp(min=0)) / beta


@rule("exp")
class Exp(Smooth):
    """Convex."""

    def domain(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return upper < 700

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.exp()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return x.exp()

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        first = ((a - b) / 2).exp()
        return b + 2 * (first + (1 - first) * share).log()

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return LIBRARY * upper.exp()


class Power(Smooth):
    """x^p on x > 0, or log x for p = 0: convex or concave. Where p is a whole number also on x < 0, and if p > 0 at 0."""

    def power(self, operation: Operation) -> float:
        raise NotImplementedError

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        return [0.0] if self.power(operation) > 1 and self.power(operation).is_integer() else []

    def domain(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor | None:
        """x > 0 with room for the powers of float64; the bound itself, as rounded, must be inside."""
        p = self.power(operation)
        least, most = (lower > 2.0**-200) & (upper < 2.0**200), (upper < -(2.0**-200)) & (lower > -(2.0**200))
        if not p.is_integer() or p == 0:
            return least
        return least | most if p < 0 else (lower > -(2.0**200)) & (upper < 2.0**200)

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x ** self.power(operation)

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        p = self.power(operation)
        return p * x ** (p - 1)

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        """Even steps of |x|^(p / 2), and of log |x| for p = 0."""
        half, far = self.power(operation) / 2, a.abs() > b.abs()
        end, other, share = torch.where(far, a, b), torch.where(far, b, a), torch.where(far, 1 - share, share)
        ratio = (other / end).abs()
        if not half:
            return end * ratio ** (1 - share)
        first = ratio**half
        return end * (first + (1 - first) * share) ** (1 / half)

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        """The largest value is at an end; an exponent that is no float32 number changes x^p by |p log x| units of it, and 2."""
        p, ends = self.power(operation), (lower, upper)
        value = _reach(*(self.value(operation, end) for end in ends))
        log = _reach(*(end.abs().clamp(min=2.0**-200).log() for end in ends))
        return (LIBRARY + 4 + 2 * abs(p) * log) * value

    def evaluation_error(self, operation: Operation, form: AffineForm) -> Tensor | float:
        """Near 0, where x may be flushed to zero, only a whole p > 0 has a bound."""
        error, p = super().evaluation_error(operation, form), self.power(operation)
        if not isinstance(error, Tensor) or (p > 0 and p.is_integer()):
            return error
        return torch.where((form.lower > UNDERFLOW) | (form.upper < -UNDERFLOW), error, torch.inf)


@rule("pow")
class Pow(Power):
    def power(self, operation: Operation) -> float:
        return float(operation.settings["power"])


@rule("sqrt")
class Sqrt(Power):
    def power(self, operation: Operation) -> float:
        return 0.5

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return 4 * upper.sqrt()


@rule("rsqrt")
class Rsqrt(Power):
    def power(self, operation: Operation) -> float:
        return -0.5

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return LIBRARY * lower.rsqrt()


@rule("reciprocal")
class Reciprocal(Power):
    def power(self, operation: Operation) -> float:
        return -1.0

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return 4 / torch.minimum(lower.abs(), upper.abs())


@rule("log")
class Log(Power):
    def power(self, operation: Operation) -> float:
        return 0.0

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.log()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return 1 / x

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return LIBRARY * (1 + _reach(lower.log(), upper.log()))


class Absolute(Smooth):
    """A float32 evaluation is off by `LIBRARY` units of 1."""

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        return torch.full_like(lower, LIBRARY)


@rule("erf")
class Erf(Absolute):
    """f'' has the sign of -x."""

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        return [0.0]

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.erf()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return (-x * x).exp() * (2 / math.sqrt(math.pi))

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        first, last = a.asinh(), b.asinh()
        return (first + (last - first) * share).sinh()


@rule("atan")
class Atan(Absolute):
    """f'' = -2 x / (1 + x^2)^2."""

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        return [0.0]

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.atan()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return 1 / (1 + x * x)

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        first, last = a.asinh(), b.asinh()
        return (first + (last - first) * share).sinh()


@rule("sin")
class Sin(Absolute):
    """f'' = -f changes sign at multiples of pi. In an interval longer than 3 pi there are three extremes in a row, so that no line is
    closer than the constants -1 and 1; these also serve where |x| > 2^20."""

    shift = 0.0
    """The first positive zero."""

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        first = ((lower.detach() - self.shift) / math.pi).ceil()
        return [(first + k) * math.pi + self.shift for k in range(4)]

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.sin()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return x.cos()

    def outline(self, operation: Operation, lower: Tensor, upper: Tensor, pieces: int = PIECES) -> Outline:
        wide = (upper - lower > 9.4) | (_reach(lower, upper) > 2.0**20)
        made = super().outline(operation, torch.where(wide, 0.0, lower), torch.where(wide, 0.0, upper))
        box = torch.stack([lower, lower, upper, upper]), torch.tensor([-1.0, 1.0, -1.0, 1.0]).to(lower)[:, None]
        for name in ("", "corner_"):
            rows = getattr(made, f"{name}x"), getattr(made, f"{name}y")
            for key, own, corner in zip("xy", rows, box, strict=True):
                every = corner.expand(4, len(lower)).repeat_interleave(-(-len(own) // 4), 0)[-len(own) :]
                setattr(made, name + key, torch.where(wide, every, own))
        made.least, made.most = (torch.where(wide, 0.0, each) for each in (made.least, made.most))
        made.slack = torch.where(wide, PRECISION * (1 + _reach(lower, upper)), made.slack)
        return made


@rule("cos")
class Cos(Sin):
    shift = math.pi / 2

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        return x.cos()

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        return -x.sin()


PLAIN = ("silu", "mish", "hardswish", "exp", "log", "sqrt", "rsqrt", "reciprocal", "erf", "atan", "sin", "cos")
"""Kinds that are an ATen call without arguments."""


def _plain(kind: str) -> None:
    @converter(f"{kind}.default")
    def convert(shape: Any, x: Any) -> Built:
        return Built(kind, (x.name,))


for _kind in PLAIN:
    _plain(_kind)


def _number(name: str, value: Any, low: float, high: float = LARGEST_SETTING) -> float:
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise Refused(f"{name} = {value}; a number from {low:g} to {high:g} has a rule")
    return float(value)


@converter("gelu.default")
def gelu(shape: Any, x: Any, approximate: str = "none") -> Built:
    return Built("gelu" if approximate == "none" else "gelu_tanh", (x.name,))


@converter("elu.default")
def elu(shape: Any, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Built:
    if input_scale != 1:
        raise Refused(f"an input scale of {input_scale}; 1 has a rule")
    numbers = {"alpha": _number("alpha", alpha, 2.0**-20), "scale": _number("scale", scale, 2.0**-20)}
    return Built("elu", (x.name,), numbers | {"width": 1.0})


@converter("selu.default")
def selu(shape: Any, x: Any) -> Built:
    return elu(shape, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@converter("celu.default")
def celu(shape: Any, x: Any, alpha: float = 1.0) -> Built:
    alpha = _number("alpha", alpha, 2.0**-20)
    return Built("elu", (x.name,), {"alpha": alpha, "scale": 1.0, "width": alpha})


@converter("softplus.default")
def softplus(shape: Any, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Built:
    numbers = {"beta": _number("beta", beta, 2.0**-20), "threshold": _number("threshold", threshold, 0.0)}
    return Built("softplus", (x.name,), numbers)


@converter("pow.Tensor_Scalar")
def power(shape: Any, x: Any, exponent: Any) -> Built:
    require_constants(x, exponent)
    if not isinstance(exponent, (int, float)) or not 2.0**-6 <= abs(exponent) <= 2.0**6 or exponent == 1:
        raise Refused(f"the power {exponent}; exponents from 1/64 to 64 or from -64 to -1/64, but for 1, have a rule")
    return Built("pow", (x.name,), {"power": float(exponent)})


@converter("square.default")
def square(shape: Any, x: Any) -> Built:
    return power(shape, x, 2)
