"""A tiling as text that cannot express a gap: the cells of a grid in order, each a binary tree in preorder.

``.`` is a proved box; ``a`` (``b``, ``c``, ...) says that the box is halved along the first (second, third, ...)
parameter, the lower half follows and then the upper one; a number before ``.`` repeats it (docs/run-folder.md).
"""

from __future__ import annotations

import itertools
import math
import re
import string

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


def halves(node: Node, axis: int) -> tuple[Node, Node]:
    """Both halves of a node along one axis."""
    if len(node) == 2:  # of one parameter: what follows, for the many of them
        return (2 * node[0], node[1] + 1), (2 * node[0] + 1, node[1] + 1)
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
