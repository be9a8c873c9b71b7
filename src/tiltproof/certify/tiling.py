"""Boxes of parameters as integers, so that a tiling of the user's range has no gap by construction.

Along each axis the range is cut into ``base`` equal parts, each halved ``level`` times; a box is number ``index`` of
the ``base * 2**level`` pieces. The edge between pieces m-1 and m lies at t = m / (base * 2**level) of the range.
Division rounds correctly, so equal fractions give the very same float t, and `_edge` is a function of t alone:
neighbours of any level share their edge to the last bit. A chain of intervals with shared ends covers everything
between its two outer ends, whatever rounding did to the inner ones; the outer ends are the range's own, moved out by
one unit in the last place so that a decimal such as 0.1, which no float equals, is covered as well.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Transform

DEEPEST = 2**44
"""Most pieces along one axis; far below 2**53, up to which indices are exact as floats."""


class Tiling:
    """The range of a transform, cut into ``base`` parts along each axis to begin with."""

    def __init__(self, transform: Transform, base: tuple[int, ...]) -> None:
        self.low = torch.tensor(transform.low, dtype=torch.float64)
        self.high = torch.tensor(transform.high, dtype=torch.float64)
        self.base = torch.tensor(base, dtype=torch.int64)
        if not bool(torch.isfinite(self.high - self.low).all()):
            raise InputError("the range is too wide for floating point", got=str(transform))
        infinity = torch.tensor(torch.inf, dtype=torch.float64)
        self.outer_low, self.outer_high = self.low.nextafter(-infinity), self.high.nextafter(infinity)

    def on(self, device: torch.device) -> Tiling:
        """The same, for boxes on a device: every operation there is a single one that IEEE 754 defines, so edges are too."""
        other = copy(self)
        vars(other).update({name: tensor.to(device) for name, tensor in vars(self).items()})
        return other

    def first(self) -> Boxes:
        """All boxes of level 0: the uniform grid."""
        axes = [torch.arange(count, device=self.base.device) for count in self.base.tolist()]
        index = torch.cartesian_prod(*axes).view(-1, len(axes))
        return Boxes(index, torch.zeros_like(index))

    def bounds(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """Lower and upper parameter values of each box, float64 [P, d]."""
        first, second = self._edge(torch.stack([boxes.index, boxes.index + 1]), boxes.level)
        return torch.minimum(first, second), torch.maximum(first, second)

    def _edge(self, index: Tensor, level: Tensor) -> Tensor:
        pieces = self.base << level
        t = index.double() / pieces.double()
        inner = (self.low + (self.high - self.low) * t).clamp(self.low, self.high)
        edge = torch.where(index == 0, self.outer_low, inner)
        return torch.where(index == pieces, self.outer_high, edge)

    def can_split(self, boxes: Boxes) -> Tensor:
        """Whether another halving stays within the exact integers, [P, d]."""
        return self.base << (boxes.level + 1) <= DEEPEST

    def best_axes(self, boxes: Boxes, shares: Tensor) -> Tensor:
        """Along which parameter to halve each box [P]: the one with the largest share of the slack, of those that can be halved.

        A tiny preference for the least split axis decides where the shares say nothing. A choice of work, not part of any bound.
        """
        score = shares + 1e-12 * 0.5 ** boxes.level.double()
        return torch.where(self.can_split(boxes), score, -1.0).argmax(1)


@dataclass
class Boxes:
    """Some boxes of a tiling: int64 [P, d] each."""

    index: Tensor
    level: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Tensor | slice) -> Boxes:
        return Boxes(self.index[rows], self.level[rows])

    def split(self, axis: Tensor) -> Boxes:
        """Both halves of each box along its own axis [P]: all lower halves, then all upper ones."""
        # 1 along the axis; `one_hot` would wait for a GPU to look at its numbers
        step = (axis.unsqueeze(1) == torch.arange(self.index.shape[1], device=axis.device)).long()
        index, level = self.index * (1 + step), self.level + step
        return Boxes(torch.cat([index, index + step]), torch.cat([level, level]))

    def repeat(self, times: int) -> Boxes:
        return Boxes(self.index.repeat(times, 1), self.level.repeat(times, 1))

    @staticmethod
    def join(parts: list[Boxes]) -> Boxes:
        return Boxes(torch.cat([part.index for part in parts]), torch.cat([part.level for part in parts]))
