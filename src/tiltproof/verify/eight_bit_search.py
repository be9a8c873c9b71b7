"""`--semantics uint8`: every 8-bit picture that the range makes of an image is evaluated by the program itself."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tiltproof.pixels.chosen import ChosenPixels
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import Counterexamples, candidates, margin_of
from tiltproof.verify.eight_bit_bounds import PictureBounds, Pieces
from tiltproof.verify.eight_bits import Enumeration, Found, least_of
from tiltproof.verify.inputs import Inputs, not_finite
from tiltproof.verify.options import Limits
from tiltproof.verify.program import eps_of, pictures_dtype, rounded, shades
from tiltproof.verify.prover import BackwardPolicy, CostModel
from tiltproof.verify.results import ImageResult, Reason
from tiltproof.verify.rules import OwnRule, Rule
from tiltproof.verify.spec import ClassificationSpec
from tiltproof.verify.state import Search, SearchState, Tiling

PARTS, AT_ONCE = 256, 32
"""Equal boxes that a range is cut into at the start, and how many of them are searched in one step."""
MOST_AT_ONCE = {"cpu": 256, "cuda": 4096}
"""Pictures in a batch."""
ROUNDINGS, NOISE = 64, 8
"""The least tolerance, in units of the precision times the largest output; and in times of the largest difference between batch sizes."""
LEAST_PART = 16
"""A box is proved by bounds of at least this part of the least margin seen."""
OTHER_SIZES = (1, 3)
"""Sizes of batches in which pictures are evaluated again."""


class Evaluator:
    """Margins of pictures of the images of a batch, and how far they depend on the size of batches."""

    def __init__(self, inputs: Inputs, rule: Rule | None, tolerance: float | None) -> None:
        self.inputs, self.asked = inputs, tolerance
        self.rule = None if isinstance(rule, OwnRule) else rule
        self.device = inputs.images.device
        self.shades = shades(pictures_dtype(inputs.model))
        self.batch = inputs.evaluations(MOST_AT_ONCE["cuda" if inputs.images.is_cuda else "cpu"])
        self.noise = torch.zeros(len(inputs.images), dtype=torch.float64)
        self.largest = torch.zeros(len(inputs.images), dtype=torch.float64)
        self.eps = 0.0

    @torch.no_grad()
    def outputs(self, pictures: Tensor, size: int) -> Tensor:
        """Return outputs of pictures [N, C, H, W] of whole numbers, ``size`` at a time, float64 on the CPU."""
        found = []
        for part in pictures.split(size):
            answers = self.inputs.answers(self.shades[part.long()].to(self.device))
            self.eps = max(self.eps, eps_of(self.inputs.model, answers))
            found.append(answers.cpu().double())
        return torch.cat(found)

    def margins(self, row: int, pictures: Tensor) -> Tensor:
        """Return margins of pictures of image ``row``; NaN where an output is not finite."""
        outputs: Tensor = self.batch.run(functools.partial(self.outputs, pictures))
        return self.margins_of(outputs, torch.full((len(outputs),), row))

    def margins_of(self, outputs: Tensor, rows: Tensor) -> Tensor:
        margin = (
            margin_of(outputs, self.inputs.labels.cpu()[rows])
            if self.rule is None
            else self.rule.margin(outputs, rows).double()
        )
        return torch.where(outputs.isfinite().all(1), margin, torch.nan)

    def compare(self, row: int, pictures: Tensor) -> None:
        """Evaluate pictures of an image in batches of several sizes, and note the largest difference of an output."""
        if not len(pictures):
            return
        size = self.batch.size
        whole = pictures.repeat(-(-size // len(pictures)), 1, 1, 1)[:size]
        together = self.batch.run(functools.partial(self.outputs, whole))[: len(pictures)]
        pictures = pictures[: len(together)]
        for other in OTHER_SIZES:
            difference = (self.outputs(pictures, other) - together).abs().amax()
            if not float(difference) <= float(self.noise[row]):  # also a NaN
                self.noise[row] = difference
        self.largest[row] = max(float(self.largest[row]), float(together.abs().amax()))

    def tolerance(self, row: int) -> float:
        """Return the tolerance for an image; infinite if its evaluations are not finite."""
        least = NOISE * float(self.noise[row])
        if self.asked is not None:
            return max(self.asked, least) if math.isfinite(least) else math.inf
        result = max(least, ROUNDINGS * self.eps * float(self.largest[row]))
        return result if math.isfinite(result) else math.inf


class EightBitSpec(ClassificationSpec):
    """Every picture has a margin above the tolerance."""

    def __init__(self, inputs: Inputs, evaluator: Evaluator, samples: int, seed: int, own: bool) -> None:
        self.inputs, self.evaluator, self.samples, self.seed, self.own = inputs, evaluator, samples, seed, own
        self.prover: Any = SimpleNamespace(labels=inputs.labels)
        self.attacker: Any = SimpleNamespace(semantics_network=None, exact=None)
        self.bounds: PictureBounds | None = None
        self.cost = CostModel(1, 1.0)
        self.images = inputs.images.detach().cpu().double()
        self.work: dict[int, tuple[int, float]] = {}

    def begin(self, first: int) -> Counterexamples:
        """Evaluate the untransformed images, rounded; ``first``: the number of the first one, for messages."""
        pictures = rounded(self.images)
        outputs = self.evaluator.batch.run(functools.partial(self.evaluator.outputs, pictures))
        wrong = (~outputs.isfinite()).any(1)
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            raise not_finite(first + row, outputs[row])
        margins = self.evaluator.margins_of(outputs, torch.arange(len(outputs)))
        count = len(outputs)
        return Counterexamples(margins > 0, margins, torch.zeros(count, dtype=torch.bool), [None] * count, self.own)

    def enumeration(self, row: int) -> Enumeration:
        """Return the enumeration of an image's pictures."""
        pixels = ChosenPixels(self.images[row], self.inputs.transform)
        (low,), (high,) = self.inputs.transform.low, self.inputs.transform.high
        margins = functools.partial(self.evaluator.margins, row)
        bounds = None if self.bounds is None else functools.partial(self.bounds.lower, row)
        return Enumeration(pixels, margins, self.evaluator.tolerance(row), low, high, bounds)

    def attack(self, row: int, enumeration: Enumeration) -> Found:
        """Evaluate the pictures at some parameters, in batches of several sizes."""
        generator = torch.Generator().manual_seed(self.seed + row)
        t = (candidates(self.samples, 1, generator).flatten() + 1) / 2
        values = (enumeration.low * (1 - t) + enumeration.high * t).clamp(enumeration.low, enumeration.high)
        known = [(value, picture) for value in values.tolist() if (picture := enumeration.at(value)) is not None]
        found = Found(torch.empty(0))
        pictures = [rounded(self.images[row : row + 1])]
        if known:
            pictures.append(enumeration.pixels.pictures(torch.stack([picture for _, picture in known])))
        every = torch.cat(pictures)
        self.evaluator.compare(row, every)
        enumeration.tolerance = self.evaluator.tolerance(row)
        if known:
            margins = self.evaluator.margins(row, every[1:])
            found.pictures = len(margins)
            nothing = found.worst, found.margins
            found.worst, found.margins = least_of(*nothing, torch.stack([picture for _, picture in known]), margins)
            for (value, _), margin in zip(known, margins.tolist(), strict=True):
                if margin < min(-enumeration.tolerance, found.margin):
                    found.counterexample, found.margin = value, margin
        return found

    def finish(self, state: SearchState) -> None:
        """Do nothing: what is unknown has its reason."""

    def results(self, state: SearchState, tiling: Tiling, first: int, more_seconds: float) -> list[ImageResult]:
        found = super().results(state, tiling, first, more_seconds)
        none = 0, 0.0
        each = [self.work.get(row, none) for row in range(len(found))]
        return [replace(one, pictures=work[0], tolerance=work[1]) for one, work in zip(found, each, strict=True)]


class EightBitSearch(Search):
    """Searches image by image; a range is cut into equal boxes, within which `Enumeration` halves."""

    spec: EightBitSpec

    def __init__(self, spec: EightBitSpec, tiling: Tiling, state: SearchState, limits: Limits) -> None:
        super().__init__(spec, tiling, state)
        self.limits = limits

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        """Search every image until all its boxes are done, or one of them cannot be."""
        low, high = (end.flatten() for end in self.tiling.bounds(self.tiling.first()))
        for row in self.spec.open_images(self.state).tolist():
            self.state.waiting[row] = len(low)
            began = time.perf_counter()
            enumeration = self.spec.enumeration(row)
            found = self.spec.attack(row, enumeration)
            worst, margins, total = found.worst, found.margins, found
            self.state.seconds[row] += time.perf_counter() - began
            boxes = torch.arange(len(low)).split(AT_ONCE)
            for which in boxes:
                if not found.holds:
                    break
                if self._spent(row, float(low[which[0]]), float(high[which[-1]])):
                    break
                began = time.perf_counter()
                seen = float(margins.min()) if len(margins) else 0.0
                found, boxes_of = self._part(row, enumeration, seen, low[which], high[which])
                total.pictures += found.pictures
                total.boxes += boxes_of
                worst, margins = least_of(worst, margins, found.worst, found.margins)
                self.state.count(torch.full((max(1, boxes_of),), row), time.perf_counter() - began)
                report()
            self._settle(row, found, enumeration, worst, margins)
            self.spec.work[row] = total.pictures, enumeration.tolerance
            report()

    def _part(self, row: int, enumeration: Enumeration, seen: float, low: Tensor, high: Tensor) -> tuple[Found, int]:
        """Prove some boxes by bounds where that pays, and evaluate every picture of the others; settle them if all hold. Return what the
        evaluation found, and how many boxes were bounded. ``seen``: the least margin so far; bounds of a small part of it are not enough,
        so that what is reported says more than that it is positive."""
        bounds = self.spec.bounds
        before = 0 if bounds is None else bounds.boxes
        if bounds is None:
            pieces = Pieces.open(low, high, torch.arange(len(low)))
        else:
            pieces = bounds.divide(row, enumeration.pixels, low, high, max(enumeration.tolerance, seen / LEAST_PART))
        open_ = ~(pieces.bound > enumeration.tolerance)
        found = Found(pieces.low[:0])
        if bool(open_.any()):
            found = enumeration.run(pieces.low[open_], pieces.high[open_])
        if found.holds:
            least = pieces.bound.masked_scatter(open_, found.least)
            rows, done = torch.full_like(pieces.root, row), torch.ones_like(open_)
            first = torch.ones_like(pieces.root)
            first[1:] = pieces.root[1:] != pieces.root[:-1]  # each box of the tiling counts once
            ends = pieces.low.unsqueeze(1), pieces.high.unsqueeze(1)
            self.state.settle(rows, least.unsqueeze(1), done, *ends, first)
        return found, found.boxes + (0 if bounds is None else bounds.boxes - before)

    def _spent(self, row: int, low: float, high: float) -> bool:
        """Settle the image as unknown if its budget is spent."""
        seconds = self.limits.max_seconds
        if seconds is None or float(self.state.seconds[row]) < seconds:
            return False
        self._unknown(row, Reason.SECONDS, (low, high))
        return True

    def _unknown(self, row: int, reason: Reason, box: tuple[float, float]) -> None:
        low, high = (torch.tensor([end], dtype=torch.float64) for end in box)
        self.state.settle_unknown(self.tiling, row, -math.inf, low, high)
        self.state.reasons[row] = reason

    def _settle(self, row: int, found: Found, enumeration: Enumeration, worst: Tensor, margins: Tensor) -> None:
        """Settle an image with what was found last."""
        known: Counterexamples = self.state.witnesses
        if found.counterexample is not None:
            known.found[row], known.falsified[row] = (found.counterexample,), True
            known.margin[row] = found.margin
        elif found.reason is not None:
            assert found.box is not None
            self._unknown(row, found.reason, found.box)
        elif not self.state.exhausted[row] and not int(self.state.waiting[row]):
            # the least margins once more, in other batch sizes
            self.spec.evaluator.compare(row, enumeration.pixels.pictures(worst))
            enumeration.tolerance = self.spec.evaluator.tolerance(row)
            if float(self.state.proved[row, 0]) > enumeration.tolerance:
                self.state.certified[row] = True
            else:
                self._unknown(row, Reason.TOLERANCE, (enumeration.low, enumeration.high))


def eight_bit_search(
    inputs: Inputs, rule: Rule | None, limits: Limits, samples: int, seed: int, tolerance: float | None, first: int
) -> EightBitSearch:
    """Return the search of a batch of images, numbered from ``first``."""
    evaluator = Evaluator(inputs, rule, tolerance)
    spec = EightBitSpec(inputs, evaluator, samples, seed, isinstance(rule, OwnRule))
    known = spec.begin(first)
    if len(known.alive()):
        spec.bounds = PictureBounds.of(inputs, rule)
    tiling = Tiling(inputs.transform, (PARTS,))
    state = SearchState.start(spec, known, BackwardPolicy.on(torch.device("cpu")))
    return EightBitSearch(spec, tiling, state, limits)
