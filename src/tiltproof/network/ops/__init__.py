"""One module per family of operations, each with its rules and ATen converters; importing this package fills both tables."""

from tiltproof.network.ops import (
    activations,
    arithmetic,
    attention,
    compounds,
    contraction,
    convex,
    gather,
    linear,
    maxima,
    norms,
    piecewise,
    pooling,
    products,
    quantize,
    reshape,
    smooth,
)
from tiltproof.network.ops.base import REGISTRY, BackwardResult, Rule

__all__ = [
    "REGISTRY",
    "BackwardResult",
    "Rule",
    "activations",
    "arithmetic",
    "attention",
    "compounds",
    "contraction",
    "convex",
    "gather",
    "linear",
    "maxima",
    "norms",
    "piecewise",
    "pooling",
    "products",
    "quantize",
    "reshape",
    "smooth",
]
