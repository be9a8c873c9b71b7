"""Uniform splitting, the paper's way: a fixed grid, box by box over all images, so that images share a box's
coordinates."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.certify.ledger import Ledger
from tiltproof.certify.memory import Halving
from tiltproof.certify.tiling import Boxes
from tiltproof.certify.verdict import Budget


class UniformSearch(Ledger):
    """An image leaves at its first box that cannot be proved: falsified if the box's middle is a counterexample, else
    unknown.
    """

    def work(self, batch: Halving, budget: Budget, report: Callable[[], None]) -> None:
        boxes = self.tiling.first()
        images = self.attacker.alive()
        self.waiting[images] = len(boxes)
        start = 0
        while start < len(boxes) and len(images):
            chunk = torch.arange(start, min(len(boxes), start + max(1, batch.size // len(images))))
            rows, which = images.repeat(len(chunk)), chunk.repeat_interleave(len(images))
            done = 0
            while done < len(rows):
                began = time.perf_counter()
                piece = functools.partial(self._piece, rows[done:], boxes[which[done:]])
                mine, bound = batch.run(piece)
                passed = self.record(mine, bound, time.perf_counter() - began)
                if not bool(passed.all()):
                    self._leave(
                        mine[~passed], boxes[which[done : done + len(mine)][~passed]], bound[~passed], len(boxes)
                    )
                done += len(mine)
                report()
            start += len(chunk)
            self.settle_certified(images)
            images = self._still_open(images)
            if budget.seconds is not None and start < len(boxes):
                late = images[self.seconds[images] >= budget.seconds]
                self._leave(
                    late, boxes[torch.full_like(late, start)], torch.full((len(late),), -torch.inf).double(), len(boxes)
                )
                images = self._still_open(images)

    def _piece(self, rows: Tensor, boxes: Boxes, size: int) -> tuple[Tensor, Tensor]:
        """A box that fails is tried once more in float64: rounding alone may have kept it open."""
        rows, boxes = rows[:size], boxes[slice(0, size)]
        bound = self.bound(rows, boxes).bound
        failed = (~(bound > 0)).nonzero().flatten()
        if len(failed) and self.prover.dtype != torch.float64:
            bound[failed] = self.bound(rows[failed], boxes[failed], torch.ones(len(failed), dtype=torch.bool)).bound
        return rows, bound

    def _leave(self, rows: Tensor, boxes: Boxes, bound: Tensor, count: int) -> None:
        if not len(rows):
            return
        self.attack_middles(rows, boxes)
        low, high = self.tiling.bounds(boxes)
        for k, image in enumerate(rows.tolist()):
            if not bool(self.attacker.falsified[image]) and image not in self.settled:
                # the boxes not looked at have no bound, so with more than one there is none for the whole range
                self.settle_unknown(image, float(bound[k]) if count == 1 else -torch.inf, low[k], high[k])

    def _still_open(self, images: Tensor) -> Tensor:
        settled = torch.zeros(len(self.boxes), dtype=torch.bool)
        settled[list(self.settled)] = True
        return images[~settled[images] & ~self.attacker.falsified[images]]
