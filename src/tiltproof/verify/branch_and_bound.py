"""Adaptive search: all (image, box) pairs on one stack; what is not proved is attacked at its middle and split."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import Attacker
from tiltproof.verify.partition import Boxes, Tiling
from tiltproof.verify.prover import Outcome, Prover
from tiltproof.verify.results import Budget
from tiltproof.verify.state import SearchState

PRECISE_FROM = 8
"""Boxes that were halved this often are bounded in float64: what keeps them open may be rounding alone."""

SUSPECTS = 64
"""Likely counterexamples that are confirmed at once; a single one takes as long."""

MOST_HALVINGS, EARLY = 4, 1 / 4
"""Of a box between two bounds, where that is better than another step; and the share of its budget up to which an image's are."""


class AdaptiveSearch(SearchState):
    """A stack of boxes to prove; the batch on top is bounded, so images are finished one after the other.

    Boxes that were halved ``precise_from`` times or more are bounded in float64. The books are kept on the prover's device, and the host
    waits for it only where shapes depend on what was found.
    """

    STATE: ClassVar[tuple[str, ...]] = (
        *SearchState.STATE, "fresh", "image", "stack", "inherited", "suspects", "suspected", "parked", "most_suspects", "size",
    )  # fmt: skip

    def __init__(self, prover: Prover, attacker: Attacker, tiling: Tiling, precise_from: int = PRECISE_FROM) -> None:
        super().__init__(prover, attacker, tiling, prover.labels.device)
        self.precise_from = precise_from

    def work(self, batch: AdaptiveBatchSize, budget: Budget, report: Callable[[], None]) -> None:
        self.fresh, self.first = self.attacker.alive().to(self.device), self.tiling.first()
        self.waiting[self.fresh] = len(self.first)
        self.image, self.inherited = self.fresh[:0], self.proved[:0]
        self.stack = self.first[slice(0, 0)]
        # likely counterexamples, whose they are, and these images' boxes, which wait until they are confirmed or not
        self.suspects: list[tuple[Tensor, Tensor]] = []
        self.suspected = torch.zeros_like(self.certified)
        self.parked: list[tuple[Tensor, Boxes, Tensor]] = []
        self.most_suspects, self.size = SUSPECTS, batch.size
        while len(self.image) or len(self.fresh) or self.suspects:
            batch.run(functools.partial(self._step, budget), self.changes())
            report()

    def _step(self, budget: Budget, size: int) -> None:
        """Bound the boxes on top of the stack; those that are not proved are split."""
        if not len(self.image) and not len(self.fresh):
            self._confirm()
            return
        began = time.perf_counter()
        rows, boxes, (low, high), outcome = self._top(size)
        left = (~(outcome.bound > 0)).nonzero().flatten()
        self.record(rows, outcome.bound, low, high, time.perf_counter() - began)
        if len(left):
            shares = outcome.shares[left]
            self._open(rows[left], boxes[left], low[left], high[left], outcome.bound[left], shares, budget)
        self.settle_certified(rows)

    def _top(self, size: int) -> tuple[Tensor, Boxes, tuple[Tensor, Tensor], Outcome]:
        """Bound the boxes on top of the stack, which have these ends, and take them off it."""
        self.size = size
        self._begin(size - len(self.image))
        if not len(self.image) == len(self.stack) == len(self.inherited):
            raise RuntimeError("boxes and the images they belong to are out of step; please report this")
        rows, boxes = self.image[-size:], self.stack[slice(-size, None)]
        ends = self.tiling.bounds(boxes)
        outcome = self.bound(rows, *ends, boxes.level.sum(1) >= self.precise_from, size)
        keep = slice(0, len(self.image) - len(rows))
        self.image, self.stack, self.inherited = self.image[keep], self.stack[keep], self.inherited[keep]
        return rows, boxes, ends, outcome

    def _begin(self, boxes: int) -> None:
        """Lay so many boxes, or a few more, below the stack: those of the next images, the first of them on top. All at once they would
        be copied again and again."""
        rows = self.fresh[: max(0, -(-boxes // len(self.first)))]
        if len(rows):
            image = rows.flip(0).repeat_interleave(len(self.first))
            none = self.proved.new_full((len(image),), -torch.inf)
            self.stack = Boxes.join([self.first.repeat(len(rows)), self.stack])
            self.image, self.inherited = torch.cat([image, self.image]), torch.cat([none, self.inherited])
            self.fresh = self.fresh[len(rows) :]

    def _open(
        self, rows: Tensor, boxes: Boxes, low: Tensor, high: Tensor, bound: Tensor, shares: Tensor, budget: Budget
    ) -> None:
        """Boxes that were not proved: look for a counterexample in their middle, then split them."""
        self._suspect(*self.wrong_middles(rows, low, high))
        spent = budget.spent(self.boxes[rows], self.seconds[rows]) | ~self.tiling.can_split(boxes).any(1)
        falsified, suspected = self.attacker.falsified.to(self.device)[rows], self.suspected[rows]
        wanting = (spent & ~falsified & ~suspected).long()
        unknown = torch.zeros_like(self.boxes).index_add_(0, rows, wanting)[rows] > 0
        keep = (~(falsified | suspected | unknown)).nonzero().flatten()
        if len(keep) < len(rows):
            self.parked.append((rows[suspected], boxes[suspected.nonzero().flatten()], bound[suspected]))
            self._give_up(rows[unknown], low[unknown], high[unknown], bound[unknown])
            self.splits.forget(rows[falsified | unknown])
            self._clear(rows[falsified | unknown])
        if len(keep):
            self._split(rows[keep], boxes[keep], bound[keep], shares[keep], budget)

    def _split(self, rows: Tensor, boxes: Boxes, bound: Tensor, shares: Tensor, budget: Budget) -> None:
        """Halve boxes; where steps are dear and few boxes are left at all, halve halves too, of images with most of their budget."""
        room = 0 if len(self.fresh) else min(self.prover.few, self.size) - len(self.image)
        for left in reversed(range(MOST_HALVINGS)):
            axes = self.tiling.best_axes(boxes, shares)
            self.splits.note(rows, boxes, axes)
            self.waiting.index_add_(0, rows, torch.ones_like(rows))  # one box less, and two more
            rows, boxes, bound = rows.repeat(2), boxes.split(axes), bound.repeat(2)
            if not left or 2 * len(rows) > room:
                self._push(rows, boxes, bound)
                return
            early = (self.boxes + self.waiting)[rows] < budget.boxes * EARLY
            more = early & self.tiling.can_split(boxes).any(1)
            count = int(more.sum())
            if not count:
                self._push(rows, boxes, bound)
                return
            # what a parameter is to blame for falls with the square of the box's width
            shares = shares.scatter_add(1, axes.unsqueeze(1), -0.75 * shares.gather(1, axes.unsqueeze(1))).repeat(2, 1)
            if count < len(rows):
                going, done = (which.nonzero().flatten() for which in (more, ~more))
                self._push(rows[done], boxes[done], bound[done])
                rows, boxes, bound, shares = rows[going], boxes[going], bound[going], shares[going]

    def _push(self, rows: Tensor, boxes: Boxes, bound: Tensor) -> None:
        self.image = torch.cat([self.image, rows])
        self.stack = Boxes.join([self.stack, boxes])
        self.inherited = torch.cat([self.inherited, bound])

    def _give_up(self, rows: Tensor, low: Tensor, high: Tensor, bound: Tensor) -> None:
        """Unknown images: the worst open box, and a bound that also counts the boxes not looked at (their
        parents' bounds)."""
        for image in rows.unique().tolist():
            mine = (rows == image).nonzero().flatten()
            worst = mine[bound[mine].argmin()]
            waiting = self.inherited[self.image == image].tolist()
            self.settle_unknown(image, min([float(bound[worst]), *waiting]), low[worst], high[worst])

    def _suspect(self, rows: Tensor, parameters: Tensor) -> None:
        """Likely counterexamples of images. Once there are enough they are confirmed; until then these images wait."""
        if len(rows):
            self.suspects.append((rows, parameters))
            self.suspected[rows] = True
            if sum(len(some) for some, _ in self.suspects) >= self.most_suspects:
                self._confirm()

    def _confirm(self) -> None:
        """Images whose counterexample does not hold go on from where they were, and are not kept waiting a second time."""
        rows, parameters = (torch.cat(each) for each in zip(*self.suspects, strict=True))
        self.attacker.confirm(rows.cpu(), parameters.cpu())
        falsified = self.attacker.falsified.to(self.device)
        self.suspects, self.suspected = [], torch.zeros_like(self.suspected)
        self.splits.forget(rows[falsified[rows]])
        for image, boxes, bound in self.parked:
            still = (~falsified[image]).nonzero().flatten()
            if len(still):
                self.most_suspects = 1
                self._push(image[still], boxes[still], bound[still])
        self.parked = []

    def _clear(self, images: Tensor) -> None:
        """Take the boxes of finished images off the stack, and those of suspected ones, which are put aside."""
        gone = self.suspected.clone()
        gone[images] = True
        keep, aside = (~gone[self.image]).nonzero().flatten(), self.suspected[self.image].nonzero().flatten()
        self.parked.append((self.image[aside], self.stack[aside], self.inherited[aside]))
        self.image, self.stack, self.inherited = self.image[keep], self.stack[keep], self.inherited[keep]
