"""The transformation's notation and the tiling of its range: integers until the last step, then rounded outward.

A box is one (index, pieces) per parameter: the part [index / pieces, (index + 1) / pieces] of its range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.strict_json import ensure, get

MOST_PARTS, MOST_BOXES, MOST_PIECES = 26, 2**26, 2**44
NUMBER = r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*"
PART = re.compile(rf"\s*([A-Z][a-z]*)\s*\({NUMBER}(?::{NUMBER})?(?:@{NUMBER})?(?:@{NUMBER}:{NUMBER}:{NUMBER})?\)\s*")
CAMERA_MOVES = ("Tx", "Ty", "Tz")  # along the camera's axes; after a second @: the normal n of the plane n . P = 1
CAMERAS = frozenset(("Yaw", "Pitch", *CAMERA_MOVES))  # after @: the focal length in pixels
LENS = "Ld"  # after @: the distance in pixels where r is 1; by default half of the image's diagonal
MOVES = CAMERAS | {"R", "Tu", "Tv", "Sc", "Sh", "Scu", "Scv", "Shv", "Roll", LENS}
GROUND = (0.0, -1.0, 0.0)
BLURS = {"Bl": 32.0, "Mb": 128.0}  # the largest parameter, from 0; after @: a Gaussian's radius, a motion's angle
LETTERS = MOVES | BLURS.keys() | {"C", "B", "G", "S", "H"}
NOISE = re.compile(rf"\s*Linf\s*\({NUMBER}\)\s*")
PADDING = re.compile(r"\s*padding\s*=\s*(zeros|border|reflect)\s*")
INTERPOLATION = re.compile(r"\s*interpolation\s*=\s*(bilinear|nearest|bicubic)\s*")
TOKEN = re.compile(r"([1-9][0-9]{0,17})?\.|([a-z])")

Box = tuple[tuple[int, int], ...]


class Transform(NamedTuple):
    """The transformations in order of application, each with its closed range."""

    letters: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    padding: str
    fixed: tuple[float, ...] = ()
    """For each transformation the number after @, which does not vary; 0 if there is none."""
    normals: tuple[tuple[float, ...], ...] = ()
    """For each transformation the normal of a plane; by default the ground's, downwards."""
    interpolation: str = "bilinear"
    noise: float = 0.0
    """How far each pixel of the transformed image may move in addition."""


@dataclass(frozen=True)
class Tiled:
    """A record of one image and its tiling of ``boxes`` boxes."""

    image: int
    grid: list[int]
    tree: str
    boxes: int


def read_tiling(record: dict[str, Any], parts: int) -> tuple[list[int], str, int]:
    """Return grid, tree and number of boxes of a record; refuse a tiling that does not cover the range exactly."""
    grid, tree = get(record, "grid", list), get(record, "tree", str)
    ensure(len(grid) == parts and all(type(n) is int and 0 < n <= MOST_PIECES for n in grid), "its grid is not a grid")
    return grid, tree, count_boxes(grid, tree)


def read_transform(text: str) -> Transform:
    """Parse ``"Sc(5), R(-10:25); padding=border"``.

    >>> read_transform("Sc(5), Yaw(-10:25@300)")[:5]
    (('Sc', 'Yaw'), (-5.0, -10.0), (5.0, 25.0), 'zeros', (0.0, 300.0))
    >>> read_transform("Sc(5), Linf(0.01)").noise
    0.01
    """
    body, *options = text[:10_000].split(";")
    padding, interpolation = (
        [option for option in map(kind.fullmatch, options) if option] for kind in (PADDING, INTERPOLATION)
    )
    understood = len(padding) < 2 and len(interpolation) < 2 and len(padding) + len(interpolation) == len(options)
    parts = body.split(",")
    noise = 0.0
    if (last := NOISE.fullmatch(parts[-1])) is not None:
        noise = float(last.group(1))
        ensure(0 < noise <= 1, "the noise of the claim is not above 0 and at most 1")
        parts = parts[:-1]
    read = [PART.fullmatch(part) for part in parts[: MOST_PARTS + 1]] if len(text) < 10_000 else [None]
    if len(read) > MOST_PARTS or None in read or not understood:
        raise CheckFailed(f"the transformation {text[:80]!r} cannot be read")
    letters, low, high, fixed, normals = [], [], [], [], []
    for part in read:
        assert part is not None
        letter, first, second, setting, *normal = part.groups()
        if letter not in LETTERS:
            raise CheckFailed(f"the transformation {text[:80]!r} cannot be read")
        begin = 0.0 if letter in BLURS else -float(first)
        ends = (begin, float(first)) if second is None else (float(first), float(second))
        if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]):
            raise CheckFailed(f"the transformation {text[:80]!r} has an empty or infinite range")
        letters.append(letter)
        low.append(ends[0])
        high.append(ends[1])
        fixed.append(read_setting(letter, setting, *ends))
        normals.append(read_normal(letter, normal, *ends))
    around = padding[0][1] if padding else "zeros"
    between = interpolation[0][1] if interpolation else "bilinear"
    planes = tuple(normals) if any(normal != GROUND for normal in normals) else ()
    return Transform(tuple(letters), tuple(low), tuple(high), around, tuple(fixed), planes, between, noise)


def read_normal(letter: str, texts: Sequence[str | None], low: float, high: float) -> tuple[float, ...]:
    """Read the normal of the plane a camera moves over, and refuse a range in which it reaches the plane."""
    normal = GROUND if texts[0] is None else tuple(float(text or 0) for text in texts)
    if letter not in CAMERA_MOVES:
        ensure(texts[0] is None, f"{letter} has no plane")
        return normal
    ensure(all(map(math.isfinite, normal)) and any(normal), f"{letter} needs a finite normal, not 0")
    toward = Fraction(normal[CAMERA_MOVES.index(letter)])
    ensure(all(toward * Fraction(end) < 1 for end in (low, high)), f"the camera of {letter} reaches its plane")
    return normal


def read_setting(letter: str, text: str | None, low: float, high: float) -> float:
    """Read the number after @, and refuse impossible ranges of blurs and gamma."""
    setting = float(text or 0)
    if letter in CAMERAS:
        ensure(0 < setting < math.inf, f"{letter} needs a positive, finite focal length")
        return setting
    if letter == LENS:
        ensure(text is None or 0 < setting < math.inf, f"{letter} needs a positive, finite distance")
        return setting
    if letter not in BLURS:
        ensure(text is None, f"{letter} has no setting")
        ensure(letter != "G" or low > -100, "gamma goes down to -100 % or below")
        return setting
    ensure(low >= 0 and high <= BLURS[letter], f"the range of {letter} is out of bounds")
    if letter == "Mb":
        ensure(-360 <= setting <= 360, "the angle of a motion is out of bounds")
        return setting
    radius = setting if text else float(math.ceil(3 * Fraction(high)))
    ensure(1 <= radius <= 96 and radius == int(radius), "the radius of a blur is out of bounds")
    return radius


def cell(number: int, grid: Sequence[int]) -> Box:
    """Return a cell of the grid; cells are numbered with the last parameter running fastest."""
    box = []
    for pieces in reversed(grid):
        number, index = divmod(number, pieces)
        box.append((index, pieces))
    return tuple(reversed(box))


def halves(box: Box, axis: int) -> tuple[Box, Box]:
    index, pieces = box[axis]
    lower, upper = ((2 * index + side, 2 * pieces) for side in (0, 1))
    return (*box[:axis], lower, *box[axis + 1 :]), (*box[:axis], upper, *box[axis + 1 :])


def walk(grid: Sequence[int], tree: str) -> Iterator[tuple[Box | int, int]]:
    """Yield leaves in order: (number of the first cell, number of cells) for whole cells, (box, 1) for a part of a cell.

    Each step reads a letter, takes a leaf that a letter produced, or takes a run of whole cells, so the time is linear in
    the tree's length, whatever numbers it holds. A tree that ends early or late, or cuts too finely, is refused.
    """
    cells = math.prod(grid)
    if cells > MOST_BOXES:
        raise CheckFailed(f"its tiling starts from {cells:,} cells: too many to check")
    position, next_cell = 0, 0
    stack: list[Box] = []
    while position < len(tree):
        token = TOKEN.match(tree, position)
        if token is None:
            raise CheckFailed(f"its tiling cannot be read at {tree[position : position + 20]!r}")
        position, repeat, letter = token.end(), int(token[1] or 1), token[2]
        if letter:
            if not stack and next_cell < cells:
                stack.append(cell(next_cell, grid))
                next_cell += 1
            axis = ord(letter) - ord("a")
            if not stack or axis >= len(grid) or stack[-1][axis][1] * 2 > MOST_PIECES:
                raise CheckFailed(
                    f"its tiling halves along {letter!r} where there is no box, no parameter or too fine a cut"
                )
            stack.extend(reversed(halves(stack.pop(), axis)))
            continue
        while repeat and stack:
            yield stack.pop(), 1
            repeat -= 1
        if repeat > cells - next_cell:
            raise CheckFailed("its tiling goes on after the last cell")
        if repeat:
            yield next_cell, repeat
            next_cell += repeat
    if stack or next_cell != cells:
        raise CheckFailed("its tiling does not cover the range: it ends before the last cell")


def count_boxes(grid: Sequence[int], tree: str) -> int:
    """Count the boxes of a tiling; refuse an invalid one."""
    total = 0
    for _, number in walk(grid, tree):
        total += number
        if total > MOST_BOXES:
            raise CheckFailed("its tiling has too many boxes to check")
    return total


def boxes(grid: Sequence[int], tree: str) -> Iterator[Box]:
    for first, number in walk(grid, tree):
        if isinstance(first, int):
            yield from (cell(k, grid) for k in range(first, first + number))
        else:
            yield first


def contains_zero(low: float, high: float) -> bool:
    return low <= 0 <= high


def within(box: Box, transform: Transform, share: float) -> tuple[list[float], list[float]] | None:
    """Return the part of a box within this share of the range, share * low to share * high exactly, as floats rounded outward;
    None if it has no inside there.

    A point of the share that lies in such a box lies at its edge, and therefore in another one that has an inside there: the
    share is the closure of its inside, and the boxes are finitely many and closed.
    """
    lows, highs, t = *edges(box, transform), Fraction(share)
    for axis, ((index, pieces), low, high) in enumerate(zip(box, transform.low, transform.high, strict=True)):
        begin, width = Fraction(low), Fraction(high) - Fraction(low)
        first, last = begin + width * Fraction(index, pieces), begin + width * Fraction(index + 1, pieces)
        if not (first < t * Fraction(high) and last > t * Fraction(low)):
            return None
        if share < 1:
            lows[axis] = max(lows[axis], math.nextafter(float(t * Fraction(low)), -math.inf))
            highs[axis] = min(highs[axis], math.nextafter(float(t * Fraction(high)), math.inf))
    return lows, highs


def edges(box: Box, transform: Transform) -> tuple[list[float], list[float]]:
    """Return a box's ends as floats: low + t (high - low) exactly, then rounded outward, so neighbors overlap."""

    def at(t: Fraction, low: float, high: float) -> float:
        return float(Fraction(low) + t * (Fraction(high) - Fraction(low)))

    lows, highs = [], []
    for (index, pieces), low, high in zip(box, transform.low, transform.high, strict=True):
        lows.append(math.nextafter(at(Fraction(index, pieces), low, high), -math.inf))
        highs.append(math.nextafter(at(Fraction(index + 1, pieces), low, high), math.inf))
    return lows, highs
