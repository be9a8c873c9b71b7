"""Which boxes were halved while a search ran: noted as they come, put in order when a tiling is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.certify.tiling import Boxes
from tiltproof.certify.tree import line_trees, tree_text

MANY = 2**20
"""Notes from which on those of forgotten images are thrown away, and again whenever there are twice as many as were left."""

MOST = 2**60
"""Numbers of places in all images up to which they can be told apart by one integer."""


class Splits:
    """Of images numbered from zero, ``count`` of them."""

    def __init__(self, count: int) -> None:
        self.kept = torch.ones(count, dtype=torch.bool)
        # image, index along each parameter, halvings along each, parameter of the next halving
        self.notes: list[Tensor] = []
        self.noted, self.many = 0, MANY

    def note(self, images: Tensor, boxes: Boxes, axes: Tensor) -> None:
        """Box p of image ``images[p]`` is halved along ``axes[p]``."""
        self.notes.append(torch.cat([images.unsqueeze(1), boxes.index, boxes.level, axes.unsqueeze(1)], 1))
        self.noted += len(axes)

    def forget(self, images: Tensor) -> None:
        """Nobody will ask for these images' tilings."""
        self.kept[images] = False
        if self.noted > self.many:
            notes = torch.cat(self.notes)
            self.notes = [notes[self.kept[notes[:, 0]]]]
            self.noted = len(self.notes[0])
            self.many = max(MANY, 2 * self.noted)

    def trees(self, grid: tuple[int, ...]) -> tuple[list[str], list[int]]:
        """Of each image: the tiling of a range that was cut into ``grid`` to begin with, and how many boxes were halved."""
        count, axes = len(self.kept), len(grid)
        notes = torch.cat(self.notes) if self.notes else torch.empty(0, 2 * axes + 2, dtype=torch.int64)
        notes = notes[self.kept[notes[:, 0]]]
        halved = torch.bincount(notes[:, 0], minlength=count).tolist()
        if axes == 1 and count * grid[0] * 2 ** (1 + int(notes[:, 2].max() if len(notes) else 0)) < MOST:
            image, index, level, _ = notes.unbind(1)
            return line_trees(grid[0], image, index, level, count), halved
        notes = notes[notes[:, 0].argsort(stable=True)]
        columns = notes.T.tolist()
        nodes, next_axes, start, trees = list(zip(*columns[1:-1], strict=True)), columns[-1], 0, []
        for number in halved:
            mine = slice(start, start + number)
            trees.append(tree_text(grid, dict(zip(nodes[mine], next_axes[mine], strict=True))))
            start += number
        return trees, halved
