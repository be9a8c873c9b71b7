"""The paper's uniform grid, for many images at a time, so that images share the coordinates of a box.

A bound over a block of neighboring boxes holds on each of them, so the grid is covered by the largest blocks that can
be proved, at a fraction of the bounds. Only single boxes decide that an image is unknown, so no verdict is lost; a
block may be proved where one of its boxes alone is not. The possible size of blocks depends on the image and the
region of the range, and varies slowly: the middle of each region is tried first, from the whole region downwards, and
gives the size for the rest.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.options import Limits
from tiltproof.verify.results import Reason
from tiltproof.verify.spec import ClassificationSpec
from tiltproof.verify.state import Boxes, Search, SearchState, Tiling

FEWEST_REGIONS, SPREAD = 64, 8
"""Least number of regions in the grid; one region in `SPREAD` is searched from the whole region downwards, the others
from the largest size found in those."""
TOGETHER, MOST_PAIRS = 64, 2**20
"""Images per group: enough to share boxes, few enough for steady progress; and most (image, block) pairs per list."""


@dataclass
class Blocks:
    """Pairs of images ``rows`` [P] and blocks: the numbers of their first boxes [P, d], and the number of their size
    [P]."""

    rows: Tensor
    corners: Tensor
    size: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Tensor | slice) -> Blocks:
        return Blocks(self.rows[which], self.corners[which], self.size[which])

    @staticmethod
    def join(parts: list[Blocks]) -> Blocks:
        return Blocks(*(torch.cat(each) for each in zip(*((p.rows, p.corners, p.size) for p in parts), strict=True)))


class UniformSearch(Search):
    """An image is settled at its first unproved box: falsified if the middle is a counterexample, else unknown."""

    spec: ClassificationSpec

    def __init__(self, spec: ClassificationSpec, tiling: Tiling, state: SearchState, limits: Limits) -> None:
        super().__init__(spec, tiling, state)
        self.limits = limits
        self.sizes = torch.tensor(block_sizes(tuple(tiling.base.tolist())))  # [sizes, d], in boxes
        self.largest = len(self.sizes) - 1

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        """Prove all boxes, or settle each image at the first one that fails."""
        prove = functools.partial(self._prove, batch=batch, report=report)
        images = self.spec.open_images(self.state)
        self.state.waiting[images] = int(self.tiling.base.prod())
        found, bound = self._scout(images, prove)
        # an image that cannot be proved fails where blocks must be small and bounds are low: one such region of every image, first
        found = found[bound.argsort()]
        found = found[(found.rows * len(self.sizes) + found.size).argsort(stable=True)]
        counts = found.rows.unique_consecutive(return_counts=True)[1]
        first = torch.zeros(len(found), dtype=torch.bool)
        first[counts.cumsum(0) - counts] = True
        self._cover(found[first], prove)
        start = 0
        for group in counts.split(TOGETHER):
            end = start + int(group.sum())
            rest = found[start:end][~first[start:end]]
            self._cover(rest, prove)
            self.state.settle_certified(found.rows[start:end])
            start = end
            report()

    def _scout(self, images: Tensor, prove: Callable[[Blocks], Tensor]) -> tuple[Blocks, Tensor]:
        """Return the regions of images by their first boxes, each with the largest block size proved in its middle,
        and that bound. Images are settled where a single box fails."""
        regions = self._regions()
        spread = torch.arange(len(regions)) % SPREAD == 0
        start, found, bounds = torch.full((len(self.state.waiting),), self.largest), [], []
        for part in (regions[spread], regions[~spread]):
            rows, corners = images.repeat(len(part)), part.repeat_interleave(len(images), 0)
            size, bound = torch.full_like(rows, -1), torch.full((len(rows),), -torch.inf).double()
            for each in reversed(range(len(self.sizes))):
                left = ((size < 0) & (each <= start[rows])).nonzero().flatten()
                bound[left] = prove(self._middles(Blocks(rows[left], corners[left], torch.full_like(left, each))))
                size[left[bound[left] > 0]] = each
            start = torch.full_like(start, -1).scatter_reduce(0, rows, size, "amax")
            found.append(Blocks(rows, corners, size)[size >= 0])
            bounds.append(bound[size >= 0])
        return Blocks.join(found), torch.cat(bounds)

    def _cover(self, regions: Blocks, prove: Callable[[Blocks], Tensor]) -> None:
        """Prove the rest of regions whose middles are proved, in blocks of the same size, and in smaller ones where
        these fail."""
        regions = regions[self._open()[regions.rows]]
        regions = regions[self._flat(regions.corners).argsort(stable=True)]
        parts = (self.sizes[-1] // self.sizes[regions.size]).prod(1).cumsum(0) // MOST_PAIRS
        start = 0
        for count in parts.unique_consecutive(return_counts=True)[1].tolist():
            left = self._around(regions[start : start + count])
            start += count
            while len(left):
                failed = ~(prove(left) > 0)
                left = self._halved(left[failed & (left.size > 0) & self._open()[left.rows]])

    def _prove(self, blocks: Blocks, batch: AdaptiveBatchSize, report: Callable[[], None]) -> Tensor:
        """Bound as many blocks at a time as fit, neighbors together. Images are settled at single boxes that fail;
        their other blocks are not bounded and get minus infinity."""
        result = torch.full((len(blocks),), -torch.inf).double()
        left, alive = self._flat(blocks.corners).argsort(stable=True), -1
        while len(left):
            self._stop_late(blocks[left[: batch.size]])
            still = self._open()
            if alive != (alive := int(still.sum())):
                left = left[still[blocks.rows[left]]]
                continue
            bound = self.commit(batch, functools.partial(self._step, blocks[left[: batch.size]]))
            result[left[: len(bound)]] = bound
            left = left[len(bound) :]
            report()
        return result

    def _step(self, blocks: Blocks, state: SearchState, size: int) -> Tensor:
        """Bound the first ``size`` pairs; settle images at single boxes that fail."""
        began, blocks = time.perf_counter(), blocks[:size]
        bound, low, high = self._bound(state, blocks)
        boxes = (self._ends(blocks) - blocks.corners + 1).prod(1)
        state.count(blocks.rows, time.perf_counter() - began)
        done = self.spec.done(state, blocks.rows, bound)
        state.settle(blocks.rows, bound, done, low, high, boxes)
        alone = (~done & (blocks.size == 0)).nonzero().flatten()
        self._leave(state, blocks[alone], bound[alone, 0])
        return bound[:, 0]

    def _bound(self, state: SearchState, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
        """Return bounds [P, 1] of pairs, and the ends of the blocks. A single box that fails is bounded again in
        float64, because only rounding may have kept it open."""
        low, high = self._bounds(blocks)
        bound = self.spec.bound(state, blocks.rows, low, high).bound
        failed = (~(bound[:, 0] > 0) & (blocks.size == 0)).nonzero().flatten()
        if len(failed) and self.spec.prover.dtype != torch.float64:
            precise = torch.ones(len(failed), dtype=torch.bool)
            bound[failed] = self.spec.bound(state, blocks.rows[failed], low[failed], high[failed], precise).bound
        return bound, low, high

    def _regions(self) -> Tensor:
        """Return the first box of every block of the largest size, [regions, d]."""
        axes = [
            torch.arange(0, count, step)
            for count, step in zip(self.tiling.base.tolist(), self.sizes[-1].tolist(), strict=True)
        ]
        return torch.cartesian_prod(*axes).view(-1, len(axes))

    def _middles(self, regions: Blocks) -> Blocks:
        """Return, for each region, the block of its size that contains the middle of the region."""
        last = torch.minimum(regions.corners + self.sizes[-1], self.tiling.base) - 1
        step = self.sizes[regions.size]
        return Blocks(regions.rows, regions.corners + (last - regions.corners) // 2 // step * step, regions.size)

    def _around(self, regions: Blocks) -> Blocks:
        """Return all blocks of the regions in their sizes, except those in the middle."""
        found = [regions[:0]]
        for size in regions.size.unique().tolist():
            mine = regions[regions.size == size]
            steps = [
                torch.arange(0, *ends) for ends in zip(self.sizes[-1].tolist(), self.sizes[size].tolist(), strict=True)
            ]
            corners = mine.corners.unsqueeze(1) + torch.cartesian_prod(*steps).view(1, -1, len(steps))
            there = (corners < self.tiling.base).all(2) & (corners != self._middles(mine).corners.unsqueeze(1)).any(2)
            found.append(
                Blocks(mine.rows.repeat_interleave(there.sum(1)), corners[there], torch.full((int(there.sum()),), size))
            )
        return Blocks.join(found)

    def _halved(self, blocks: Blocks) -> Blocks:
        """Return both halves of each block; one where the grid ends before the other."""
        size = blocks.size - 1
        second = Blocks(blocks.rows, blocks.corners + self.sizes[blocks.size] - self.sizes[size], size)
        there = (second.corners < self.tiling.base).all(1)
        return Blocks.join([Blocks(blocks.rows, blocks.corners, size), second[there]])

    def _flat(self, corners: Tensor) -> Tensor:
        """Return the position of each box in the order of the grid."""
        strides = self.tiling.base.flip(0).cumprod(0).flip(0) // self.tiling.base
        return (corners * strides).sum(1)

    def _ends(self, blocks: Blocks) -> Tensor:
        """Return the last box of each block; blocks at the end of the range may be smaller."""
        return torch.minimum(blocks.corners + self.sizes[blocks.size], self.tiling.base) - 1

    def _bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Return the lower and upper parameters of each block."""
        first, last = (
            self.tiling.bounds(Boxes(index, torch.zeros_like(index))) for index in (blocks.corners, self._ends(blocks))
        )
        return torch.minimum(first[0], last[0]), torch.maximum(first[1], last[1])

    def _leave(self, state: SearchState, blocks: Blocks, bound: Tensor) -> None:
        """Settle images because of the first boxes of these blocks."""
        if not len(blocks):
            return
        boxes = Boxes(blocks.corners, torch.zeros_like(blocks.corners))
        low, high = self.tiling.bounds(boxes)
        middle = ((low + high) / 2).clamp(self.tiling.low, self.tiling.high)
        self.spec.confirm(state, *self.spec.probe(state, blocks.rows, middle))
        alone = int(self.tiling.base.prod()) == 1
        still = self._open(state).tolist()
        for k, image in enumerate(blocks.rows.tolist()):
            if still[image]:
                still[image] = False
                # the boxes not bounded have no bound, so with more than one there is none for the whole range
                state.settle_unknown(self.tiling, image, float(bound[k]) if alone else -torch.inf, low[k], high[k])
                late = self.limits.max_seconds is not None and float(state.seconds[image]) >= self.limits.max_seconds
                state.reasons[image] = Reason.SECONDS if late else Reason.SPLITS

    def _stop_late(self, blocks: Blocks) -> None:
        """Settle images whose time is up, each because of its first unproved block among these."""
        state = self.state
        if self.limits.max_seconds is None:
            return
        late = ((state.seconds[blocks.rows] >= self.limits.max_seconds) & self._open()[blocks.rows]).nonzero().flatten()
        images, number = blocks.rows[late].unique(return_inverse=True)
        first = torch.full_like(images, len(blocks)).scatter_reduce(0, number, late, "amin")
        self._leave(state, blocks[first], torch.full((len(images),), -torch.inf).double())

    def _open(self, state: SearchState | None = None) -> Tensor:
        """Return, for each image, whether it is neither settled nor falsified."""
        state = state or self.state
        return ~(state.certified | state.exhausted | self.spec.falsified(state))


def block_sizes(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return block sizes in boxes along each axis, from single boxes to the largest; each is two of the one before."""
    sizes = [(1,) * len(grid)]
    pieces = list(grid)
    while math.prod(pieces) >= 2 * FEWEST_REGIONS:
        axis = pieces.index(max(pieces))
        sizes.append(tuple(step * (1 + (k == axis)) for k, step in enumerate(sizes[-1])))
        pieces = [-(-count // step) for count, step in zip(grid, sizes[-1], strict=True)]
    return sizes
