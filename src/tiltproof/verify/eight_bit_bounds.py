"""uint8 semantics of a network with bound rules: boxes that its bounds prove need no evaluation.

Over a box every rounded picture is among the forms of `rounded_form`, and the bounds of ``--semantics float32`` hold for every float32
evaluation of the module's operations: sums in any order, so any size of batches and number of threads. Such an evaluation is what the
program is, if it is a plain module that torch runs on a CPU; a session of onnxruntime, a compiled module or cuDNN may fuse layers or
convolve by other algorithms, and is enumerated. A lower bound L above the tolerance therefore says what an enumeration would find:

    margin as evaluated >= L > tolerance,  for every picture of the box

Whether boxes are bounded at all is decided by counts alone, so a resumed run decides alike; no verdict depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.pixels.chosen import ChosenPixels
from tiltproof.pixels.eight_bits import levels
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.prover import BackwardPolicy
from tiltproof.verify.rule_prover import prover_for
from tiltproof.verify.rules import Rule

COST = 8.0
"""Cost of bounding a box, in evaluations of one picture: 0.7 ms and 0.09 ms for mnist-r30."""
PICTURES_PER_STEP = 2.0
"""Pictures evaluated for each change of a pixel by one step: leaves with two open pixels hold up to four."""
TRIES = 4
"""Boxes of a size that are bounded before the share of them that was proved decides."""
HALVINGS = 8
"""How often a box is halved at most before it is enumerated."""
AT_ONCE = 64
"""Boxes bounded together."""


@dataclass
class Pieces:
    """Boxes [B] that together are those that were to be divided: their ends, the box that each belongs to, and a proved lower bound of
    the margin over each; minus infinity where there is none."""

    low: Tensor
    high: Tensor
    root: Tensor
    bound: Tensor

    @staticmethod
    def open(low: Tensor, high: Tensor, root: Tensor) -> Pieces:
        return Pieces(low, high, root, torch.full_like(low, -torch.inf))

    def part(self, which: Tensor) -> Pieces:
        return Pieces(self.low[which], self.high[which], self.root[which], self.bound[which])

    @staticmethod
    def join(parts: list[Pieces]) -> Pieces:
        """Return all pieces, those of each box together."""
        low, high, root, bound = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("low", "high", "root", "bound")
        )
        order = root.argsort(stable=True)
        return Pieces(low, high, root, bound).part(order)

    def halves(self) -> Pieces:
        """Return both halves of every box; they share the float between them."""
        middle = (self.low + self.high) / 2
        return Pieces.open(torch.cat([self.low, middle]), torch.cat([middle, self.high]), self.root.repeat(2))


class PictureBounds:
    """Lower bounds of the margins of all rounded pictures of a batch of images over boxes of one parameter."""

    def __init__(self, inputs: Inputs, rule: Rule | None) -> None:
        self.prover = prover_for(inputs, "affine", rule)
        self.prover.eight_bits = True
        self.policy = BackwardPolicy.on(inputs.images.device)
        self.tried = torch.zeros(HALVINGS + 1)
        self.won = torch.zeros(HALVINGS + 1)
        self.boxes = 0

    @classmethod
    def of(cls, inputs: Inputs, rule: Rule | None) -> PictureBounds | None:
        """Return the bounds of a program's evaluations; None if it has none."""
        network = inputs.bounded_network()
        if network is None:
            return None
        try:
            return cls(replace(inputs, network=network, semantics="float32", batch_sizes={}), rule)
        except InputError:  # constants that float32 evaluations cannot be bounded for
            return None

    def lower(self, row: int, low: Tensor, high: Tensor) -> Tensor:
        """Return lower bounds [B] of the margins of image ``row`` over boxes; NaN counts as minus infinity."""
        self.boxes += len(low)
        found = []
        for some in torch.arange(len(low)).split(AT_ONCE) if len(low) else ():
            images, ends = torch.full_like(some, row), (low[some].unsqueeze(1), high[some].unsqueeze(1))
            found.append(self.prover.bound(images, *ends, self.policy).bound.double())
        return torch.cat(found).nan_to_num(nan=-torch.inf) if found else low.new_empty(0)

    def divide(self, row: int, pixels: ChosenPixels, low: Tensor, high: Tensor, needed: float) -> Pieces:
        """Bound boxes, and halves of those that stay open, as long as that is likely to cost less than their pictures."""
        steps = changes(pixels, low, high)
        open_, done = Pieces.open(low, high, torch.arange(len(low))), []
        for level in range(HALVINGS + 1):
            pictures = PICTURES_PER_STEP * steps[open_.root] / 2.0**level
            untried = torch.ones(len(open_.low), dtype=torch.bool)
            for most in (max(0, TRIES - int(self.tried[level])), len(untried)):
                where = (untried & self._pays(pictures, level)).nonzero().flatten()
                where = where[:: max(1, len(where) // most)][:most] if most else where[:0]
                bound = self.lower(row, open_.low[where], open_.high[where])
                open_.bound[where], untried[where] = torch.where(bound > needed, bound, -torch.inf), False
                self.tried[level] += len(where)
                self.won[level] += int((bound > needed).sum())
            failed = ~untried & ~(open_.bound > needed)
            again = failed & self._pays(pictures / 2, level + 1) if level < HALVINGS else failed & False
            done.append(open_.part(~again))
            open_ = open_.part(again).halves()
            if not len(open_.low):
                break
        return Pieces.join(done)

    def _pays(self, pictures: Tensor, level: int) -> Tensor:
        """Return whether boxes after so many halvings, with about so many pictures each, are likely to cost less to bound."""
        likely = (self.won[level] + 1) / (self.tried[level] + 1)
        return pictures * likely > COST


def changes(pixels: ChosenPixels, low: Tensor, high: Tensor) -> Tensor:
    """Return by how many steps all pixels together differ between both ends of each box [B]: about so many thresholds are crossed."""
    found = []
    for ends in (low, high):
        number = torch.arange(pixels.count)
        box_of, each = torch.arange(len(ends)).repeat_interleave(len(number)), number.repeat(len(ends))
        first, last = levels(*pixels.bounds(ends, ends, box_of, each))
        found.append(((first + last) / 2).view(len(ends), -1))
    return (found[1] - found[0]).abs().sum(1)
