"""When a backward pass is worth its price: learned during the run from how often it closed a box.

What it can win back is the remainder r of the margin's form, not the first-order part f = center - sum |slopes|. So
where f <= 0 it is not tried, and elsewhere its chance depends on r / f, from which the gate keeps a tally. Of a box's
classes the one counts that is likely to be worst after a backward pass, not the one that is worst before it. How large a chance is
worth it, and how many boxes, depends on what a pass costs and on how soon halves are proved without one (`certify.start`). This decides
only where work goes, never a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import BackwardCost, Network, better, refine

BUCKETS, TRIES, WORTHWHILE = 24, 32, 0.08
"""Half powers of two of r / f from 1/4 on; tries before a bucket may be closed; least success rate that may keep it open."""


@dataclass
class Promising:
    """Which boxes were let through, and the bucket of each of those."""

    chosen: Tensor
    bucket: Tensor


class BackwardPolicy:
    STATE: ClassVar[tuple[str, ...]] = ("tried", "won")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.tried, self.won = torch.zeros(2, BUCKETS, dtype=torch.int64, device=device)
        # success rate that keeps a bucket open; and boxes, in buckets that are or may turn out to be, that are worth a pass at all
        self.least, self.fewest = WORTHWHILE, 0

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        """Of ``opened`` boxes, given by f and r: all of a bucket that has proved worth it, of the others the first few."""
        ratio = torch.where(first_order > 0, remainder / first_order, torch.inf).double()
        bucket = (2 * ratio.log2() + 4).nan_to_num(posinf=BUCKETS, neginf=0).clamp(0, BUCKETS).long()
        bucket = torch.where(opened, bucket, BUCKETS)
        order = bucket.argsort(stable=True)
        count = _counts(bucket, BUCKETS + 1)
        place = torch.empty_like(order)  # of each box among those of its bucket
        place[order] = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[bucket[order]]
        worthwhile = (self.won >= self.least * self.tried) & (self.tried >= TRIES)
        most = torch.where(worthwhile, len(order), (TRIES - self.tried).clamp(min=0))
        most = most * ((count[:-1] * (most > 0)).sum() >= self.fewest)
        most = torch.cat([most, most.new_zeros(1)])  # the last bucket: hopeless, or proved
        where = (place < most[bucket]).nonzero().flatten()
        return Promising(where, bucket[where])

    def learn(self, promising: Promising, proved: Tensor) -> None:
        self.tried += _counts(promising.bucket, BUCKETS)
        self.won.index_add_(0, promising.bucket, proved.long())


def _counts(numbers: Tensor, most: int) -> Tensor:
    """How many there are of each number below ``most``; nothing waits for a GPU."""
    return numbers.new_zeros(most).index_add_(0, numbers, torch.ones_like(numbers))


# Backward passes for the classes of some boxes, in rounds: one class left open is enough for a box to fail, so that the likeliest come
# first, and the others only where those before them closed. This decides only where work goes, never a bound.


FEW = 10
"""Classes of a box that are refined, the first of them alone, before all others are."""

SHALLOW_MEMORY = 4
"""What an entry takes up to the first look, relative to a whole pass, which holds its entries layer after layer and not at once."""


class ClassRefinement:
    """Boxes ``rows`` of ``forms``; ``best`` [R, K] holds the best bound of each margin so far, and ``likely`` [R, K] orders them: roughly
    what a backward pass would make of them."""

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
        """All rounds. Returns, for each box, the first class's shares of the parameters (see `refine`).

        At most ``most`` margins are refined at a time (there are no more boxes than that); the first rounds at once where that is of no
        more than ``together``. Those that are left for the last round may be very many, and nearly all of them are proved at the first
        look. Up to there they meet the share ``shallow`` of the network's entries, and more of them are taken at a time.
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
        """(boxes, classes) of open classes at these places of the order, where all before them are closed."""
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
