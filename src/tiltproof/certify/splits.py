"""Which boxes were halved while a search ran: noted as they come, put in order when a tiling is asked for."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from tiltproof.certify.tiling import Boxes
from tiltproof.certify.tree import tree_texts

MANY = 2**20
"""Notes from which on those of forgotten images are thrown away, and again whenever there are twice as many as were left."""


class Splits:
    """Of images numbered from zero, ``count`` of them; boxes are on ``device``."""

    STATE: ClassVar[tuple[str, ...]] = ("kept", "notes", "noted", "many")

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.kept = torch.ones(count, dtype=torch.bool, device=device)
        # image, index along each parameter, halvings along each, parameter of the next halving
        self.notes: list[Tensor] = []
        self.noted, self.many = 0, MANY

    def note(self, images: Tensor, boxes: Boxes, axes: Tensor) -> None:
        """Box p of image ``images[p]`` is halved along ``axes[p]``."""
        self.notes.append(torch.cat([images.unsqueeze(0), boxes.index.T, boxes.level.T, axes.unsqueeze(0)]))
        self.noted += len(axes)

    def forget(self, images: Tensor) -> None:
        """Nobody will ask for these images' tilings."""
        self.kept[images] = False
        if self.noted > self.many:
            self.notes = [self._joined()]
            self.noted = len(self.notes[0][0])
            self.many = max(MANY, 2 * self.noted)

    def trees(self, grid: tuple[int, ...]) -> tuple[list[str], list[int]]:
        """Of each image: the tiling of a range that was cut into ``grid`` to begin with, and how many boxes were halved."""
        count, axes = len(self.kept), len(grid)
        notes = (
            self._joined() if self.notes else torch.empty(2 * axes + 2, 0, dtype=torch.int64, device=self.kept.device)
        )
        (image,), index, level, (axis,) = notes.split([1, axes, axes, 1])
        return tree_texts(grid, count, image, index, level, axis), image.bincount(minlength=count).tolist()

    def _joined(self) -> Tensor:
        """All notes of images that are not forgotten."""
        notes = torch.cat(self.notes, 1)
        return notes[:, self.kept[notes[0]]]
