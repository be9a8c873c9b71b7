"""The search: all (image, box) pairs in one queue; what is not proved is attacked at its middle and split."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.certify.attack import Attacker
from tiltproof.certify.memory import Halving
from tiltproof.certify.prover import Outcome, Prover
from tiltproof.certify.tiling import Boxes, Tiling
from tiltproof.certify.verdict import Budget

CERTIFIED, FALSIFIED, UNKNOWN, OPEN = "certified", "falsified", "unknown", ""


class Search:
    """State of a run: a stack of boxes to prove and, per image, what is known so far. Works through images in order."""

    def __init__(
        self, prover: Prover, attacker: Attacker, tiling: Tiling, budget: Budget, batch: Halving, refine: bool
    ) -> None:
        self.prover, self.attacker, self.tiling, self.budget, self.batch = prover, attacker, tiling, budget, batch
        self.refine = refine
        count = len(prover.labels)
        self.state = [OPEN] * count
        self.boxes = torch.zeros(count, dtype=torch.int64)
        self.seconds = torch.zeros(count, dtype=torch.float64)
        self.proved = torch.full((count,), torch.inf, dtype=torch.float64)  # least bound over proved boxes
        self.open_box: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self.open_bound: dict[int, float] = {}
        rows = attacker.alive().flip(0)  # a stack: the first image is taken first
        first = tiling.first()
        self.image = rows.repeat_interleave(len(first))
        self.stack = first.repeat(len(rows))
        self.inherited = torch.full((len(self.image),), -torch.inf, dtype=torch.float64)
        self.waiting = torch.bincount(self.image, minlength=count)  # boxes of each image still on the stack

    def work(self, report: Callable[[], None]) -> None:
        while len(self.image):
            began = time.perf_counter()
            rows, outcome, taken = self.batch.run(self._bound_some)
            self._record(rows, taken, outcome)
            self.seconds.index_add_(0, rows, torch.full((len(rows),), (time.perf_counter() - began) / max(1, len(rows))).double())
            report()

    def _bound_some(self, size: int) -> tuple[Tensor, Outcome, Boxes]:
        """Bound the boxes on top of the stack; only on success are they taken off it."""
        rows, boxes = self.image[-size:], self.stack[slice(-size, None)]
        device = self.prover.labels.device
        low, high = self.tiling.bounds(boxes)
        outcome = self.prover.bound(rows.to(device), low.to(device), high.to(device))
        outcome = Outcome(outcome.bound.cpu(), outcome.forward.cpu(), outcome.shares.cpu())
        keep = len(self.image) - len(rows)
        self.image, self.stack, self.inherited = self.image[:keep], self.stack[slice(0, keep)], self.inherited[:keep]
        return rows, outcome, boxes

    def _record(self, rows: Tensor, boxes: Boxes, outcome: Outcome) -> None:
        self.boxes += torch.bincount(rows, minlength=len(self.boxes))
        self.waiting -= torch.bincount(rows, minlength=len(self.boxes))
        passed = outcome.bound > 0
        self.proved.scatter_reduce_(0, rows[passed], outcome.bound[passed], "amin")
        failed = (~passed).nonzero().flatten()
        if len(failed):
            self._open(rows[failed], boxes[failed], outcome.bound[failed], outcome.shares[failed])
        for image in rows[passed].unique().tolist():
            if self.state[image] == OPEN and self.waiting[image] == 0:
                self.state[image] = CERTIFIED

    def _open(self, rows: Tensor, boxes: Boxes, bound: Tensor, shares: Tensor) -> None:
        """Boxes that were not proved: look for a counterexample in their middle, then split them."""
        low, high = self.tiling.bounds(boxes)
        middle = ((low + high) / 2).clamp(self.tiling.low, self.tiling.high)
        margin = self.attacker.margins_at(rows, middle)
        self.attacker.confirm(rows[margin < 0], middle[margin < 0])
        can = self.tiling.can_split(boxes)
        spent = (self.boxes[rows] >= self.budget.boxes) | ~can.any(1)
        if not self.refine:
            spent[:] = True
        if self.budget.seconds is not None:
            spent |= self.seconds[rows] >= self.budget.seconds
        falsified = self.attacker.falsified[rows]
        unknown = torch.isin(rows, rows[spent & ~falsified])
        finished = falsified | unknown
        if bool(finished.any()):
            for image in rows[falsified].unique().tolist():
                self.state[image] = FALSIFIED
            self._give_up(rows[unknown], bound[unknown], low[unknown], high[unknown])
            self._drop(rows[finished])
        keep = ~finished
        if bool(keep.any()):
            score = torch.where(can[keep], shares[keep] + self._fallback(boxes[keep]), -1.0)
            self._push(rows[keep].repeat(2), boxes[keep].split(score.argmax(1)), bound[keep].repeat(2))

    def _give_up(self, rows: Tensor, bound: Tensor, low: Tensor, high: Tensor) -> None:
        """Unknown images: the worst open box, and a bound that also counts the boxes never looked at (their parents' bounds)."""
        for image in rows.unique().tolist():
            self.state[image] = UNKNOWN
            mine = (rows == image).nonzero().flatten()
            worst = mine[bound[mine].argmin()]
            waiting = self.inherited[self.image == image]
            self.open_bound[image] = min([float(bound[worst]), *waiting.tolist()])
            self.open_box[image] = (tuple(low[worst].tolist()), tuple(high[worst].tolist()))

    def _fallback(self, boxes: Boxes) -> Tensor:
        """A tiny preference for the least split axis, which decides when the shares say nothing."""
        return 1e-12 * 0.5 ** boxes.level.double()

    def _push(self, rows: Tensor, boxes: Boxes, inherited: Tensor) -> None:
        self.image = torch.cat([self.image, rows])
        self.stack = Boxes.join([self.stack, boxes])
        self.inherited = torch.cat([self.inherited, inherited])
        self.waiting += torch.bincount(rows, minlength=len(self.waiting))

    def _drop(self, images: Tensor) -> None:
        """Forget the waiting boxes of finished images."""
        gone = torch.zeros(len(self.state), dtype=torch.bool)
        gone[images] = True
        keep = ~gone[self.image]
        self.image, self.stack, self.inherited = self.image[keep], self.stack[keep], self.inherited[keep]
        self.waiting[gone] = 0
