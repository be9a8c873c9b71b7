"""One rule per operation; importing this package fills the registry."""

from tiltproof.network.ops import activations, linear, pooling, reshape
from tiltproof.network.ops.base import REGISTRY, Pullback, Rule

__all__ = ["REGISTRY", "Pullback", "Rule", "activations", "linear", "pooling", "reshape"]
