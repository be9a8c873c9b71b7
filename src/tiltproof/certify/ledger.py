"""What is known of each image while a search runs; both ways of searching keep one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.certify.attack import Attacker
from tiltproof.certify.certificate import ImageResult
from tiltproof.certify.prover import Outcome, Prover
from tiltproof.certify.splits import Splits
from tiltproof.certify.tiling import Boxes, Tiling
from tiltproof.certify.verdict import Verdict

THOROUGH_SAMPLES, THOROUGH_STEPS = 200, 10


class Ledger:
    """Per image: boxes bounded, boxes still to prove, the least bound proved, and, once it is settled, the verdict."""

    def __init__(self, prover: Prover, attacker: Attacker, tiling: Tiling) -> None:
        self.prover, self.attacker, self.tiling = prover, attacker, tiling
        count = len(prover.labels)
        self.settled: dict[int, Verdict] = {}
        self.boxes = torch.zeros(count, dtype=torch.int64)
        self.waiting = torch.zeros(count, dtype=torch.int64)  # boxes of each image not proved yet
        self.seconds = torch.zeros(count, dtype=torch.float64)
        self.proved = torch.full((count,), torch.inf, dtype=torch.float64)
        self.open_box: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self.open_bound: dict[int, float] = {}
        self.splits = Splits(count)
        self.leaves = torch.zeros(count, dtype=torch.int64)  # boxes proved

    def bound(
        self, rows: Tensor, low: Tensor, high: Tensor, precise: Tensor | None = None, size: int | None = None
    ) -> Outcome:
        """Bounds of pairs (image ``rows[p]``, box ``low[p]`` to ``high[p]``), on the CPU; the ``precise`` ones in float64, where half of
        ``size`` pairs (by default, of these) are bounded at once."""
        device = self.prover.labels.device
        images, low, high = (each.to(device) for each in (rows, low, high))
        if precise is None or not bool(precise.any()):
            return self.prover.bound(images, low, high).cpu()
        count, axes = low.shape
        result = Outcome(torch.empty(count).double(), torch.empty(count).double(), torch.zeros(count, axes).double())
        plain, fine = (mask.nonzero().flatten() for mask in (~precise, precise))
        half = max(1, (size or count) // 2)  # float64 takes twice the memory
        for mine, dtype, most in ((plain, None, count), (fine, torch.float64, half)):
            for part in mine.split(most) if len(mine) else ():
                where = part.to(device)
                result.put(part, self.prover.bound(images[where], low[where], high[where], dtype).cpu())
        return result

    def record(self, rows: Tensor, bound: Tensor, seconds: float, boxes: Tensor | None = None) -> Tensor:
        """Book the bounds of pairs, each of one box or of so many ``boxes``; returns which of them were proved. ``> 0`` is false for
        NaN."""
        count = len(self.boxes)
        self.boxes += torch.bincount(rows, minlength=count)
        self.seconds.index_add_(0, rows, torch.full((len(rows),), seconds / max(1, len(rows)), dtype=torch.float64))
        passed = bound > 0
        boxes = torch.ones_like(rows) if boxes is None else boxes
        proved = torch.zeros_like(self.leaves).index_add_(0, rows[passed], boxes[passed])
        self.waiting -= proved
        self.leaves += proved
        self.proved.scatter_reduce_(0, rows[passed], bound[passed], "amin")
        return passed

    def attack_middles(self, rows: Tensor, boxes: Boxes) -> None:
        """Try the middle of boxes that were not proved as counterexamples."""
        low, high = self.tiling.bounds(boxes)
        middle = ((low + high) / 2).clamp(self.tiling.low, self.tiling.high)
        margin = self.attacker.margins_at(rows, middle)
        self.attacker.confirm(rows[margin < 0], middle[margin < 0])

    def attack_unknown(self) -> None:
        """A last, thorough attack on what could not be proved."""
        unknown = [image for image, verdict in self.settled.items() if verdict is Verdict.UNKNOWN]
        rows = torch.tensor([image for image in unknown if not bool(self.attacker.falsified[image])], dtype=torch.int64)
        self.attacker.search(rows, THOROUGH_SAMPLES, THOROUGH_STEPS)

    def settle_certified(self, rows: Tensor) -> None:
        """Images all of whose boxes are proved."""
        for image in rows[self.waiting[rows] == 0].unique().tolist():
            if image not in self.settled:
                self.settled[image] = Verdict.CERTIFIED

    def settle_unknown(self, image: int, bound: float, low: Tensor, high: Tensor) -> None:
        self.settled[image] = Verdict.UNKNOWN
        self.open_bound[image] = bound
        low, high = (end.clamp(self.tiling.low, self.tiling.high) for end in (low, high))  # as the user wrote the range
        self.open_box[image] = (tuple(low.tolist()), tuple(high.tolist()))

    def results(self, first: int, more_seconds: float) -> list[ImageResult]:
        """What is said of each image; the first is number ``first`` of the run."""
        labels = self.prover.labels.tolist()
        correct, falsified, margins = (
            tensor.tolist() for tensor in (self.attacker.correct, self.attacker.falsified, self.attacker.margin)
        )
        boxes, waiting, proved, leaves, seconds = (
            tensor.tolist() for tensor in (self.boxes, self.waiting, self.proved, self.leaves, self.seconds)
        )
        grid = tuple(self.tiling.base.tolist())
        trees, halved = self.splits.trees(grid)
        parts = math.prod(grid)
        results = []
        for image, label in enumerate(labels):
            whole = waiting[image] == 0 and boxes[image] > 0 and proved[image] > 0
            verdict = self._verdict(image, correct[image], falsified[image], whole)
            certified, margin = verdict is Verdict.CERTIFIED, margins[image]
            # every box of the tiling was proved, no more and no fewer
            if certified and leaves[image] != parts + halved[image]:
                raise RuntimeError(f"image {image}: the boxes proved do not make up its tiling; please report this")
            if certified or verdict is Verdict.UNKNOWN:
                margin = min(proved[image], self.open_bound.get(image, math.inf))
            results.append(
                ImageResult(
                    image=first + image,
                    label=label,
                    verdict=verdict,
                    margin=margin,
                    grid=grid if certified else None,
                    tree=trees[image] if certified else None,
                    counterexample=self.attacker.found[image] if verdict is Verdict.FALSIFIED else None,
                    open_box=self.open_box.get(image) if verdict is Verdict.UNKNOWN else None,
                    boxes=boxes[image],
                    seconds=seconds[image] + more_seconds,
                )
            )
        return results

    def _verdict(self, image: int, correct: bool, falsified: bool, whole: bool) -> Verdict:
        """Certified only if every box of the image was proved with a positive bound (``whole``)."""
        if not correct:
            return Verdict.MISCLASSIFIED
        verdict = self.settled.get(image)
        if falsified:
            if verdict is Verdict.CERTIFIED:
                raise RuntimeError(f"image {image}: a counterexample to a proof; a bound is wrong, please report this")
            return Verdict.FALSIFIED
        if verdict is Verdict.CERTIFIED and not whole:
            raise RuntimeError(f"image {image}: certified without all of its boxes proved; please report this")
        return Verdict.UNKNOWN if verdict is None else verdict
