"""Smooth functions of one variable: as an operation, as a torch function, and exactly (to as many digits as mpmath is told)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import torch
import torch.nn.functional as F
from torch import Tensor


def mpf(x: float) -> Any:
    return mpmath.mpf(x)


@dataclass(frozen=True)
class Case:
    """``domain``: "all", "positive", "nonzero" or "below 50"; ``turns``: inflection points and kinks."""

    kind: str
    function: Callable[[Any], Any]
    exact: Callable[[Any], Any]
    settings: dict[str, Any]
    domain: str = "all"
    turns: tuple[float, ...] = ()

    def inside(self, low: float, high: float) -> bool:
        if self.domain == "positive":
            return low > 0
        return self.domain != "nonzero" or low > 0 or high < 0


def elu(alpha: float, scale: float, width: float) -> Callable[[Any], Any]:
    low = mpf(scale) * mpf(alpha)
    return lambda x: mpf(scale) * x if x > 0 else low * mpmath.expm1(x / mpf(width))


def softplus(beta: float, threshold: float) -> Callable[[Any], Any]:
    return lambda x: x if beta * x > threshold else mpmath.log1p(mpmath.exp(mpf(beta) * x)) / mpf(beta)


def gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpf(0.044715) * x**3)))


def power(exponent: float, domain: str) -> Case:
    turns = (0.0,) if domain == "all" else ()
    exact = (lambda x: x ** int(exponent)) if exponent == int(exponent) else lambda x: x ** mpf(exponent)
    return Case("pow", lambda x: x**exponent, exact, {"power": exponent}, domain, turns)


SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)

CASES: dict[str, Case] = {
    "gelu": Case("gelu", F.gelu, lambda x: x / 2 * mpmath.erfc(-x / mpmath.sqrt(2)), {}, turns=(-(2**0.5), 2**0.5)),
    "gelu by tanh": Case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), gelu_tanh, {}, turns=(-1.4185040, 1.4185040)),
    "silu": Case("silu", F.silu, lambda x: x / (1 + mpmath.exp(-x)), {}, turns=(-2.3993572805, 2.3993572805)),
    "mish": Case("mish", F.mish, lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))), {}, turns=(-2.256376396, 1.490571179)),
    "hardswish": Case("hardswish", F.hardswish, lambda x: x * min(max(x + 3, 0), 6) / 6, {}, turns=(-3.0, 3.0)),
    "elu": Case("elu", lambda x: F.elu(x, 0.7), elu(0.7, 1, 1), {"alpha": 0.7, "scale": 1.0, "width": 1.0}, turns=(0.0,)),
    "selu": Case("elu", F.selu, elu(*SELU, 1), {"alpha": SELU[0], "scale": SELU[1], "width": 1.0}, turns=(0.0,)),
    "celu": Case("elu", lambda x: F.celu(x, 0.3), elu(0.3, 1, 0.3), {"alpha": 0.3, "scale": 1.0, "width": 0.3}, turns=(0.0,)),
    "softplus": Case("softplus", F.softplus, softplus(1, 20), {"beta": 1.0, "threshold": 20.0}, turns=(20.0,)),
    "softplus of 1": Case(
        "softplus", lambda x: F.softplus(x, 3, 1), softplus(3, 1), {"beta": 3.0, "threshold": 1.0}, turns=(1 / 3,)
    ),
    "exp": Case("exp", torch.exp, mpmath.exp, {}, "below 50"),
    "log": Case("log", torch.log, mpmath.log, {}, "positive"),
    "sqrt": Case("sqrt", torch.sqrt, mpmath.sqrt, {}, "positive"),
    "rsqrt": Case("rsqrt", torch.rsqrt, lambda x: 1 / mpmath.sqrt(x), {}, "positive"),
    "reciprocal": Case("reciprocal", torch.reciprocal, lambda x: 1 / x, {}, "nonzero"),
    "erf": Case("erf", torch.erf, mpmath.erf, {}, turns=(0.0,)),
    "sin": Case("sin", torch.sin, mpmath.sin, {}, turns=(0.0, 3.141592653589793, -31.41592653589793)),
    "cos": Case("cos", torch.cos, mpmath.cos, {}, turns=(1.5707963267948966, -1.5707963267948966, 20.42035224833366)),
    "x^2": power(2.0, "all"),
    "x^3": power(3.0, "all"),
    "x^10": power(10.0, "all"),
    "x^1.5": power(1.5, "positive"),
    "x^-3": power(-3.0, "nonzero"),
}  # fmt: skip


def intervals(case: Case, dtype: torch.dtype) -> Tensor:
    """Intervals [M, 2] of all sizes: around 0, beyond everything, with an end at a turn or next to one, points; inside the domain or at
    its very end."""
    generator = torch.Generator().manual_seed(len(case.kind))
    draw = lambda *size: torch.rand(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    low = (draw(60) - 0.5) * 10 ** (4 * draw(60) - 2)
    width = 10 ** (11 * draw(60) - 9)
    found = [torch.stack([low, low + width], 1), torch.stack([low - width, low], 1)]
    for turn in case.turns:
        step = 10 ** (9 * draw(12) - 8)
        found += [torch.stack([0 * step + turn, turn + step], 1), torch.stack([turn - step, turn + step * draw(12)], 1)]
        found += [torch.stack([turn - step, 0 * step + turn], 1), torch.tensor([[turn, turn]], dtype=torch.float64)]
    wide = torch.tensor(
        [[-1e4, 3.0], [-1e4, 1e4], [2.0, 1e4], [0.0, 0.0], [-1.0, 1.0], [-5.0, 7.0]], dtype=torch.float64
    )
    ends = torch.cat([*found, wide])
    if case.domain != "all":
        if case.domain == "below 50":
            ends = ends.clamp(-1e4, 50)
        else:
            small = torch.tensor(
                [[2.0**-60, 1.0], [1e-12, 2e-12], [2.0**-20, 2.0**-19], [1e-3, 1e4]], dtype=torch.float64
            )
            ends = torch.cat([(ends - ends[:, :1]).abs() + ends[:, :1].abs().clamp(min=1e-9), small])
            ends = torch.cat([ends, -ends.flip(1)]) if case.domain == "nonzero" else ends
    if case.kind == "pow":
        ends = torch.where(ends.abs() > 100, ends / 1000, ends)
    return ends.to(dtype)
