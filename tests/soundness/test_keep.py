"""What a classifier keeps: no sampled parameter violates what is certified, and every counterexample violates it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tiltproof as tp
from tests.support.kept import FALLING, KEPT, RISING, Mean, case, network, slack
from tiltproof.transforms import parse


def samples(transform: str, count: int = 400) -> torch.Tensor:
    chosen = parse(transform)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (chosen.low, chosen.high))
    share = torch.rand(count, len(low), dtype=torch.float64)
    share[0], share[1] = 0, 1
    return low + share * (high - low)


def outputs_at(model: nn.Module, image: torch.Tensor, transform: str, points: torch.Tensor) -> list[list[float]]:
    wide = network(0)
    wide.load_state_dict(model.state_dict())
    turned = parse(transform).apply(image.double().expand(len(points), 1, 6, 6), points)
    with torch.no_grad():
        return wide.double()(turned).tolist()


def check(seed: int, keep: object, transform: str, **options: object) -> Counter[str]:
    model, images, labels = case(seed)
    certificate = tp.certify(
        model, images, None if isinstance(keep, tp.KeepOwn) else labels, transform, keep=keep, **options
    )
    points = samples(transform)
    identity = torch.zeros(1, points.shape[1], dtype=torch.float64)
    for k, result in enumerate(certificate.results):
        if isinstance(keep, tp.KeepOwn):
            assert result.label == int(model(images[k : k + 1]).argmax())
        at = [slack(keep, y, result.label) for y in outputs_at(model, images[k], transform, points)]
        (clean,) = (slack(keep, y, result.label) for y in outputs_at(model, images[k], transform, identity))
        if result.verdict == "certified":
            assert min(at) > 0
            assert 0 < result.margin <= min(at) + 1e-9
        elif result.verdict == "falsified":
            there = torch.tensor([result.counterexample], dtype=torch.float64)
            (found,) = (slack(keep, y, result.label) for y in outputs_at(model, images[k], transform, there))
            assert found <= result.margin + 1e-9
            assert found < 0
        elif result.verdict == "misclassified":
            assert clean <= 1e-6
    return Counter(str(result.verdict) for result in certificate.results)


@pytest.mark.parametrize("name", KEPT)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), transform=st.sampled_from(["R(25)", "R(90)", "B(-0.2:0.3), Tu(1)"]))
def test_no_sampled_parameter_violates_what_is_certified(name, seed, transform):
    check(seed, KEPT[name], transform, search=tp.BranchAndBound(max_boxes=300))


@pytest.mark.parametrize("name", KEPT)
def test_all_verdicts_occur(name):
    """Otherwise the property above says nothing."""
    found = sum(
        (check(seed, KEPT[name], "R(60)", search=tp.BranchAndBound(max_boxes=200)) for seed in range(6)), Counter()
    )
    assert found["certified"] > 2
    assert found["falsified"] > 0
    assert not (name == "own" and found["misclassified"])


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("options", [{"semantics": "float32"}, {"bounds": tp.FGV(), "search": tp.UniformGrid(64)},
                                     {"bounds": tp.IntervalHull()}, {"search": tp.UniformGrid(40)}], ids=str)  # fmt: skip
def test_semantics_bounds_and_grids(name, options):
    limits = {} if "search" in options else {"search": tp.BranchAndBound(max_boxes=200)}
    assert check(3, KEPT[name], "R(20)", **limits, **options).total() == 6


@pytest.mark.parametrize("name", ["allow", "rows"])
def test_intervals_of_several_parameters(name):
    """They have no symbols, and so no slopes to choose a parameter by."""
    found = check(0, KEPT[name], "R(4), B(0.02)", bounds=tp.IntervalHull(), search=tp.BranchAndBound(max_boxes=40))
    assert found["certified"] > 0


def verdict(
    lines: list[tuple[float, float]], keep: object, label: int, mean: float = 0.25, transform: str = "B(0:0.5)"
):
    images = torch.full((1, 1, 2, 2), mean)
    return tp.certify(Mean(*lines).eval(), images, torch.tensor([label]), transform, keep=keep).results[0]


def test_different_boxes_are_saved_by_different_classes():
    """Class 2 is beaten by class 1 where m is small and by class 0 where it is large, and by neither everywhere."""
    lines = [RISING, FALLING, (0.0, 0.0), (-9.0, 0.0)]
    assert verdict(lines, tp.Allow([0]), 1).verdict == "certified"
    assert verdict(lines, tp.Forbid([2, 3]), 1).verdict == "certified"
    assert verdict(lines, None, 1).verdict == "falsified"
    assert verdict(lines, tp.Allow([3]), 1).verdict == "falsified"
    lines[2] = (0.125, 0.0)  # now neither beats it around m = 1/2
    found = verdict(lines, tp.Allow([0]), 1)
    assert found.verdict == "falsified"
    assert abs(Fraction(1, 4) + Fraction(found.counterexample[0]) - Fraction(1, 2)) < Fraction(1, 8)


def test_each_other_class_must_be_beaten():
    lines = [(0.0, 0.0), (-1.0, 0.0), RISING]
    assert verdict(lines, tp.Allow([1]), 0).verdict == "falsified"
    assert verdict(lines, tp.Forbid([2]), 0).verdict == "falsified"
    assert verdict(lines, tp.Forbid([1]), 0).verdict == "certified"
    assert verdict(lines, tp.Allow([2]), 0).verdict == "certified"


def test_different_boxes_spare_different_classes():
    """At most one of the classes 1 and 2 is above the label, but each is somewhere."""
    lines = [(0.0, 0.0), (-0.5625, 1.0), (0.4375, -1.0), (-9.0, 0.0)]
    assert verdict(lines, tp.TopK(1), 0, mean=0.5, transform="B(-0.25:0.25)").verdict == "falsified"
    assert verdict(lines, tp.TopK(2), 0).verdict == "certified"
    lines[2] = (0.6875, -1.0)  # both are for m between 9/16 and 11/16
    assert verdict(lines, tp.TopK(2), 0).verdict == "falsified"
    assert verdict(lines, tp.TopK(3), 0).verdict == "certified"


def test_a_tie_proves_nothing_and_refutes_nothing():
    """At m = 1/2 the label ties with both others, or the best allowed class with one that is not."""
    lines = [(0.0, 0.0), (-0.5, 1.0), (0.5, -1.0), (-9.0, 0.0)]
    assert verdict(lines, tp.TopK(2), 0).verdict == "unknown"
    lines = [(-0.5, 1.0), (0.5, -1.0), (0.0, 0.0)]
    assert verdict(lines, tp.Allow([0]), 1).verdict == "unknown"
    assert verdict(lines, tp.Linear([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], -1e-3), 1).verdict == "certified"
    assert verdict(lines, tp.Linear([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], [-1e-3, 0.0]), 1).verdict == "misclassified"


@pytest.mark.parametrize(("bound", "expected"), [(-0.001, "certified"), (0.5, "falsified"), (0.74, "falsified")])
def test_rows_have_bounds(bound, expected):
    """The output is 1 - m, between 1/4 and 3/4."""
    assert verdict([(1.0, -1.0), (0.0, 0.0)], tp.Linear([[1.0, 0.5]], bound), 0).verdict == expected


def test_an_own_answer_that_is_not_proved_is_unknown():
    """At m = 1/4 classes 0 and 1 tie, and the range leaves that out."""
    for lines in ([(0.25, 0.0), (0.0, 1.0)], [(0.0, 1.0), (0.25, 0.0)]):
        found = tp.certify(Mean(*lines).eval(), torch.full((1, 1, 2, 2), 0.25), None, "B(0.1:0.5)", keep=tp.KeepOwn())
        assert found.results[0].verdict == "unknown"
        assert found.results[0].reason == "open"
        assert found.summary()["correct"] == 1


def test_an_own_answer_within_the_rounding_of_an_evaluation_is_unknown():
    """At m = 1/4 class 0 is ahead by 2^-25, which another order of summation may turn around."""
    model, images = Mean((0.25 + 2.0**-25, 0.0), (0.0, 1.0)).eval(), torch.full((1, 1, 2, 2), 0.25)
    found = tp.certify(model, images, None, "B(-0.2:-0.1)", keep=tp.KeepOwn(), semantics="float32")
    assert (found.verdicts, found.results[0].reason) == (["unknown"], "rounding")
    assert tp.certify(model, images, None, "B(-0.2:-0.1)", keep=tp.KeepOwn()).verdicts == ["certified"]


def test_the_plain_rule_is_the_same_search():
    model, images, labels = case(1)
    plain = tp.certify(model, images, labels, "R(60)")
    for keep in (tp.TopK(1), tp.Allow({4: [0]}) if 4 not in labels else tp.TopK(1)):
        same = tp.certify(model, images, labels, "R(60)", keep=keep)
        assert same.verdicts == plain.verdicts


@pytest.mark.parametrize("name", KEPT)
def test_the_attack_looks_for_what_is_kept(name):
    model, images, labels = case(5)
    found = tp.attack(model, images, None if name == "own" else labels, "R(90)", keep=KEPT[name])
    certified = tp.certify(model, images, None if name == "own" else labels, "R(90)", keep=KEPT[name])
    for k, point in enumerate(found.parameters):
        assert certified.verdicts[k] != "certified" or point is None
