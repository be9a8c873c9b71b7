"""One batch of images: attack, then search; independent of every other batch.

Each batch has its own random numbers and its own `BackwardPolicy`, so its results depend only on its images and the
settings. A resumed run therefore has the results of an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize, pair_bytes, pairs_at_a_time
from tiltproof.verify.attack import Attacker, Counterexamples, OutputSampler
from tiltproof.verify.branch_and_bound import PRECISE_FROM, BranchingSearch
from tiltproof.verify.initial_grid import (
    PilotRuns,
    backward_pays,
    candidate_grids,
    precision_pays,
    sensitivity,
    starting_grid,
)
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.options import Settings
from tiltproof.verify.partition import Tiling, leaves
from tiltproof.verify.prover import BackwardPolicy, Prover, RangeProver
from tiltproof.verify.results import Reporter
from tiltproof.verify.spec import ClassificationSpec, RangeSpec
from tiltproof.verify.state import Search, SearchState
from tiltproof.verify.uniform_grid import UniformSearch

Grid = tuple[int, ...]

ASCENT_STEPS = 6
"""Gradient steps from the lowest and the highest output of each image."""
ATTACK_SHARE = 1 / 4
"""Share of a budget of seconds after which no further gradient step begins."""
FIRST_GRID, PILOTS = 2, 2
"""Ranges: boxes per parameter of the first grid; and the number of images searched from it to choose the initial grid
of all, if there are four times as many."""
FLOAT64_SIZE = 2
"""Memory of float64, relative to the estimate of `pairs_at_a_time`."""


@dataclass(frozen=True)
class Job:
    """A job: results for images numbered from ``first``. ``batch_size``: pairs bounded at once, if set by the user;
    ``answers``: the target values [N, K] of a regression, if known."""

    settings: Settings
    first: int
    batch_size: int | None = None
    answers: Tensor | None = None

    @property
    def ranges(self) -> bool:
        """Whether the job bounds outputs instead of proving classes."""
        return self.settings.tolerance is not None

    @property
    def needs_grid(self) -> bool:
        """Whether a batch without an initial grid determines one, for itself and later batches."""
        return self.settings.search.grid is None

    @property
    def seed(self) -> int:
        return self.settings.seed + self.first

    def part(self, rows: slice) -> Job:
        """Return the job for these of its images."""
        answers = None if self.answers is None else self.answers[rows]
        return replace(self, first=self.first + rows.start, answers=answers)

    def pairs(self, inputs: Inputs) -> int:
        """Return the number of pairs to bound at once on the device of the inputs."""
        guess = pairs_at_a_time(inputs.network, self._symbols(inputs), inputs.images.device, inputs.memory)
        return self.batch_size or max(1, guess // (FLOAT64_SIZE if self.ranges else 1))

    def each(self, inputs: Inputs) -> int:
        """Return the estimated memory of a pair in bytes."""
        return pair_bytes(inputs.network, self._symbols(inputs)) * (FLOAT64_SIZE if self.ranges else 1)

    def _symbols(self, inputs: Inputs) -> int:
        return len(inputs.transform.parts) if self.settings.bounds.method == "affine" else 0

    def grid(self, inputs: Inputs, pairs: AdaptiveBatchSize) -> Grid | None:
        """Return the initial grid that `batch` would choose, without proving anything."""
        return self._range_grid(inputs, pairs) if self.ranges else self._attacked(inputs, None, pairs)[3]

    def batch(
        self, inputs: Inputs, grid: Grid | None, pairs: AdaptiveBatchSize, reporter: Reporter | None = None
    ) -> tuple[list[Any], Grid | None]:
        """Return results for these images, and the initial grid (None while no image needed one)."""
        reporter = reporter or Reporter(len(inputs.images))
        reporter.attacking()
        if self.ranges and grid is None:
            grid = self._range_grid(inputs, pairs)
        began = time.perf_counter()
        search, grid = self._ranges(inputs, grid) if self.ranges and grid else self._classes(inputs, grid, pairs)
        if self.settings.search.max_seconds is not None:  # which the attack has spent a part of
            search.state.seconds += (time.perf_counter() - began) / len(inputs.images)
        reporter.proving(search)
        search.work(pairs, reporter.report)
        search.spec.finish(search.state)
        shared = max(0.0, time.perf_counter() - began - float(search.state.seconds.sum())) / len(inputs.images)
        return search.spec.results(search.state, search.tiling, self.first, shared), grid

    def _classes(self, inputs: Inputs, grid: Grid | None, pairs: AdaptiveBatchSize) -> tuple[Search, Grid | None]:
        settings, axes = self.settings, len(inputs.transform.parts)
        spec, known, pilots, grid = self._attacked(inputs, grid, pairs)
        start = grid or (1,) * axes
        tiling = Tiling(inputs.transform, start)
        if settings.search.grid is not None:
            return UniformSearch(spec, tiling, SearchState.start(spec, known, pilots.policy), settings.search), grid
        precise = False
        if len(pilots.rows):
            precise = precision_pays(pilots, start)
            pays = backward_pays(pilots, start, torch.float64 if precise else spec.prover.dtype)
            pilots.policy.least_success, pilots.policy.least_boxes = pays
        state = SearchState.start(spec, known, pilots.policy, inputs.images.device)
        return BranchingSearch(spec, tiling, state, settings.search, 0 if precise else PRECISE_FROM), grid

    def _attacked(
        self, inputs: Inputs, grid: Grid | None, pairs: AdaptiveBatchSize
    ) -> tuple[ClassificationSpec, Counterexamples, PilotRuns, Grid | None]:
        """Attack; return what remains to prove, and the initial grid if none is given and an image needs one."""
        attacker = Attacker(inputs, self.seed)
        known = attacker.begin(self.first)
        attacker.search(known, known.alive(), self.settings.attack.samples, steps=0, hasty=True)
        spec = ClassificationSpec(Prover(inputs, self.settings.bounds.method), attacker)
        policy = BackwardPolicy.on(inputs.images.device)
        pilots = PilotRuns(spec.prover, policy, known.alive(), pairs, self.seed)
        grid = self.settings.search.grid or grid
        if grid is None and len(pilots.rows):
            grid = starting_grid(pilots, self.settings.search.max_boxes)
        return spec, known, pilots, grid

    def _ranges(self, inputs: Inputs, grid: Grid) -> tuple[BranchingSearch, Grid]:
        settings = self.settings
        sampler = OutputSampler(inputs, self.seed)
        known = sampler.begin(self.first)
        seconds = settings.search.max_seconds
        share = None if seconds is None else time.perf_counter() + ATTACK_SHARE * seconds * len(inputs.images)
        sampler.search(known, settings.attack.samples, ASCENT_STEPS, share)
        tolerance = settings.tolerance if settings.search.grid is None else None
        spec = RangeSpec(
            RangeProver(inputs, settings.bounds.method), sampler, tolerance, known.prediction.shape, self.answers
        )
        device = inputs.images.device
        state = SearchState.start(spec, known, BackwardPolicy.on(device), device)
        return BranchingSearch(spec, Tiling(inputs.transform, grid), state, settings.search), grid

    def _range_grid(self, inputs: Inputs, pairs: AdaptiveBatchSize) -> Grid:
        """Return the grid from which the first images would have needed the fewest bounds."""
        axes = len(inputs.transform.parts)
        coarse = (FIRST_GRID,) * axes
        if self.settings.search.grid or len(inputs.images) < 4 * PILOTS:
            return self.settings.search.grid or coarse
        search, _ = self._ranges(inputs.part(slice(0, PILOTS)), coarse)
        search.work(pairs, lambda: None)
        most = 2 * PILOTS * self.settings.search.max_boxes
        trees, _ = search.state.splits.trees(coarse)
        depths = [sum(node[axes:]) for tree in trees for node in leaves(coarse, tree, most) or ()]

        def bounds(begin: int) -> float:
            """Return the number of bounds from this depth on; each leaf counts for its share of the boxes that
            contain it."""
            return sum(2 - 2.0 ** (begin - depth) if depth >= begin else 2.0 ** (begin - depth) for depth in depths)

        best = min(range(1 + max(depths, default=0)), key=bounds)
        return candidate_grids(sensitivity(inputs.transform, *inputs.images.shape[-2:]), math.prod(coarse) << best)[-1]
