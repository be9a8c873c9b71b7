"""Uniform splitting, the paper's way: a fixed grid, box by box over all images, so that images share a box's
coordinates.

A bound over a block of neighbouring boxes holds over each of them, so blocks are tried first where they are often proved, at a fraction
of the bounds. A box is given up only by itself, so no verdict is lost; one may be won where a block is proved and a box of it is not.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.certify.attack import Attacker
from tiltproof.certify.ledger import Ledger
from tiltproof.certify.memory import Halving
from tiltproof.certify.prover import Prover
from tiltproof.certify.tiling import Boxes, Tiling
from tiltproof.certify.verdict import Budget

FEWEST_BLOCKS, TRIES = 64, 512
"""Blocks are made larger so long as there are so many; bounds of a size of block before it may be found not to pay."""


class UniformSearch(Ledger):
    """An image leaves at its first box that cannot be proved: falsified if the box's middle is a counterexample, else
    unknown.
    """

    def __init__(self, prover: Prover, attacker: Attacker, tiling: Tiling) -> None:
        super().__init__(prover, attacker, tiling)
        self.sizes = block_sizes(tuple(tiling.base.tolist()))
        self.tried, self.won = [0] * len(self.sizes), [0] * len(self.sizes)

    def work(self, batch: Halving, budget: Budget, report: Callable[[], None]) -> None:
        images = self.attacker.alive()
        self.waiting[images] = int(self.tiling.base.prod())
        corners = self._corners(len(self.sizes) - 1)
        start = 0
        while start < len(corners) and len(images):
            chunk = corners[start : start + max(1, batch.size // len(images))]
            start += len(chunk)
            # pairs of images and blocks still to prove, by the size of the block
            waiting = [(images[:0], corners[:0])] * (len(self.sizes) - 1)
            waiting.append((images.repeat(len(chunk)), chunk.repeat_interleave(len(images), 0)))
            while (size := _next([len(rows) for rows, _ in waiting], batch.size)) is not None:
                rows, blocks = waiting[size]
                self._stop_late(rows, blocks, budget)
                keep = self._open()[rows]
                rows, blocks = rows[keep], blocks[keep]
                waiting[size] = rows, blocks
                if not len(rows):
                    continue
                failed, done = self._try(rows, blocks, size, batch)
                waiting[size] = rows[done:], blocks[done:]
                if len(failed) and size:
                    finer = self._inside(blocks[failed], size)
                    more = rows[failed].repeat_interleave(finer[1])
                    before = waiting[size - 1]
                    waiting[size - 1] = torch.cat([more, before[0]]), torch.cat([finer[0], before[1]])
                report()
            self.settle_certified(images)
            images = images[self._open()[images]]

    def _try(self, rows: Tensor, blocks: Tensor, size: int, batch: Halving) -> tuple[Tensor, int]:
        """Bound some of the pairs, or none where blocks of this size do not pay: which of them are not proved, and how many were
        looked at. Images leave at boxes that are not."""
        if size and self.tried[size] >= TRIES and self.won[size] * math.prod(self._times(size)) < self.tried[size]:
            done = min(len(rows), batch.size)
            return torch.arange(done), done
        began = time.perf_counter()
        bound = batch.run(functools.partial(self._piece, rows, blocks, size))
        done = len(bound)
        rows, blocks = rows[:done], blocks[:done]
        boxes = (self._ends(blocks, size) - blocks + 1).prod(1)
        passed = self.record(rows, bound, time.perf_counter() - began, boxes)
        self.tried[size] += done
        self.won[size] += int(passed.sum())
        failed = (~passed).nonzero().flatten()
        if not size:
            self._leave(rows[failed], blocks[failed], bound[failed])
        return failed, done

    def _piece(self, rows: Tensor, blocks: Tensor, size: int, most: int) -> Tensor:
        """Bounds of the first pairs. A box that fails is tried once more in float64: rounding alone may have kept it open."""
        rows, blocks = rows[:most], blocks[:most]
        ends = self._bounds(blocks, size)
        bound = self.bound(rows, *ends).bound
        failed = (~(bound > 0)).nonzero().flatten()
        if len(failed) and not size and self.prover.dtype != torch.float64:
            precise = torch.ones(len(failed), dtype=torch.bool)
            bound[failed] = self.bound(rows[failed], ends[0][failed], ends[1][failed], precise).bound
        return bound

    def _corners(self, size: int) -> Tensor:
        """The first box of every block, [blocks, d]."""
        axes = [
            torch.arange(0, count, step)
            for count, step in zip(self.tiling.base.tolist(), self.sizes[size], strict=True)
        ]
        return torch.cartesian_prod(*axes).view(-1, len(axes))

    def _ends(self, corners: Tensor, size: int) -> Tensor:
        """The last box of each block; blocks at the range's end may be smaller."""
        return torch.minimum(corners + torch.tensor(self.sizes[size]), self.tiling.base) - 1

    def _bounds(self, corners: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Lower and upper parameter values of each block."""
        first, last = (
            self.tiling.bounds(Boxes(index, torch.zeros_like(index))) for index in (corners, self._ends(corners, size))
        )
        return torch.minimum(first[0], last[0]), torch.maximum(first[1], last[1])

    def _times(self, size: int) -> list[int]:
        """How many of the next smaller blocks one has along each axis."""
        return [a // b for a, b in zip(self.sizes[size], self.sizes[size - 1], strict=True)]

    def _inside(self, corners: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The next smaller blocks of each block, one block's after the other, and how many each has."""
        steps = [
            torch.arange(times) * step for times, step in zip(self._times(size), self.sizes[size - 1], strict=True)
        ]
        finer = corners.unsqueeze(1) + torch.cartesian_prod(*steps).view(1, -1, len(steps))
        there = (finer < self.tiling.base).all(2)
        return finer[there], there.sum(1)

    def _leave(self, rows: Tensor, blocks: Tensor, bound: Tensor) -> None:
        """Images ``rows``, because of these boxes."""
        if not len(rows):
            return
        boxes = Boxes(blocks, torch.zeros_like(blocks))
        self.attack_middles(rows, boxes)
        low, high = self.tiling.bounds(boxes)
        alone = int(self.tiling.base.prod()) == 1
        still = self._open().tolist()
        for k, image in enumerate(rows.tolist()):
            if still[image]:
                still[image] = False
                # the boxes not looked at have no bound, so with more than one there is none for the whole range
                self.settle_unknown(image, float(bound[k]) if alone else -torch.inf, low[k], high[k])

    def _stop_late(self, rows: Tensor, blocks: Tensor, budget: Budget) -> None:
        """Images that have had their seconds leave; each because of the first of its blocks among these, which are still to prove."""
        if budget.seconds is None:
            return
        late = ((self.seconds[rows] >= budget.seconds) & self._open()[rows]).nonzero().flatten()
        images, number = rows[late].unique(return_inverse=True)
        first = torch.full_like(images, len(rows)).scatter_reduce(0, number, late, "amin")
        self._leave(images, blocks[first], torch.full((len(images),), -torch.inf).double())

    def _open(self) -> Tensor:
        """For each image whether it is neither settled nor falsified."""
        return ~(self.certified | self.unknown | self.attacker.falsified)


def _next(waiting: list[int], full: int) -> int | None:
    """Of which size to take pairs: the smallest that fill a batch, so that few wait at any time, else the largest there are."""
    sizes = [size for size, count in enumerate(waiting) if count]
    return next((size for size in sizes if waiting[size] >= full), sizes[-1] if sizes else None)


def block_sizes(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Blocks of a grid in boxes along each axis, from single boxes to the largest: each size about four of the one before."""
    sizes = [(1,) * len(grid)]
    while math.prod(-(-count // step) for count, step in zip(grid, sizes[-1], strict=True)) >= 4 * FEWEST_BLOCKS:
        step = list(sizes[-1])
        for _ in range(2):
            pieces = [-(-count // each) for count, each in zip(grid, step, strict=True)]
            step[pieces.index(max(pieces))] *= 2
        sizes.append(tuple(step))
    return sizes
