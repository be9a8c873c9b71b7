"""When a backward pass is worth its price: learned during the run from how often it closed a box.

What it can win back is the remainder r of the margin's form, not the first-order part f = center - sum |slopes|. So
where f <= 0 it is not tried, and elsewhere its chance depends on r / f, from which the gate keeps a tally. This
decides only where work goes, never a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BUCKETS, TRIES, WORTHWHILE = 24, 32, 0.08
"""Half powers of two of r / f from 1/4 on; tries before a bucket may be closed; success rate that keeps it open."""


@dataclass
class Promising:
    """Which boxes were let through, and the bucket of each of those."""

    chosen: Tensor
    bucket: Tensor


class Gate:
    def __init__(self) -> None:
        self.tried = torch.zeros(BUCKETS)
        self.won = torch.zeros(BUCKETS)

    def promising(self, first_order: Tensor, remainder: Tensor) -> Promising:
        ratio = torch.where(first_order > 0, remainder / first_order, torch.inf).cpu().double()
        bucket = (2 * ratio.log2() + 4).nan_to_num(posinf=BUCKETS, neginf=0).clamp(0, BUCKETS).long()
        worthwhile = (self.won >= WORTHWHILE * self.tried).tolist()
        chosen = torch.zeros(len(bucket), dtype=torch.bool)
        for k in range(BUCKETS):
            mine = (bucket == k).nonzero().flatten()
            chosen[mine if worthwhile[k] and self.tried[k] >= TRIES else mine[: max(0, TRIES - int(self.tried[k]))]] = (
                True
            )
        where = chosen.nonzero().flatten()
        return Promising(where.to(first_order.device), bucket[where])

    def learn(self, promising: Promising, proved: Tensor) -> None:
        self.tried += torch.bincount(promising.bucket, minlength=BUCKETS)
        self.won += torch.bincount(promising.bucket[proved.cpu()], minlength=BUCKETS)
