"""Cases of the network fuzz with piecewise linear functions, rearrangements, maxima, and functions that are written as others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.soundness.exact_networks import Layer, Of
from tests.soundness.network_fuzz import F32, F64, IMAGE, Case, Input, Rng, X, make
from tests.soundness.network_fuzz_nonlinear import EVERY, Build, halves

SINGLE: list[tuple[str, list[Any]]] = [
    ("abs.default", []), ("clamp.default", [None, 0.4]), ("clamp.default", [-0.3, None]), ("clamp_min.default", [0.2]),
    ("clamp_max.default", [0.7]), ("hardsigmoid.default", []), ("threshold.default", [0.3, 0.3]), ("threshold.default", [0.1, -0.5]),
    ("softshrink.default", [0.3]), ("hardshrink.default", [0.25]), ("sign.default", []),
]  # fmt: skip
KINKED = (
    Input(8, 1, F32), Input(6, 2, F64), Input(4, 2, F32, wide=4), Input(4, 1, F64, rest=0, spread=1.0), Input(3, 1, F64, evaluation=True),
    Input(4, 0, F64, point=True, evaluation=True), Input(4, 0, F32, point=True, wide=2), Input(6, 2, F64, barely=True),
    Input(4, 2, F64, quadratic=True, spread=0.5), Input(3, 1, F64, size=5.0, spread=1.0), Input(8, 1, F32, barely=True),
)  # fmt: skip


def piecewise(rng: Rng) -> Iterator[Case]:
    """Yield cases of one piecewise linear function, of two branches, and of choices between them."""
    slopes, image = torch.tensor([0.3, -0.7]), torch.from_numpy(rng.normal(size=(1, 5)) * 0.3).float()
    kinds: dict[str, Build] = {f"{call} {args}": ([Layer("y", call, [X, *args])], (5,)) for call, args in SINGLE}
    kinds["prelu"] = ([Layer("y", "prelu.default", [X, slopes[:1]])], (5,))
    kinds["prelu of channels"] = ([Layer("y", "prelu.default", [X, slopes])], (2, 2, 1))
    for name in ("maximum", "minimum"):
        kinds[name] = (halves(f"{name}.default", 3), (6,))
        kinds[f"{name} with numbers"] = ([Layer("y", f"{name}.default", [X, image])], (5,))
        kinds[f"{name} with itself"] = ([Layer("y", f"{name}.default", [X, X])], (3,))
        alike = [Layer("a", "mul.Tensor", [X, 0.7]), Layer("b", "add.Tensor", [Of("a"), 0.3])]
        kinds[f"{name} of alike"] = ([*alike, Layer("y", f"{name}.default", [Of("b"), X])], (4,))
        kinds[f"{name} with one that is steeper"] = ([alike[0], Layer("y", f"{name}.default", [X, Of("a")])], (4,))
    kinds["maximum with one number on the left"] = ([Layer("y", "maximum.default", [image[:, :1], X])], (5,))
    for name in ("gt", "ge", "lt", "le"):
        parts = [*halves("mul.Tensor", 3)[:2], Layer("c", f"{name}.Scalar", [Of("a"), 0.2])]
        kinds[f"chosen by {name}"] = ([*parts, Layer("y", "where.self", [Of("c"), Of("a"), Of("b")])], (6,))
    for number, (name, (layers, shape)) in enumerate(kinds.items()):
        alone = len(layers) == 1 and "with" not in name
        for k, given in enumerate(KINKED):
            if (alone and name[:4] in ("abs.", "sign")) or given.evaluation or (k + number) % (2 if alone else 3) == 0:
                yield make(rng, f"{name}, {given}", layers, shape, given, 12)
    for name in ("maximum", "minimum"):  # one branch is much larger than the other, which it hardly ever falls below
        for dtype in (F32, F64):
            given = Input(8, 1, dtype, barely=True, wide=3, rest=0)
            yield make(rng, f"{name}, {given}", halves(f"{name}.default", 3), (6,), given, 12)
    ends = torch.tensor([0.0, 2.0**-130, -(2.0**-130), 2.0**-126, 0.5], dtype=F64)
    for call in ("sign.default", "abs.default"):
        for given in (
            Input(2, 0, F64, center=ends, point=True, evaluation=True),
            Input(2, 0, F64, center=ends, point=True),
        ):
            yield make(rng, f"{call} at zero, {given}", [Layer("y", call, [X])], (5,), given, 4)
    for lower in (True, False):
        center = torch.tensor([1.0, 0.5, 2.0, 0.25], dtype=F64) * (1 if lower else -1)
        given = Input(2, 1, F64, center=center, spread=1.0, rest=0, positive=0.2 if lower else -0.2)
        yield make(rng, f"sign of one side, {lower}", [Layer("y", "sign.default", [X])], (4,), given, 6)
        for dtype in (F32, F64):
            given = Input(6, 1, dtype, center=center, spread=0.7, rest=0.3)
            yield make(
                rng, f"sign, one end farther, {lower} {dtype}", [Layer("y", "sign.default", [X])], (4,), given, 16
            )


def rearranged(rng: Rng) -> Iterator[Case]:
    """Yield cases of entries that are moved, copied or given up, and of constants beside them."""
    order, fill = torch.tensor([2, 0, 0, 3]), torch.from_numpy(rng.normal(size=(1, 2, 4, 3))).float().repeat(2, 1, 1, 1)
    lines = Layer("r", "reshape.default", [X, [-1, 2, 12]])
    calls: dict[str, list[Layer]] = {
        "indices": [Layer("y", "index_select.default", [X, 2, order])],
        "one index": [Layer("y", "select.int", [X, 3, 1])],
        "rows of an index": [Layer("y", "index.Tensor", [X, [None, None, order]])],
        "turned over": [Layer("y", "flip.default", [X, [2, 3]])],
        "rolled": [Layer("y", "roll.default", [X, [1, 2], [2, 3]])],
        "turned": [Layer("y", "rot90.default", [X, 1, [2, 3]])],
        "repeated": [Layer("y", "repeat.default", [X, [1, 2, 1, 3]])],
        "repeated one by one": [Layer("y", "repeat_interleave.self_int", [X, 2, 2])],
        "channels to pixels": [Layer("r", "reshape.default", [X, [-1, 4, 2, 3]]), Layer("y", "pixel_shuffle.default", [Of("r"), 2])],
        "reflected": [Layer("y", "reflection_pad2d.default", [X, [1, 2, 0, 3]])],
        "replicated": [Layer("y", "replication_pad2d.default", [X, [2, 0, 1, 1]])],
        "replicated lines": [lines, Layer("y", "replication_pad1d.default", [Of("r"), [3, 1]])],
        "wrapped around": [Layer("y", "pad.default", [X, [1, 2, 0, 3], "circular"])],
        "padded with a number": [Layer("y", "pad.default", [X, [1, 2, 0, 3], "constant", 0.7])],
        "padded with a tiny number": [Layer("y", "constant_pad_nd.default", [X, [1, 0], 2.0**-130])],
        "cropped": [Layer("y", "constant_pad_nd.default", [X, [-1, 1, 1, -2], 0.3])],
        "cropped alone": [Layer("y", "constant_pad_nd.default", [X, [-1, 0]])],
        "above the diagonal": [Layer("y", "triu.default", [X, 1])],
        "nothing of it": [Layer("y", "zeros_like.default", [X])],
        "larger": [Layer("y", "upsample_nearest2d.vec", [X, [7, 5], None])],
        "larger lines": [lines, Layer("y", "upsample_nearest1d.vec", [Of("r"), None, [2.0]])],
        "beside numbers": [Layer("y", "cat.default", [[X, fill, X], 1])],
        "numbers first": [Layer("y", "cat.default", [[fill[:, :1], X], 1])],
        "numbers of another size": [Layer("y", "cat.default", [[X, fill[:, :, :2] * 1e-3], 2])],
        "stacked": [Layer("a", "neg.default", [X]), Layer("y", "stack.default", [[X, Of("a")], 2])],
        "kept": [Layer("y", "dropout.default", [X, 0.5, False])],
    }  # fmt: skip
    inputs = (
        Input(3, 2, F32),
        Input(3, 1, F64, evaluation=True, point=True),
        Input(2, 1, F64, rest=0),
        Input(2, 0, F32, point=True, wide=2),
    )
    for number, (name, layers) in enumerate(calls.items()):
        for k, given in enumerate(inputs):
            if k < 2 or (k + number) % 2:
                yield make(rng, f"{name}, {given}", layers, IMAGE, given, 4)
    for dtype, bits in ((F32, 25), (F64, 54)):
        small = torch.full((200,), 0.97 * 2.0**-bits)  # coefficients that are lost one by one beside the first
        small[0] = 1
        weighed = [Layer("y", "repeat.default", [X, [1, 200]]), Layer("z", "mul.Tensor", [Of("y"), small])]
        given = Input(8, 0, dtype, point=True)
        yield make(rng, f"a sum of many copies' coefficients, {dtype}", weighed, (1,), given, 2)


def maxima(rng: Rng) -> Iterator[Case]:
    """Yield cases of the largest or smallest of windows and of dimensions."""
    lines = Layer("r", "reshape.default", [X, [-1, 2, 12]])
    calls: dict[str, list[Layer]] = {
        "over the edge": [Layer("y", "max_pool2d.default", [X, [2, 2], [2, 2], [0, 0], [1, 1], True])],
        "far over the edge": [Layer("y", "max_pool2d.default", [X, [3, 2], [2, 2], [1, 1], [1, 1], True])],
        "apart, padded": [Layer("y", "max_pool2d.default", [X, [2, 2], [1, 1], [1, 1], [2, 1]])],
        "cells": [Layer("y", "adaptive_max_pool2d.default", [X, [3, 2]])],
        "lines": [lines, Layer("y", "max_pool1d.default", [Of("r"), [3], [2], [1]])],
        "lines by number": [lines, Layer("y", "max_pool1d.default", [Of("r"), 3, [], 0, 2, True])],
        "largest": [Layer("y", "amax.default", [X, [2, 3]])],
        "largest of channels": [Layer("y", "amax.default", [X, [-3], True])],
        "smallest": [Layer("y", "amin.default", [X, [1, 3]])],
        "averages of lines": [lines, Layer("y", "avg_pool1d.default", [Of("r"), [3], [2], [1], False, False])],
        "averages of lines, with padding": [lines, Layer("y", "avg_pool1d.default", [Of("r"), 5, [], 2])],
    }  # fmt: skip
    for number, (name, layers) in enumerate(calls.items()):
        for k, given in enumerate(EVERY):
            chosen = (name in ("over the edge", "largest") and k != 10) or (k + number) % 5 == 0 or k == 7
            if chosen and not given.quadratic:
                yield make(rng, f"{name}, {given}", layers, IMAGE, given, 6)
    alike = Input(3, 1, F64, equal=True)
    yield make(rng, "largest of equals", [Layer("y", "amax.default", [X, [2, 3]])], IMAGE, alike, 6)


def written(rng: Rng) -> Iterator[Case]:
    """Yield cases of functions that are written as others."""
    thirds = [Layer(name, "slice.Tensor", [X, 1, 3 * k, 3 * k + 3]) for k, name in enumerate("abc")]
    keep = {"keepdim": True}
    kinds: dict[str, Build] = {
        **{call: ([Layer("y", f"{call}.default", [X])], (4,)) for call in ("tanhshrink", "log_sigmoid", "expm1", "exp2")},
        "power of a number": ([Layer("y", "pow.Scalar", [0.4, X])], (4,)),
        "sum with a product": ([*thirds, Layer("y", "addcmul.default", [Of("a"), Of("b"), Of("c")])], (9,)),
        "between": ([*thirds[:2], Layer("y", "lerp.Scalar", [Of("a"), Of("b"), 0.3])], (6,)),
        "log of a sum": ([Layer("y", "logsumexp.default", [X, [1, -1], True])], (2, 1, 2)),
        "log of shares": ([Layer("y", "log_softmax.int", [X, -1])], (2, 3)),
        "log of shares of channels": ([Layer("y", "log_softmax.int", [X, 1])], (3,)),
        "gated": ([Layer("y", "glu.default", [X, 1])], (4, 2)),
        "variance": ([Layer("y", "var.correction", [X, [1]], {"correction": 1, **keep})], (4,)),
        "variance of pixels": ([Layer("y", "var.correction", [X, [2, 3]], {"correction": 0, **keep})], (2, 2, 2)),
        "deviation": ([Layer("y", "std.correction", [X, [-1]], {"correction": 1, **keep})], (2, 3)),
        "variance, unbiased": ([Layer("y", "var.dim", [X, [1], True, True])], (3,)),
        "deviation, biased": ([Layer("y", "std.dim", [X, [1], False, True])], (3,)),
        "length": ([Layer("y", "linalg_vector_norm.default", [X, 2, [1], True])], (4,)),
    }  # fmt: skip
    for number, (name, (layers, shape)) in enumerate(kinds.items()):
        for k, given in enumerate(EVERY):
            if given.evaluation or (k + number) % 3 == 0:
                yield make(rng, f"{name}, {given}", layers, shape, given, 8)
    for given in (
        Input(3, 1, F64, positive=0.3, size=0.3),
        Input(3, 0, F64, evaluation=True, point=True, positive=0.1),
    ):
        yield make(rng, f"log1p, {given}", [Layer("y", "log1p.default", [X])], (4,), given, 8)


def cases(rng: Rng) -> Iterator[Case]:
    for family in (piecewise, rearranged, maxima, written):
        yield from family(np.random.default_rng(rng.integers(2**32)))
