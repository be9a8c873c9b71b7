"""The table of small networks holds every operation, so that the tests that iterate over it see them all."""

import torch

from tests.support.small_networks import ACTIVATIONS, SHAPE, SUPPORTED, build
from tiltproof.network import read_network
from tiltproof.network.ops import REGISTRY


def kinds(name: str) -> set[str]:
    network = read_network(build(SUPPORTED[name], 0), SHAPE, torch.rand(1, *SHAPE))
    return {operation.kind for operation in network.operations}


def test_every_operation_has_a_network():
    found = set().union(*map(kinds, SUPPORTED))
    assert found == set(REGISTRY)


def test_every_activation_is_among_the_elementwise_functions():
    marked = {kind for kind, rule in REGISTRY.items() if rule.activation}
    assert marked == set().union(*map(kinds, ACTIVATIONS)) - {"reshape", "linear"}
