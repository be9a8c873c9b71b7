"""When a backward pass is worth its price: learned during the run from how often it closed a box.

What it can win back is the remainder r of the margin's form, not the first-order part f = center - sum |slopes|. So
where f <= 0 it is not tried, and elsewhere its chance depends on r / f, from which the gate keeps a tally. Of a box's
classes the one counts that is likely to be worst after a backward pass, not the one that is worst before it. How large a chance is
worth it, and how many boxes, depends on what a pass costs and on how soon halves are proved without one (`certify.start`). This decides
only where work goes, never a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

BUCKETS, TRIES, WORTHWHILE = 24, 32, 0.08
"""Half powers of two of r / f from 1/4 on; tries before a bucket may be closed; least success rate that may keep it open."""


@dataclass
class Promising:
    """Which boxes were let through, and the bucket of each of those."""

    chosen: Tensor
    bucket: Tensor


class Gate:
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
