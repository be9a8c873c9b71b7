"""One rule per operation; importing this package fills the registry."""

from tiltproof.network.ops import activations, linear, pooling, reshape
from tiltproof.network.ops.base import REGISTRY, BackwardResult, Rule

__all__ = ["REGISTRY", "BackwardResult", "Rule", "activations", "linear", "pooling", "reshape"]
