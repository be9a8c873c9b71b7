"""Branch and bound: one stack of (image, box) pairs; a box that is not done is probed at its middle and halved.

Each step bounds the top of the stack, so images are finished one after the other. The `Spec` defines what a bound is
and when a box is done. The state is on the device of the spec, and the host waits for it only where shapes depend on
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.options import Limits
from tiltproof.verify.partition import Tiling
from tiltproof.verify.results import Reason
from tiltproof.verify.spec import Spec
from tiltproof.verify.state import Frontier, Pairs, Search, SearchState

PRECISE_FROM = 8
"""Number of halvings from which boxes are bounded in float64, because only rounding may keep them open."""
SUSPECTS = 64
"""Likely counterexamples per confirmation, which takes as long as a single one."""
MOST_HALVINGS = 4
"""Most halvings of a box between two bounds, where that is cheaper than another step."""
EARLY = 1 / 4
"""Share of the budget up to which an image's boxes are halved more than once per step."""


class BranchingSearch(Search):
    """Branch and bound over a `Spec`; boxes halved at least ``precise_from`` times are bounded in float64."""

    def __init__(
        self, spec: Spec, tiling: Tiling, state: SearchState, limits: Limits, precise_from: int = PRECISE_FROM
    ) -> None:
        super().__init__(spec, tiling, state)
        self.limits, self.precise_from, self.first = limits, precise_from, self.tiling.first()
        fresh = spec.open_images(state)
        state.waiting[fresh] = len(self.first)
        none = Pairs(fresh[:0], self.first[slice(0, 0)], state.proved[:0])
        state.frontier = Frontier(fresh, none, torch.zeros_like(state.certified), [], [], SUSPECTS)

    @property
    def _unfinished(self) -> bool:
        frontier = self._frontier(self.state)
        return bool(len(frontier.stack) or len(frontier.fresh) or frontier.suspects)

    @staticmethod
    def _frontier(state: SearchState) -> Frontier:
        assert state.frontier is not None
        return state.frontier

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        """Search until no box is open."""
        while self._unfinished:
            self.commit(batch, self._step)
            report()

    def _step(self, state: SearchState, size: int) -> None:
        """Bound the top of the stack; probe and halve the boxes that are not done."""
        frontier = self._frontier(state)
        if not len(frontier.stack) and not len(frontier.fresh):
            self._confirm(state)
            return
        began = time.perf_counter()
        self._refill(frontier, size - len(frontier.stack))
        pairs, frontier.stack = frontier.stack[-size:], frontier.stack[: max(0, len(frontier.stack) - size)]
        low, high = self.tiling.bounds(pairs.boxes)
        precise = pairs.boxes.level.sum(1) >= self.precise_from
        outcome = self.spec.bound(state, pairs.image, low, high, precise, size)
        pairs.bound = self.spec.inherit(outcome.bound, pairs.bound)
        state.count(pairs.image, time.perf_counter() - began)
        done = self.spec.done(state, pairs.image, pairs.bound)
        left = (~done).nonzero().flatten()
        if len(left):
            middle = ((low[left] + high[left]) / 2).clamp(self.tiling.low, self.tiling.high)
            self._suspect(state, *self.spec.probe(state, pairs.image[left], middle))
            done = self.spec.done(state, pairs.image, pairs.bound)
            left = (~done).nonzero().flatten()
            self._branch(state, pairs[left], outcome.shares[left], size)
        state.settle(pairs.image, pairs.bound, done, low, high)
        state.settle_certified(pairs.image)

    def _refill(self, frontier: Frontier, boxes: int) -> None:
        """Put at least ``boxes`` boxes of the next images below the stack, the first image on top; all images at once
        would be copied repeatedly."""
        images = frontier.fresh[: max(0, -(-boxes // len(self.first)))]
        if len(images):
            rows = images.flip(0).repeat_interleave(len(self.first))
            unbounded = frontier.stack.bound.new_full((len(rows), self.spec.objectives), -torch.inf)
            below = Pairs(rows, self.first.repeat(len(images)), unbounded)
            frontier.stack = Pairs.join([below, frontier.stack])
            frontier.fresh = frontier.fresh[len(images) :]

    def _branch(self, state: SearchState, pairs: Pairs, shares: Tensor, size: int) -> None:
        """Halve the open boxes of images that continue; settle images that are falsified, suspected or out of budget."""
        frontier, rows = self._frontier(state), pairs.image
        spent = self.limits.spent(state.boxes[rows], state.seconds[rows]) | ~self.tiling.can_split(pairs.boxes).any(1)
        falsified = self.spec.falsified(state)
        settled = falsified | frontier.suspected
        wanting = (spent & ~settled[rows]).long()
        exhausted = torch.zeros_like(state.boxes).index_add_(0, rows, wanting) > 0
        hopeless = self._hopeless(state, pairs, settled | exhausted)
        exhausted = exhausted | hopeless
        leaving = settled | exhausted
        keep = (~leaving[rows]).nonzero().flatten()
        if len(keep) < len(rows):
            waiting = frontier.take(leaving)
            for part in (pairs, waiting):
                frontier.parked.append(part[frontier.suspected[part.image].nonzero().flatten()])
            state.splits.forget(rows[falsified[rows]])
            over = [part[exhausted[part.image].nonzero().flatten()] for part in (pairs, waiting)]
            if len(over[0]):
                self.spec.exhaust(state, self.tiling, *over)
                self._explain(state, over[0].image.unique().tolist(), hopeless)
        if len(keep):
            self._halve(state, pairs[keep], shares[keep], size)

    def _hopeless(self, state: SearchState, pairs: Pairs, settled: Tensor) -> Tensor:
        """Return the mask of images with a box that halving cannot prove; checked whenever an image's boxes have doubled."""
        hopeless = torch.zeros_like(settled)
        due = ((state.boxes >= state.next_look) & ~settled)[pairs.image].nonzero().flatten()
        if len(due):
            worst = due[pairs.bound[due].amin(1).argsort(stable=True)]
            images, which = pairs.image[worst].unique(return_inverse=True)
            number = torch.arange(len(worst), device=which.device)
            first = worst[torch.full_like(images, len(worst)).scatter_reduce(0, which, number, "amin")]
            hopeless[images] = self.spec.hopeless(images, *self.tiling.bounds(pairs.boxes[first]))
            state.next_look[images] = 2 * state.boxes[images]
        return hopeless

    def _explain(self, state: SearchState, images: list[int], hopeless: Tensor) -> None:
        """Note why these images are exhausted."""
        for image in images:
            if self.limits.max_seconds is not None and float(state.seconds[image]) >= self.limits.max_seconds:
                state.reasons[image] = Reason.SECONDS
            elif (
                bool(hopeless[image]) or int(state.boxes[image]) < self.limits.max_boxes
            ):  # or halved as often as possible
                state.reasons[image] = Reason.OPEN
            else:
                state.reasons[image] = Reason.BOXES

    def _halve(self, state: SearchState, pairs: Pairs, shares: Tensor, size: int) -> None:
        """Halve boxes. If a step is expensive and few boxes are left, halve the halves too, for images with most of
        their budget left."""
        frontier = self._frontier(state)
        room = 0 if len(frontier.fresh) else min(self.spec.cost.speculative_boxes, size) - len(frontier.stack)
        for more in reversed(range(MOST_HALVINGS)):
            axes = self.tiling.best_axes(pairs.boxes, shares)
            state.splits.note(pairs.image, pairs.boxes, axes)
            state.waiting.index_add_(0, pairs.image, torch.ones_like(pairs.image))  # one box less, and two more
            pairs = Pairs(pairs.image.repeat(2), pairs.boxes.split(axes), pairs.bound.repeat(2, 1))
            if not more or 2 * len(pairs) > room:
                break
            early = (state.boxes + state.waiting)[pairs.image] < self.limits.max_boxes * EARLY
            again = early & self.tiling.can_split(pairs.boxes).any(1)
            count = int(again.sum())
            if not count:
                break
            # a parameter's share of the slack falls with the square of the box's width
            shares = shares.scatter_add(1, axes.unsqueeze(1), -0.75 * shares.gather(1, axes.unsqueeze(1))).repeat(2, 1)
            if count < len(pairs):
                rest = pairs[(~again).nonzero().flatten()]
                frontier.stack = Pairs.join([frontier.stack, rest])
                chosen = again.nonzero().flatten()
                pairs, shares = pairs[chosen], shares[chosen]
        frontier.stack = Pairs.join([frontier.stack, pairs])

    def _suspect(self, state: SearchState, rows: Tensor, parameters: Tensor) -> None:
        """Add likely counterexamples; confirm them once there are enough. Until then their images wait."""
        if len(rows):
            frontier = self._frontier(state)
            frontier.suspects.append((rows, parameters))
            frontier.suspected[rows] = True
            if sum(len(some) for some, _ in frontier.suspects) >= frontier.most_suspects:
                self._confirm(state)

    def _confirm(self, state: SearchState) -> None:
        """Confirm the suspects. Images whose counterexample does not hold continue, and do not wait a second time."""
        frontier = self._frontier(state)
        rows, parameters = (torch.cat(each) for each in zip(*frontier.suspects, strict=True))
        self.spec.confirm(state, rows, parameters)
        falsified = self.spec.falsified(state)
        frontier.suspects, frontier.suspected = [], torch.zeros_like(frontier.suspected)
        state.splits.forget(rows[falsified[rows]])
        for pairs in frontier.parked:
            still = (~falsified[pairs.image]).nonzero().flatten()
            if len(still):
                frontier.most_suspects = 1
                frontier.stack = Pairs.join([frontier.stack, pairs[still]])
        frontier.parked = []
