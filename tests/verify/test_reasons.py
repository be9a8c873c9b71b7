"""Unknown images say why, and those that no budget could prove do not spend it."""

import json

import pytest
import torch
from torch import nn

from tiltproof import BranchAndBound, Tolerance, UniformGrid, Verdict, certify, certify_range
from tiltproof.verify import state
from tiltproof.verify.results import REASONS, ImageResult, RangeResult, Reason
from tiltproof.verify.spec import ClassificationSpec


def deep(layers):
    """Return a network whose bounds grow by 16 in each layer, where its numbers grow by 4, and an image of its label."""
    generator = torch.Generator().manual_seed(1)
    parts = [nn.Flatten()]
    for _ in range(layers):
        layer = nn.Linear(16, 16)
        signs = torch.randint(0, 2, (16, 16), generator=generator) * 2.0 - 1
        layer.weight.data, layer.bias.data = signs / 4, torch.zeros(16)
        parts += [layer, nn.ReLU()]
    model = nn.Sequential(*parts[:-1]).eval()
    images = torch.rand(2, 1, 4, 4, generator=generator)
    return model, images, model(images).argmax(1)


def test_rounding_that_no_budget_overcomes(monkeypatch):
    model, images, labels = deep(36)
    problem = model, images[:1], labels[:1], "R(1)"
    certificate = certify(*problem, search=BranchAndBound(max_boxes=2500))
    assert certificate.verdicts == [Verdict.UNKNOWN]
    assert [result.reason for result in certificate.results] == [Reason.OPEN]
    assert max(certificate.boxes) < 2000
    assert certificate.summary()["unknown_reasons"] == {"open": 1}
    monkeypatch.setattr(state, "FIRST_LOOK", 10**9)
    slow = certify(*problem, search=BranchAndBound(max_boxes=2500))
    assert min(slow.boxes) > max(certificate.boxes), "the rule that gives up is what saved the boxes"
    assert [result.reason for result in slow.results] == [Reason.OPEN]


def test_what_can_be_proved_is_not_given_up(monkeypatch):
    """Looking changes no verdict, however often."""
    model, images, labels = deep(16)
    whole = certify(model, images, labels, "R(1)")
    assert whole.verdicts == [Verdict.CERTIFIED] * 2
    monkeypatch.setattr(state, "FIRST_LOOK", 1)
    again = certify(model, images, labels, "R(1)")
    assert [(r.verdict, r.boxes, r.tree, r.margin) for r in again.results] == [
        (r.verdict, r.boxes, r.tree, r.margin) for r in whole.results
    ]
    monkeypatch.setattr(ClassificationSpec, "hopeless", lambda _, _state, rows, *_box: torch.ones_like(rows).bool())
    assert certify(model, images, labels, "R(1)").verdicts == [Verdict.UNKNOWN] * 2, "it was looked"


def test_float32_evaluations():
    model, images, labels = deep(14)
    assert certify(model, images, labels, "R(0.001)").verdicts == [Verdict.CERTIFIED] * 2
    rounded = certify(model, images, labels, "R(0.001)", semantics="float32", search=BranchAndBound(max_boxes=500))
    assert [result.reason for result in rounded.results] == [Reason.ROUNDING] * 2
    assert max(rounded.boxes) < 500


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        (BranchAndBound(max_boxes=1), Reason.BOXES),
        (BranchAndBound(max_seconds=1e-9), Reason.SECONDS),
        (UniformGrid(2), Reason.SPLITS),
        (UniformGrid(400, max_seconds=1e-9), Reason.SECONDS),
    ],
)
def test_what_was_spent(search, reason):
    results = certify(*deep(20), "R(2)", search=search).results
    unknown = [result for result in results if result.verdict is Verdict.UNKNOWN]
    assert unknown
    assert {result.reason for result in unknown} == {reason}
    for result in results:
        record = json.loads(json.dumps(result.record()))
        assert ImageResult.of_record(record) == result
        assert record.pop("reason") == (None if result.reason is None else str(reason))
        assert ImageResult.of_record(record).reason is None, "records of earlier versions have no reason"


def test_every_reason_says_what_would_help():
    assert set(REASONS) == set(Reason)
    assert all(reason.meaning and reason.advice for reason in Reason)
    assert all(reason.sentence(ranges).count("What would help: ") == 1 for reason in Reason for ranges in (False, True))


TIGHT = Tolerance()


def ranges(layers, transform, semantics="real", tolerance=TIGHT, **budget):
    model, images, _ = deep(layers)
    budget = {"max_boxes": 600} | budget
    return certify_range(
        model, images[:1], None, transform, semantics=semantics, tolerance=tolerance, search=BranchAndBound(**budget)
    )


def test_ranges_that_rounding_keeps_wide(monkeypatch):
    """The search ends early, and other boxes are tightened all the same: the range is no wider than by rounding."""
    found = ranges(36, "R(0.1)").results
    assert [(r.verdict, r.complete, r.reason) for r in found] == [(Verdict.UNKNOWN, False, Reason.OPEN)]
    monkeypatch.setattr(state, "FIRST_LOOK", 10**9)
    slow = ranges(36, "R(0.1)").results
    for quick, long in zip(found, slow, strict=True):
        assert quick.boxes < long.boxes
        assert quick.width < long.width
        assert long.reason is Reason.OPEN, "said at the end"


def test_ranges_of_float32_evaluations():
    assert ranges(14, "R(0.001)").summary()["unknown_reasons"] == {}
    found = ranges(14, "R(0.001)", "float32")
    assert found.summary()["unknown_reasons"] == {"rounding": 1}
    assert max(result.boxes for result in found.results) < 1000
    wide = ranges(14, "R(0.001)", "float32", Tolerance(absolute=0.1))
    assert [result.reason for result in wide.results] == [None], "a larger tolerance helps, as the advice says"


@pytest.mark.parametrize(
    ("budget", "reason"), [({"max_boxes": 4}, Reason.BOXES), ({"max_seconds": 1e-9}, Reason.SECONDS)]
)
def test_what_ranges_spent(budget, reason):
    for result in ranges(8, "R(20)", **budget).results:
        assert result.reason is reason
        record = json.loads(json.dumps(result.record()))
        assert RangeResult.of_record(record) == result
        del record["reason"]
        assert RangeResult.of_record(record).reason is None, "records of earlier versions have no reason"


def test_looking_changes_no_range_that_can_be_tight(monkeypatch):
    whole = ranges(12, "R(0.1)").results
    assert all(result.complete for result in whole)
    monkeypatch.setattr(state, "FIRST_LOOK", 1)
    again = ranges(12, "R(0.1)").results
    assert [(r.lower, r.upper, r.tree) for r in again] == [(r.lower, r.upper, r.tree) for r in whole]
