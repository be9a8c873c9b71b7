"""Margins of certified images, tightened between a proved and a reached one, and checked again."""

import itertools
import json
import math

import pytest
import torch

from tests.support.digits import problem
from tests.support.run_folder import write_run
from tests.verify.test_radius import greys
from tiltproof import (
    BranchAndBound,
    CheckFailed,
    InputError,
    RunFolder,
    Tolerance,
    certified_radius,
    certify,
    certify_range,
    check,
    export,
)
from tiltproof.reports.columns import page_data
from tiltproof.reports.page import order
from tiltproof.runs.reader import read_finished
from tiltproof.verify.state import leaves
from tiltproof.verify.tighten import TighteningSearch

TRANSFORM = "R(12), Sc(4)"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run of two certified digits, before and after."""
    model, images, labels = problem()
    plain = certify(model, images, labels, TRANSFORM)
    rows = [k for k, verdict in enumerate(plain.verdicts) if verdict == "certified"][:2]
    case, folder = (model, images[rows], labels[rows]), tmp_path_factory.mktemp("tight") / "run"
    search = BranchAndBound(tighten=0.2)
    return case, certify(*case, TRANSFORM), certify(*case, TRANSFORM, search=search, run=RunFolder(folder)), folder


def test_the_proved_margin_is_close_to_a_reached_one(digits):
    _, before, after, _ = digits
    for loose, tight in zip(before.results, after.results, strict=True):
        assert tight.verdict == "certified"
        assert loose.margin < tight.margin <= tight.reached
        assert tight.margin >= 0.8 * tight.reached
        assert loose.reached is None
        assert tight.boxes > loose.boxes


def test_no_sample_has_a_smaller_margin_than_the_proved_one(digits):
    (model, images, labels), _, after, _ = digits
    generator = torch.Generator().manual_seed(2)
    points = (2 * torch.rand(300, 2, generator=generator) - 1) * torch.tensor([12.0, 4.0])
    points[:4] = torch.tensor([*itertools.product((-12.0, 12.0), (-4.0, 4.0))])
    from tiltproof import parse

    for image, label, result in zip(images, labels, after.results, strict=True):
        with torch.no_grad():
            outputs = model(parse(TRANSFORM).apply(image.expand(len(points), -1, -1, -1), points)).double()
        own = outputs[:, label].clone()
        outputs[:, label] = -torch.inf
        assert float((own - outputs.amax(1)).min()) > result.margin - 1e-4


def test_exact_margins_of_greys_are_enclosed():
    """The margin of a grey g under B(0.1) is least at -0.1: g - 0.6."""
    certificate = certify(*greys(0.9, 0.65, 0.55), "B(0.1)", search=BranchAndBound(tighten=0.01))
    for grey, result in zip((0.9, 0.65), certificate.results, strict=False):
        assert result.margin <= grey - 0.6 <= result.reached + 1e-15
        assert result.margin >= 0.99 * result.reached
        assert result.reached_at == (-0.1,)
    assert certificate.results[2].verdict == "falsified"
    assert certificate.results[2].reached is None


def test_an_image_whose_budget_is_spent_stays_certified():
    case = greys(0.9)
    certificate = certify(*case, "R(60), C(20)", search=BranchAndBound(tighten=1e-9, max_boxes=40))
    (result,) = certificate.results
    assert result.verdict == "certified"
    assert 0 < result.margin <= result.reached


def test_the_checker_proves_the_finer_boxes_and_looks_at_the_reached_margin(digits, tmp_path):
    case, _, after, folder = digits
    assert check(folder, *case).certified == 2
    manifest = json.loads((folder / "manifest.json").read_text())
    records = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert records[0]["reached"] == after.results[0].reached
    assert len(leaves(after.results[0].grid, records[0]["tree"], 10**6)) > 1
    margin, reached = records[0]["margin"], records[0]["reached"]
    for changes, what in (
        ({"reached": reached * 0.99, "margin": margin}, "another one"),
        ({"reached": margin / 2}, "above the one"),
        ({"margin": reached * 1.001, "reached": reached * 1.002}, "smaller than claimed|another one"),
        ({"reached_at": [13.0, 0.0]}, "outside of the range"),
        ({"reached_at": [0.0]}, "wrong length"),
        ({"reached": None}, "finite"),
        ({"verdict": "unknown", "grid": None, "tree": None}, "reached for a verdict"),
    ):
        write_run(tmp_path / "forged", manifest, [records[0] | changes, records[1]])
        with pytest.raises(CheckFailed, match=what):
            check(tmp_path / "forged", *case)


def test_exports_name_both_margins(digits):
    _, _, after, folder = digits
    assert read_finished(folder).tightened
    for row, result in zip(export.result_rows(folder), after.results, strict=True):
        assert (row["proved_at_least"], row["reached_at_most"]) == (result.margin, result.reached)


def test_a_report_ranks_by_margins_only_if_they_were_tightened(digits, tmp_path):
    case, _, _, folder = digits
    certify(*case, TRANSFORM, run=RunFolder(tmp_path / "run"))
    loose, tight = read_finished(tmp_path / "run"), read_finished(folder)
    assert order(loose) == [0, 1]
    assert order(tight) == sorted([0, 1], key=lambda k: tight.results[k].margin)
    for finished, tightened in ((loose, False), (tight, True)):
        assert page_data(finished, [], [])["tightened"] is tightened


@pytest.mark.parametrize("share", [0, 1, -0.1, math.nan, "5 %"])
def test_shares_are_between_zero_and_one(share):
    with pytest.raises(InputError, match="between 0 and 1"):
        BranchAndBound(tighten=share)


def test_only_margins_of_classes_are_tightened():
    model, images, labels = greys(0.9)
    search = BranchAndBound(tighten=0.05)
    with pytest.raises(InputError, match="margins of classes"):
        certify_range(model, images, None, "B(0.1)", search=search, tolerance=Tolerance())
    with pytest.raises(InputError, match="margins of classes"):
        certified_radius(model, images, labels, "B(0.1)", search=search)
    with pytest.raises(InputError, match="does not support noise"):
        certify(model, images, labels, "B(0.1), Linf(0.01)", search=search)


def test_a_box_that_is_lost_is_noticed(monkeypatch):
    """Every box of a certified image counts for its margin."""
    halve = TighteningSearch._halve

    def lose(self, state, size):
        again = halve(self, state, size)
        state.slack.bounded = state.slack.bounded[slice(1, None)]
        return again

    monkeypatch.setattr(TighteningSearch, "_halve", lose)
    with pytest.raises(RuntimeError, match="leaves out some parameters|do not make up"):
        certify(*greys(0.9), "R(30), C(10)", search=BranchAndBound(tighten=0.01))
