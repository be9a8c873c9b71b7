"""One batch of images: attacked, then proved; independent of every other batch.

A run is a sequence of such batches. Each has its own random numbers and its own memory of where backward passes pay, so its results
depend on nothing but its images and the settings, and a run that was stopped and resumed says what an uninterrupted one would have.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tiltproof.certify.attack import Attacker
from tiltproof.certify.certificate import ImageResult
from tiltproof.certify.entry import Inputs
from tiltproof.certify.memory import Halving
from tiltproof.certify.prover import Prover
from tiltproof.certify.reporter import Reporter
from tiltproof.certify.search import PRECISE_FROM, AdaptiveSearch
from tiltproof.certify.start import precision_pays, starting_grid
from tiltproof.certify.tiling import Tiling
from tiltproof.certify.uniform import UniformSearch
from tiltproof.certify.verdict import Budget


@dataclass(frozen=True)
class Settings:
    """How hard to look; the same for all batches of a run."""

    method: str
    splits: tuple[int, ...] | None
    budget: Budget
    samples: int
    seed: int

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


def certify_batch(
    inputs: Inputs,
    settings: Settings,
    first: int,
    grid: tuple[int, ...] | None,
    pairs: Halving,
    reporter: Reporter,
) -> tuple[list[ImageResult], tuple[int, ...] | None]:
    """Results for these images, numbered from ``first``, and the starting grid (None as long as no image needed one)."""
    began = time.perf_counter()
    seed = settings.seed + first
    reporter.attacking()
    attacker = Attacker(inputs, seed)
    attacker.search(attacker.alive(), settings.samples, steps=0)
    attack_seconds = time.perf_counter() - began
    prover = Prover(inputs, settings.method)
    rows = attacker.alive()
    grid = settings.splits or grid
    if grid is None and len(rows):
        grid = starting_grid(prover, rows, settings.budget.boxes, pairs, seed)
    start = (1,) * len(inputs.transform.parts) if grid is None else grid
    tiling = Tiling(inputs.transform, start)
    search: AdaptiveSearch | UniformSearch = UniformSearch(prover, attacker, tiling)
    if settings.splits is None:
        precise = bool(len(rows)) and precision_pays(prover, rows, start, pairs, seed)
        search = AdaptiveSearch(prover, attacker, tiling, precise_from=0 if precise else PRECISE_FROM)
    reporter.proving(search)
    search.work(pairs, settings.budget, reporter.report)
    search.attack_unknown()
    results = search.results(first, attack_seconds / len(inputs.images))
    reporter.finished(results)
    return results, grid
