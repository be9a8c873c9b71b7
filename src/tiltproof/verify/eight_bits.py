"""Every 8-bit picture that a transformation of one parameter makes of an image, by bisection of its range.

Over a box of parameters each pixel lies between two bounds, and rounds to one of the whole numbers between the rounded bounds. Where
these are equal the pixel is *known*, on the box and on every part of it; a pixel is *open* where they are two neighbors. A box with
at most a few open pixels is a *leaf*: it holds at most two to the power of their number of pictures, and all of them are evaluated.
Every other box is halved, and only the pixels that are open, or may be more than two values, are bounded again.

    p in [l, u]  =>  every number that p rounds to, with ties either way, is in {k : 255 l - 1/2 <= k <= 255 u + 1/2}

Both halves of a box share the float between them, so nothing is left out between them, and the leaves' `content` adds up to that of
the boxes at the start. More pictures may be evaluated than occur, never fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiltproof.pixels.chosen import ChosenPixels
from tiltproof.pixels.eight_bits import levels
from tiltproof.verify.results import Reason
from tiltproof.verify.state import content

OPEN = 2
"""Open pixels of a leaf. With 1, 2, 4 and 6 there are 3,480, 2,980, 4,450 and 8,900 pictures to evaluate for each degree of an MNIST
digit."""
MOST_OPEN, DEEPEST = 12, 44
"""Open pixels that a leaf may have at last: one more for each halving in a row that leaves as many open. After `DEEPEST` halvings a box
stays open."""
CROWDED = 2
"""Halvings in a row that leave as many open, after which pixels that are alike are looked for."""
MOST_PIXELS, MOST_BOXES, FEWEST_BOXES = 2**19, 2**13, 2**5
"""Pixels and boxes bounded together; and how many boxes are, however deep they lie."""
MOST_BYTES, MOST_PICTURES, MOST_ADDED = 2**25, 2**12, 2**26
"""Bytes and number of pictures from which they are evaluated; and the most bytes that a step adds for each number of open pixels."""
EVERY = 2**40
"""More open pixels than any box has."""


def distinct(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows that hold each of the pictures [N, n] at least once, and the place of each picture among them [N]. Equal pictures are
    found by a sum of their entries with weights, and compared entry by entry."""
    weights = torch.arange(1, pictures.shape[1] + 1, dtype=torch.float64).sin()
    order = torch.cat([part.double() @ weights for part in pictures.split(1024)]).argsort(stable=True)
    new = torch.ones(len(order), dtype=torch.bool)
    new[1:] = (pictures[order[1:]] != pictures[order[:-1]]).any(1)
    place = torch.empty_like(order)
    place[order] = new.cumsum(0) - 1
    return order[new], place


@dataclass
class Boxes:
    """Boxes of parameters: ends [B], the box at the start that each belongs to, whether one of its pictures has failed, how many pixels of
    the box before were open, and how many halvings have left as many open; the values of known pixels [B, n]; and, by box, the numbers
    of pixels that are not known."""

    low: Tensor
    high: Tensor
    root: Tensor
    failed: Tensor
    before: Tensor
    stalled: Tensor
    known: Tensor
    box_of: Tensor
    pixels: Tensor
    depth: int = 0

    def __len__(self) -> int:
        return len(self.low)

    def part(self, which: Tensor) -> Boxes:
        """Return the boxes in a mask [B]."""
        number = which.cumsum(0) - 1
        mine = which[self.box_of]
        low, high, root, failed, before, stalled, known = (each[which] for each in self._columns)
        box_of, pixels = number[self.box_of[mine]], self.pixels[mine]
        return Boxes(low, high, root, failed, before, stalled, known, box_of, pixels, self.depth)

    @property
    def _columns(self) -> tuple[Tensor, ...]:
        """What there is of each box."""
        return self.low, self.high, self.root, self.failed, self.before, self.stalled, self.known

    @staticmethod
    def join(parts: list[Boxes]) -> Boxes:
        """Return all boxes; the deepest ones' depth counts for all."""
        low, high, root, failed, before, stalled, known = (
            torch.cat(each) for each in zip(*(part._columns for part in parts), strict=True)
        )
        starts = torch.tensor([0, *map(len, parts)]).cumsum(0).tolist()
        box_of = torch.cat([part.box_of + start for part, start in zip(parts, starts, strict=False)])
        pixels, depth = torch.cat([part.pixels for part in parts]), max(part.depth for part in parts)
        return Boxes(low, high, root, failed, before, stalled, known, box_of, pixels, depth)

    def halves(self) -> Boxes:
        """Return all lower halves, then all upper ones. The float between both is the same."""
        middle = (self.low + self.high) / 2
        low, high = torch.cat([self.low, middle]), torch.cat([middle, self.high])
        root, failed, before, stalled = (each.repeat(2) for each in self._columns[2:6])
        box_of, known = torch.cat([self.box_of, self.box_of + len(self)]), self.known.repeat(2, 1)
        return Boxes(low, high, root, failed, before, stalled, known, box_of, self.pixels.repeat(2), self.depth + 1)


@dataclass
class Found:
    """What is known after some boxes: the least margin of each of these [B], how much work it was, the pictures with the least margins;
    and, if not all of them hold, why, or the ``counterexample``, with the box that it is about."""

    least: Tensor
    boxes: int = 0
    pictures: int = 0
    worst: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.uint8))
    margins: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    counterexample: float | None = None
    margin: float = math.inf
    reason: Reason | None = None
    box: tuple[float, float] | None = None

    @property
    def holds(self) -> bool:
        return self.counterexample is None and self.reason is None


KEPT = 16
"""Pictures with the least margins that are kept, to be evaluated again."""


def least_of(pictures: Tensor, margins: Tensor, others: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pictures with the least margins, and these, of two lists."""
    if not len(pictures) or not len(others):
        pictures, margins = (others, more) if len(others) else (pictures, margins)
    else:
        few = more.nan_to_num(nan=-torch.inf).argsort()[:KEPT]
        pictures, margins = torch.cat([pictures, others[few]]), torch.cat([margins, more[few]])
    least = margins.nan_to_num(nan=-torch.inf).argsort()[:KEPT]
    return pictures[least], margins[least]


class Enumeration:
    """Evaluates every picture of one image. ``margins`` [N] of pictures [N, C, H, W] of whole numbers; those above the ``tolerance``
    hold.

    ``low`` and ``high``: ends of the range, in which counterexamples must lie. ``bounds``: proved lower bounds [B] of the margins over
    boxes, for those that cannot be halved any further.
    """

    def __init__(
        self,
        pixels: ChosenPixels,
        margins: Callable[[Tensor], Tensor],
        tolerance: float,
        low: float,
        high: float,
        bounds: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.pixels, self.margins, self.tolerance = pixels, margins, tolerance
        self.low, self.high, self.bounds = low, high, bounds

    def run(self, low: Tensor, high: Tensor) -> Found:
        """Evaluate every picture in the boxes [B], until one is a counterexample, or can neither hold nor be one."""
        count, numbers = len(low), torch.arange(self.pixels.count)
        found = Found(torch.full((count,), torch.inf, dtype=torch.float64))
        covered = torch.zeros(count, dtype=torch.int64)
        known = torch.zeros(count, self.pixels.count * self.pixels.channels, dtype=torch.uint8)
        begin = torch.arange(count)
        nothing = torch.zeros(count, dtype=torch.int64)
        box_of, pixels = begin.repeat_interleave(len(numbers)), numbers.repeat(count)
        start = Boxes(low, high, begin, nothing > 0, nothing + EVERY, nothing, known, box_of, pixels)
        stack, waiting = [start], _Waiting()
        while (stack or waiting.leaves) and found.holds:
            if not stack or waiting.full:
                failed = self._evaluate(waiting, found, covered)
                waiting = _Waiting()
                if len(failed):
                    self._confirm(failed, found)
                    stack.append(failed.halves())
                continue
            boxes = stack.pop()
            if len(boxes) > 1 and self._too_many(boxes):
                first = torch.arange(len(boxes)) < len(boxes) // 2
                stack += [boxes.part(~first), boxes.part(first)]
                continue
            later, rest = self._bound(boxes, waiting, found, covered)
            if len(later):
                stack.append(later)
            if len(rest):
                stack.append(rest.halves())
        if found.holds and not torch.equal(covered, content(low.unsqueeze(1), high.unsqueeze(1))):
            raise RuntimeError("the boxes that were evaluated leave out some parameters; please report this")
        return found

    @staticmethod
    def _too_many(boxes: Boxes) -> bool:
        """Return whether boxes or their open pixels are too many for one step; deep down few are, so that the last one comes soon."""
        return len(boxes.pixels) > MOST_PIXELS or len(boxes) > max(FEWEST_BOXES, MOST_BOXES >> max(0, boxes.depth - 8))

    def at(self, value: float) -> Tensor | None:
        """Return the picture at a parameter [n], or None if a pixel there may be rounded either way."""
        point, numbers = torch.tensor([value], dtype=torch.float64), torch.arange(self.pixels.count)
        first, last = levels(*self.pixels.bounds(point, point, torch.zeros_like(numbers), numbers))
        return first.T.flatten().to(torch.uint8) if bool((first == last).all()) else None

    def _bound(self, boxes: Boxes, waiting: _Waiting, found: Found, covered: Tensor) -> tuple[Boxes, Boxes]:
        """Bound open pixels, and put leaves to those that wait. Return leaves for which there is no room, and the boxes to halve; those
        that cannot be halved are proved by bounds, or a reason."""
        count, own = len(boxes), self.pixels.count
        found.boxes += count
        first, last = levels(*self.pixels.bounds(boxes.low, boxes.high, boxes.box_of, boxes.pixels))
        place = boxes.pixels.unsqueeze(1) + own * torch.arange(self.pixels.channels)
        boxes.known[boxes.box_of.unsqueeze(1), place] = first.to(torch.uint8)
        open_ = first != last
        wide = torch.zeros(count, dtype=torch.bool)
        wide[boxes.box_of[(last - first > 1).any(1)]] = True
        number, channel = open_.nonzero(as_tuple=True)
        entries = _Open(boxes.box_of[number], place[number, channel], first[number, channel].to(torch.uint8), count)
        left = open_.any(1)
        boxes.box_of, boxes.pixels = boxes.box_of[left], boxes.pixels[left]
        boxes.stalled = torch.where(entries.count >= boxes.before, boxes.stalled + 1, 0)
        boxes.before = entries.count.clone()
        most = (OPEN + boxes.stalled).clamp(max=MOST_OPEN)
        crowded = (entries.count > most) & (boxes.stalled >= CROWDED) & ~wide
        for box in crowded.nonzero().flatten().tolist():
            self._group(boxes, entries, box)
        leaf = (entries.count <= most) & ~wide & (~boxes.failed | (boxes.depth % 4 == 0))
        later = torch.zeros_like(leaf)
        for size in entries.count[leaf].unique().tolist():
            mine = (leaf & (entries.count == size)).nonzero().flatten()
            room = max(1, MOST_ADDED // (boxes.known.shape[1] << size))
            later[mine[room:]] = True
            waiting.add(boxes, entries, _mask(mine[:room], count), size)
        rest = boxes.part(~leaf)
        middle = (rest.low + rest.high) / 2
        stuck = ~((rest.low < middle) & (middle < rest.high)) | (boxes.depth >= DEEPEST)
        if bool(stuck.any()) and self.bounds is not None:
            proved = self._proved(rest.part(stuck), found, covered)
            keep = ~stuck
            keep[stuck] = ~proved
            rest, stuck = rest.part(keep), stuck[keep]
        if bool(stuck.any()):
            which = int(stuck.int().argmax())
            found.reason = Reason.TOLERANCE if bool(rest.failed[which]) else Reason.TIES
            found.box = (float(rest.low[which]), float(rest.high[which]))
        return boxes.part(later), rest

    def _group(self, boxes: Boxes, entries: _Open, box: int) -> None:
        """Let open pixels of a box that have the same value at every parameter share one choice: they are rounded alike. Their bounds may
        differ by a rounding, so that one of them is known, or has other numbers; these choose on their own."""
        mine = (entries.box == box).nonzero().flatten()
        place = entries.place[mine]
        keys = self.pixels.alike(
            float(boxes.low[box]), float(boxes.high[box]), place % self.pixels.count, place // self.pixels.count
        )
        ranks: dict[tuple[Hashable, int], int] = {}
        ranked = [ranks.setdefault(pair, len(ranks)) for pair in zip(keys, entries.first[mine].tolist(), strict=True)]
        entries.rank[mine], entries.count[box] = torch.tensor(ranked), len(ranks)

    def _proved(self, boxes: Boxes, found: Found, covered: Tensor) -> Tensor:
        """Return which boxes bounds prove, and count these as leaves."""
        assert self.bounds is not None
        bound = self.bounds(boxes.low, boxes.high)
        proved = bound > self.tolerance
        found.least.scatter_reduce_(0, boxes.root, torch.where(proved, bound, torch.inf), "amin")
        self._cover(boxes, proved, covered)
        return proved

    @staticmethod
    def _cover(boxes: Boxes, held: Tensor, covered: Tensor) -> None:
        ends = boxes.low.unsqueeze(1), boxes.high.unsqueeze(1)
        covered.index_add_(0, boxes.root, torch.where(held, content(*ends), 0))

    def _evaluate(self, waiting: _Waiting, found: Found, covered: Tensor) -> Boxes:
        """Evaluate the pictures of leaves; return the leaves that do not hold, to be halved."""
        leaves, pictures, leaf_of = waiting.joined()
        chosen, place = distinct(pictures)
        unique = pictures[chosen]
        margins = self.margins(self.pixels.pictures(unique))
        found.pictures += len(unique)
        each = margins[place]
        held = torch.ones(len(leaves), dtype=torch.bool)
        held[leaf_of[~(each > self.tolerance)]] = False  # also for NaN
        counted = held[leaf_of]
        root = leaves.root[leaf_of[counted]]
        found.least.scatter_reduce_(0, root, each[counted], "amin")
        self._cover(leaves, held, covered)
        found.worst, found.margins = least_of(found.worst, found.margins, unique, margins)
        leaves.failed |= ~held
        return leaves.part(~held)

    def _confirm(self, failed: Boxes, found: Found) -> None:
        """Evaluate the middles of boxes with a picture that does not hold: there, a picture may be known for sure."""
        for k in range(min(len(failed), KEPT)):
            value = min(max(float(failed.low[k] + failed.high[k]) / 2, self.low), self.high)
            self.try_at(value, found)
            if not found.holds:
                found.box = (float(failed.low[k]), float(failed.high[k]))
                return

    def try_at(self, value: float, found: Found) -> None:
        """Evaluate the picture at a parameter, if it is known for sure: a counterexample, or one that can neither hold nor be one."""
        picture = self.at(value)
        if picture is None:
            return
        margin = float(self.margins(self.pixels.pictures(picture.unsqueeze(0)))[0])
        if margin < -self.tolerance:
            found.counterexample, found.margin = value, margin
        elif not margin > self.tolerance:
            found.reason, found.box = Reason.TOLERANCE, (value, value)


def _mask(which: Tensor, count: int) -> Tensor:
    mask = torch.zeros(count, dtype=torch.bool)
    mask[which] = True
    return mask


class _Open:
    """Open pixels: the box of each, its place in a picture, the lower of its two values, and its number ``rank`` among the choices of its
    box; ``count``: how many choices there are in each box, one for each pixel unless pixels that are alike share one."""

    def __init__(self, box: Tensor, place: Tensor, first: Tensor, boxes: int) -> None:
        self.box, self.place, self.first = box, place, first
        self.count = box.bincount(minlength=boxes)
        order = box.argsort(stable=True)
        self.rank = torch.empty_like(order)
        self.rank[order] = torch.arange(len(box)) - (self.count.cumsum(0) - self.count)[box[order]]


class _Waiting:
    """Leaves whose pictures wait for an evaluation."""

    def __init__(self) -> None:
        self.leaves: list[Boxes] = []
        self.pictures: list[Tensor] = []
        self.leaf_of: list[Tensor] = []
        self.count = self.boxes = self.bytes = 0

    @property
    def full(self) -> bool:
        return self.count >= MOST_PICTURES or self.bytes >= MOST_BYTES

    def add(self, boxes: Boxes, entries: _Open, which: Tensor, size: int) -> None:
        """Add the boxes in a mask, which have ``size`` open pixels each: all combinations of their two values."""
        leaves, combinations = boxes.part(which), 1 << size
        number = (which.cumsum(0) - 1)[entries.box]
        mine = which[entries.box]
        pictures = leaves.known.repeat_interleave(combinations, 0)
        choice = torch.arange(combinations)
        rows = number[mine].unsqueeze(1) * combinations + choice
        second = (choice >> entries.rank[mine].unsqueeze(1)) & 1
        values = entries.first[mine].unsqueeze(1) + second.to(torch.uint8)
        pictures[rows, entries.place[mine].unsqueeze(1)] = values
        self.leaves.append(leaves)
        self.pictures.append(pictures)
        self.leaf_of.append(torch.arange(len(leaves)).repeat_interleave(combinations) + self.boxes)
        self.boxes += len(leaves)
        self.count += len(pictures)
        self.bytes += pictures.numel()

    def joined(self) -> tuple[Boxes, Tensor, Tensor]:
        """Return all leaves, their pictures, and the leaf of each picture."""
        return Boxes.join(self.leaves), torch.cat(self.pictures), torch.cat(self.leaf_of)
