"""Everything a step of a search may change, and what must hold before a result is claimed.

A step works on a copy of the `SearchState`, and the copy replaces the original in one assignment (`Search.commit`). Whatever is raised
inside of a step, the search stands where it stood before.
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
from tiltproof.verify.refinement import BackwardPolicy

if TYPE_CHECKING:
    from tiltproof.verify.spec import Spec

T = TypeVar("T")


@dataclass
class Pairs:
    """Pairs of an image and a box, with lower bounds [P, C] of the image's C objectives that hold in the box."""

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
    """The open boxes of branch and bound. ``stack``: with the bounds of the boxes that they are halves of; ``fresh``: images whose boxes
    are not on the stack yet; ``suspects``: likely counterexamples to confirm; ``parked``: the boxes of ``suspected`` images."""

    fresh: Tensor
    stack: Pairs
    suspected: Tensor
    suspects: list[tuple[Tensor, Tensor]]
    parked: list[Pairs]
    most_suspects: int

    def take(self, images: Tensor) -> Pairs:
        """Take the boxes of all images in the mask ``images`` [N] off the stack."""
        mask = images[self.stack.image]
        taken = self.stack[mask.nonzero().flatten()]
        self.stack = self.stack[(~mask).nonzero().flatten()]
        return taken


@dataclass
class SearchState:
    """The search state per image. ``witnesses``: evidence from evaluations; ``policy``: when backward passes paid."""

    witnesses: Any
    policy: BackwardPolicy
    splits: SplitLog
    certified: Tensor
    """Images all of whose boxes are leaves."""
    exhausted: Tensor
    """Images whose budget ended before that."""
    boxes: Tensor
    """Boxes bounded."""
    waiting: Tensor
    """Boxes that are no leaves yet."""
    leaves: Tensor
    """Boxes whose bounds the result rests on."""
    covered: Tensor
    """The sum of `content` over the leaves."""
    seconds: Tensor
    proved: Tensor
    """[N, C]: the least bound of each objective over the leaves."""
    open_bound: Tensor
    open_box: dict[int, tuple[tuple[float, ...], tuple[float, ...]]]
    frontier: Frontier | None = None

    @classmethod
    def start(
        cls, spec: Spec, witnesses: Any, policy: BackwardPolicy, device: torch.device | str = "cpu"
    ) -> SearchState:
        """Nothing is bounded yet; all tensors are on ``device``."""
        count = len(spec)
        certified, exhausted = torch.zeros(2, count, dtype=torch.bool, device=device)
        boxes, waiting, leaves, covered = torch.zeros(4, count, dtype=torch.int64, device=device)
        seconds = torch.zeros(count, dtype=torch.float64, device=device)
        proved = torch.full((count, spec.objectives), torch.inf, dtype=torch.float64, device=device)
        open_bound, splits = torch.full_like(seconds, torch.inf), SplitLog.of(count, device)
        counts = boxes, waiting, leaves, covered, seconds
        return cls(witnesses, policy, splits, certified, exhausted, *counts, proved, open_bound, {})

    @property
    def device(self) -> torch.device:
        return self.boxes.device

    def count(self, rows: Tensor, seconds: float) -> None:
        """Each of these boxes was bounded, all of them together in ``seconds``."""
        bounded = torch.zeros_like(self.boxes).index_add_(0, rows, torch.ones_like(rows))
        self.boxes += bounded
        self.seconds += bounded * (seconds / max(1, len(rows)))

    def settle(
        self, rows: Tensor, bound: Tensor, done: Tensor, low: Tensor, high: Tensor, boxes: Tensor | None = None
    ) -> None:
        """Pairs that are ``done`` [P] become leaves with these bounds [P, C]; pair p stands for ``boxes[p]`` boxes, by default for one."""
        settled = torch.zeros_like(self.leaves).index_add_(0, rows, done.long() if boxes is None else done * boxes)
        self.waiting -= settled
        self.leaves += settled
        self.covered.index_add_(0, rows, torch.where(done, content(low, high), 0))
        least = torch.where(done.unsqueeze(1), bound, torch.inf)
        self.proved.scatter_reduce_(0, rows.unsqueeze(1).expand_as(least), least, "amin")

    def settle_certified(self, rows: Tensor) -> None:
        """Images all of whose boxes are leaves, of these."""
        self.certified[rows] = (self.waiting[rows] == 0) & ~self.exhausted[rows]

    def settle_unknown(self, tiling: Tiling, image: int, bound: float, low: Tensor, high: Tensor) -> None:
        """The budget of an image ended at this open box."""
        self.certified[image], self.exhausted[image] = False, True
        self.open_bound[image] = bound
        low, high = (end.clamp(tiling.low, tiling.high) for end in (low, high))  # as the user wrote the range
        self.open_box[image] = (tuple(low.tolist()), tuple(high.tolist()))

    def check(
        self, tiling: Tiling, claimed: Tensor, supported: Tensor, contradicted: Tensor, leaves: list[int]
    ) -> None:
        """Raise unless each ``claimed`` image rests on leaves that make up the whole range, and is ``supported`` and not ``contradicted``.

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
    """A search and its `state`, which changes in `commit` alone while boxes are bounded."""

    def __init__(self, spec: Spec, tiling: Tiling, state: SearchState) -> None:
        self.spec, self.tiling, self.state = spec, tiling.on(state.device), state

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        """Search until every image is settled, ``batch`` pairs at a time."""
        raise NotImplementedError

    def commit(self, batch: AdaptiveBatchSize, step: Callable[[SearchState, int], T]) -> T:
        """Run ``step(state, size)`` on a copy of the state, again with a smaller ``size`` where memory runs out, and keep the copy."""

        def attempt(size: int) -> tuple[SearchState, T]:
            draft = copied(self.state)
            return draft, step(draft, size)

        draft, result = batch.run(attempt)
        self.state = draft
        return result


def copied(value: Any) -> Any:
    """A copy that no later change in place reaches: of a dataclass, all of its fields."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, (list, dict)):
        return value.copy()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: copied(getattr(value, each.name)) for each in fields(value)})
    return value


def refuse(wrong: Tensor, what: str) -> None:
    """Raise for the first image of the mask ``wrong`` [N]: a result that contradicts itself is never published."""
    if bool(wrong.any()):
        raise RuntimeError(f"image {int(wrong.nonzero()[0])}: {what}; please report this")


def leaf_counts(tiling: Tiling, halved: list[int]) -> list[int]:
    """The number of leaves of each image's tiling: those of the initial grid, and one more for each halving."""
    cells = math.prod(tiling.base.tolist())
    return [cells + count for count in halved]


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
    for factor in (-7046029254386353131, -4658895280553007687, -7723592293110685705):
        bits = (bits ^ (bits >> 32 & 0xFFFF_FFFF)) * factor
    return bits ^ (bits >> 32 & 0xFFFF_FFFF)
