"""The paper's running example of Algorithm 1 (scaling by +-2 % of a 3x3 image), number for number."""

import torch

from tiltproof import bound_pixels, parse
from tiltproof.enclosures.affine_form import Interval
from tiltproof.pixels.coordinates import interval_coordinates
from tiltproof.pixels.fgv import interpolate, make_grid

IMAGE = torch.tensor([[0.55, 0.50, 0.42], [0.53, 0.49, 0.51], [0.56, 0.62, 0.45]], dtype=torch.float64)
LOWER = [[0.53, 0.49, 0.40], [0.52, 0.49, 0.50], [0.54, 0.61, 0.43]]
UPPER = [[0.57, 0.51, 0.44], [0.54, 0.49, 0.52], [0.58, 0.63, 0.47]]


def grid_of_the_example():
    low, high = torch.tensor([[-2.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    columns, rows = interval_coordinates(parse("Sc(2)"), [0], low, high, 3, 3)
    return make_grid(*(Interval(axis.lower.flatten(), axis.upper.flatten()) for axis in (columns, rows)), 3, 3)


def significant(grid):
    """Drop entries that only the rounding slack keeps from being zero."""
    return grid.weights.upper > 1e-9


def test_sparse_grid():
    """Lines 2 to 12: each pixel's number of entries, their positions, and the printed interpolation distances."""
    grid = grid_of_the_example()
    keep = significant(grid)
    pixel = torch.repeat_interleave(torch.arange(9), grid.counts)[keep]
    assert torch.bincount(pixel).tolist() == [4, 2, 4, 2, 1, 2, 4, 2, 4]
    assert grid.rows[keep].tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1, 2, 2]
    assert grid.columns[keep].tolist() == [0, 1, 0, 1, 1, 1, 1, 2, 1, 2, 0, 1, 1, 1, 2, 0, 1, 0, 1, 1, 1, 1, 2, 1, 2]
    first = [round(value, 2) for value in grid.weights.lower[keep][:4].tolist()]
    last = [round(value, 2) for value in grid.weights.upper[keep][:3].tolist()]
    assert first == [0.96, 0.0, 0.0, 0.0]
    assert last == [1.0, 0.02, 0.02]
    assert f"{float(grid.weights.upper[keep][3]):.0e}" == "4e-04"


def test_pixels():
    """Lines 18 to 20: the transformed image's bounds as printed."""
    image = IMAGE.view(1, 1, 3, 3)
    direct = interpolate(Interval(image, image), grid_of_the_example())
    bounds = bound_pixels(image, "Sc(2)", method="fgv")
    for lower, upper in ((direct.lower.view(3, 3), direct.upper.view(3, 3)), (bounds.lower[0, 0], bounds.upper[0, 0])):
        assert [[round(value, 2) for value in row] for row in lower.tolist()] == LOWER
        assert [[round(value, 2) for value in row] for row in upper.tolist()] == UPPER


def test_hull_is_tighter():
    image = IMAGE.view(1, 1, 3, 3)
    exact, paper = bound_pixels(image, "Sc(2)", "hull"), bound_pixels(image, "Sc(2)", "fgv")
    assert bool((exact.lower >= paper.lower).all())
    assert bool((exact.upper <= paper.upper).all())
    assert float(exact.width.mean()) < 0.6 * float(paper.width.mean())
