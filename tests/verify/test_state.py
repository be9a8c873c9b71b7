"""The state of a search: what may be called certified, and what makes it stop instead."""

import math
from dataclasses import fields, is_dataclass
from types import SimpleNamespace

import pytest
import torch

import tiltproof
from tiltproof.verify.attack import Counterexamples
from tiltproof.verify.prover import BackwardPolicy
from tiltproof.verify.results import Verdict
from tiltproof.verify.spec import ClassificationSpec
from tiltproof.verify.state import Boxes, SearchState, Tiling, content, copied

COUNT, GRID = 5, (2, 3)
BOX = torch.zeros(2).double(), torch.ones(2).double()


class Recorder:
    """Image 0 is proved, 1 falsified, 2 out of budget, 3 misclassified; 4 was never bounded."""

    def __init__(self, boxes=range(6)):
        self.witnesses = Counterexamples(
            correct=torch.tensor([True, True, True, False, True]),
            margin=torch.tensor([7.0, -1.0, 7.0, -2.0, 7.0]).double(),
            falsified=torch.tensor([False, True, False, False, False]),
            found=[None, (0.5, 0.5), None, None, None],
        )
        self.spec = ClassificationSpec(SimpleNamespace(labels=torch.arange(COUNT), cost=None), None)
        self.tiling = Tiling(tiltproof.parse("R(8),B(0.5)"), GRID)
        self.state = state = SearchState.start(self.spec, self.witnesses, BackwardPolicy())
        state.waiting[[0, 2]] = 6
        low, high = (end[list(boxes)] for end in self.tiling.bounds(self.tiling.first()))
        self.record(torch.zeros(6).long(), torch.arange(1, 7).double(), low, high, 3.0)
        bound = torch.tensor([0.5, -0.25, torch.nan]).double()
        self.record(torch.tensor([2, 2, 2]), bound, low[:3], high[:3], 1.0)
        state.settle_certified(torch.tensor([0, 0, 2]))
        state.settle_unknown(self.tiling, 2, -0.25, *BOX)

    def record(self, rows, bound, low, high, seconds, boxes=None):
        self.state.count(rows, seconds)
        done = self.spec.done(self.state, rows, bound.unsqueeze(1))
        self.state.settle(rows, bound.unsqueeze(1), done, low, high, boxes)
        return done

    def results(self, first=0, seconds=0.0):
        return self.spec.results(self.state, self.tiling, first, seconds)


def test_what_is_said_of_each_image():
    results = Recorder().results(100, 0.5)
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


def test_bounds_are_counted():
    """A NaN bound proves nothing; a block counts as all of its boxes."""
    recorder = Recorder()
    state = recorder.state
    bound, ends = torch.tensor([torch.nan, 0.0, 2.0, 3.0]).double(), [torch.rand(4, 2).double() for _ in range(2)]
    passed = recorder.record(torch.tensor([4, 4, 4, 1]), bound, *ends, 1.0, torch.tensor([8, 4, 2, 1]))
    assert passed.tolist() == [False, False, True, True]
    assert state.leaves.tolist() == [6, 1, 1, 0, 2]
    assert state.waiting.tolist() == [0, -1, 5, 0, -2]
    assert state.proved[:, 0].tolist() == [1.0, 3.0, 0.5, math.inf, 2.0]


def test_an_image_out_of_budget_is_not_certified_later():
    recorder = Recorder()
    state = recorder.state
    state.waiting[2] = 0
    state.settle_certified(torch.tensor([2, 2]))
    assert state.certified.tolist() == [True, False, False, False, False]
    state.settle_unknown(recorder.tiling, 0, 0.0, *BOX)
    assert not state.certified[0]
    state.settle_certified(torch.tensor([0]))
    assert recorder.results()[0].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("waiting", 1, "leaves out some"),
        ("waiting", -1, "leaves out some"),
        ("boxes", 0, "leaves out some"),
        ("proved", 0.0, "leaves out some"),
        ("proved", math.nan, "leaves out some"),
        ("leaves", 5, "do not make up its tiling"),
        ("leaves", 7, "do not make up its tiling"),
    ],
)
def test_no_certificate_without_every_box(name, value, message):
    recorder = Recorder()
    getattr(recorder.state, name)[0] = value
    with pytest.raises(RuntimeError, match=f"image 0: .*{message}"):
        recorder.results()
    recorder.witnesses.correct[0] = False  # nothing is claimed
    assert recorder.results()[0].verdict is Verdict.MISCLASSIFIED


def test_no_certificate_where_a_box_was_proved_twice_and_another_never():
    with pytest.raises(RuntimeError, match="image 0: its result leaves out some parameters"):
        Recorder([0, 1, 2, 2, 4, 5]).results()


def test_a_copy_shares_nothing_that_changes():
    """Whatever a step does to its copy, the state stands."""
    state, seen = Recorder().state, []

    def differ(one, other):
        for each in fields(one):
            mine, copy = getattr(one, each.name), getattr(other, each.name)
            if isinstance(mine, torch.Tensor):
                assert mine.data_ptr() != copy.data_ptr(), each.name
                seen.append(each.name)
            elif isinstance(mine, (list, dict)) or is_dataclass(mine):
                assert mine is not copy, each.name
                if is_dataclass(mine):
                    differ(mine, copy)

    differ(state, copied(state))
    assert {"falsified", "tried", "kept", "covered"} <= set(seen)


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
    recorder = Recorder()
    recorder.witnesses.falsified[0] = True
    with pytest.raises(RuntimeError, match="image 0: an evaluation contradicts its proof"):
        recorder.results()


def test_boxes_of_a_tiling_are_counted_without_overflow():
    """3 * 2**64 of them are zero modulo 2^64."""
    recorder = Recorder()
    recorder.tiling.base = torch.tensor([2, 3 * 2**32, 2**31])
    recorder.state.leaves[0] = 0
    with pytest.raises(RuntimeError, match="do not make up its tiling"):
        recorder.results()
