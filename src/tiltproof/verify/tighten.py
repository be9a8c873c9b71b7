"""Margins worth comparing: boxes of certified images are halved until the proved margin is close to one that is reached.

An image is certified before any of this, and stays so: each box keeps the bound that it, or the box it is a half of, had
already. The proved margin is the least bound of all boxes; the reached one is an upper bound of the exact margin at one
parameter vector. The exact least margin lies between the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import Counterexamples
from tiltproof.verify.branch_and_bound import BranchingSearch
from tiltproof.verify.spec import ClassificationSpec
from tiltproof.verify.state import Boxes, Pairs, Search, SearchState, content, leaves

SAMPLES, STEPS = 64, 10
"""The attack that looks for the least margin of certified images."""


@dataclass
class Slack:
    """The boxes of certified images: ``waiting`` ones with the bounds of those they are halves of, and ``bounded`` ones.
    ``at``, ``reached``: for each image the parameters of the least margin found [N, d], and that margin."""

    waiting: Pairs
    bounded: Pairs
    at: Tensor
    reached: Tensor


class TighteningSearch(Search):
    """Continues a finished search until each certified image's proved margin is at least 1 - ``excess`` times the least
    margin found, or its budget is spent."""

    state: SearchState
    spec: ClassificationSpec

    def __init__(self, search: BranchingSearch, excess: float) -> None:
        super().__init__(search.spec, search.tiling, search.state)
        self.limits, self.excess, self.precise_from = search.limits, excess, search.precise_from
        known: Counterexamples = self.state.witnesses
        self.rows = (self.state.certified.cpu() & known.correct & ~known.falsified).nonzero().flatten()
        boxes, count = self._leaves(), len(known.correct)
        waiting = Pairs(boxes.image, boxes.boxes, self.state.proved[boxes.image])
        at = torch.zeros(count, len(self.tiling.low), dtype=torch.float64)
        reached = torch.full((count,), torch.inf, dtype=torch.float64)
        self.state.slack = Slack(waiting, waiting[slice(0, 0)], at, reached)

    def _leaves(self) -> Pairs:
        """Return the boxes of the certified images' tilings."""
        grid = tuple(self.tiling.base.tolist())
        trees, _ = self.state.splits.trees(grid)
        images, nodes = [], []
        for row in self.rows.tolist():
            found = leaves(grid, trees[row], most=2**40) or []
            nodes += found
            images += [row] * len(found)
        device = self.state.device
        table = torch.tensor(nodes, dtype=torch.int64, device=device).view(len(nodes), 2 * len(grid))
        index, level = table[:, : len(grid)], table[:, len(grid) :]
        image = torch.tensor(images, dtype=torch.int64, device=device)
        return Pairs(image, Boxes(index.contiguous(), level.contiguous()), self.state.proved[image])

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        if not len(self.rows):
            return
        self._look_for_least()
        while True:
            while len(self._slack(self.state).waiting):
                self.commit(batch, self._bound)
                report()
            if not self.commit(batch, self._halve):
                break
        self._finish()

    @staticmethod
    def _slack(state: SearchState) -> Slack:
        slack: Slack | None = state.slack
        assert slack is not None
        return slack

    def _look_for_least(self) -> None:
        """Attack the images, from scratch, so that the parameters of the least margins are known."""
        known: Counterexamples = self.state.witnesses
        fresh = Counterexamples(
            known.correct, torch.full_like(known.margin, torch.inf), known.falsified.clone(), known.found.copy()
        )
        attacker, slack = self.spec.attacker, self._slack(self.state)
        slack.at[:] = attacker.at(attacker.search(fresh, self.rows, SAMPLES, STEPS))
        slack.reached[self.rows] = fresh.margin[self.rows]

    def _bound(self, state: SearchState, size: int) -> None:
        """Bound waiting boxes; each keeps what it was proved with before."""
        began, size, slack = time.perf_counter(), min(size, self.spec.cost.most_boxes), self._slack(state)
        pairs, slack.waiting = slack.waiting[slice(0, size)], slack.waiting[slice(size, None)]
        low, high = self.tiling.bounds(pairs.boxes)
        precise = pairs.boxes.level.sum(1) >= self.precise_from
        outcome = self.spec.bound(state, pairs.image, low, high, precise, size)
        # fmax: a NaN proves nothing
        pairs.bound = torch.fmax(outcome.bound, pairs.bound)
        state.count(pairs.image, time.perf_counter() - began)
        slack.bounded = Pairs.join([slack.bounded, pairs])

    def _halve(self, state: SearchState, size: int) -> bool:
        """Halve all boxes whose bounds are too low, of images with budget left; return whether there are any."""
        slack, device = self._slack(state), state.device
        pairs = slack.bounded
        target = (slack.reached * (1 - self.excess)).to(device)
        spent = self.limits.spent(state.boxes, state.seconds)
        low = (pairs.bound[:, 0] < target[pairs.image]) & ~spent[pairs.image]
        low &= self.tiling.can_split(pairs.boxes).any(1)
        chosen = low.nonzero().flatten()
        if not len(chosen):
            return False
        parents = pairs[chosen]
        begin, end = self.tiling.bounds(parents.boxes)
        self._probe(slack, parents.image, ((begin + end) / 2).clamp(self.tiling.low, self.tiling.high))
        axes = self.tiling.best_axes(parents.boxes, (end - begin) / (self.tiling.high - self.tiling.low))
        state.splits.note(parents.image, parents.boxes, axes)
        state.leaves.index_add_(0, parents.image, torch.ones_like(parents.image))  # one less, and two more
        slack.bounded = pairs[(~low).nonzero().flatten()]
        slack.waiting = Pairs(parents.image.repeat(2), parents.boxes.split(axes), parents.bound.repeat(2, 1))
        return True

    def _probe(self, slack: Slack, rows: Tensor, middle: Tensor) -> None:
        """Evaluate the middles of boxes; keep the least margins."""
        margin, rows, middle = self.spec.attacker.margins_at(rows, middle).cpu(), rows.cpu(), middle.cpu()
        least = slack.reached.scatter_reduce(0, rows, margin, "amin")
        better = (margin < slack.reached[rows]) & (margin == least[rows])
        slack.at[rows[better]] = middle[better]
        slack.reached = least

    def _finish(self) -> None:
        """Publish the least bound over all boxes, and an upper bound of the margin that is reached."""
        state, slack = self.state, self._slack(self.state)
        pairs, rows = Pairs.join([slack.bounded, slack.waiting]), self.rows.to(self.state.device)
        least = torch.full_like(state.proved[:, 0], torch.inf).scatter_reduce_(
            0, pairs.image, pairs.bound[:, 0], "amin"
        )
        covered = torch.zeros_like(state.covered).index_add_(0, pairs.image, content(*self.tiling.bounds(pairs.boxes)))
        state.proved[rows, 0], state.covered[rows] = least[rows], covered[rows]
        count = torch.zeros_like(state.leaves).index_add_(0, pairs.image, torch.ones_like(pairs.image))
        state.leaves[rows] = count[rows]
        slack.reached[self.rows] = self.spec.attacker.upper_margins(self.rows, slack.at[self.rows])
