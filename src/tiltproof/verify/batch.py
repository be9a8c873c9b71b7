"""One batch of images: attacked, then proved; independent of every other batch.

A run is a sequence of such batches. Each has its own random numbers and its own memory of where backward passes pay, so its results
depend on nothing but its images and the settings, and a run that was stopped and resumed says what an uninterrupted one would have.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from tiltproof.runtime.batch_size import AdaptiveBatchSize, pair_bytes, pairs_at_a_time
from tiltproof.verify.attack import Attacker
from tiltproof.verify.branch_and_bound import PRECISE_FROM, AdaptiveSearch
from tiltproof.verify.initial_grid import backward_pays, precision_pays, starting_grid
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.partition import Tiling
from tiltproof.verify.prover import Prover
from tiltproof.verify.reporter import Reporter
from tiltproof.verify.results import Budget, ImageResult
from tiltproof.verify.uniform_grid import UniformSearch


@dataclass(frozen=True)
class Settings:
    """How hard to look; the same for all batches of a run."""

    method: str
    splits: tuple[int, ...] | None
    budget: Budget
    samples: int
    seed: int

    def symbols(self, inputs: Inputs) -> int:
        """How many a form has that goes into the network."""
        return len(inputs.transform.parts) if self.method == "affine" else 0

    def record(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "method": self.method,
            "splits": None if self.splits is None else list(self.splits),
            "budget_boxes": self.budget.boxes,
            "budget_seconds": self.budget.seconds,
            "samples": self.samples,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class ClassJob:
    """Verdicts for images that are numbered from ``first``; ``batch_size``: pairs bounded at once, if the user says so."""

    settings: Settings
    first: int
    batch_size: int | None = None

    @property
    def needs_grid(self) -> bool:
        return self.settings.splits is None

    def part(self, rows: slice) -> ClassJob:
        return replace(self, first=self.first + rows.start)

    def pairs(self, inputs: Inputs) -> int:
        symbols = self.settings.symbols(inputs)
        return self.batch_size or pairs_at_a_time(inputs.network, symbols, inputs.images.device, inputs.memory)

    def each(self, inputs: Inputs) -> int:
        return pair_bytes(inputs.network, self.settings.symbols(inputs))

    def grid(self, inputs: Inputs, pairs: AdaptiveBatchSize) -> tuple[int, ...] | None:
        return self._begin(inputs, None, pairs)[2]

    def _begin(
        self, inputs: Inputs, grid: tuple[int, ...] | None, pairs: AdaptiveBatchSize
    ) -> tuple[Attacker, Prover, tuple[int, ...] | None]:
        """The attack, and the starting grid where none is given and an image needs one."""
        seed = self.settings.seed + self.first
        attacker = Attacker(inputs, seed, self.first)
        attacker.search(attacker.alive(), self.settings.samples, steps=0, hasty=True)
        prover = Prover(inputs, self.settings.method)
        rows = attacker.alive()
        grid = self.settings.splits or grid
        if grid is None and len(rows):
            grid = starting_grid(prover, rows, self.settings.budget.boxes, pairs, seed)
        return attacker, prover, grid

    def batch(
        self, inputs: Inputs, grid: tuple[int, ...] | None, pairs: AdaptiveBatchSize, reporter: Reporter | None = None
    ) -> tuple[list[ImageResult], tuple[int, ...] | None]:
        """Results for these images, and the starting grid (None as long as no image needed one)."""
        began = time.perf_counter()
        settings, reporter = self.settings, reporter or Reporter(len(inputs.images), began, None)
        reporter.attacking()
        attacker, prover, grid = self._begin(inputs, grid, pairs)
        begin_seconds = time.perf_counter() - began
        rows = attacker.alive()
        start = (1,) * len(inputs.transform.parts) if grid is None else grid
        tiling = Tiling(inputs.transform, start)
        search: AdaptiveSearch | UniformSearch = UniformSearch(prover, attacker, tiling)
        if settings.splits is None:
            precise = False
            if len(rows):
                tried = prover, rows, start, pairs, settings.seed + self.first
                precise = precision_pays(*tried)
                dtype = torch.float64 if precise else prover.dtype
                prover.gate.least, prover.gate.fewest = backward_pays(*tried, dtype)
            search = AdaptiveSearch(prover, attacker, tiling, precise_from=0 if precise else PRECISE_FROM)
        reporter.proving(search)
        search.work(pairs, settings.budget, reporter.report)
        search.attack_unknown()
        return search.results(self.first, begin_seconds / len(inputs.images)), grid
