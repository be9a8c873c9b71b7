"""Where pixels come from, for tests that look at coordinate boxes."""

from tiltproof.bounds.coordinates import coordinates, symbols
from tiltproof.transforms import Spatial


def coordinates_of(transform, low, high, height, width):
    """Of the transform's first spatial stage."""
    run = next(run for kind, run in transform.stages() if kind is Spatial)
    return coordinates(transform, run, symbols(low, high), low, high, height, width)
