"""One rule per operation; importing this package fills the registry."""

from tiltproof.network.rules import activations, linear, maxpool, moves
from tiltproof.network.rules.base import REGISTRY, Pullback, Rule

__all__ = ["REGISTRY", "Pullback", "Rule", "activations", "linear", "maxpool", "moves"]
