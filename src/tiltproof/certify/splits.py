"""Which boxes were halved while a search ran: noted as they come, put in order when a tiling is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.certify.tiling import Boxes
from tiltproof.certify.tree import Node

MANY = 2**20
"""Notes from which on those of forgotten images are thrown away, and again whenever there are twice as many as were left."""


class Splits:
    """Of images numbered from zero, ``count`` of them."""

    def __init__(self, count: int) -> None:
        self.kept = torch.ones(count, dtype=torch.bool)
        self.notes: list[
            Tensor
        ] = []  # image, index along each parameter, halvings along each, parameter of the next halving
        self.many = MANY
        self._ordered: tuple[list[Node], list[int], list[int]] | None = None

    def note(self, images: Tensor, boxes: Boxes, axes: Tensor) -> None:
        """Box p of image ``images[p]`` is halved along ``axes[p]``."""
        self.notes.append(torch.cat([images.unsqueeze(1), boxes.index, boxes.level, axes.unsqueeze(1)], 1))
        self._ordered = None

    def forget(self, images: Tensor) -> None:
        """Nobody will ask for these images' tilings."""
        self.kept[images] = False
        if sum(map(len, self.notes)) > self.many:
            notes = torch.cat(self.notes)
            self.notes, self._ordered = [notes[self.kept[notes[:, 0]]]], None
            self.many = max(MANY, 2 * len(self.notes[0]))

    def of(self, image: int) -> dict[Node, int]:
        """The boxes of an image that were halved, and along which parameter."""
        if self._ordered is None:
            self._ordered = self._order()
        nodes, axes, ends = self._ordered
        mine = slice(ends[image], ends[image + 1])
        return dict(zip(nodes[mine], axes[mine], strict=True))

    def _order(self) -> tuple[list[Node], list[int], list[int]]:
        """All notes by image: boxes, parameters, and where those of each image begin (and the last one's end)."""
        if not self.notes:
            return [], [], [0] * (len(self.kept) + 1)
        notes = torch.cat(self.notes)
        notes = notes[notes[:, 0].argsort(stable=True)]
        ends = torch.bincount(notes[:, 0], minlength=len(self.kept)).cumsum(0)
        columns = notes.T.tolist()
        return list(zip(*columns[1:-1], strict=True)), columns[-1], [0, *ends.tolist()]
