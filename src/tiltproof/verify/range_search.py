"""The search for a network's output range: boxes whose bounds stick out of what is wanted are halved.

Wanted is the range that evaluations are known to reach, and a little more. A box whose bounds lie inside is done; in any other the
middle is evaluated, which may widen what is known to be reached, and the box is halved. The certified range is the union of the
bounds of all boxes that are left: it holds whenever the search stops, and the budget only decides how tight it is.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import InnerRange
from tiltproof.verify.partition import Boxes, SplitLog, Tiling
from tiltproof.verify.range_prover import RangeOutcome, RangeProver
from tiltproof.verify.results import Budget
from tiltproof.verify.state import content


@dataclass(frozen=True)
class Wanted:
    """When a range is tight enough: ``excess``, relative to the width that is reached, or a width below ``width`` in any case."""

    excess: float = 0.05
    width: float = 0.0

    def ends(self, reached: InnerRange) -> tuple[Tensor, Tensor]:
        """What bounds of each image's boxes have to stay in, [N, K] each.

        An output that hardly moves is not worth a tighter range than a quarter of what is asked for on average.
        """
        half, middle = (reached.high - reached.low) / 2, (reached.high + reached.low) / 2
        slack = self.excess * torch.maximum(half, half.mean(0) / 4) + 1e-6 * (1 + middle.abs())
        half = (half + slack).clamp(min=self.width / 2)
        return middle - half, middle + half


class RangeSearch:
    """A stack of boxes to bound; the batch on top is bounded, so images are finished one after the other."""

    STATE: ClassVar[tuple[str, ...]] = (
        "boxes", "seconds", "complete", "lower", "upper", "covered", "leaves", "image", "stack", "above_lower", "above_upper",
    )  # fmt: skip

    def __init__(self, prover: RangeProver, reached: InnerRange, tiling: Tiling, wanted: Wanted) -> None:
        self.prover, self.reached, self.tiling, self.wanted = prover, reached, tiling, wanted
        count = len(reached.low)
        # of each image: boxes bounded, boxes whose bounds are in its range, and the content of these
        self.boxes, self.leaves, self.covered = torch.zeros(3, count, dtype=torch.int64)
        self.seconds = torch.zeros(count, dtype=torch.float64)
        self.complete = torch.ones(count, dtype=torch.bool)
        self.lower, self.upper = torch.full_like(reached.low, torch.inf), torch.full_like(reached.low, -torch.inf)
        self.splits = SplitLog(count)
        self.image = torch.empty(0, dtype=torch.int64)
        self.stack = tiling.first()[slice(0, 0)]
        # what holds for the boxes that those on the stack are halves of
        self.above_lower, self.above_upper = reached.low[:0], reached.low[:0]

    def work(self, batch: AdaptiveBatchSize, budget: Budget, report: Callable[[], None]) -> None:
        first, count = self.tiling.first(), len(self.reached.low)
        images = torch.arange(count).flip(0)  # the first image lies on top
        nothing = torch.full((count * len(first), self.reached.low.shape[1]), torch.inf, dtype=torch.float64)
        self._push(images.repeat_interleave(len(first)), first.repeat(count), -nothing, nothing)
        while len(self.image):
            batch.run(functools.partial(self._step, budget), (self, self.splits, self.reached))
            report()

    def _step(self, budget: Budget, size: int) -> None:
        """Bound the boxes on top of the stack; those whose bounds are not tight enough are halved."""
        began = time.perf_counter()
        rows, boxes, outcome = self._top(size)
        self.boxes += torch.bincount(rows, minlength=len(self.boxes))
        share = torch.full((len(rows),), (time.perf_counter() - began) / len(rows), dtype=torch.float64)
        self.seconds.index_add_(0, rows, share)
        self._place(rows, boxes, outcome, budget)

    def _top(self, size: int) -> tuple[Tensor, Boxes, RangeOutcome]:
        """Bound the boxes on top of the stack and take them off it. A half also obeys the bounds of its whole."""
        rows, boxes = self.image[-size:], self.stack[slice(-size, None)]
        low, high = (end.to(self.prover.device) for end in self.tiling.bounds(boxes))
        outcome = self.prover.bound(rows.to(self.prover.device), low, high).cpu()
        outcome.lower = torch.maximum(outcome.lower, self.above_lower[-size:])
        outcome.upper = torch.minimum(outcome.upper, self.above_upper[-size:])
        self._keep(slice(0, len(self.image) - len(rows)))
        return rows, boxes, outcome

    def _place(self, rows: Tensor, boxes: Boxes, outcome: RangeOutcome, budget: Budget) -> None:
        """Boxes that are tight enough are done; the others are halved as long as the budget lasts."""
        done = self._inside(rows, outcome)
        if not bool(done.all()):
            low, high = self.tiling.bounds(boxes[~done])
            middle = ((low + high) / 2).clamp(self.tiling.low, self.tiling.high)
            self.reached.evaluate(rows[~done], middle)
            done = self._inside(rows, outcome)
        spent = budget.spent(self.boxes[rows], self.seconds[rows]) | ~self.tiling.can_split(boxes).any(1)
        given_up = torch.isin(rows, rows[spent & ~done])
        settled = done | given_up
        self._settle(rows[settled], boxes[settled], outcome.lower[settled], outcome.upper[settled])
        if bool(given_up.any()):
            self._give_up(rows[given_up])
        rest = ~settled
        if bool(rest.any()):
            axes = self.tiling.best_axes(boxes[rest], outcome.shares[rest])
            self.splits.note(rows[rest], boxes[rest], axes)
            ends = outcome.lower[rest].repeat(2, 1), outcome.upper[rest].repeat(2, 1)
            self._push(rows[rest].repeat(2), boxes[rest].split(axes), *ends)

    def _inside(self, rows: Tensor, outcome: RangeOutcome) -> Tensor:
        low, high = self.wanted.ends(self.reached)
        return ((outcome.lower >= low[rows]) & (outcome.upper <= high[rows])).all(1)

    def _settle(self, rows: Tensor, boxes: Boxes, lower: Tensor, upper: Tensor) -> None:
        """These boxes stay as they are: the image's range is at least the union of their bounds."""
        self.leaves += torch.bincount(rows, minlength=len(self.leaves))
        self.covered.index_add_(0, rows, content(*self.tiling.bounds(boxes)))
        index = rows.unsqueeze(1).expand_as(lower)
        self.lower.scatter_reduce_(0, index, lower, "amin")
        self.upper.scatter_reduce_(0, index, upper, "amax")

    def _give_up(self, images: Tensor) -> None:
        """No budget left: boxes of these images that wait stay whole, with the bounds of what they are halves of."""
        self.complete[images] = False
        gone = torch.isin(self.image, images)
        self._settle(self.image[gone], self.stack[gone], self.above_lower[gone], self.above_upper[gone])
        self._keep(~gone)

    def _push(self, rows: Tensor, boxes: Boxes, lower: Tensor, upper: Tensor) -> None:
        self.image = torch.cat([self.image, rows])
        self.stack = Boxes.join([self.stack, boxes])
        self.above_lower = torch.cat([self.above_lower, lower])
        self.above_upper = torch.cat([self.above_upper, upper])

    def _keep(self, which: Tensor | slice) -> None:
        self.image, self.stack = self.image[which], self.stack[which]
        self.above_lower, self.above_upper = self.above_lower[which], self.above_upper[which]

    def trees(self) -> list[str]:
        """For each image the tiling whose boxes' bounds the range is the union of."""
        return self.splits.trees(tuple(self.tiling.base.tolist()))[0]

    def check_covered(self) -> None:
        """Raise unless the boxes in each image's range make up its tiling, and the tiling the whole range of parameters."""
        grid = tuple(self.tiling.base.tolist())
        halved = torch.tensor(self.splits.trees(grid)[1])
        everything = content(self.tiling.outer_low.unsqueeze(0), self.tiling.outer_high.unsqueeze(0))
        wrong = (self.covered != everything) | (self.leaves != math.prod(grid) + halved)
        if bool(wrong.any()):
            image = int(wrong.nonzero()[0])
            raise RuntimeError(f"image {image}: its range leaves out some parameters; please report this")
