"""Branch and bound: one stack of (image, box) pairs; a box that is not done is probed at its middle and halved.

Each step bounds the top of the stack, so images are finished one after the other. The `Spec` defines what a bound is
and when a box is done. The state is on the device of the spec, and the host waits for it only where shapes depend on
results.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tiltproof.pixels.api import bounds_pairs_alone
from tiltproof.pixels.coordinates import coordinates, symbols
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.transforms import Spatial, Transform
from tiltproof.verify.options import Limits
from tiltproof.verify.prover import WORTHWHILE, BackwardPolicy, Prover
from tiltproof.verify.results import Reason
from tiltproof.verify.spec import Spec
from tiltproof.verify.state import Frontier, Pairs, Search, SearchState, Tiling, copied

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
        frontier, size = self._frontier(state), min(size, self.spec.cost.most_boxes)
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
            hopeless[images] = self.spec.hopeless(state, images, *self.tiling.bounds(pairs.boxes[first]))
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
                state.reasons[image] = Reason.OPEN if not self.tiling.noise else Reason.NOISE
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


# The initial grid: how finely to cut the range before branch and bound.
# A grid that is too coarse wastes bounds that fail; one that is too fine wastes bounds where one would do. Candidate
# grids of increasing fineness are tried, starting in the middle, on a few random (image, box) pairs each; on a GPU,
# where steps are expensive, several at once. The grid with the least expected number of bounds wins. This chooses
# work only: whatever the grid, every box is proved.

FEWEST_PAIRS, MOST_PAIRS = 32, 256
"""Pairs per pilot run: a small share of the batch, but at most this many if few pairs fit into memory."""
FEWEST_FAILED = 6
"""Pairs of a pilot run that must fail before the success rate of their halves is estimated."""
PRECISE_COST = 2.0
"""Cost of a float64 bound, in float32 bounds."""
ENOUGH, MOSTLY = 0.98, 0.8
"""Proved share at which no finer grid is tried; proved share on the last grid below which float64 is tried."""
MIDDLE, HOPELESS = 4, 0.1
"""Number of the first grid tried (16 boxes); proved share below which no coarser one is tried."""
AROUND = (0, 1, -1, 2, -2, 3)
"""Grids around the middle that are tried in one step where that takes hardly longer; most networks need no others."""
FINEST = 1e-4
"""How far a box of the finest grid tried moves pixel values."""
PIXEL_CONTRAST = 0.2
"""Typical difference of neighboring pixel values."""


@lru_cache(8)
def sensitivity(transform: Transform, height: int, width: int) -> Tensor:
    """Return roughly how far the whole range of each parameter moves pixel values, [d]."""
    low = torch.tensor([transform.low], dtype=torch.float64)
    high = torch.tensor([transform.high], dtype=torch.float64)
    center, half = (low + high) / 2, (high - low) / 2
    small = 2.0**-10
    result = half[0].clone()
    for kind, run in transform.stages():
        if kind is Spatial:
            box = center - half * small, center + half * small
            place = coordinates(transform, run, symbols(*box), *box, height, width)
            moved = place.column.slopes.abs() + place.row.slopes.abs()
            for k in run:
                result[k] = moved[k].mean() / small * PIXEL_CONTRAST
        else:
            for k in run:
                result[k] = half[0, k] * transform.parts[k].effect
    return result


def candidate_grids(effect: Tensor, most: int) -> list[tuple[int, ...]]:
    """Return grids from one box upwards; each halves the axis of the one before that moves pixels most."""
    splits = torch.ones(len(effect), dtype=torch.int64)
    grids = [tuple(splits.tolist())]
    while len(effect) and math.prod(grids[-1]) * 2 <= most and float((effect / splits).max()) > FINEST:
        grids.append(finer(effect, grids[-1]))
        splits = torch.tensor(grids[-1])
    return grids


def finer(effect: Tensor, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the grid with the axis halved that moves pixels most."""
    axis = int((effect / torch.tensor(grid)).argmax())
    return tuple(count * (1 + (k == axis)) for k, count in enumerate(grid))


@dataclass
class PilotRun:
    """Mean cost of random pairs of images and boxes of one grid, in forward passes, and the proved share."""

    cost: float
    forward: float  # share proved by the forward pass
    passed: float


class PilotRuns:
    """Runs grids on a few random pairs of these images and caches the outcome; ``policy`` learns from them."""

    def __init__(
        self,
        prover: Prover,
        policy: BackwardPolicy,
        rows: Tensor,
        batch: AdaptiveBatchSize,
        seed: int,
        transform: Transform | None = None,
    ) -> None:
        """``transform``: over the range that grids divide, by default the prover's."""
        self.prover, self.policy, self.rows, self.batch, self.seed = prover, policy, rows, batch, seed
        self.transform = transform or prover.transform
        self.pairs = max(min(FEWEST_PAIRS, 8 * batch.size), min(MOST_PAIRS, batch.size // 16))
        self.known: dict[tuple[tuple[int, ...], torch.dtype], PilotRun] = {}
        self.deep_grid: tuple[int, ...] | None = None
        """The grid for `Prover.deep`, where it takes part (`deep_plan`)."""

    def run(self, grid: tuple[int, ...], dtype: torch.dtype) -> PilotRun:
        """Run a grid once; all grids are tried on the same images."""
        if (grid, dtype) not in self.known:
            self._try([grid], dtype)
        return self.known[grid, dtype]

    def around_middle(self, grids: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        """Run several grids that `cheapest` is likely to need in one batch."""
        if not bounds_pairs_alone(self.prover.images64, self.prover.transform):
            return
        places = [k for k in (min(MIDDLE, len(grids) - 1) + offset for offset in AROUND) if 0 <= k < len(grids)]
        self._try([grids[k] for k in places[: self.prover.cost.speculative_boxes // self.pairs]], dtype)

    def _try(self, grids: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        """Return the same random images for every grid, and random boxes of this one."""
        if not grids:
            return
        prover, chosen, low, high = self.prover, [], [], []
        for grid in grids:
            tiling = Tiling(self.transform, grid)
            boxes, generator = tiling.first(), torch.Generator().manual_seed(self.seed)
            chosen.append(self.rows[torch.randint(len(self.rows), (self.pairs,), generator=generator)])
            below, above = tiling.bounds(boxes[torch.randint(len(boxes), (self.pairs,), generator=generator)])
            low.append(below)
            high.append(above)
        given = [torch.cat(each).to(prover.labels.device) for each in (chosen, low, high)]
        precise = dtype != prover.dtype

        def work(size: int) -> tuple[BackwardPolicy, Tensor]:
            policy = copied(self.policy)
            parts = zip(*(each.split(max(1, size // 2) if precise else size) for each in given), strict=True)
            outcomes = [prover.bound(images, below, above, policy, dtype) for images, below, above in parts]
            columns = [torch.stack([each.passes, each.forward > 0, each.bound > 0]) for each in outcomes]
            return policy, torch.cat(columns, 1).unflatten(1, (len(grids), -1)).mean(2).T.cpu()

        self.policy, table = self.batch.run(work)
        for grid, (passes, forward, passed) in zip(grids, table.tolist(), strict=True):
            cost = (1 + prover.cost.pass_cost * passes) * (PRECISE_COST if precise else 1)
            self.known[grid, dtype] = PilotRun(cost, forward, passed)

    def cheapest(self, grids: list[tuple[int, ...]], dtype: torch.dtype) -> tuple[float, tuple[int, ...], float]:
        """Return (expected cost per image, number of the cheapest grid, share proved on the last grid tried)."""
        tried: dict[int, PilotRun] = {}
        middle = min(MIDDLE, len(grids) - 1)
        for k in range(middle, len(grids)):
            tried[k] = self.run(grids[k], dtype)
            if tried[k].forward >= ENOUGH:
                break
        finest = max(tried)
        for k in reversed(range(middle)):
            if tried[k + 1].passed < HOPELESS:
                break
            tried[k] = self.run(grids[k], dtype)
        # a grid's box is bounded if the grid is the first, or its parent failed on the grid before; for grids that were not
        # tried the finest one that was stands in
        last = tried[finest]
        onward = 2 * math.prod(grids[finest]) * (1 - last.passed) * last.cost / max(last.passed, 1 / self.pairs)
        best, least = finest, math.inf
        for k in sorted(tried, reverse=True):
            boxes, pilot = math.prod(grids[k]), tried[k]
            if boxes * pilot.cost + onward <= least:
                best, least = k, boxes * pilot.cost + onward
            if k - 1 in tried:
                onward += boxes * (1 - tried[k - 1].passed) * pilot.cost
        return least, grids[best], tried[finest].passed


def starting_grid(pilots: PilotRuns, budget_boxes: int) -> tuple[int, ...]:
    """Return the grid of least expected cost; where the model's own precision proves little on every grid, try
    float64 too."""
    prover = pilots.prover
    height, width = prover.images64.shape[-2:]
    grids = candidate_grids(sensitivity(pilots.transform, height, width), max(1, min(4096, budget_boxes // 2)))
    pilots.around_middle(grids, prover.dtype)
    cost, grid, passed = pilots.cheapest(grids, prover.dtype)
    if passed < MOSTLY and prover.dtype != torch.float64:
        pilots.around_middle(grids, torch.float64)
        more, other, _ = pilots.cheapest(grids, torch.float64)
        grid = other if more < cost else grid
    return grid


def precision_pays(pilots: PilotRuns, grid: tuple[int, ...]) -> bool:
    """Return whether to bound boxes of this grid in float64 from the start.

    The rounding errors that a bound must absorb grow with each layer; float32 bounds of a deep network may fail on
    every box. A failing box is halved repeatedly, so the number of bounds falls steeply with the proved share. If
    float32 proves nearly all boxes of a finer grid, the cause is not rounding, and float64 gains something only for a
    single parameter.
    """
    prover = pilots.prover
    finer_grids = [
        pilot.passed
        for (other, dtype), pilot in pilots.known.items()
        if dtype == prover.dtype and math.prod(other) > math.prod(grid)
    ]
    if prover.dtype == torch.float64 or (len(grid) > 1 and max(finer_grids, default=0.0) >= ENOUGH):
        return False
    plain = pilots.run(grid, prover.dtype)
    effect = sensitivity(prover.transform, *prover.images64.shape[-2:])
    if len(effect) and not plain.passed and float((effect / torch.tensor(grid)).max()) <= FINEST:
        return True  # pixels hardly move: what keeps all of these boxes open is rounding, and would keep their halves
    if plain.cost <= PRECISE_COST * plain.passed**2:  # float64 costs no less than that, and proves all at best
        return False
    precise = pilots.run(grid, torch.float64)
    return precise.cost * plain.passed**2 < plain.cost * precise.passed**2


def backward_pays(pilots: PilotRuns, grid: tuple[int, ...], dtype: torch.dtype) -> tuple[float, int]:
    """Return the success rate from which a backward pass is worth more than halving the box, and the least number of
    boxes.

    If boxes are halved until the forward pass proves them all, a failing box takes T = 2 + 2 (1 - q) T more bounds,
    where q is the proved share of the halves: T = 2 / (2 q - 1), or infinitely many for q <= 1/2. A pass of the cost
    c pays from the success rate c / T on; one of fixed cost f pays for at least f / T boxes.
    """
    prover, cost = pilots.prover, pilots.prover.cost
    if not grid:  # noise alone: there is nothing to halve
        return 0.0, 0
    effect = sensitivity(pilots.transform, *prover.images64.shape[-2:])
    grids = [*candidate_grids(effect, math.prod(grid))[-2:-1], grid, finer(effect, grid)]
    # of a coarser grid's boxes, where hardly any of this one's fail
    for whole, halves in reversed([*itertools.pairwise(grids)]):
        failed = 1 - pilots.run(whole, dtype).forward
        if failed * pilots.pairs >= FEWEST_FAILED:
            spared = max(0.0, 0.5 - (1 - pilots.run(halves, dtype).forward) / failed)  # 1 / T
            return max(WORTHWHILE, cost.pass_cost * spared), int(cost.pass_overhead * spared)
    return WORTHWHILE, 0
