"""Where to look at one image: points of the range, lines through the worst of them, and the proved boxes those lines cross."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.certify.attack import candidates
from tiltproof.certify.tiling import Boxes, Tiling
from tiltproof.certify.tree import leaves
from tiltproof.transforms import Transform

LINE_POINTS, MAP_POINTS, CLOUD_POINTS = 61, 17, 192
"""Points along a parameter, along either side of a map of two, and in a space of three or more."""
FEWER_LINE_POINTS = 41
MOST_CROSSED, MOST_LEAVES = 128, 65_536
"""Boxes bounded again for one line; boxes of a tiling that are listed at all."""
PIECES = 16
"""Equal boxes along a line where nothing was proved."""


class Range:
    """The range of a transformation, float64 on the CPU."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.low = torch.tensor(transform.low, dtype=torch.float64)
        self.high = torch.tensor(transform.high, dtype=torch.float64)

    def points(self) -> Tensor:
        """Parameters [Q, d] that show where margins are small: a line, a grid (the first parameter slowest) or a cloud."""
        count = len(self.low)
        if count == 1:
            return self.line(self.low, 0, LINE_POINTS)
        if count == 2:
            axes = [self._between(axis, MAP_POINTS) for axis in (0, 1)]
            return torch.cartesian_prod(*axes)
        units = candidates(CLOUD_POINTS, count, torch.Generator().manual_seed(0))
        return self.low + (self.high - self.low) * (units + 1) / 2

    def line(self, through: Tensor, axis: int, count: int) -> Tensor:
        """Evenly spaced along one parameter, both ends included, the others as in ``through``."""
        points = through.repeat(count, 1)
        points[:, axis] = self._between(axis, count)
        return points

    def pieces(self, through: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Equal boxes along a line, without extent in the other parameters."""
        line = self.line(through, axis, PIECES + 1)
        return line[:-1], line[1:]

    def around(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """A small box about a point, inside the range."""
        half = (self.high - self.low) / (2 * PIECES)
        return torch.maximum(point - half, self.low), torch.minimum(point + half, self.high)

    def tiles(self, grid: tuple[int, ...], tree: str) -> tuple[Tensor, Tensor] | None:
        """Lows and highs of the boxes of a tiling; None where there are too many to list."""
        nodes = leaves(grid, tree, MOST_LEAVES)
        if nodes is None:
            return None
        table = torch.tensor(nodes, dtype=torch.int64)
        low, high = Tiling(self.transform, grid).bounds(Boxes(*table.split(len(self.low), dim=1)))
        return torch.maximum(low, self.low), torch.minimum(high, self.high)  # as the user wrote the range

    def _between(self, axis: int, count: int) -> Tensor:
        return torch.linspace(float(self.low[axis]), float(self.high[axis]), count, dtype=torch.float64)


def crossed(tiles: tuple[Tensor, Tensor], through: Tensor, axis: int) -> Tensor:
    """Which boxes a line along one parameter runs through, in its order; where it runs along an edge, one of both sides."""
    low, high = tiles
    inside = (low <= through) & (through <= high)
    inside[:, axis] = True
    rows = inside.all(1).nonzero().flatten()
    rows = rows[low[rows, axis].argsort(stable=True)]
    chosen: list[int] = []
    for row in rows.tolist():
        # boxes that share the line as an edge overlap along it; the first of them covers it
        if not chosen or float(high[row, axis]) > float(high[chosen[-1], axis]):
            chosen.append(row)
    return torch.tensor(chosen, dtype=torch.int64)


def containing(tiles: tuple[Tensor, Tensor], point: Tensor) -> int:
    """A box that holds the point."""
    low, high = tiles
    return int(((low <= point) & (point <= high)).all(1).int().argmax())
