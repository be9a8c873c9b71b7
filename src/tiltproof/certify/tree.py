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


def tree_text(grid: tuple[int, ...], splits: dict[Node, int]) -> str:
    """The tree of an image whose boxes ``splits`` (node -> parameter) were halved, starting from ``grid``.

    >>> tree_text((16,), {(3, 0): 0})
    '3.a14.'
    """
    letters, leaves, done, uncut = [], 0, 0, (0,) * len(grid)
    for cell in sorted(node[: len(grid)] for node in splits if node[len(grid) :] == uncut):
        number = 0
        for index, size in zip(cell, grid, strict=True):
            number = number * size + index
        leaves += number - done  # cells that were not halved
        done = number + 1
        todo = [cell + uncut]
        while todo:
            node = todo.pop()
            axis = splits.get(node)
            if axis is None:
                leaves += 1
                continue
            letters.append(_leaves(leaves) + AXES[axis])
            leaves = 0
            lower, upper = halves(node, axis)
            todo += [upper, lower]
    return "".join(letters) + _leaves(leaves + math.prod(grid) - done)


def line_trees(cells: int, image: Tensor, index: Tensor, level: Tensor, images: int) -> list[str]:
    """`tree_text` of all images at once, for one parameter: box ``index[n]`` of ``cells * 2**level[n]`` was halved in image ``image[n]``.

    Preorder is that of the boxes' left ends, larger boxes first. The boxes that are not halved and lie left of such an end x are as
    many as the points in (0, x] at which something was cut: edges of cells, and middles of halved boxes.
    """
    depth = int(level.max()) + 1 if len(level) else 0
    size = 2 ** (depth - level)
    left = index * size
    order = (left * 64 + level).argsort()
    order = order[image[order].argsort(stable=True)]
    image, left, size = image[order], left[order], size[order]
    span = (cells << depth) + 1
    middles = (image * span + left + size // 2).sort().values
    counts = torch.bincount(image, minlength=images)
    ends = counts.cumsum(0)
    before = torch.searchsorted(middles, image * span + left, right=True) - (ends - counts)[image] + (left >> depth)
    first = torch.ones_like(image, dtype=torch.bool)
    first[1:] = image[1:] != image[:-1]
    between = before - torch.where(first, 0, before.roll(1))
    letters = [_leaves(count) + AXES[0] for count in between.tolist()]
    last = torch.zeros(images, dtype=torch.int64).scatter_reduce(0, image, before, "amax")
    tails = (cells + counts - last).tolist()
    starts = [0, *ends.tolist()]
    return ["".join(letters[a:b]) + _leaves(tail) for a, b, tail in zip(starts, starts[1:], tails, strict=False)]


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
