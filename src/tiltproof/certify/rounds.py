"""Backward passes for the classes of some boxes, in rounds: one class left open is enough for a box to fail, so that the likeliest come
first, and the others only where those before them closed. This decides only where work goes, never a bound."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tiltproof.bounds.affine import AffineForm
from tiltproof.network import Effort, Network, better, refine

FEW = 10
"""Classes of a box that are refined, the first of them alone, before all others are."""

SHALLOW_MEMORY = 4
"""What an entry takes up to the first look, relative to a whole pass, which holds its entries layer after layer and not at once."""


class Rounds:
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
        effort, rows = Effort(), self.rows[boxes]
        bound, share = refine(self.network, self.forms, self.labels, rows, classes, 0.0, shared, effort, shallow)
        self.best[boxes, classes] = better(self.best[boxes, classes], bound)
        self.refined += len(boxes)
        self.passes.index_add_(0, boxes, effort.passes)
        return share
