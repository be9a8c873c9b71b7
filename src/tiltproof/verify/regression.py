"""`certify_range`: for regression, a range that no output leaves whatever the transformation, and how tight it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.pixels.api import check_method
from tiltproof.runs.folder import RunFolder, check_folder_options
from tiltproof.runs.manifest import claim
from tiltproof.runs.run import Run, Workers, plan_batches
from tiltproof.runtime.batch_size import AdaptiveBatchSize, pair_bytes, pairs_at_a_time, parse_memory
from tiltproof.transforms import Transform
from tiltproof.verify.attack import InnerRange
from tiltproof.verify.batch import Settings
from tiltproof.verify.initial_grid import candidate_grids, sensitivity
from tiltproof.verify.inputs import Inputs, check_model_and_images, check_search, check_splits, not_finite, proof_on
from tiltproof.verify.partition import Tiling, leaves
from tiltproof.verify.range_prover import RangeProver
from tiltproof.verify.range_search import RangeSearch, Wanted
from tiltproof.verify.results import Budget, RangeCertificate, RangeResult

TASK = "regression"
ASCENT_STEPS = 6
FIRST_GRID, PILOTS = 2, 2
"""Boxes along each parameter to begin with, where nothing is known; what is too coarse is halved. And images that are searched from
there to see where others should begin, if there are four times as many."""
ROOM, LEAST_ROOM = 0.005, 1e-9
"""Share of the width by which a range is published wider than proved, so that a checker with coarser bounds needs few halvings; and, of
1 + the output's size, what an output that hardly moves is given."""
DOUBLE = 2
"""Float64 takes twice the memory that `pairs_at_a_time` reckons with."""


@dataclass(frozen=True)
class RangeProgress:
    """Where a regression run stands; handed to the ``progress`` callback after every batch."""

    images: int
    done: int
    boxes: int
    seconds: float
    seconds_left: float | None = None


def certify_range(
    model: nn.Module,
    images: Tensor,
    transform: Transform | str,
    values: Tensor | None = None,
    *,
    excess: float = 0.05,
    width: float = 0.0,
    method: str = "affine",
    semantics: str = "real",
    splits: int | tuple[int, ...] | None = None,
    budget: Budget | None = None,
    samples: int = 24,
    batch_size: int | None = None,
    batch_images: int | None = None,
    memory: int | str | None = None,
    workers: Workers | None = None,
    progress: Callable[[RangeProgress], None] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    first: int = 0,
    notes: Mapping[str, Any] | None = None,
) -> RangeCertificate:
    """Prove, image by image, a range that the network's outputs keep for every parameter of the transform's range.

    Each result has ``lower`` and ``upper`` (proved), ``prediction`` and ``inner_lower``, ``inner_upper``: outputs that are reached, so
    that no proof can give less. Boxes are halved until the proved range is wider than the inner one by at most the share
    ``excess``, or narrower than ``width``, or the ``budget`` is spent; the range holds in any case. ``values`` [N] or [N, K]:
    the right answers, for errors in the summary. ``splits``: cut the range uniformly, as the paper does, and halve nothing.
    ``method``, ``semantics``, ``samples``, ``workers``, ``batch_images`` and ``memory``, ``out`` to ``notes``: as in `certify`.
    """
    began = time.perf_counter()
    with proof_on(images):
        budget = check_search(method, samples, batch_size, budget)
        if not (0 <= excess < float("inf") and 0 <= width < float("inf")):
            raise InputError("excess and width are not negative", got=(excess, width))
        check_folder_options(out, resume, overwrite)
        limit = parse_memory(memory)
        inputs = replace(check_model_and_images(model, images, transform, semantics), limit=limit)
        check_method(method, inputs.transform)
        answers = _check_values(values, inputs)
        grid = None if splits is None else check_splits(splits, inputs.transform)
        settings = RangeSettings(method, grid, budget, samples, seed, Wanted(excess, width))
        job = RangeJob(settings, first, answers, batch_size)
        inputs.memory.check(job.each(inputs))
        plan = plan_batches(len(inputs.images), job.pairs(inputs), batch_size, batch_images, workers)
        run = Run(settings.record(), plan)
        if workers is not None:
            workers.connect()
        if out is not None:
            about = {"task": TASK} | claim(inputs, first, values=None if answers is None else answers.tolist())
            folder = Path(out)
            run = RunFolder(
                folder, inputs, about, settings.record(), plan, dict(notes or {}), resume, overwrite, RangeResult
            )
        with closing(run):
            return _work(inputs, job, run, _Reporter(len(inputs.images), began, progress), workers)


def _work(inputs: Inputs, job: RangeJob, run: Run, reporter: _Reporter, workers: Workers | None) -> RangeCertificate:
    """All batches, and what they come to."""
    earlier = run.seconds
    reporter.done = reporter.earlier = len(run.results)
    run.work(inputs, job, reporter, workers)
    reporter.say(0)
    certificate = RangeCertificate(
        transform=str(inputs.transform),
        method=job.settings.method,
        semantics=inputs.semantics,
        results=run.results,
        seconds=earlier + time.perf_counter() - reporter.began,
        settings=run.settings
        | {"device": ", ".join(sorted(run.devices)), "precision": "float64"}
        | inputs.memory.record(),
    )
    run.finish(certificate.summary())
    return certificate


class _Reporter:
    """Tells the caller how far a run has come."""

    def __init__(self, images: int, began: float, callback: Callable[[RangeProgress], None] | None) -> None:
        self.images, self.began, self.callback = images, began, callback
        self.done = self.boxes = self.earlier = 0

    def finished(self, results: Sequence[RangeResult]) -> None:
        """A batch is done."""
        self.done += len(results)
        self.boxes += sum(result.boxes for result in results)
        self.say(0)

    def say(self, boxes: int) -> None:
        """``boxes``: of the batch under way."""
        if self.callback is not None:
            seconds, here = time.perf_counter() - self.began, self.done - self.earlier
            left = seconds * (self.images - self.done) / here if here else None
            self.callback(RangeProgress(self.images, self.done, self.boxes + boxes, seconds, left))


@dataclass(frozen=True)
class RangeSettings(Settings):
    """How hard to look, and what is tight enough."""

    wanted: Wanted

    def record(self) -> dict[str, Any]:
        return super().record() | asdict(self.wanted)


@dataclass(frozen=True)
class RangeJob:
    """Ranges for images that are numbered from ``first``; ``answers``: the right ones [N, K]."""

    settings: RangeSettings
    first: int
    answers: Tensor | None
    batch_size: int | None = None

    @property
    def needs_grid(self) -> bool:
        return self.settings.splits is None

    def part(self, rows: slice) -> RangeJob:
        answers = None if self.answers is None else self.answers[rows]
        return replace(self, first=self.first + rows.start, answers=answers)

    def pairs(self, inputs: Inputs) -> int:
        guess = pairs_at_a_time(inputs.network, self.settings.symbols(inputs), inputs.images.device, inputs.memory)
        return self.batch_size or max(1, guess // DOUBLE)

    def each(self, inputs: Inputs) -> int:
        return DOUBLE * pair_bytes(inputs.network, self.settings.symbols(inputs))

    def grid(self, inputs: Inputs, pairs: AdaptiveBatchSize) -> tuple[int, ...]:
        """The grid from which the first images would have taken the fewest bounds; all halvings above it are saved."""
        axes = len(inputs.transform.parts)
        coarse = (FIRST_GRID,) * axes
        if self.settings.splits or len(inputs.images) < 4 * PILOTS:
            return self.settings.splits or coarse
        _, search = _searched(inputs.part(slice(0, PILOTS)), self, coarse, pairs)
        most = 2 * PILOTS * self.settings.budget.boxes
        depths = [sum(node[axes:]) for tree in search.trees() for node in leaves(coarse, tree, most) or ()]

        def bounds(begin: int) -> float:
            """From this depth on; a leaf counts for its share of the boxes that hold it, or for those that it is cut into."""
            return sum(2 - 2.0 ** (begin - depth) if depth >= begin else 2.0 ** (begin - depth) for depth in depths)

        best = min(range(1 + max(depths, default=0)), key=bounds)
        return candidate_grids(sensitivity(inputs.transform, *inputs.images.shape[-2:]), math.prod(coarse) << best)[-1]

    def batch(
        self, inputs: Inputs, grid: tuple[int, ...] | None, pairs: AdaptiveBatchSize, reporter: _Reporter | None = None
    ) -> tuple[list[RangeResult], tuple[int, ...]]:
        reporter = reporter or _Reporter(len(inputs.images), time.perf_counter(), None)
        grid = grid or self.grid(inputs, pairs)
        return _batch(inputs, self, grid, pairs, reporter), grid


def _searched(
    inputs: Inputs, job: RangeJob, grid: tuple[int, ...], pairs: AdaptiveBatchSize, reporter: _Reporter | None = None
) -> tuple[InnerRange, RangeSearch]:
    """What evaluations reach, and what is proved."""
    settings = job.settings
    reached = InnerRange(inputs, settings.seed + job.first)
    _ensure_finite(reached.prediction, job.first)
    reached.search(settings.samples, ASCENT_STEPS)
    # a grid that is to be kept is the case of a width that every box has
    wanted = settings.wanted if settings.splits is None else Wanted(width=torch.inf)
    search = RangeSearch(RangeProver(inputs, settings.method), reached, Tiling(inputs.transform, grid), wanted)
    report = (lambda: None) if reporter is None else (lambda: reporter.say(int(search.boxes.sum())))
    search.work(pairs, settings.budget, report)
    search.check_covered()
    return reached, search


def _ensure_finite(outputs: Tensor, first: int) -> None:
    """Outputs [N, K] of the images from number ``first`` on."""
    wrong = (~outputs.isfinite()).any(1)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise not_finite(first + row, outputs[row])


def _batch(
    inputs: Inputs, job: RangeJob, grid: tuple[int, ...], pairs: AdaptiveBatchSize, reporter: _Reporter
) -> list[RangeResult]:
    """Results for these images; they depend on nothing but the images, the settings and the grid."""
    began = time.perf_counter()
    first, answers = job.first, job.answers
    reached, search = _searched(inputs, job, grid, pairs, reporter)
    shared = max(0.0, time.perf_counter() - began - float(search.seconds.sum())) / len(inputs.images)
    inner_low, inner_high = reached.confirmed()
    for numbers in (inner_low, inner_high):
        _ensure_finite(numbers, first)
    width = search.upper - search.lower
    least = LEAST_ROOM * (1 + torch.maximum(search.lower.abs(), search.upper.abs()))
    room = torch.where(width < torch.inf, torch.maximum(ROOM * width, least), 0.0)
    lower, upper = search.lower - room, search.upper + room
    outside = ((inner_low < lower) | (inner_high > upper)).any(1)
    if bool(outside.any()):
        image = first + int(outside.int().argmax())
        raise RuntimeError(f"image {image}: an output leaves its proved range; a bound is wrong, please report this")
    return [
        RangeResult(
            image=first + k,
            prediction=tuple(reached.prediction[k].tolist()),
            lower=tuple(lower[k].tolist()),
            upper=tuple(upper[k].tolist()),
            inner_lower=tuple(inner_low[k].tolist()),
            inner_upper=tuple(inner_high[k].tolist()),
            lowest_at=tuple(map(tuple, reached.lowest_at[k].tolist())),
            highest_at=tuple(map(tuple, reached.highest_at[k].tolist())),
            value=None if answers is None else tuple(answers[k].tolist()),
            complete=bool(search.complete[k]),
            grid=grid,
            tree=tree,
            boxes=int(search.boxes[k]),
            seconds=float(search.seconds[k]) + shared,
        )
        for k, tree in enumerate(search.trees())
    ]


def _check_values(values: Tensor | None, inputs: Inputs) -> Tensor | None:
    """The right answers as float64 [N, K] on the CPU."""
    shape = inputs.network.output_shape()
    if len(shape) != 1:
        raise InputError(
            "a regression network's output has shape [N, outputs]", got=f"[N, {', '.join(map(str, shape))}]"
        )
    if values is None:
        return None
    values = torch.as_tensor(values).detach().double().cpu()
    wanted = (len(inputs.images), shape[0])
    if values.shape == wanted[:1] and shape[0] == 1:
        values = values.unsqueeze(1)
    if values.shape != wanted or not bool(values.isfinite().all()):
        raise InputError(
            f"values must be finite numbers of shape {wanted}, one per image and output", got=tuple(values.shape)
        )
    return values
