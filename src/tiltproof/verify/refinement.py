"""Backward policy and cost model: which boxes and classes a backward pass refines. These choices never change a
bound.

A backward pass can win back the remainder r of the margin's form, but not the first-order part f = center - sum
|slopes|. Where f <= 0 it is therefore skipped. Elsewhere its chance of success depends on r / f, and `BackwardPolicy`
counts successes by that ratio. The class that counts is the one that is likely to be worst after the pass, not before
it. The chance and the number of boxes that justify a pass depend on its cost and on how soon halves are proved
without one (`initial_grid.backward_pays`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import BackwardCost, Network, better, refine, shallow_share
from tiltproof.runtime.batch_size import fewest_together
from tiltproof.verify.inputs import Inputs

STEP_PRODUCTS = 2**36
"""Multiplications that a GPU performs in about the time of one step of the search."""
MOST_SPECULATIVE_BOXES = 16_384
SPECULATIVE_MARGINS = 2048

PASS_COST = 1.0
"""Cost of a backward pass of one margin through the whole network, in bounds of a box: 0.5 to 1.2 on a CPU."""
PASS_STEPS = 12e6
"""GPU: overhead of the host in a backward pass, as multiplications (networks of the paper's authors: 2.7 bounds of 7
million multiplications each, 0.8 of 25 million)."""
PASS_CALL = 2.5e10
"""GPU: fixed cost of a backward pass, as multiplications (5 ms, in which 3,800 boxes are bounded)."""
BUCKETS, TRIES, WORTHWHILE = 24, 32, 0.08
"""Buckets: half powers of two of r / f from 1/4 on; tries before a bucket may close; least success rate that keeps
one open."""


@dataclass(frozen=True)
class CostModel:
    """Cost of operations on a device: tuning numbers that steer the search and enter no bound."""

    least_margins: int
    """Refine at least this many margins per pass, if there are as many."""
    first_test_share: float
    """Share of the network's activations that a backward pass visits before its first early-exit test."""
    speculative_margins: int = 0
    """GPU: refine up to this many open margins per pass, even speculatively, because launches dominate."""
    speculative_boxes: int = 0
    """GPU: bound up to this many boxes per step, halves of halves included, because launches dominate."""
    pass_cost: float = PASS_COST
    """Cost of a backward pass of one margin, in bounds of a box."""
    pass_overhead: float = 0.0
    """Cost of a backward pass however few margins it takes, in bounds of a box."""

    @classmethod
    def of(cls, inputs: Inputs, network: Network, device: torch.device | None = None) -> CostModel:
        """Return the numbers for ``network`` as it is bounded, by default on the device of the inputs."""
        parameters, device = len(inputs.transform.parts), device or inputs.images.device
        least, share = fewest_together(inputs.network, parameters), shallow_share(network)
        if device.type != "cuda":
            return cls(least, share)
        products = max(1, sum(operation.products for operation in network.operations))
        whole = products * (2 + parameters)
        boxes = min(MOST_SPECULATIVE_BOXES, STEP_PRODUCTS // products)
        return cls(least, share, SPECULATIVE_MARGINS, boxes, PASS_COST + PASS_STEPS / whole, PASS_CALL / whole)


@dataclass
class Promising:
    """The boxes that justify a backward pass, and the bucket of each."""

    chosen: Tensor
    bucket: Tensor


def _tally() -> Tensor:
    return torch.zeros(BUCKETS, dtype=torch.int64)


@dataclass
class BackwardPolicy:
    """Decides when a backward pass is worth its cost, from the success rate so far."""

    tried: Tensor = field(default_factory=_tally)
    won: Tensor = field(default_factory=_tally)
    least_success: float = WORTHWHILE
    """Success rate that keeps a bucket open."""
    least_boxes: int = 0
    """Boxes in open or undecided buckets that justify a pass."""

    @classmethod
    def on(cls, device: torch.device) -> BackwardPolicy:
        return cls(_tally().to(device), _tally().to(device))

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        """Select from the ``opened`` boxes, given by f and r: all boxes of an open bucket, and a few of a bucket with
        few tries."""
        ratio = torch.where(first_order > 0, remainder / first_order, torch.inf).double()
        bucket = (2 * ratio.log2() + 4).nan_to_num(posinf=BUCKETS, neginf=0).clamp(0, BUCKETS).long()
        bucket = torch.where(opened, bucket, BUCKETS)
        order = bucket.argsort(stable=True)
        count = _counts(bucket, BUCKETS + 1)
        place = torch.empty_like(order)  # of each box among those of its bucket
        place[order] = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[bucket[order]]
        worthwhile = (self.won >= self.least_success * self.tried) & (self.tried >= TRIES)
        most = torch.where(worthwhile, len(order), (TRIES - self.tried).clamp(min=0))
        most = most * ((count[:-1] * (most > 0)).sum() >= self.least_boxes)
        most = torch.cat([most, most.new_zeros(1)])  # the last bucket: hopeless, or proved
        where = (place < most[bucket]).nonzero().flatten()
        return Promising(where, bucket[where])

    def learn(self, promising: Promising, proved: Tensor) -> None:
        self.tried += _counts(promising.bucket, BUCKETS)
        self.won.index_add_(0, promising.bucket, proved.long())


class EagerPolicy(BackwardPolicy):
    """Takes every open box through a backward pass that might prove it, and learns nothing."""

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        where = (opened & (first_order > 0)).nonzero().flatten()
        return Promising(where, torch.zeros_like(where))

    def learn(self, promising: Promising, proved: Tensor) -> None:
        """Do nothing."""


def _counts(numbers: Tensor, most: int) -> Tensor:
    """Count each number below ``most`` without waiting for a GPU."""
    return numbers.new_zeros(most).index_add_(0, numbers, torch.ones_like(numbers))


# Backward passes for the classes of some boxes, in rounds: one class left open is enough for a box to fail, so that the likeliest come
# first, and the others only where those before them closed. This decides only where work goes, never a bound.


FEW = 10
"""Classes of a box that are refined first, alone."""
SHALLOW_MEMORY = 4
"""Memory per margin up to the first early-exit test, relative to a whole pass, which holds one layer at a time."""


class ClassRefinement:
    """Refine boxes ``rows`` of ``forms``. ``best`` [R, K] holds the best bound of each margin so far; ``likely`` [R,
    K], an estimate of the bound after a backward pass, orders them."""

    def __init__(
        self,
        network: Network,
        forms: Mapping[str, AffineForm],
        labels: Tensor,
        rows: Tensor,
        best: Tensor,
        likely: Tensor,
    ) -> None:
        self.network, self.forms, self.labels, self.rows, self.best = network, forms, labels, rows, best
        self.opened = ~(best > 0)
        likely = likely.nan_to_num(-torch.inf, posinf=torch.inf, neginf=-torch.inf).clamp(
            max=torch.finfo(likely.dtype).max
        )
        self.order = torch.where(self.opened, likely, torch.inf).argsort(dim=1, stable=True)
        self.place = self.order.argsort(1)
        # margins taken through a backward pass, and how many whole ones that came to for each box
        self.refined, self.passes = 0, torch.zeros_like(best[:, 0])

    def work(self, most: int, together: int, shallow: float) -> Tensor:
        """Run all rounds; return the first class's branching scores for each box (see `refine`).

        At most ``most`` margins are refined per pass. The first rounds are merged if they have at most ``together``
        margins. The last round may be large, and nearly all of its margins are proved at the first early-exit test;
        up to there they visit the fraction ``shallow`` of the activations, so more of them fit into a pass.
        """
        first = self._chosen(0, FEW)
        apart = len(first[0]) > min(together, most)
        if apart:
            first = self._chosen(0, 1)
        share = self._refine(*first, shared=True)
        # of each box, by whose first class it is: nothing waits for a GPU to count them
        share = torch.where((self.place[first] == 0).unsqueeze(1), share, 0.0)
        shares = share.new_zeros(len(self.best), share.shape[1]).index_add_(0, first[0], share)
        if apart:
            self._in_chunks(*self._chosen(1, FEW), most)
        else:
            # counted as if they had come one after the other, so that a GPU plans as a CPU does: a first class left open went all the way
            self.passes.masked_fill_(~(self.best.gather(1, self.order[:, :1]).flatten() > 0), 1.0)
        if self.best.shape[1] <= FEW:
            return shares
        boxes, classes = self._chosen(FEW, self.best.shape[1])
        self._in_chunks(boxes, classes, max(most, int(most / (SHALLOW_MEMORY * shallow))), shallow=True)
        still = ~(self.best[boxes, classes] > 0)
        self._in_chunks(boxes[still], classes[still], most)
        return shares

    def _chosen(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return (boxes, classes) of open classes at these positions of the order whose predecessors are all proved."""
        chosen = self.opened & (self.place < end)
        if begin:
            before = self.place < begin
            chosen = chosen & ~before & ~(before & ~(self.best > 0)).any(1, keepdim=True)
        boxes, classes = chosen.nonzero(as_tuple=True)
        return boxes, classes

    def _in_chunks(self, boxes: Tensor, classes: Tensor, most: int, shallow: bool = False) -> None:
        for box, other in zip(boxes.split(most), classes.split(most), strict=True):
            if len(box):
                self._refine(box, other, shallow=shallow)

    def _refine(self, boxes: Tensor, classes: Tensor, shared: bool = False, shallow: bool = False) -> Tensor:
        cost, rows = BackwardCost(), self.rows[boxes]
        bound, share = refine(self.network, self.forms, self.labels, rows, classes, 0.0, shared, cost, shallow)
        self.best[boxes, classes] = better(self.best[boxes, classes], bound)
        self.refined += len(boxes)
        self.passes.index_add_(0, boxes, cost.passes)
        return share
