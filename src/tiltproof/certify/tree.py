"""A tiling as text that cannot express a gap: the cells of a grid in order, each a binary tree in preorder.

``.`` is a proved box; ``a`` (``b``, ``c``, ...) says that the box is halved along the first (second, third, ...)
parameter, the lower half follows and then the upper one; a number before ``.`` repeats it (docs/run-folder.md).
"""

from __future__ import annotations

import itertools
import math
import re
import string

import torch
from torch import Tensor

from tiltproof.errors import InputError, shown

Node = tuple[int, ...]
"""Index along each parameter, then the number of halvings along each."""

AXES = string.ascii_lowercase

MOST = 2**62
"""What whole numbers are kept below, so that none overflows."""


def tree_texts(
    grid: tuple[int, ...], images: int, image: Tensor, index: Tensor, level: Tensor, axis: Tensor
) -> list[str]:
    """The trees of all images, cut into ``grid`` to begin with: box ``index[:, n]``, ``level[:, n]`` of image ``image[n]`` was halved
    along ``axis[n]``.

    Halved boxes come in preorder, and between two of them the leaves that lie before the second one and not before the first. All
    cells of all images stand in one row, so a cell has as many cells before it as its number says. A half with s halved boxes in it
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
    """Which of the boxes is each of them, its lower half and its upper half; one beyond the last where it is none of them.

    Along a parameter, an interval's middle tells it from all others that halving makes of the cells: with 2**k places for a cell, it is
    an odd multiple of 2**(k - 1 - l) after l halvings, and the middles of its halves lie half of that away. So a box is its image and
    its middles, the digits of one number, or of several where one would overflow.
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
    """Small numbers for boxes, then their lower halves, then their upper ones, that are equal just where ``number``, ``number - away`` or
    ``number + away`` are, and ``same`` as well."""
    ranks = torch.cat([number, number - away, number + away]).unique(return_inverse=True)[1]
    return ranks if same is None else (same * len(ranks) + ranks).unique(return_inverse=True)[1]


def _texts(leaves: Tensor, letter: Tensor, last: Tensor) -> list[str]:
    """Each row is so many leaves and then a letter, if it is not zero; a text ends with each row of ``last``."""
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
    """Both halves of a node along one axis."""
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
