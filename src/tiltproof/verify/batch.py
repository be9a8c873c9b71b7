"""A run over batches of images, and the job of one batch: attack, then search; independent of every other batch.

Each batch has its own random numbers and its own `BackwardPolicy`, so its results depend only on its images and the
settings. A resumed run therefore has the results of an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tiltproof.device import few_threads
from tiltproof.runtime.batch_size import AdaptiveBatchSize, keep_freed_memory, pair_bytes, pairs_at_a_time
from tiltproof.transforms import Transform
from tiltproof.verify.attack import Attacker, Counterexamples
from tiltproof.verify.branch_and_bound import (
    PRECISE_FROM,
    BranchingSearch,
    PilotRuns,
    backward_pays,
    candidate_grids,
    precision_pays,
    sensitivity,
    starting_grid,
)
from tiltproof.verify.deep_plan import deep_plan
from tiltproof.verify.eight_bit_search import eight_bit_search
from tiltproof.verify.inner_range import OutputSampler
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.options import Execution, Settings
from tiltproof.verify.prover import BackwardPolicy, Prover, RangeProver
from tiltproof.verify.radius_search import RadiusSearch, RadiusSpec, RadiusState
from tiltproof.verify.rays import Rays
from tiltproof.verify.results import Reporter
from tiltproof.verify.rule_prover import prover_for
from tiltproof.verify.rules import Rule
from tiltproof.verify.shares import Shares, nested
from tiltproof.verify.spec import ClassificationSpec, RangeSpec
from tiltproof.verify.state import Search, SearchState, Tiling, leaves
from tiltproof.verify.tighten import TighteningSearch
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
    ``answers``: the target values [N, K] of a regression, if known; ``rule``: what a classifier must keep, by default
    the label."""

    settings: Settings
    first: int
    batch_size: int | None = None
    answers: Tensor | None = None
    rule: Rule | None = None
    reading: float = 0.0
    """Seconds from the call on for each image until the first batch; they count for its budget."""

    @property
    def ranges(self) -> bool:
        """Whether the job bounds outputs instead of proving classes."""
        return self.settings.tolerance is not None

    @property
    def radii(self) -> bool:
        """Whether the job looks for the largest proved range of each image."""
        return self.settings.gap is not None

    @property
    def needs_grid(self) -> bool:
        """Whether a batch without an initial grid determines one, for itself and later batches."""
        return self.settings.search.grid is None and self.settings.eight_bits is None

    @property
    def seed(self) -> int:
        return self.settings.seed + self.first

    def part(self, rows: slice) -> Job:
        """Return the job for these of its images."""
        answers = None if self.answers is None else self.answers[rows]
        rule = None if self.rule is None else self.rule.part(rows)
        return replace(self, first=self.first + rows.start, answers=answers, rule=rule)

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
        if self.radii:
            return self._radii(inputs, None, pairs)[1]
        return self._range_grid(inputs, pairs) if self.ranges else self._attacked(inputs, None, pairs)[3]

    def batch(
        self, inputs: Inputs, grid: Grid | None, pairs: AdaptiveBatchSize, reporter: Reporter | None = None
    ) -> tuple[list[Any], Grid | None]:
        """Return results for these images, and the initial grid (None while no image needed one)."""
        reporter = reporter or Reporter(len(inputs.images))
        reporter.attacking()
        if self.ranges and grid is None:
            grid = self._range_grid(inputs, pairs, reporter.attacking)
        began = time.perf_counter() - self.reading * len(inputs.images)
        search: Search
        if self.radii:
            search, grid = self._radii(inputs, grid, pairs)
        elif self.settings.eight_bits is not None:
            search = self._pictures(inputs, self.settings.eight_bits.tolerance)
        else:
            search, grid = (
                self._ranges(inputs, grid, reporter.attacking)
                if self.ranges and grid
                else self._classes(inputs, grid, pairs)
            )
        if self.settings.search.max_seconds is not None:  # of which reading and attack have spent a part
            search.state.seconds += (time.perf_counter() - began) / len(inputs.images)
        reporter.proving(search)
        search.work(pairs, reporter.report)
        if self.settings.search.excess is not None and isinstance(search, BranchingSearch):
            further = TighteningSearch(search, self.settings.search.excess)
            further.work(pairs, reporter.report)
            search.state = further.state
        search.spec.finish(search.state)
        shared = max(0.0, time.perf_counter() - began - float(search.state.seconds.sum())) / len(inputs.images)
        return search.spec.results(search.state, search.tiling, self.first, shared), grid

    def _pictures(self, inputs: Inputs, tolerance: float | None) -> Search:
        limits, samples = self.settings.search, self.settings.attack.samples
        return eight_bit_search(inputs, self.rule, limits, samples, self.seed, tolerance, self.first)

    def _classes(self, inputs: Inputs, grid: Grid | None, pairs: AdaptiveBatchSize) -> tuple[Search, Grid | None]:
        settings, axes = self.settings, len(inputs.transform.parts)
        spec, known, pilots, grid = self._attacked(inputs, grid, pairs)
        start = grid or (1,) * axes
        tiling = Tiling(inputs.transform, start)
        if settings.search.grid is not None:
            return UniformSearch(spec, tiling, SearchState.start(spec, known, pilots.policy), settings.search), grid
        precise = self._steered(pilots, start)
        state = SearchState.start(spec, known, pilots.policy, inputs.images.device)
        if inputs.transform.noise:
            state.next_look.fill_(1)  # bounding a single point costs no more than a box that stays open
        return BranchingSearch(spec, tiling, state, settings.search, 0 if precise else PRECISE_FROM), grid

    @staticmethod
    def _steered(pilots: PilotRuns, grid: Grid) -> bool:
        """Set when backward passes pay; return whether boxes of this grid are bounded in float64 from the start."""
        precise = False
        if len(pilots.rows) and pilots.prover.deep is None:
            precise = precision_pays(pilots, grid)
            pays = backward_pays(pilots, grid, torch.float64 if precise else pilots.prover.dtype)
            pilots.policy.least_success, pilots.policy.least_boxes = pays
        return precise

    def _attacked(
        self, inputs: Inputs, grid: Grid | None, pairs: AdaptiveBatchSize
    ) -> tuple[ClassificationSpec, Counterexamples, PilotRuns, Grid | None]:
        """Attack; return what remains to prove, and the initial grid if none is given and an image needs one."""
        attacker = Attacker(inputs, self.seed, self.rule)
        known = attacker.begin(self.first)
        attacker.search(known, known.alive(), self.settings.attack.samples, steps=0, hasty=True)
        pilots = self._pilots(inputs, known.alive(), pairs)
        grid = self.settings.search.grid or grid
        if grid is None and len(pilots.rows):
            grid = self._chosen_grid(pilots)
        return ClassificationSpec(self._proving(inputs, pilots), attacker), known, pilots, grid

    def _proving(self, inputs: Inputs, pilots: PilotRuns) -> Prover:
        """Return the prover of the search: pilots know nothing of noise, and what proves does."""
        return self._prover(inputs) if inputs.transform.noise else pilots.prover

    def _prover(self, inputs: Inputs) -> Prover:
        method = self.settings.bounds.method
        return Prover(inputs, method) if self.rule is None else prover_for(inputs, method, self.rule)

    def _pilots(
        self, inputs: Inputs, rows: Tensor, pairs: AdaptiveBatchSize, transform: Transform | None = None
    ) -> PilotRuns:
        """Return a prover with pilot runs on the images ``rows``, over the range of ``transform`` (default: the whole).

        Noise is never divided, so pilots run without it: a grid is chosen for the transformation alone.
        """
        prover = self._prover(replace(inputs, transform=inputs.transform.without_noise()))
        if inputs.transform.noise:
            prover.take_for_shallow()
        policy = BackwardPolicy.on(inputs.images.device)
        pilots = PilotRuns(prover, policy, rows, pairs, self.seed, transform)
        if prover.deep is not None and (self.rule is not None or len(pilots.rows)):
            # deep networks: the label's margin alone
            plan = None if self.rule is not None else deep_plan(pilots, self.settings.search.max_boxes)
            if plan is None:
                prover.take_for_shallow()
            else:
                prover.deep.cut, pilots.deep_grid = plan.cut, plan.grid
        return pilots

    def _chosen_grid(self, pilots: PilotRuns) -> Grid:
        return pilots.deep_grid or starting_grid(pilots, self.settings.search.max_boxes)

    def _radii(self, inputs: Inputs, pieces: Grid | None, pairs: AdaptiveBatchSize) -> tuple[RadiusSearch, Grid | None]:
        """Attack along rays; return the search outward, and into how many pieces boxes are cut before they are bounded."""
        settings, shares = self.settings, Shares(inputs.transform)
        assert settings.gap is not None
        attacker = Attacker(inputs, self.seed, self.rule)
        known = attacker.begin(self.first)
        device = inputs.images.device
        rays, cap = Rays(attacker, shares, settings.gap), torch.ones(len(inputs.images), dtype=torch.float64)
        right = known.alive()
        rays.begin(known, cap, settings.attack.samples)
        # boxes that suit the range of a typical image, in which most of its boxes can be proved
        typical = float(cap[right].median().clamp(min=1e-6)) if len(right) else 1.0
        pilots = self._pilots(inputs, right, pairs, nested(inputs.transform.without_noise(), typical))
        axes = len(inputs.transform.parts)
        grid: Grid = (1,) * axes
        if pieces is None and len(right):
            grid = self._chosen_grid(pilots)
            pieces = tuple(2 ** math.ceil(math.log2(count / typical)) for count in grid)
        precise = self._steered(pilots, grid)
        prover = self._proving(inputs, pilots)
        reserve = 0.0
        if inputs.transform.noise:
            prover.without_backward()
            reserve = settings.gap / 4
        spec = RadiusSpec(prover, attacker, shares.on(device), reserve)
        state = RadiusState.start(spec, known, pilots.policy, device)
        state.cap = cap
        if inputs.transform.noise:
            state.next_look.fill_(1)  # as in `_classes`
        tiling, start = Tiling(inputs.transform, (1,) * axes), 0 if precise else PRECISE_FROM
        return RadiusSearch(spec, tiling, state, settings.search, rays, pieces or (1,) * axes, start), pieces

    def _ranges(
        self, inputs: Inputs, grid: Grid, report: Callable[[], None] = lambda: None
    ) -> tuple[BranchingSearch, Grid]:
        settings = self.settings
        sampler = OutputSampler(inputs, self.seed)
        known = sampler.begin(self.first)
        seconds = settings.search.max_seconds
        share = None
        if seconds is not None:
            share = time.perf_counter() + ATTACK_SHARE * max(0.0, seconds - self.reading) * len(inputs.images)
        sampler.search(known, settings.attack.samples, ASCENT_STEPS, share, report)
        tolerance = settings.tolerance if settings.search.grid is None else None
        spec = RangeSpec(
            RangeProver(inputs, settings.bounds.method),
            sampler,
            tolerance,
            known.prediction.shape,
            self.answers,
            seconds,
        )
        device = inputs.images.device
        state = SearchState.start(spec, known, BackwardPolicy.on(device), device)
        return BranchingSearch(spec, Tiling(inputs.transform, grid), state, settings.search), grid

    def _range_grid(self, inputs: Inputs, pairs: AdaptiveBatchSize, report: Callable[[], None] = lambda: None) -> Grid:
        """Return the grid from which the first images would have needed the fewest bounds."""
        axes = len(inputs.transform.parts)
        coarse = (FIRST_GRID,) * axes
        if self.settings.search.grid or len(inputs.images) < 4 * PILOTS:
            return self.settings.search.grid or coarse
        search, _ = self._ranges(inputs.part(slice(0, PILOTS)), coarse, report)
        search.work(pairs, report)
        most = 2 * PILOTS * self.settings.search.max_boxes
        trees, _ = search.state.splits.trees(coarse)
        depths = [sum(node[axes:]) for tree in trees for node in leaves(coarse, tree, most) or ()]

        def bounds(begin: int) -> float:
            """Return the number of bounds from this depth on; each leaf counts for its share of the boxes that
            contain it."""
            return sum(2 - 2.0 ** (begin - depth) if depth >= begin else 2.0 ** (begin - depth) for depth in depths)

        best = min(range(1 + max(depths, default=0)), key=bounds)
        return candidate_grids(sensitivity(inputs.transform, *inputs.images.shape[-2:]), math.prod(coarse) << best)[-1]


# A run in memory: its results so far, and the loop over its batches; `StoredRun` stores it on disk.


class Result(Protocol):
    """The result of one image, which can be written as a record and read back."""

    @property
    def image(self) -> int: ...

    def record(self) -> dict[str, Any]: ...

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Result: ...


@dataclass(frozen=True)
class Batch:
    """The results of the images from ``start`` on."""

    start: int
    results: Sequence[Any]
    grid: Grid | None
    device: str


class Workers(Protocol):
    """Other processes that prove batches, such as `RayWorkers`."""

    def connect(self) -> None:
        """Raise InputError if there are no workers; called before a run folder is created."""
        ...

    def work(
        self, inputs: Inputs, job: Job, batches: Sequence[slice], grid: Grid | None, pairs: int
    ) -> Generator[Batch, None, None]:
        """Yield every batch once, in any order; ``grid``: the initial grid, if known."""
        ...


SMALLEST_BATCH, LARGEST_BATCH = 16, 16_384
LARGEST_SHARED_BATCH = 64
"""Most images per batch if workers share a run. It does not depend on their number, so results do not either."""


def plan_batches(images: int, pairs: int, execution: Execution) -> dict[str, int]:
    """Plan equal batches of about as many images as pairs are bounded at once, so that each takes a few dozen steps,
    or of at most ``batch_images``. A resumed run keeps its plan."""
    largest = LARGEST_BATCH if execution.workers is None else LARGEST_SHARED_BATCH
    size = execution.batch_images or max(1 if execution.batch_size else SMALLEST_BATCH, min(largest, pairs))
    return {"pairs_at_once": pairs, "images_per_batch": math.ceil(images / math.ceil(images / size))}


class Run:
    """``settings``: those requested; ``grid``: the initial grid, once a batch has chosen one; ``seconds``: of all
    batches."""

    def __init__(self, settings: dict[str, Any], plan: dict[str, int]) -> None:
        self.settings, self.plan = settings, plan
        self.results: list[Any] = []
        self.grid: Grid | None = None
        self.seconds = 0.0
        self.devices: set[str] = set()

    def work(self, inputs: Inputs, job: Job, reporter: Reporter, workers: Workers | None = None) -> None:
        """Prove all remaining batches. Workers may finish them in any order; they are appended in the order of the
        images, so a run is always complete up to some image."""
        size, images, began = self.plan["images_per_batch"], len(inputs.images), time.perf_counter()
        batches = [slice(k, min(k + size, images)) for k in range(len(self.results), images, size)]
        early: dict[int, Batch] = {}
        device = inputs.images.device
        with inputs.eval_mode(), few_threads(device):
            if workers is None:
                done = self._alone(inputs, job, batches, reporter)
            else:
                done = workers.work(inputs, job, batches, self.grid, self.plan["pairs_at_once"])
            with inputs.memory.watched() if workers is None else nullcontext(), closing(done):
                for batch in done:
                    early[batch.start] = batch
                    reporter.finished(batch.results)
                    while (start := len(self.results)) in early:
                        next_one, now = early.pop(start), time.perf_counter()
                        self.append(next_one.results, next_one.grid, next_one.device, now - began)
                        began = now

    def _alone(
        self, inputs: Inputs, job: Job, batches: Sequence[slice], reporter: Reporter
    ) -> Generator[Batch, None, None]:
        """Prove one batch after the other in this process."""
        keep_freed_memory(inputs.memory)
        pairs = AdaptiveBatchSize(self.plan["pairs_at_once"], inputs.memory, job.each(inputs))
        device = str(inputs.images.device)
        for rows in batches:
            yield Batch(rows.start, *job.part(rows).batch(inputs.part(rows), self.grid, pairs, reporter), device)

    def append(self, results: Sequence[Result], grid: Grid | None, device: str, seconds: float) -> None:
        """Append the results of one batch."""
        self.results += results
        self.grid = self.grid or grid
        self.seconds += seconds
        self.devices.add(device)

    def finish(self, summary: dict[str, Any]) -> None:
        """Finish a run whose batches are all done."""

    def close(self) -> None:
        """Close the run, finished or not."""
