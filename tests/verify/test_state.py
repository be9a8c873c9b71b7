"""The books of a search: what may be called certified, and what makes it stop instead."""

import math
from types import SimpleNamespace

import pytest
import torch

import tiltproof
from tiltproof.verify.partition import Boxes, Tiling
from tiltproof.verify.results import Verdict
from tiltproof.verify.state import SearchState, content

COUNT, GRID = 5, (2, 3)
BOX = torch.zeros(2).double(), torch.ones(2).double()


def ledger(boxes=range(6)):
    """Image 0 is proved, 1 falsified, 2 given up, 3 misclassified; nobody has looked at 4."""
    attacker = SimpleNamespace(
        correct=torch.tensor([True, True, True, False, True]),
        falsified=torch.tensor([False, True, False, False, False]),
        margin=torch.tensor([7.0, -1.0, 7.0, -2.0, 7.0]).double(),
        found=[None, (0.5, 0.5), None, None, None],
    )
    prover = SimpleNamespace(labels=torch.arange(COUNT))
    books = SearchState(prover, attacker, Tiling(tiltproof.parse("R(8),B(0.5)"), GRID))
    books.waiting[[0, 2]] = 6
    low, high = (end[list(boxes)] for end in books.tiling.bounds(books.tiling.first()))
    books.record(torch.zeros(6).long(), torch.arange(1, 7).double(), low, high, 3.0)
    books.record(torch.tensor([2, 2, 2]), torch.tensor([0.5, -0.25, torch.nan]).double(), low[:3], high[:3], 1.0)
    books.settle_certified(torch.tensor([0, 0, 2]))
    books.settle_unknown(2, -0.25, *BOX)
    return books


def test_what_is_said_of_each_image():
    results = ledger().results(100, 0.5)
    assert [result.image for result in results] == list(range(100, 105))
    assert [result.label for result in results] == list(range(COUNT))
    assert [str(result.verdict) for result in results] == [
        "certified",
        "falsified",
        "unknown",
        "misclassified",
        "unknown",
    ]
    assert [result.margin for result in results] == [1.0, -1.0, -0.25, -2.0, math.inf]
    assert [(result.grid, result.tree) for result in results] == [(GRID, "6."), *[(None, None)] * 4]
    assert [result.counterexample for result in results] == [None, (0.5, 0.5), None, None, None]
    assert [result.open_box for result in results] == [None, None, ((0.0, 0.0), (1.0, 0.5)), None, None]
    assert [result.boxes for result in results] == [6, 0, 3, 0, 0]
    assert [result.seconds for result in results] == pytest.approx([3.5, 0.5, 1.5, 0.5, 0.5])


def test_books_of_bounds():
    """A bound that is no number proves nothing; a block counts as all of its boxes."""
    books = ledger()
    bound, ends = torch.tensor([torch.nan, 0.0, 2.0, 3.0]).double(), [torch.rand(4, 2).double() for _ in range(2)]
    passed = books.record(torch.tensor([4, 4, 4, 1]), bound, *ends, 1.0, torch.tensor([8, 4, 2, 1]))
    assert passed.tolist() == [False, False, True, True]
    assert books.leaves.tolist() == [6, 1, 1, 0, 2]
    assert books.waiting.tolist() == [0, -1, 5, 0, -2]
    assert books.proved.tolist() == [1.0, 3.0, 0.5, math.inf, 2.0]


def test_what_is_given_up_is_not_certified_later():
    books = ledger()
    books.waiting[2] = 0
    books.settle_certified(torch.tensor([2, 2]))
    assert books.certified.tolist() == [True, False, False, False, False]
    books.settle_unknown(0, 0.0, *BOX)
    assert not books.certified[0]
    books.settle_certified(torch.tensor([0]))
    assert books.results(0, 0.0)[0].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("waiting", 1, "without all of its boxes"),
        ("waiting", -1, "without all of its boxes"),
        ("boxes", 0, "without all of its boxes"),
        ("proved", 0.0, "without all of its boxes"),
        ("proved", math.nan, "without all of its boxes"),
        ("leaves", 5, "do not make up its tiling"),
        ("leaves", 7, "do not make up its tiling"),
    ],
)
def test_no_certificate_without_every_box(name, value, message):
    books = ledger()
    getattr(books, name)[0] = value
    with pytest.raises(RuntimeError, match=f"image 0: .*{message}"):
        books.results(0, 0.0)
    books.attacker.correct[0] = False  # nothing is claimed
    assert books.results(0, 0.0)[0].verdict is Verdict.MISCLASSIFIED


def test_no_certificate_where_a_box_was_proved_twice_and_another_never():
    with pytest.raises(RuntimeError, match="image 0: certified without all of its boxes"):
        ledger([0, 1, 2, 2, 4, 5]).results(0, 0.0)


@pytest.mark.parametrize("text", ["R(-8:3)", "R(8), B(0.5)", "Sc(-2:5), R(0:5), Sh(2), C(-3:4), B(0.01)"])
def test_contents_of_boxes_add_up_to_that_of_what_they_make_up(text):
    transform, generator = tiltproof.parse(text), torch.Generator().manual_seed(len(text))
    tiling = Tiling(transform, tuple(range(2, 2 + len(transform.parts))))
    whole = content(tiling.outer_low.unsqueeze(0), tiling.outer_high.unsqueeze(0))
    boxes = tiling.first()
    for _ in range(12):
        number = content(*tiling.bounds(boxes))
        assert number.sum() == whole
        one, other = torch.randperm(len(boxes), generator=generator)[:2]
        assert number.sum() - number[one] + number[other] != whole
        rows = torch.rand(len(boxes), generator=generator) < 0.3
        axes = torch.randint(len(transform.parts), (int(rows.sum()),), generator=generator)
        boxes = Boxes.join([boxes[~rows], boxes[rows].split(axes)])


def test_a_counterexample_to_a_proof():
    books = ledger()
    books.attacker.falsified[0] = True
    with pytest.raises(RuntimeError, match="image 0: a counterexample to a proof"):
        books.results(0, 0.0)


def test_boxes_of_a_tiling_are_counted_without_overflow():
    """3 * 2**64 of them are none in 64 bits."""
    books = ledger()
    books.tiling.base = torch.tensor([2, 3 * 2**32, 2**31])
    books.leaves[0] = 0
    with pytest.raises(RuntimeError, match="do not make up its tiling"):
        books.results(0, 0.0)
