"""Whether a network is bounded by `network.deep`, where its symbols end, and into how many boxes its range is cut.

Decided on a few random boxes, by how many columns go through the network. This chooses work only: whatever the plan, every box is proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.network.deep import cuts
from tiltproof.verify.branch_and_bound import PilotRuns, candidate_grids, sensitivity
from tiltproof.verify.prover import EagerPolicy
from tiltproof.verify.state import Tiling

Grid = tuple[int, ...]
START, PAIRS = 8, 3
"""Number of the first grid tried (256 boxes), and the pairs tried on each."""
OVERHEAD = 16.0
"""What a box takes besides its columns, in columns."""
PLAIN_COLUMNS = 14.0
"""Cost of a bound without balls and symbols of kinks, with its share of backward passes, in columns."""
COARSE = 5
"""Number of the grid (32 boxes) on which plain bounds are tried before anything else."""


@dataclass(frozen=True)
class DeepPlan:
    """``grid``; ``cut``: of `DeepProver`; ``cost``: columns that the whole range is expected to take."""

    grid: Grid
    cut: str | None
    cost: float


class DeepTrials:
    """Bounds random pairs by symbols, for each grid and cut once."""

    def __init__(self, pilots: PilotRuns, budget_boxes: int) -> None:
        assert pilots.prover.deep is not None
        self.pilots, self.deep = pilots, pilots.prover.deep
        self.network = pilots.prover.networks[torch.float64]
        self.grids = grids_for(pilots, budget_boxes)
        # without a last linear layer no backward pass begins at margins
        self.cuts: list[str | None] = [*(cuts(self.network) if self.network.last_linear is not None else []), None]
        self.known: dict[tuple[int, int], float] = {}

    def cost(self, grid: int, cut: int) -> float:
        """Columns that the whole range is expected to take: a box that is not proved is halved, and its halves have half of its kinks."""
        if (grid, cut) not in self.known:
            self.deep.cut = self.cuts[cut]
            found = self.deep.bound(*some_boxes(self.pilots, self.grids[grid]), self.network)
            share = float((found.bound > 0).double().mean())
            each = float(found.columns.mean()) + OVERHEAD
            halves = math.inf if share < 0.5 else 2 * each * (1 - share)
            self.known[grid, cut] = math.prod(self.grids[grid]) * (each + halves)
        return self.known[grid, cut]

    def best(self) -> DeepPlan:
        """Begin with the last cut, refine the grid until most boxes are proved, coarsen it while that is cheaper, then move the cut."""
        grid, cut = min(START, len(self.grids) - 1), max(0, len(self.cuts) - 2)
        while self.cost(grid, cut) == math.inf and grid < len(self.grids) - 1:
            grid += 1
        if self.cost(grid, cut) == math.inf:
            cut = len(self.cuts) - 1
        for down, back in ((-2, 0), (-1, 0), (0, -1), (0, 1)):
            while (
                grid + down >= 0
                and 0 <= cut + back < len(self.cuts)
                and self.cost(grid + down, cut + back) < self.cost(grid, cut)
            ):
                grid, cut = grid + down, cut + back
        return DeepPlan(self.grids[grid], self.cuts[cut], self.cost(grid, cut))


def deep_plan(pilots: PilotRuns, budget_boxes: int) -> DeepPlan | None:
    """The cheapest plan found; None where plain bounds, with backward passes, cost less."""
    if plain_bounds_suffice(pilots, grids_for(pilots, budget_boxes)[: COARSE + 1][-1]):
        return None
    plan = DeepTrials(pilots, budget_boxes).best()
    # of plain bounds as many boxes take as long
    finest = grids_for(pilots, int(min(2.0**20, plan.cost / PLAIN_COLUMNS)) * 2)[-1]
    return None if plain_bounds_suffice(pilots, finest) else plan


def plain_bounds_suffice(pilots: PilotRuns, grid: Grid) -> bool:
    """Return whether forms without balls, with backward passes, prove most of a few random boxes of this grid."""
    prover, (images, low, high) = pilots.prover, some_boxes(pilots, grid)
    deep, prover.deep = prover.deep, None
    try:
        bound = prover.bound(images, low, high, EagerPolicy.on(images.device), torch.float64).bound
    finally:
        prover.deep = deep
    return int((bound > 0).sum()) * 2 > len(bound)


def grids_for(pilots: PilotRuns, budget_boxes: int) -> list[Grid]:
    effect = sensitivity(pilots.transform, *pilots.prover.images64.shape[-2:])
    return candidate_grids(effect, max(1, min(4096, budget_boxes // 2)))


def some_boxes(pilots: PilotRuns, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """Return random images, and both ends of a random box of the grid for each."""
    tiling, generator = Tiling(pilots.transform, grid), torch.Generator().manual_seed(pilots.seed)
    boxes, device = tiling.first(), pilots.prover.labels.device
    images = pilots.rows[torch.randint(len(pilots.rows), (PAIRS,), generator=generator)]
    low, high = tiling.bounds(boxes[torch.randint(len(boxes), (PAIRS,), generator=generator)])
    return images.to(device), low.to(device), high.to(device)
