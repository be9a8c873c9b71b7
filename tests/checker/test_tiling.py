"""The checker's own parser of tilings and notation, also against hostile input."""

from __future__ import annotations

import itertools
import math
import random
import time
from fractions import Fraction

import pytest

from tiltproof.checker import CheckFailed
from tiltproof.checker.tiling import boxes, count_boxes, edges, read_transform

BAD = [
    "", ".", "2.", "5.", "4.a", "3.a.", "a2.", "4..", "b4.", "3.b2.", "x", "4", "3.0.", "0.", "4.0.", "-4.", "4 .", " 4.", "+4.",
    "999999999999.", "9" * 400 + ".", "a" * 10**6, "a" * 60 + "64.", "NaN", "\u0664.", "4.\n", "Infinity.", "1e1.", "01.03.",
]  # fmt: skip


@pytest.mark.parametrize("tree", BAD, ids=lambda tree: repr(tree[:12]))
def test_what_is_no_tiling_is_refused_at_once(tree):
    begin = time.perf_counter()
    with pytest.raises(CheckFailed):
        count_boxes([4], tree)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("grid", [[2**44], [2**20, 2**20], [2**27]])
def test_grids_that_no_one_could_check_are_refused(grid):
    with pytest.raises(CheckFailed, match="too many"):
        count_boxes(grid, f"{math.prod(grid)}.")


def test_a_deep_tree_is_refused_and_a_long_one_is_read():
    with pytest.raises(CheckFailed, match="too fine"):
        count_boxes([1], "a" * 50 + "51.")
    assert count_boxes([1000], "a" * 20 + "1020.") == 1020
    comb = "".join("a." for _ in range(30)) + "."
    assert count_boxes([1], comb) == 31
    begin = time.perf_counter()
    assert count_boxes([200_000], "a2." * 200_000) == 400_000
    assert time.perf_counter() - begin < 10


def random_tree(rng: random.Random, axes: int, depth: int = 0) -> str:
    if rng.random() < 0.5 or depth > 5:
        return "."
    return rng.choice("abc"[:axes]) + random_tree(rng, axes, depth + 1) + random_tree(rng, axes, depth + 1)


def run_lengths(tree: str) -> str:
    out, k = "", 0
    while k < len(tree):
        n = len(tree[k:]) - len(tree[k:].lstrip("."))
        out += tree[k] if n == 0 else ("." if n == 1 else f"{n}.")
        k += n or 1
    return out


def test_boxes_tile_the_range_exactly():
    rng = random.Random(0)
    for _ in range(50):
        axes = rng.randint(1, 3)
        grid = [rng.randint(1, 4) for _ in range(axes)]
        tree = run_lengths("".join(random_tree(rng, axes) for _ in range(math.prod(grid))))
        found = list(boxes(grid, tree))
        assert len(found) == count_boxes(grid, tree)
        assert sum(math.prod(Fraction(1, pieces) for _, pieces in box) for box in found) == 1
        for _ in range(20):  # a point that lies on no edge is in exactly one box
            point = [Fraction(rng.randrange(10**9) * 2 + 1, 2 * 10**9 + 1) for _ in grid]
            inside = [
                all(Fraction(i, n) <= t <= Fraction(i + 1, n) for t, (i, n) in zip(point, box, strict=True))
                for box in found
            ]
            assert sum(inside) == 1


def test_the_format_description_s_example():
    found = list(boxes([16], "3.a14."))
    assert found[:6] == [((0, 16),), ((1, 16),), ((2, 16),), ((6, 32),), ((7, 32),), ((4, 16),)]
    assert len(found) == 17
    assert list(boxes([2, 3], "6."))[1] == ((0, 2), (1, 3))  # the last parameter runs fastest


def test_edges_reach_outward():
    transform = read_transform("R(0.1), B(-3:7e-300)")
    ends = [edges(box, transform) for box in boxes([3, 1], "3.")]
    for (_, above), (below, _) in itertools.pairwise(ends):
        assert below[0] < above[0]
    assert ends[0][0][0] < -0.1
    assert ends[-1][1][0] > 0.1
    assert Fraction(ends[-1][1][0]) > Fraction(1, 10)
    assert ends[0][0][1] < -3 < 7e-300 < ends[0][1][1]


@pytest.mark.parametrize(
    "text",
    [
        "", "R", "R()", "R(nan)", "R(inf)", "R(1e999)", "R(-5)", "R(5:5)", "R(5:-5)", "Q(5)", "R(5);", "R(5); padding=wrap", "R(5),",
        "R(5) Sh(2)", "R(1_0)", "r(5)", "R(5:6:7)", "R(5)" + ", R(5)" * 30, "R(" + "9" * 20000 + ")", "R(5); padding=zeros; padding=border",
        "Yaw(5)", "Yaw(5@)", "Yaw(5@0)", "Yaw(5@-3)", "Yaw(5@1e999)", "Yaw(5@3@4)", "R(5@300)", "Roll(5@300)", "Yaw(5@3:4)", "Camera(5@3)",
        "Tx(1)", "Tx(1@3@0:1)", "Tx(1@3@0:0:0)", "Tz(1@3@0:0:1)", "Ty(-1:0@3)", "Tx(1@3@1e999:0:1)", "Yaw(1@3@0:0:1)",
        "R(5); interpolation=cubic",
        "R(5); interpolation=nearest; interpolation=bicubic", "R(5); padding=zeros; padding=zeros", "R(5);; padding=zeros",
    ],
)  # fmt: skip
def test_notation_that_cannot_be_read(text):
    with pytest.raises(CheckFailed):
        read_transform(text)


def test_notation():
    assert read_transform(" Sc( 5 ),R(-10:2.5e1) ; padding=reflect") == (
        ("Sc", "R"),
        (-5.0, -10.0),
        (5.0, 25.0),
        "reflect",
        (0.0, 0.0),
        (),
        "bilinear",
        0.0,
    )
    assert read_transform("R(3) ; interpolation = nearest; padding=border")[3:] == (
        "border",
        (0.0,),
        (),
        "nearest",
        0.0,
    )

    assert read_transform("Yaw(-1:2 @ 3e1), Scu(1)").fixed == (30.0, 0.0)
    assert read_transform("Tx(0.1@30@0:-1:0), R(3)").normals == ()
    assert read_transform("Tz(0.1@30@0:-1:0.5 ), R(3)").normals == ((0.0, -1.0, 0.5), (0.0, -1.0, 0.0))
