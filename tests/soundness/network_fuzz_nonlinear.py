"""Cases of the network fuzz with products, normalizations, softmax, fake quantization and smooth functions.

Each rule alone and in a small network, in both dtypes, with quadratic forms, with symbols that only one branch has, and evaluated
in float32 as badly as the rules allow (`exact_functions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.soundness.exact_networks import Layer, Of
from tests.soundness.network_fuzz import F32, F64, Case, Input, Rng, X, conv, flat, linear, make, relu, weights

Build = tuple[list[Layer], tuple[int, ...]]

ANYWHERE: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("gelu.default", [], {}), ("gelu.default", [], {"approximate": "tanh"}), ("silu.default", [], {}), ("mish.default", [], {}),
    ("hardswish.default", [], {}), ("elu.default", [0.7], {}), ("selu.default", [], {}), ("celu.default", [0.6], {}),
    ("softplus.default", [2.0, 3.0], {}), ("softplus.default", [], {}), ("exp.default", [], {}), ("erf.default", [], {}),
    ("sin.default", [], {}), ("cos.default", [], {}), ("pow.Tensor_Scalar", [3], {}), ("square.default", [], {}),
    ("pow.Tensor_Scalar", [4], {}), ("clamp.default", [-0.3, 0.7], {}),
    ("hardtanh.default", [-0.5, 1.5], {}), ("relu6.default", [], {}),
]  # fmt: skip
PARTLY: list[tuple[str, list[Any], tuple[int, ...]]] = [
    ("log.default", [], (1,)), ("sqrt.default", [], (1,)), ("rsqrt.default", [], (1,)), ("reciprocal.default", [], (1, -1)),
    ("pow.Tensor_Scalar", [-1.5], (1,)), ("pow.Tensor_Scalar", [2.5], (1,)), ("pow.Tensor_Scalar", [-2], (1, -1)),
]  # fmt: skip
"""Functions that are defined on one or both sides of zero: which."""


def smooth(rng: Rng) -> Iterator[Case]:
    """Yield cases with one smooth function: narrow and wide forms, points, and forms that reach beyond where it is defined."""
    for call, args, options in ANYWHERE:
        inputs = [
            Input(4, 1, F32, size=2.0), Input(3, 2, F64, size=3.0, rest=0), Input(3, 1, F64, wide=2, spread=1.0),
            Input(3, 0, F64, evaluation=True, point=True, size=3.0), Input(2, 1, F64, size=12.0, spread=1.0),
            Input(2, 1, F32, evaluation=True, size=2.0),
        ]  # fmt: skip
        for given in inputs:
            layers = [Layer("y", call, [X, *args], options)]
            yield make(rng, f"{call} {args} {options} {given}", layers, (5,), given, 14)
    for call, args, signs in PARTLY:
        inputs = [
            Input(4, 1, F32, positive=0.3), Input(3, 2, F64, size=3.0, rest=0, positive=0.01),
            Input(3, 0, F64, evaluation=True, point=True, positive=0.1), Input(2, 1, F64, positive=0.2, evaluation=True),
            Input(4, 0, F64, evaluation=True, point=True, positive=0.1, size=2.0**-127), Input(3, 1, F64, wide=3, positive=0.1, spread=1.0),
        ]  # fmt: skip
        for sign in signs:
            for given in inputs:
                given.positive = abs(given.positive) * sign
                layers = [Layer("y", call, [X, *args])]
                yield make(rng, f"{call} {args} {given}", layers, (5,), given, 14)
        yield make(rng, f"{call} {args} beyond", [Layer("y", call, [X, *args])], (5,), Input(4, 1, F64, spread=1.0), 8)
    far = torch.tensor([720.0, -720.0, 300.0, 0.0, 90.0], dtype=F64)
    yield make(rng, "exp far out", [Layer("y", "exp.default", [X])], (5,), Input(2, 1, F64, center=far), 6)
    for call in ("sin.default", "cos.default"):
        far = torch.tensor([2.0**19, -(2.0**22), 1e3, 1e6, 1.5], dtype=F64)
        yield make(rng, f"{call} far out", [Layer("y", call, [X])], (5,), Input(3, 1, F64, center=far, size=5.0), 10)
    for given in (
        Input(4, 1, F32, size=2.0), Input(3, 2, F64, size=3.0, rest=0), Input(3, 1, F64, wide=2, spread=1.0),
        Input(3, 0, F64, evaluation=True, point=True, size=3.0), Input(2, 1, F32, evaluation=True, size=2.0),
    ):  # fmt: skip
        yield make(rng, f"atan {given}", [Layer("y", "atan.default", [X])], (5,), given, 14)


def quantized(rng: Rng) -> Iterator[Case]:
    """Yield cases with fake quantization: ties, clipping, and the slack of an integer kernel."""
    for scale, zero, low, high in ((0.25, 3, -8, 9), (0.1, 0, -128, 127), (0.0625, 5, 0, 15)):
        layer = Layer("y", "fake_quantize_per_tensor_affine.default", [X, scale, zero, low, high])
        ties = torch.tensor([0.5, -0.5, 1.5, -3.5, low - zero, high - zero + 0.5], dtype=F64) * scale
        for given in (
            Input(4, 1, F32), Input(4, 2, F64, spread=0.05, rest=0.02), Input(3, 1, F64, center=ties, spread=0.1, rest=0),
            Input(4, 0, F64, point=True, center=ties), Input(3, 0, F32, point=True, center=ties),
            Input(3, 1, F64, evaluation=True), Input(3, 0, F64, evaluation=True, point=True, size=0.3),
            Input(3, 0, F64, evaluation=True, point=True, center=ties), Input(3, 1, F64, size=3.0, rest=0, spread=1.0),
        ):  # fmt: skip
            yield make(rng, f"quantized by {scale}, {given}", [layer], (6,), given, 12)
    for slack in (0.0, 0.01):
        settings = {"factor": 3.3, "step": 0.7, "low": -20.0, "high": 11.0, "slack": slack, "size": 31.0, "zero": 0}
        layer = Layer("y", "rule.quantize", [X, settings])
        for given in (Input(4, 1, F64), Input(3, 0, F64, point=True, size=3.0), Input(4, 1, F32, size=4.0, spread=1.0)):
            yield make(rng, f"quantized with slack {slack}, {given}", [layer], (6,), given, 14)


def halves(call: str, size: int, name: str = "y") -> list[Layer]:
    """Return the two halves of the input, and an operation on them."""
    parts = [Layer("a", "slice.Tensor", [X, 1, 0, size]), Layer("b", "slice.Tensor", [X, 1, size, 2 * size])]
    return [*parts, Layer(name, call, [Of("a"), Of("b")])]


EVERY = (
    Input(4, 2, F32), Input(4, 1, F64), Input(3, 3, F64, rest=0, spread=1.0), Input(3, 0, F64, point=True),
    Input(3, 0, F32, point=True, wide=2), Input(3, 2, F64, quadratic=True, spread=0.5), Input(3, 3, F32, quadratic=True, rest=0),
    Input(3, 0, F64, evaluation=True, point=True, wide=1), Input(2, 1, F64, evaluation=True, spread=0.01),
    Input(3, 0, F64, spread=1.0, rest=1.0), Input(4, 2, F64, wide=1.0), Input(8, 0, F32, point=True, wide=3),
    Input(8, 0, F64, point=True, wide=3), Input(8, 1, F32, rest=0, spread=1e-5, wide=1),
)  # fmt: skip


def products(rng: Rng) -> Iterator[Case]:
    image, gate = (2, 2, 2), Layer("m", "mean.dim", [X, [2, 3], True])
    lost = [relu("a", "x"), Layer("y", "mul.Tensor", [Of("a"), X])]
    alike = [Layer("a", "mul.Tensor", [X, 0.7]), Layer("b", "add.Tensor", [Of("a"), 0.3])]
    kinds: dict[str, Build] = {
        "square": ([Layer("y", "mul.Tensor", [X, X])], (4,)),
        "product of halves": (halves("mul.Tensor", 3), (6,)),
        "product of alike": ([*alike, Layer("y", "mul.Tensor", [Of("b"), X])], (4,)),
        "x sigmoid(x)": ([Layer("a", "sigmoid.default", [X]), Layer("y", "mul.Tensor", [X, Of("a")])], (4,)),
        "squeeze and excite": ([gate, Layer("s", "sigmoid.default", [Of("m")]), Layer("y", "mul.Tensor", [X, Of("s")])], image),
        "a smaller branch first": ([gate, Layer("y", "mul.Tensor", [Of("m"), X])], image),
        "a sum with a smaller branch": ([gate, Layer("y", "sub.Tensor", [X, Of("m")])], image),
    }  # fmt: skip
    for name, (layers, shape) in kinds.items():
        for k, given in enumerate(EVERY):
            if name in ("square", "product of halves") or k % 3 == 0 or given.evaluation:
                yield make(rng, f"{name}, {given}", layers, shape, given, 10)
    for dtype in (F32, F64):
        given = Input(4, 3, dtype, uneven=True, spread=0.05, lasting=1, quadratic=True)
        yield make(rng, f"product, symbols given up, {dtype}", lost, (5,), given, 10)
        below = [
            Layer("n", "neg.default", [X]),
            Layer("y", "leaky_relu.default", [Of("n"), 0.1]),
            Layer("z", "neg.default", [Of("y")]),
        ]
        yield make(rng, f"symbols given up below zero, {dtype}", below, (5,), given, 10)


def matrices(rng: Rng) -> Iterator[Case]:
    turned = Layer("c", "transpose.int", [Of("b"), 2, 3])
    heads = [*halves("mul.Tensor", 2)[:2], turned]
    lost = [relu("a", "x"), Layer("b", "transpose.int", [X, 1, 2])]
    channels = [Layer(name, "slice.Tensor", [X, 1, k, k + 1]) for k, name in enumerate("qkv")]
    attention = Layer("y", "scaled_dot_product_attention.default", [Of("q"), Of("k"), Of("v")], {"scale": 0.7})
    kinds: dict[str, Build] = {
        "matrices": ([*heads, Layer("y", "matmul.default", [Of("a"), Of("c")])], (4, 2, 3)),
        "alike": ([Layer("b", "transpose.int", [X, 1, 2]), Layer("y", "bmm.default", [X, Of("b")])], (2, 3)),
        "attention": ([*channels, attention], (3, 2, 2)),
    }
    for name, (layers, shape) in kinds.items():
        for k, given in enumerate(EVERY):
            if name == "matrices" or k % 2 == 0 or given.evaluation:
                yield make(rng, f"{name}, {given}", layers, shape, given, 6)
    for dtype in (F32, F64):
        given = Input(3, 3, dtype, uneven=True, spread=0.05, lasting=1, quadratic=True)
        layers = [*lost, Layer("y", "bmm.default", [Of("a"), Of("b")])]
        yield make(rng, f"matrices, symbols given up, {dtype}", layers, (2, 3), given, 8)


def softmaxes(rng: Rng) -> Iterator[Case]:
    more = (Input(3, 1, F64, size=12.0), Input(3, 1, F32, size=4.0, spread=1.0, rest=0), Input(2, 1, F64, size=100.0))
    for dim, shape in ((1, (4,)), (1, (3, 2, 1)), (-1, (2, 3))):
        for k, given in enumerate([*EVERY, *more]):
            if (dim == 1 and len(shape) == 1) or k % 2 == 0:
                yield make(
                    rng,
                    f"softmax over {dim} of {shape}, {given}",
                    [Layer("y", "softmax.int", [X, dim])],
                    shape,
                    given,
                    10,
                )


def far_softmaxes(rng: Rng) -> Iterator[Case]:
    """Yield cases of arguments of very different sizes, of which the largest decide."""
    center = torch.tensor([6e4 + 0.3, 6e4 - 0.4, 0.0, 6e4 + 1.1], dtype=F64)
    given = Input(2, 0, F64, center=center, rest=0.7)
    yield make(rng, f"softmax, {given}", [Layer("y", "softmax.int", [X, 1])], (4,), given, 8)


def masked_softmaxes(rng: Rng) -> Iterator[Case]:
    """Yield cases of which a constant mask takes entries out: of every row some, and of one column all."""
    rows = torch.tensor([[True, False, False], [True, False, True]])
    for dim, shape, absent in ((1, (4,), torch.tensor([False, True, False, False])), (-1, (2, 3), rows)):
        for given in (EVERY[0], EVERY[1], EVERY[3], EVERY[7], EVERY[8], EVERY[9]):
            layers = [Layer("y", "masked_softmax.int", [X, dim, absent])]
            yield make(rng, f"masked softmax over {dim} of {shape}, {given}", layers, shape, given, 10)


def norms(rng: Rng) -> Iterator[Case]:
    """Yield cases with each step alone, and with each normalization."""
    image = (4, 1, 3)
    steps: dict[str, Build] = {
        "centered": ([Layer("y", "rule.centered", [X, [1]])], (5,)),
        "centered images": ([Layer("y", "rule.centered", [X, [2, 3]])], (2, 2, 3)),
        "mean square": ([Layer("y", "rule.mean_square", [X, [1]])], (5,)),
        "mean square of rows": ([Layer("y", "rule.mean_square", [X, [2]])], (2, 3)),
        "inverse root": ([Layer("v", "rule.mean_square", [X, [1]]), Layer("y", "rule.inverse_root", [Of("v"), 2.0**-7])], (4,)),
    }  # fmt: skip
    for name, (layers, shape) in steps.items():
        for given in EVERY:
            if not given.evaluation:
                yield make(rng, f"{name}, {given}", layers, shape, given, 10)
    for given in (
        Input(4, 1, F32, positive=0.5), Input(4, 1, F64, positive=0.01, rest=0), Input(3, 0, F32, positive=0.5, point=True),
        Input(3, 2, F64, positive=0.01, wide=2), Input(3, 0, F64, positive=0.1, size=1e-3),
    ):  # fmt: skip
        yield make(rng, f"inverse root, {given}", [Layer("y", "rule.inverse_root", [X, 2.0**-7])], (5,), given, 14)
    w, b = weights(rng, 4), weights(rng, 4)
    whole: dict[str, Build] = {
        "layer norm": ([Layer("y", "layer_norm.default", [X, [4], w, b, 2.0**-6])], (4,)),
        "layer norm of rows": ([Layer("y", "layer_norm.default", [X, [2, 2], None, None, 0.01])], (2, 2, 2)),
        "rms norm": ([Layer("y", "rms_norm.default", [X, [4], w, 2.0**-6])], (4,)),
        "group norm": ([Layer("y", "group_norm.default", [X, 2, w, b, 2.0**-6])], image),
        "instance norm": ([Layer("y", "instance_norm.default", [X, w, b, None, None, True, 0.1, 2.0**-6, False])], image),
    }  # fmt: skip
    inputs = (
        Input(3, 2, F32), Input(3, 1, F64, rest=0), Input(3, 0, F64, evaluation=True, point=True),
        Input(3, 0, F64, evaluation=True, point=True, positive=30.0), Input(2, 1, F64, evaluation=True, spread=0.01),
        Input(2, 2, F64, quadratic=True),
    )  # fmt: skip
    for name, (layers, shape) in whole.items():
        for given in inputs:
            yield make(rng, f"{name}, {given}", layers, shape, given, 8)


def chains(rng: Rng) -> Iterator[Case]:
    """Yield small networks that combine the rules, for backward passes through several of them."""

    def gated(dtype: torch.dtype) -> Build:
        layers = [
            linear(rng, "a", "x", 3, 4, dtype=dtype), Layer("g", "gelu.default", [Of("a")]), linear(rng, "b", "x", 3, 4, dtype=dtype),
            Layer("p", "mul.Tensor", [Of("g"), Of("b")]), Layer("q", "softmax.int", [Of("p"), 1]),
        ]  # fmt: skip
        return [*layers, linear(rng, "y", "q", 4, 3, dtype=dtype)], (3,)

    def excited(dtype: torch.dtype) -> Build:
        layers = [
            conv(rng, "a", "x", (2, 1, 2, 2), dtype=dtype), Layer("s", "silu.default", [Of("a")]),
            Layer("m", "mean.dim", [Of("s"), [2, 3], True]), Layer("g", "sigmoid.default", [Of("m")]),
            Layer("p", "mul.Tensor", [Of("s"), Of("g")]), flat("f", "p"),
            Layer("n", "layer_norm.default", [Of("f"), [8], None, None, 0.1]),
        ]  # fmt: skip
        return [*layers, linear(rng, "y", "n", 8, 2, dtype=dtype)], (1, 3, 3)

    def rounded(dtype: torch.dtype) -> Build:
        quantize = "fake_quantize_per_tensor_affine.default"
        layers = [
            linear(rng, "a", "x", 3, 4, dtype=dtype), Layer("q", quantize, [Of("a"), 0.05, 0, -64, 63]), relu("r", "q"),
            linear(rng, "b", "r", 4, 4, dtype=dtype), Layer("e", "elu.default", [Of("b")]), Layer("s", "mul.Tensor", [Of("e"), Of("e")]),
        ]  # fmt: skip
        return [*layers, linear(rng, "y", "s", 4, 3, dtype=dtype)], (3,)

    for name, build in (("gated", gated), ("excited", excited), ("rounded", rounded)):
        for dtype, given in (
            (F32, Input(3, 2, F32)), (F64, Input(3, 1, F64, spread=0.05)), (F32, Input(2, 1, F64, evaluation=True, spread=0.01)),
            (F64, Input(3, 2, F64, quadratic=True)),
        ):  # fmt: skip
            layers, shape = build(dtype)
            yield make(rng, f"{name} of {dtype}, {given}", layers, shape, given, 5)


def cases(rng: Rng) -> Iterator[Case]:
    for family in (smooth, quantized, products, matrices, softmaxes, norms, chains, far_softmaxes, masked_softmaxes):
        yield from family(np.random.default_rng(rng.integers(2**32)))
