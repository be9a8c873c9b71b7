"""The state of a search: everything that a step may change, and the invariants of a result.

A step works on a copy of the `SearchState`, which replaces the original in one assignment (`Search.commit`). If a
step raises, the state is what it was before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.partition import Boxes, SplitLog, Tiling
from tiltproof.verify.prover import BackwardPolicy

if TYPE_CHECKING:
    from tiltproof.verify.results import Reason
    from tiltproof.verify.spec import Spec

FIRST_LOOK = 128
"""Boxes at which it is first looked whether an image can be proved at all: the look then costs about a percent."""
T = TypeVar("T")


@dataclass
class Pairs:
    """Pairs of an image and a box, with lower bounds [P, C] of the image's objectives in the box."""

    image: Tensor
    boxes: Boxes
    bound: Tensor

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, which: Tensor | slice) -> Pairs:
        return Pairs(self.image[which], self.boxes[which], self.bound[which])

    @staticmethod
    def join(parts: list[Pairs]) -> Pairs:
        bound = torch.cat([part.bound for part in parts])
        return Pairs(torch.cat([part.image for part in parts]), Boxes.join([part.boxes for part in parts]), bound)


@dataclass
class Frontier:
    """The open boxes of branch and bound. ``stack``: boxes with the bounds of their parents; ``fresh``: images whose
    boxes are not on the stack yet; ``suspects``: likely counterexamples to confirm; ``parked``: boxes of
    ``suspected`` images."""

    fresh: Tensor
    stack: Pairs
    suspected: Tensor
    suspects: list[tuple[Tensor, Tensor]]
    parked: list[Pairs]
    most_suspects: int

    def take(self, images: Tensor) -> Pairs:
        """Remove the boxes of the images in the mask [N] from the stack and return them."""
        mask = images[self.stack.image]
        taken = self.stack[mask.nonzero().flatten()]
        self.stack = self.stack[(~mask).nonzero().flatten()]
        return taken


@dataclass
class SearchState:
    """What is known of each image. ``witnesses``: evaluations; ``policy``: the success of backward passes."""

    witnesses: Any
    policy: BackwardPolicy
    splits: SplitLog
    certified: Tensor
    """Images all of whose boxes are leaves."""
    exhausted: Tensor
    """Images whose budget was spent first."""
    boxes: Tensor
    """Boxes bounded."""
    waiting: Tensor
    """Boxes that are not leaves yet."""
    leaves: Tensor
    """Boxes whose bounds the result rests on."""
    covered: Tensor
    """The sum of `content` over the leaves."""
    seconds: Tensor
    proved: Tensor
    """[N, C]: the least bound of each objective over the leaves."""
    open_bound: Tensor
    open_box: dict[int, tuple[tuple[float, ...], tuple[float, ...]]]
    reasons: dict[int, Reason]
    """Why images are exhausted."""
    next_look: Tensor
    """Boxes at which it is looked again whether an image can be proved at all."""
    frontier: Frontier | None = None

    @classmethod
    def start(
        cls, spec: Spec, witnesses: Any, policy: BackwardPolicy, device: torch.device | str = "cpu"
    ) -> SearchState:
        """Return the state before any bound, with tensors on ``device``."""
        count = len(spec)
        certified, exhausted = torch.zeros(2, count, dtype=torch.bool, device=device)
        boxes, waiting, leaves, covered = torch.zeros(4, count, dtype=torch.int64, device=device)
        seconds = torch.zeros(count, dtype=torch.float64, device=device)
        proved = torch.full((count, spec.objectives), torch.inf, dtype=torch.float64, device=device)
        open_bound, splits = torch.full_like(seconds, torch.inf), SplitLog.of(count, device)
        counts, look = (boxes, waiting, leaves, covered, seconds), torch.full_like(boxes, FIRST_LOOK)
        return cls(witnesses, policy, splits, certified, exhausted, *counts, proved, open_bound, {}, {}, look)

    @property
    def device(self) -> torch.device:
        return self.boxes.device

    def count(self, rows: Tensor, seconds: float) -> None:
        """Count boxes that were bounded in ``seconds`` altogether."""
        bounded = torch.zeros_like(self.boxes).index_add_(0, rows, torch.ones_like(rows))
        self.boxes += bounded
        self.seconds += bounded * (seconds / max(1, len(rows)))

    def settle(
        self, rows: Tensor, bound: Tensor, done: Tensor, low: Tensor, high: Tensor, boxes: Tensor | None = None
    ) -> None:
        """Make leaves of the pairs that are ``done`` [P], with bounds [P, C]. Pair p stands for ``boxes[p]`` boxes,
        by default for one."""
        settled = torch.zeros_like(self.leaves).index_add_(0, rows, done.long() if boxes is None else done * boxes)
        self.waiting -= settled
        self.leaves += settled
        self.covered.index_add_(0, rows, torch.where(done, content(low, high), 0))
        least = torch.where(done.unsqueeze(1), bound, torch.inf)
        self.proved.scatter_reduce_(0, rows.unsqueeze(1).expand_as(least), least, "amin")

    def settle_certified(self, rows: Tensor) -> None:
        """Mark those of these images whose boxes are all leaves."""
        self.certified[rows] = (self.waiting[rows] == 0) & ~self.exhausted[rows]

    def settle_unknown(self, tiling: Tiling, image: int, bound: float, low: Tensor, high: Tensor) -> None:
        """Record that the budget of an image was spent at this open box."""
        self.certified[image], self.exhausted[image] = False, True
        self.open_bound[image] = bound
        low, high = (end.clamp(tiling.low, tiling.high) for end in (low, high))  # as the user wrote the range
        self.open_box[image] = (tuple(low.tolist()), tuple(high.tolist()))

    def check(
        self, tiling: Tiling, claimed: Tensor, supported: Tensor, contradicted: Tensor, leaves: list[int]
    ) -> None:
        """Raise unless the leaves of each ``claimed`` image tile the range, and it is ``supported`` and not
        ``contradicted``.

        All are masks [N] on the CPU; ``leaves``: the number of leaves of each image's tiling.
        """
        everything = content(tiling.outer_low.unsqueeze(0), tiling.outer_high.unsqueeze(0))
        whole = ((self.waiting == 0) & (self.boxes > 0) & (self.covered == everything)).cpu()
        refuse(claimed & contradicted, "an evaluation contradicts its proof; a bound is wrong")
        refuse(claimed & ~(whole & supported), "its result leaves out some parameters, or boxes that were not proved")
        for image, count in enumerate(self.leaves.tolist()):
            if claimed[image] and count != leaves[image]:
                raise RuntimeError(f"image {image}: its leaves do not make up its tiling; please report this")


class Search:
    """A search and its `state`, which changes only in `commit` while boxes are bounded."""

    def __init__(self, spec: Spec, tiling: Tiling, state: SearchState) -> None:
        self.spec, self.tiling, self.state = spec, tiling.on(state.device), state

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        """Search until every image is settled, ``batch`` pairs at a time."""
        raise NotImplementedError

    def commit(self, batch: AdaptiveBatchSize, step: Callable[[SearchState, int], T]) -> T:
        """Run ``step(state, size)`` on a copy of the state, with a smaller ``size`` if memory runs out, and keep the
        copy."""

        def attempt(size: int) -> tuple[SearchState, T]:
            draft = copied(self.state)
            return draft, step(draft, size)

        draft, result = batch.run(attempt)
        self.state = draft
        return result


def copied(value: Any) -> Any:
    """Return a copy that no change in place reaches; of a dataclass, of all fields."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, (list, dict)):
        return value.copy()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: copied(getattr(value, each.name)) for each in fields(value)})
    return value


def refuse(wrong: Tensor, what: str) -> None:
    """Raise for the first image of the mask [N]: a contradictory result is never published."""
    if bool(wrong.any()):
        raise RuntimeError(f"image {int(wrong.nonzero()[0])}: {what}; please report this")


def leaf_counts(tiling: Tiling, halved: list[int]) -> list[int]:
    """Return the number of leaves of each image's tiling: the initial boxes, plus one for each halving."""
    cells = math.prod(tiling.base.tolist())
    return [cells + count for count in halved]


def content(low: Tensor, high: Tensor) -> Tensor:
    """Return a number per box [P] for the covering checksum: the numbers of boxes that tile a box sum to its own,
    modulo 2^64.

    Along one axis it is F(high) - F(low), where F scatters the bits of an edge over all integers; over several axes
    it is the product. For a halved box, (F(m) - F(l)) + (F(h) - F(m)) = F(h) - F(l). Sums of a wrong set of boxes
    agree only by chance.
    """
    first, last = _scattered(torch.stack([low, high]))
    return (last - first).prod(1)


def _scattered(edge: Tensor) -> Tensor:
    """Return different, pseudo-random integers for different edges; products wrap around, and each step is
    invertible."""
    bits = (edge + 0.0).view(torch.int64)  # no negative zero
    for factor in (-7046029254386353131, -4658895280553007687, -7723592293110685705):
        bits = (bits ^ (bits >> 32 & 0xFFFF_FFFF)) * factor
    return bits ^ (bits >> 32 & 0xFFFF_FFFF)
