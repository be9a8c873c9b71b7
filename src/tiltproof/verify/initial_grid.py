"""The initial grid: how finely to cut the range before adaptive splitting takes over.

Cutting too coarsely wastes bounds that fail; cutting too finely wastes bounds where one would have sufficed. A ladder of increasingly
fine grids is tried, starting from the middle rung, on a few random (image, box) pairs each; on a GPU, where steps are expensive, several
rungs at once. The rung with the least expected number of bounds is taken. This only decides where work is spent: for any grid, every box
still has to be proved.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tiltproof.pixels.api import bounds_pairs_alone
from tiltproof.pixels.coordinates import coordinates, symbols
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.transforms import Spatial, Transform
from tiltproof.verify.partition import Tiling
from tiltproof.verify.prover import Prover
from tiltproof.verify.refinement import WORTHWHILE, BackwardPolicy
from tiltproof.verify.state import copied

FEWEST_PAIRS, MOST_PAIRS = 32, 256
"""Minimum and maximum number of pilot pairs per rung, a small share of a batch; fewer than the minimum if memory hardly holds any."""
FEWEST_FAILED = 6
"""Minimum number of failed pilot pairs before their success rate after bisection is trusted."""
PRECISE_COST = 2.0
"""Cost of a bound in float64, in bounds in float32."""
ENOUGH, MOSTLY = 0.98, 0.8
"""Share proved forward at which no finer grid is tried any more; share proved on the last rung below which float64 is tried."""
MIDDLE, HOPELESS = 4, 0.1
"""The rung that is tried first (16 boxes); share proved below which no coarser one is tried."""
AROUND_MIDDLE = (0, 1, -1, 2, -2, 3)
"""Rungs, relative to the middle one, that are tried at once if that takes hardly longer: enough for most networks."""
PIXEL_CONTRAST = 0.2
"""Typical change of a pixel's value from one pixel to the next."""


@lru_cache(8)
def sensitivity(transform: Transform, height: int, width: int) -> Tensor:
    """Roughly how far each parameter's whole range moves pixel values, [d]."""
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


def grid_ladder(effect: Tensor, most: int) -> list[tuple[int, ...]]:
    """Increasingly fine grids from a single box up to ``most`` boxes; each rung halves the axis that moves pixels most."""
    splits = torch.ones(len(effect), dtype=torch.int64)
    rungs = [tuple(splits.tolist())]
    while math.prod(rungs[-1]) * 2 <= most and float((effect / splits).max()) > 1e-4:
        rungs.append(finer(effect, rungs[-1]))
        splits = torch.tensor(rungs[-1])
    return rungs


def finer(effect: Tensor, grid: tuple[int, ...]) -> tuple[int, ...]:
    """The grid with the axis halved that moves pixels most."""
    axis = int((effect / torch.tensor(grid)).argmax())
    return tuple(count * (1 + (k == axis)) for k, count in enumerate(grid))


@dataclass
class PilotRun:
    """Average cost of some random pairs of images and boxes of one grid, in forward passes, and the share of them proved."""

    cost: float
    forward: float  # share proved by the forward pass
    passed: float


class PilotRuns:
    """Tries grids on a few random pairs of these images and remembers the outcomes; ``policy`` learns from them."""

    def __init__(
        self, prover: Prover, policy: BackwardPolicy, rows: Tensor, batch: AdaptiveBatchSize, seed: int
    ) -> None:
        self.prover, self.policy, self.rows, self.batch, self.seed = prover, policy, rows, batch, seed
        self.pairs = max(min(FEWEST_PAIRS, 8 * batch.size), min(MOST_PAIRS, batch.size // 16))
        self.known: dict[tuple[tuple[int, ...], torch.dtype], PilotRun] = {}

    def run(self, grid: tuple[int, ...], dtype: torch.dtype) -> PilotRun:
        """Try a grid, once; all grids are tried on the same images."""
        if (grid, dtype) not in self.known:
            self._try([grid], dtype)
        return self.known[grid, dtype]

    def try_around_middle(self, rungs: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        """Try at once the rungs that `cheapest_rung` is likely to ask for, as many as the device bounds while the host takes a step."""
        if not bounds_pairs_alone(self.prover.images64, self.prover.transform):
            return
        places = [k for k in (min(MIDDLE, len(rungs) - 1) + step for step in AROUND_MIDDLE) if 0 <= k < len(rungs)]
        self._try([rungs[k] for k in places[: self.prover.cost.speculative_boxes // self.pairs]], dtype)

    def _try(self, grids: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        """The same random images for every grid, and its own random boxes."""
        if not grids:
            return
        prover, chosen, low, high = self.prover, [], [], []
        for grid in grids:
            tiling = Tiling(prover.transform, grid)
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

    def cheapest_rung(self, rungs: list[tuple[int, ...]], dtype: torch.dtype) -> tuple[float, tuple[int, ...], float]:
        """Return the least expected cost per image, the rung that has it, and the share proved on the last rung tried."""
        tried: dict[int, PilotRun] = {}
        middle = min(MIDDLE, len(rungs) - 1)
        for k in range(middle, len(rungs)):
            tried[k] = self.run(rungs[k], dtype)
            if tried[k].forward >= ENOUGH:
                break
        finest = max(tried)
        for k in reversed(range(middle)):
            if tried[k + 1].passed < HOPELESS:
                break
            tried[k] = self.run(rungs[k], dtype)
        # a box is bounded on a rung if the rung is the first, or if the box that it is half of failed on the rung before; rungs that were
        # not tried count like the finest one that was
        last = tried[finest]
        onward = 2 * math.prod(rungs[finest]) * (1 - last.passed) * last.cost / max(last.passed, 1 / self.pairs)
        best, least = finest, math.inf
        for k in sorted(tried, reverse=True):
            boxes, pilot = math.prod(rungs[k]), tried[k]
            if boxes * pilot.cost + onward <= least:
                best, least = k, boxes * pilot.cost + onward
            if k - 1 in tried:
                onward += boxes * (1 - tried[k - 1].passed) * pilot.cost
        return least, rungs[best], tried[finest].passed


def starting_grid(pilots: PilotRuns, budget_boxes: int) -> tuple[int, ...]:
    """The rung of least expected cost; if the model's own precision proves little even on the finest grid, float64 is tried too."""
    prover = pilots.prover
    height, width = prover.images64.shape[-2:]
    rungs = grid_ladder(sensitivity(prover.transform, height, width), max(1, min(4096, budget_boxes // 2)))
    pilots.try_around_middle(rungs, prover.dtype)
    cost, grid, passed = pilots.cheapest_rung(rungs, prover.dtype)
    if passed < MOSTLY and prover.dtype != torch.float64:
        pilots.try_around_middle(rungs, torch.float64)
        more, other, _ = pilots.cheapest_rung(rungs, torch.float64)
        grid = other if more < cost else grid
    return grid


def precision_pays(pilots: PilotRuns, grid: tuple[int, ...]) -> bool:
    """Whether boxes of this grid are better bounded in float64 from the start.

    The roundings that a bound must absorb grow with every layer; a deep network's float32 bounds may fail on any box. A box
    that fails is halved, and halves again if need be, so the number of bounds falls steeply with the share proved. Where nearly all boxes
    of a finer grid are proved in float32, it is not rounding that keeps these open, and only in a single parameter is there more to win.
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
    if plain.cost <= PRECISE_COST * plain.passed**2:  # float64 costs no less than that, and proves all at best
        return False
    precise = pilots.run(grid, torch.float64)
    return precise.cost * plain.passed**2 < plain.cost * precise.passed**2


def backward_pays(pilots: PilotRuns, grid: tuple[int, ...], dtype: torch.dtype) -> tuple[float, int]:
    """The least success rate at which a backward pass through a box of this grid is worth more than halving the box, and the least number
    of boxes for which it is.

    Halved until all is proved forward, a box that fails takes T = 2 + 2 (1 - q) T more bounds, where q is the share of halves that are
    proved: T = 2 / (2 q - 1), or infinitely many if q <= 1/2. A pass that costs as much as c bounds per box pays if its success rate is at
    least c / T; an overhead that does not depend on the number of boxes pays if T times that number is larger.
    """
    prover, cost = pilots.prover, pilots.prover.cost
    effect = sensitivity(prover.transform, *prover.images64.shape[-2:])
    rungs = [*grid_ladder(effect, math.prod(grid))[-2:-1], grid, finer(effect, grid)]
    # of a coarser grid's boxes, where hardly any of this one's fail
    for whole, halves in reversed([*itertools.pairwise(rungs)]):
        failed = 1 - pilots.run(whole, dtype).forward
        if failed * pilots.pairs >= FEWEST_FAILED:
            spared = max(0.0, 0.5 - (1 - pilots.run(halves, dtype).forward) / failed)  # 1 / T
            return max(WORTHWHILE, cost.pass_cost * spared), int(cost.pass_overhead * spared)
    return WORTHWHILE, 0
