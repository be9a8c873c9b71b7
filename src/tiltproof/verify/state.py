"""The state of a search, and its parameter boxes as integers, so that a tiling of the range has no gaps by construction.

Each axis of the range is cut into ``base`` equal parts, each halved ``level`` times; a box is number ``index`` of the
``base * 2**level`` pieces. The edge between pieces m-1 and m lies at t = m / (base * 2**level) of the range. Division
rounds correctly, so equal fractions give the same float t, and `_edge` depends on t alone: neighbors of any level
share their edge to the last bit. A chain of intervals with shared ends covers everything between its outer ends,
however the inner ones are rounded. The outer ends are those of the range, moved outwards by one unit in the last
place, so that a decimal such as 0.1, which is not a float, is covered as well.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.transforms.base import Transform
from tiltproof.verify.prover import BackwardPolicy

if TYPE_CHECKING:
    from tiltproof.verify.results import Reason
    from tiltproof.verify.spec import Spec
    from tiltproof.verify.tighten import Slack

DEEPEST = 2**44
"""Most pieces along one axis; far below 2**53, up to which indices are exact as floats."""


class Tiling:
    """The range of a transformation, cut into ``base`` parts along each axis."""

    def __init__(self, transform: Transform, base: tuple[int, ...]) -> None:
        self.low = torch.tensor(transform.low, dtype=torch.float64)
        self.high = torch.tensor(transform.high, dtype=torch.float64)
        self.base = torch.tensor(base, dtype=torch.int64)
        self.noise = bool(transform.noise)
        if not bool(torch.isfinite(self.high - self.low).all()):
            raise InputError("the range is too wide for floating point", got=str(transform))
        infinity = torch.tensor(torch.inf, dtype=torch.float64)
        self.outer_low, self.outer_high = self.low.nextafter(-infinity), self.high.nextafter(infinity)

    def on(self, device: torch.device) -> Tiling:
        """Return the tiling for boxes on a device. Each operation there is one that IEEE 754 defines, so edges are
        the same."""
        other = copy(self)
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        vars(other).update({name: tensor.to(device) for name, tensor in tensors.items()})
        return other

    def first(self) -> Boxes:
        """Return all boxes of level 0: the uniform grid."""
        axes = [torch.arange(count, device=self.base.device) for count in self.base.tolist()]
        # without a parameter there is one box, of no sides
        index = torch.cartesian_prod(*axes).view(-1, len(axes)) if axes else self.base.view(1, 0)
        return Boxes(index, torch.zeros_like(index))

    def bounds(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """Return the lower and upper parameters of each box, float64 [P, d]."""
        first, second = self._edge(torch.stack([boxes.index, boxes.index + 1]), boxes.level)
        return torch.minimum(first, second), torch.maximum(first, second)

    def _edge(self, index: Tensor, level: Tensor) -> Tensor:
        pieces = self.base << level
        t = index.double() / pieces.double()
        inner = (self.low + (self.high - self.low) * t).clamp(self.low, self.high)
        edge = torch.where(index == 0, self.outer_low, inner)
        return torch.where(index == pieces, self.outer_high, edge)

    def can_split(self, boxes: Boxes) -> Tensor:
        """Return whether another halving keeps indices exact, [P, d]."""
        return self.base << (boxes.level + 1) <= DEEPEST

    def best_axes(self, boxes: Boxes, shares: Tensor) -> Tensor:
        """Return the parameter along which to halve each box [P]: the largest branching score of those that can be
        halved.

        A tiny preference for the least halved axis breaks ties. This chooses work and is not part of a bound.
        """
        score = shares + 1e-12 * 0.5 ** boxes.level.double()
        return torch.where(self.can_split(boxes), score, -1.0).argmax(1)


@dataclass
class Boxes:
    """Boxes of a tiling: int64 [P, d] each."""

    index: Tensor
    level: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Tensor | slice) -> Boxes:
        return Boxes(self.index[rows], self.level[rows])

    def split(self, axis: Tensor) -> Boxes:
        """Halve each box along its own axis [P]; return all lower halves, then all upper ones."""
        # 1 along the axis; `one_hot` would wait for a GPU to read its numbers
        step = (axis.unsqueeze(1) == torch.arange(self.index.shape[1], device=axis.device)).long()
        index, level = self.index * (1 + step), self.level + step
        return Boxes(torch.cat([index, index + step]), torch.cat([level, level]))

    def repeat(self, times: int) -> Boxes:
        return Boxes(self.index.repeat(times, 1), self.level.repeat(times, 1))

    @staticmethod
    def join(parts: list[Boxes]) -> Boxes:
        return Boxes(torch.cat([part.index for part in parts]), torch.cat([part.level for part in parts]))


# A tiling as text that cannot express a gap: the cells of a grid in order, each a binary tree in preorder.
# ``.`` is a proved box; ``a`` (``b``, ``c``, ...) says that the box is halved along the first (second, third, ...)
# parameter, the lower half follows and then the upper one; a number before ``.`` repeats it (docs/run-folder.md).

Node = tuple[int, ...]
"""Return the index along each parameter, then the number of halvings along each."""
AXES = string.ascii_lowercase

MOST = 2**62
"""Limit of whole numbers, so that none overflows."""


def tree_texts(
    grid: tuple[int, ...], images: int, image: Tensor, index: Tensor, level: Tensor, axis: Tensor
) -> list[str]:
    """Return the trees of all images. Box ``index[:, n]``, ``level[:, n]`` of image ``image[n]`` was halved along
    ``axis[n]``.

    Halved boxes are written in preorder, each after the leaves between it and its predecessor. The cells of all
    images form one sequence, so a cell's number is the number of cells before it. A half that contains s halved boxes
    has s + 1 leaves.
    """
    cells, count = math.prod(grid), len(axis)
    if not count:
        return [_leaves(cells)] * images
    # places along each parameter, so fine that a half of the smallest box has its middle at one
    places = [size << (deepest + 2) for size, deepest in zip(grid, level.amax(1).tolist(), strict=True)]
    if max(images * cells, *places) >= MOST:
        raise RuntimeError("a tiling is too fine to be counted; please report this")
    itself, lower, upper = _found(images, places, image, index, level, axis)
    depth, order = level.sum(0).sort()
    depths = order.split(depth.bincount().tolist())
    roots = depths[0]
    # each is a cell or half of exactly one other
    if not bool((torch.cat([itself[roots], lower, upper]).bincount(minlength=count)[:count] == 1).all()):
        raise RuntimeError("the boxes that were halved are no tree; please report this")
    sizes = image.new_ones(count + 1)  # halved boxes from each on; the last entry stands for a leaf
    sizes[count] = 0
    for boxes in reversed(depths):
        sizes[boxes] += sizes[lower[boxes]] + sizes[upper[boxes]]
    cell = image[roots]
    for along, size in zip(index[:, roots], grid, strict=True):
        cell = cell * size + along
    cell, order = cell.sort()
    roots = roots[order]
    # how many halved boxes and how many leaves lie before each halved box
    before = image.new_empty(2, count + 1)
    earlier = sizes[roots].cumsum(0) - sizes[roots]
    before[:, roots] = torch.stack([earlier, earlier + cell])
    for boxes in depths:
        here = before[:, boxes]
        before[:, lower[boxes]] = here + image.new_tensor([[1], [0]])
        before[:, upper[boxes]] = here + sizes[lower[boxes]] + 1
    # the text of each image: its halved boxes, then the leaves after the last of them
    number = torch.arange(images, device=image.device)
    end = image.bincount(minlength=images).cumsum(0)
    row, last = before[0, :count] + image, end + number
    letter, leaves = image.new_zeros(count + images, dtype=torch.uint8), image.new_empty(count + images)
    letter[row], leaves[row] = image.new_tensor(list(AXES.encode()), dtype=torch.uint8)[axis], before[1, :count]
    leaves[last] = end + cells * (number + 1)
    return _texts(leaves.diff(prepend=leaves.new_zeros(1)), letter, last)


def _found(
    images: int, places: list[int], image: Tensor, index: Tensor, level: Tensor, axis: Tensor
) -> tuple[Tensor, ...]:
    """Return, for each box, the numbers of itself, its lower and its upper half among the boxes; the count where it
    is none.

    The middle of an interval identifies it among all halvings of the cells: on a scale of 2**k positions per cell it
    is an odd multiple of 2**(k - 1 - l) after l halvings, and the middles of its halves lie half of that away. A box
    is therefore its image and its middles: digits of one number, or of several where one would overflow.
    """
    finest = level.amax(1, keepdim=True) + 1
    middles = (2 * index + 1) << (finest - level)
    steps = (axis == torch.arange(len(places), device=axis.device).unsqueeze(1)).long() << (finest - level - 1)
    number, away, span, same = image, torch.zeros_like(image), images, None
    for middle, step, size in zip(middles, steps, places, strict=True):
        if span * size >= MOST:
            same, number, away, span = _same(same, number, away), torch.zeros_like(image), torch.zeros_like(image), 1
        number, away, span = number * size + middle, away * size + step, span * size
    same, count = _same(same, number, away), len(axis)
    found = torch.full_like(same, count)
    found[same[:count]] = torch.arange(count, device=same.device)
    return found[same].chunk(3)


def _same(same: Tensor | None, number: Tensor, away: Tensor) -> Tensor:
    """Return small numbers for boxes, their lower halves and their upper halves. Two are equal exactly if ``number``,
    ``number - away`` or ``number + away`` are, and ``same`` as well."""
    ranks = torch.cat([number, number - away, number + away]).unique(return_inverse=True)[1]
    return ranks if same is None else (same * len(ranks) + ranks).unique(return_inverse=True)[1]


def _texts(leaves: Tensor, letter: Tensor, last: Tensor) -> list[str]:
    """Write each row as a number of leaves and a letter, if it is not zero; a text ends with each row of ``last``."""
    digits = len(str(int(leaves.max())))
    signs = letter.new_zeros(len(leaves), digits + 2)  # zero: nothing
    signs[:, -1] = letter
    signs[:, -2] = ord(".") * (leaves > 0)
    for k in range(digits):
        signs[:, -3 - k] = torch.where(leaves >= max(2, 10**k), ord("0") + leaves // 10**k % 10, 0)
    text = signs.cpu().numpy().tobytes().translate(None, b"\0").decode("ascii")
    ends = (signs > 0).sum(1).cumsum(0)[last].tolist()
    return [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def halves(node: Node, axis: int) -> tuple[Node, Node]:
    """Return both halves of a node along one axis."""
    level = len(node) // 2 + axis
    lower = list(node)
    lower[axis] *= 2
    lower[level] += 1
    upper = lower.copy()
    upper[axis] += 1
    return tuple(lower), tuple(upper)


def _leaves(count: int) -> str:
    return "" if count == 0 else "." if count == 1 else f"{count}."


def leaves(grid: tuple[int, ...], text: str, most: int) -> list[Node] | None:
    """The boxes of a tiling, in the order of its text; None if there are more than ``most``.

    >>> leaves((3,), ".a3.", most=9)
    [(0, 0), (2, 1), (3, 1), (2, 0)]
    """
    if math.prod(grid) > most:
        return None
    cells = itertools.product(*map(range, grid))
    todo: list[Node] = []
    found: list[Node] = []
    try:
        for number, letter in re.findall(r"(\d*)([.a-z])", text):
            for _ in range(min(int(number or 1), most + 1)):
                node = todo.pop() if todo else next(cells) + (0,) * len(grid)
                if letter == ".":
                    found.append(node)
                else:
                    lower, upper = halves(node, AXES.index(letter))
                    todo += [upper, lower]
            if len(found) > most:
                return None
    except (StopIteration, IndexError, ValueError):
        raise InputError("a tiling cannot be read", got=shown(text)) from None
    if todo or next(cells, None) is not None:
        raise InputError("a tiling does not cover its grid", got=shown(text))
    return found


# Which boxes were halved while a search ran: noted as they come, put in order when a tiling is asked for.

MANY = 2**20
"""Number of notes at which those of forgotten images are first dropped; then again when twice as many remain."""


@dataclass
class SplitLog:
    """The halvings of each image; ``kept``: images whose tilings may still be needed."""

    kept: Tensor
    notes: list[Tensor] = field(default_factory=list)
    """Columns: image, index along each parameter, halvings along each, parameter of the next halving."""
    noted: int = 0
    many: int = MANY

    @classmethod
    def of(cls, count: int, device: torch.device | str = "cpu") -> SplitLog:
        """Return the log of images 0 to ``count`` - 1, with boxes on ``device``."""
        return cls(torch.ones(count, dtype=torch.bool, device=device))

    def note(self, images: Tensor, boxes: Boxes, axes: Tensor) -> None:
        """Record that box p of image ``images[p]`` is halved along ``axes[p]``."""
        self.notes.append(torch.cat([images.unsqueeze(0), boxes.index.T, boxes.level.T, axes.unsqueeze(0)]))
        self.noted += len(axes)

    def forget(self, images: Tensor) -> None:
        """Mark images whose tilings are not needed."""
        self.kept[images] = False
        if self.noted > self.many:
            self.notes = [self._joined()]
            self.noted = len(self.notes[0][0])
            self.many = max(MANY, 2 * self.noted)

    def trees(self, grid: tuple[int, ...]) -> tuple[list[str], list[int]]:
        """Return, for each image, the tiling of a range cut into ``grid``, and the number of halved boxes."""
        count, axes = len(self.kept), len(grid)
        notes = (
            self._joined() if self.notes else torch.empty(2 * axes + 2, 0, dtype=torch.int64, device=self.kept.device)
        )
        (image,), index, level, (axis,) = notes.split([1, axes, axes, 1])
        return tree_texts(grid, count, image, index, level, axis), image.bincount(minlength=count).tolist()

    def _joined(self) -> Tensor:
        """Return the notes of all images that are not forgotten."""
        notes = torch.cat(self.notes, 1)
        return notes[:, self.kept[notes[0]]]


# The state of a search: everything that a step may change, and the invariants of a result.
# A step works on a copy of the `SearchState`, which replaces the original in one assignment (`Search.commit`). If a
# step raises, the state is what it was before.

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
    """Boxes after which an image is tested again for whether it can be proved at all."""
    frontier: Frontier | None = None
    missing: Tensor | None = None
    """[N, C]: by how much the bounds of a range's objectives may fall short, because those of a single point do."""
    slack: Slack | None = None
    """The boxes of certified images, where their margins are tightened."""

    @classmethod
    def start(cls, spec: Spec, witnesses: Any, policy: BackwardPolicy, device: torch.device | str = "cpu") -> Self:
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
