"""What is known of each image while a search runs; both ways of searching keep one."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import Changing
from tiltproof.verify.attack import Attacker
from tiltproof.verify.partition import SplitLog, Tiling
from tiltproof.verify.prover import Outcome, Prover
from tiltproof.verify.results import ImageResult, Verdict

THOROUGH_SAMPLES, THOROUGH_STEPS = 200, 10


class SearchState:
    """Per image: boxes bounded, boxes still to prove, the least bound proved, and, once it is settled, the verdict. The books are kept,
    and boxes given and returned, on ``device``."""

    STATE: ClassVar[tuple[str, ...]] = (
        "certified", "unknown", "boxes", "waiting", "leaves", "covered", "seconds", "proved", "open_bound", "open_box",
    )  # fmt: skip

    def __init__(self, prover: Prover, attacker: Attacker, tiling: Tiling, device: torch.device | str = "cpu") -> None:
        self.prover, self.attacker, self.device = prover, attacker, torch.device(device)
        self.tiling, count = tiling.on(self.device), len(prover.labels)
        self.certified, self.unknown = torch.zeros(2, count, dtype=torch.bool, device=device)
        # boxes of each image: bounded, not proved yet, and proved
        self.boxes, self.waiting, self.leaves = torch.zeros(3, count, dtype=torch.int64, device=device)
        self.covered = torch.zeros_like(self.boxes)  # the content of what is proved
        self.seconds = torch.zeros(count, dtype=torch.float64, device=device)
        self.proved, self.open_bound = torch.full((2, count), torch.inf, dtype=torch.float64, device=device)
        self.open_box: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self.splits = SplitLog(count, device)

    def changes(self) -> tuple[Changing, ...]:
        """What a step of the search changes."""
        return self, self.splits, self.attacker, *self.prover.changes()

    def bound(
        self, rows: Tensor, low: Tensor, high: Tensor, precise: Tensor | None = None, size: int | None = None
    ) -> Outcome:
        """Bounds of pairs (image ``rows[p]``, box ``low[p]`` to ``high[p]``); the ``precise`` ones in float64, where half of ``size`` pairs
        (by default, of these) are bounded at once. Where steps are dear, a few others go with them."""
        device, count = self.prover.labels.device, len(rows)
        images, low, high = (each.to(device) for each in (rows, low, high))
        fine = rows[:0] if precise is None else precise.nonzero().flatten()
        if precise is None or not len(fine):
            return self.prover.bound(images, low, high).to(self.device)
        plain = (~precise).nonzero().flatten()
        if len(plain) <= min(len(fine), self.prover.few):
            fine, plain = torch.cat([fine, plain]), plain[:0]
        bound, forward, passes = low.new_empty(3, count)
        result = Outcome(bound, forward, passes, torch.empty_like(low))
        half = max(1, (size or count) // 2)  # float64 takes twice the memory
        for mine, dtype, most in ((plain, None, count), (fine, torch.float64, half)):
            for part in mine.to(device).split(most) if len(mine) else ():
                result.put(part, self.prover.bound(images[part], low[part], high[part], dtype))
        return result.to(self.device)

    def record(
        self, rows: Tensor, bound: Tensor, low: Tensor, high: Tensor, seconds: float, boxes: Tensor | None = None
    ) -> Tensor:
        """Book the bounds of pairs, each of one box or of so many ``boxes``; returns which of them were proved. ``> 0`` is false for
        NaN."""
        bounded = torch.zeros_like(self.boxes).index_add_(0, rows, torch.ones_like(rows))
        self.boxes += bounded
        self.seconds += bounded * (seconds / max(1, len(rows)))
        passed = bound > 0
        proved = torch.zeros_like(self.leaves).index_add_(0, rows, passed.long() if boxes is None else passed * boxes)
        self.waiting -= proved
        self.leaves += proved
        self.covered.index_add_(0, rows, torch.where(passed, content(low, high), 0))
        self.proved.scatter_reduce_(0, rows, torch.where(passed, bound, torch.inf), "amin")
        return passed

    def wrong_middles(self, rows: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Images and parameters in the middle of boxes that were not proved, where the answer seems wrong."""
        middle = ((low + high) / 2).clamp(self.tiling.low, self.tiling.high)
        margin = self.attacker.margins_at(rows, middle)
        wrong = (margin < 0).nonzero().flatten()
        return rows[wrong], middle[wrong]

    def attack_unknown(self) -> None:
        """A last, thorough attack on what could not be proved."""
        rows = (self.unknown.cpu() & ~self.attacker.falsified).nonzero().flatten()
        self.attacker.search(rows, THOROUGH_SAMPLES, THOROUGH_STEPS)

    def settle_certified(self, rows: Tensor) -> None:
        """Images all of whose boxes are proved, of these."""
        self.certified[rows] = (self.waiting[rows] == 0) & ~self.unknown[rows]

    def settle_unknown(self, image: int, bound: float, low: Tensor, high: Tensor) -> None:
        self.certified[image], self.unknown[image] = False, True
        self.open_bound[image] = bound
        low, high = (end.clamp(self.tiling.low, self.tiling.high) for end in (low, high))  # as the user wrote the range
        self.open_box[image] = (tuple(low.tolist()), tuple(high.tolist()))

    def results(self, first: int, more_seconds: float) -> list[ImageResult]:
        """What is said of each image; the first is number ``first`` of the run."""
        grid = tuple(self.tiling.base.tolist())
        trees, halved = self.splits.trees(grid)
        verdicts, count = self._verdicts(), len(self.boxes)
        proved = [verdict is Verdict.CERTIFIED for verdict in verdicts]
        # every box of the tiling was proved, no more and no fewer
        for image, leaves in enumerate(self.leaves.tolist()):
            if proved[image] and leaves != math.prod(grid) + halved[image]:
                raise RuntimeError(f"image {image}: the boxes proved do not make up its tiling; please report this")
        bounded = torch.tensor([verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN) for verdict in verdicts])
        margins = torch.where(bounded, torch.minimum(self.proved, self.open_bound).cpu(), self.attacker.margin)
        found = self.attacker.found
        columns = {
            "image": range(first, first + count),
            "label": self.prover.labels.tolist(),
            "verdict": verdicts,
            "margin": margins.tolist(),
            "grid": [grid if each else None for each in proved],
            "tree": [tree if each else None for tree, each in zip(trees, proved, strict=True)],
            "counterexample": [found[k] if verdicts[k] is Verdict.FALSIFIED else None for k in range(count)],
            "open_box": [self.open_box.get(k) if verdicts[k] is Verdict.UNKNOWN else None for k in range(count)],
            "boxes": self.boxes.tolist(),
            "seconds": (self.seconds + more_seconds).tolist(),
        }
        return [*map(ImageResult, *(columns[name] for name in ImageResult.__dataclass_fields__))]

    def _verdicts(self) -> list[Verdict]:
        """Certified only if every box of the image was proved with a positive bound."""
        correct, falsified = self.attacker.correct, self.attacker.falsified
        certified = correct & self.certified.cpu()
        everything = content(self.tiling.outer_low.unsqueeze(0), self.tiling.outer_high.unsqueeze(0))
        whole = ((self.waiting == 0) & (self.boxes > 0) & (self.proved > 0) & (self.covered == everything)).cpu()
        for wrong, what in (
            (certified & falsified, "a counterexample to a proof; a bound is wrong, please report this"),
            (certified & ~whole, "certified without all of its boxes proved; please report this"),
        ):
            if bool(wrong.any()):
                raise RuntimeError(f"image {int(wrong.nonzero()[0])}: {what}")
        verdicts = list(Verdict)
        number = torch.full((len(correct),), verdicts.index(Verdict.UNKNOWN))
        for which, verdict in (
            (certified, Verdict.CERTIFIED),
            (falsified, Verdict.FALSIFIED),
            (~correct, Verdict.MISCLASSIFIED),
        ):
            number[which] = verdicts.index(verdict)
        return [verdicts[each] for each in number.tolist()]


def content(low: Tensor, high: Tensor) -> Tensor:
    """A number for each box [P] that tells coverings from what only looks like one: those of boxes that make up a box add up to its own,
    modulo 2^64.

    Along each axis it is F(high) - F(low), where F scatters the bits of an edge over all whole numbers, and of several axes the product:
    what is cut in two has (F(m) - F(l)) + (F(h) - F(m)) = F(h) - F(l). A box too many and another too few agree by chance alone.
    """
    first, last = _scattered(torch.stack([low, high]))
    return (last - first).prod(1)


def _scattered(edge: Tensor) -> Tensor:
    """Different whole numbers for different edges, as random as they look; products wrap around, and every step can be undone."""
    bits = (edge + 0.0).view(torch.int64)  # no negative zero
    for factor in (-7046029254386353131, -4658895280553007687, -7723592293110705685):
        bits = (bits ^ (bits >> 32 & 0xFFFF_FFFF)) * factor
    return bits ^ (bits >> 32 & 0xFFFF_FFFF)
