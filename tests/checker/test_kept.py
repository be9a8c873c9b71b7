"""Runs that keep something else than the label: true ones hold, altered ones do not, and the bounds contain what they must."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import tiltproof as tp
from tests.support.kept import FALLING, KEPT, RISING, Mean, case, slack
from tests.support.run_folder import manifest_of, record, write_run
from tiltproof.checker import CheckFailed, check
from tiltproof.checker.form import Form
from tiltproof.checker.kept import Kept, read_keep
from tiltproof.checker.network import evaluation
from tiltproof.checker.verdicts import bound_margins

SEARCH = tp.BranchAndBound(max_boxes=150)


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_true_runs_hold(name, semantics, tmp_path):
    keep, found = KEPT[name], set()
    for seed in range(3):
        model, images, labels = case(seed)
        given = None if name == "own" else labels
        folder = tmp_path / str(seed)
        run = tp.RunFolder(folder)
        certificate = tp.certify(model, images, given, "R(12)", keep=keep, semantics=semantics, search=SEARCH, run=run)
        report = check(folder, model, images, given)
        assert report.certified == certificate.count("certified")
        found |= {*certificate.verdicts}
    assert "certified" in found


def read(seed: int) -> Kept:
    keep = [*KEPT.values()][seed % len(KEPT)]
    made = read_keep({"keep": json.loads(json.dumps(keep.record()))}, [0])
    assert made is not None
    return made


@pytest.mark.parametrize("unit", [0.0, 2.0**-24])
@pytest.mark.parametrize("seed", range(2 * len(KEPT)))
def test_bounds_contain_the_margin(seed, unit):
    """Between the smallest and the largest margin that any image in a form has, whatever is kept."""
    keep, (model, _, _), labels = [*KEPT.values()][seed % len(KEPT)], case(seed), torch.tensor([0, 2, 4, 1])
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, 4, 1, 6, 6, generator=generator, dtype=torch.float64) * 0.5
    rows[1:] *= 10.0 ** -(1 + seed % 3)
    rows[-1] = rows[-1].abs() * 0.2
    wide = copy.deepcopy(model).double()
    with torch.no_grad(), evaluation(wide, torch.device("cpu")):
        bounds = bound_margins(wide, Form(rows, unit), labels, (), read(seed))
        for _ in range(200):
            e = torch.rand(2, 1, 1, 1, 1, generator=generator, dtype=torch.float64) * 2 - 1
            rho = torch.rand(rows[0].shape, generator=generator, dtype=torch.float64) * 2 - 1
            answers = wide(rows[0] + (e * rows[1:-1]).sum(0) + rho * rows[-1]).tolist()
            for k, outputs in enumerate(answers):
                margin = slack(keep, outputs, int(labels[k]))
                assert bounds.lower[k] <= margin <= bounds.upper[k]
        points = torch.cat([rows[:1], torch.zeros_like(rows[1:])])
        bounds = bound_margins(wide, Form(points), labels, (), read(seed))
        assert (bounds.upper - bounds.lower).max() < 1e-9


LINES = [(0.0, 0.0), (-0.5625, 1.0), (0.4375, -1.0), (-9.0, 0.0)]
"""The label 0 is among the two largest for every m, and the largest for m between 7/16 and 9/16 alone."""


class Forged:
    """A run by hand about one gray image, m = 1/4, under B(0:0.5)."""

    def __init__(self, folder, lines, keep, label=0, **fields):
        self.folder, self.model = folder, Mean(*lines).eval()
        self.images, self.labels = torch.full((1, 1, 2, 2), 0.25), torch.tensor([label])
        self.manifest = manifest_of(self.model, self.images, self.labels, "B(0:0.5)")
        if keep is not None:
            self.manifest["claim"]["keep"] = keep
        values = {"margin": 1e-6, "grid": [8], "tree": "8."} | fields
        self.records = [record(0, label, values.pop("verdict", "certified"), **values)]

    def check(self):
        write_run(self.folder, self.manifest, self.records)
        return check(self.folder, self.model, self.images, self.labels)

    def fails(self, match=None):
        with pytest.raises(CheckFailed, match=match):
            self.check()


TOP, ALLOW, FORBID = ({"rule": "top", "k": 2}, {"rule": "allow", "classes": [0]}, {"rule": "forbid", "classes": [2, 3]})
SAVED = [RISING, FALLING, (0.0, 0.0), (-9.0, 0.0)]
ROW = {"rule": "linear", "each": None, "rows": [[[1.0, 0.0, 0.0, 0.0]]], "bounds": [[-0.01]]}


@pytest.mark.parametrize(
    ("lines", "keep", "label"),
    [(LINES, TOP, 0), (SAVED, ALLOW, 1), (SAVED, FORBID, 1), (SAVED, FORBID, 0), (LINES, ROW, 3)],
)
def test_what_holds_by_hand(tmp_path, lines, keep, label):
    Forged(tmp_path / "run", lines, keep, label).check()


@pytest.mark.parametrize(
    ("lines", "keep", "label"),
    [
        (LINES, {"rule": "top", "k": 1}, 0),
        (LINES, None, 0),
        (SAVED, {"rule": "allow", "classes": [3]}, 1),
        (SAVED, {"rule": "allow", "by_label": {"0": [1]}}, 1),
        (SAVED, {"rule": "forbid", "classes": [0]}, 1),
        (SAVED, {"rule": "forbid", "by_label": {"2": [3]}}, 1),
        (SAVED, {"rule": "own"}, 1),
        (SAVED, {"rule": "own"}, 0),
        ([RISING, FALLING, (0.125, 0.0), (-9.0, 0.0)], ALLOW, 1),
        ([(0.0, 0.0), (-0.5, 1.0), (0.5, -1.0), (-9.0, 0.0)], TOP, 0),
        (LINES, ROW | {"bounds": [[0.0]]}, 0),
        (LINES, ROW | {"bounds": [[0.5]]}, 0),
        (LINES, ROW | {"rows": [[[1.0, 0.0, 1.0, 0.0]]]}, 0),
        (LINES, ROW | {"rows": [[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]], "bounds": [[-0.01, 0.0]]}, 0),
    ],
)
def test_what_does_not_hold(tmp_path, lines, keep, label):
    Forged(tmp_path / "run", lines, keep, label).fails()


def test_an_altered_rule_is_found_in_a_sealed_run(tmp_path):
    """A run that holds, sealed again with a stronger rule."""
    model, labels = Mean(*LINES).eval(), torch.tensor([0])
    images = torch.full((1, 1, 2, 2), 0.25)
    tp.certify(model, images, labels, "B(0:0.5)", keep=tp.TopK(2), run=tp.RunFolder(tmp_path / "run"))
    check(tmp_path / "run", model, images, labels)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run" / "verdicts.jsonl").read_text().splitlines()]
    manifest["claim"]["keep"]["k"] = 1
    text = json.dumps(manifest)
    (tmp_path / "run" / "manifest.json").write_text(text)
    with pytest.raises(CheckFailed, match="sha256"):
        check(tmp_path / "run", model, images, labels)
    write_run(tmp_path / "again", manifest, records)
    with pytest.raises(CheckFailed):
        check(tmp_path / "again", model, images, labels)


@pytest.mark.parametrize(
    ("lines", "keep", "label", "at"),
    [
        (LINES, TOP, 0, 0.0),
        (SAVED, ALLOW, 1, 0.5),
        (SAVED, FORBID, 1, 0.0),
        (LINES, ROW, 0, 0.25),
        ([(0.0, 0.0), (-0.5, 1.0), (0.5, -1.0), (-9.0, 0.0)], TOP, 0, 0.25),
    ],
)
def test_a_counterexample_that_is_none(tmp_path, lines, keep, label, at):
    case_ = Forged(tmp_path / "run", lines, keep, label, verdict="falsified", margin=-1e-6, grid=None, tree=None)
    case_.records[0]["counterexample"] = [at]
    case_.fails("counterexample")


def test_the_own_answer_must_be_the_own_answer(tmp_path):
    """At m = 1/4 the network answers 1; of a range without that only the own answer tells."""
    forged = Forged(tmp_path / "run", [(0.3, 0.0), (0.5, -0.5)], {"rule": "own"}, 0)
    forged.manifest["claim"]["transform"] = "B(0.25:0.5)"
    forged.fails("own answer|misclassified")
    forged = Forged(tmp_path / "tie", [(0.25, 0.0), (0.0, 1.0)], {"rule": "own"}, 1)
    forged.manifest["claim"]["transform"] = "B(0.25:0.5)"
    forged.fails("own answer")
    forged = Forged(tmp_path / "wrong", [(0.3, 0.0), (0.5, -0.5)], {"rule": "own"}, 0, verdict="misclassified")
    forged.records[0] |= {"grid": None, "tree": None, "margin": -0.1}
    forged.fails("own answers")


@pytest.mark.parametrize(
    "keep",
    [
        None,
        [],
        {},
        {"rule": "none"},
        {"rule": "own", "k": 1},
        {"rule": "top"},
        {"rule": "top", "k": 0},
        {"rule": "top", "k": True},
        {"rule": "top", "k": 4},
        {"rule": "top", "k": 10**9},
        {"rule": "allow", "classes": []},
        {"rule": "allow", "classes": [-1]},
        {"rule": "allow", "classes": [4]},
        {"rule": "allow", "classes": [1.0]},
        {"rule": "allow", "classes": [0, 1, 2, 3]},
        {"rule": "forbid", "classes": [0, 1, 2, 3]},
        {"rule": "allow", "by_label": {}},
        {"rule": "allow", "by_label": {"one": [1]}},
        {"rule": "allow", "by_label": {"-1": [1]}},
        {"rule": "allow", "by_label": {"01": [1]}},
        {"rule": "allow", "by_label": {"9": [1]}},
        {"rule": "forbid", "by_label": {"0": [0]}},
        {"rule": "forbid", "by_label": {"0": []}},
        ROW | {"rows": []},
        ROW | {"rows": [[]]},
        ROW | {"rows": [[[]]]},
        ROW | {"rows": [[[0.0, 0.0, 0.0, 0.0]]]},
        ROW | {"rows": [[[1.0, 0.0, 0.0]]]},
        ROW | {"rows": [[[1.0, 0.0, 0.0, "0"]]]},
        ROW | {"rows": [[[1.0, 0.0, 0.0, 1e301]]]},
        ROW | {"bounds": []},
        ROW | {"bounds": [[0.0, 0.0]]},
        ROW | {"bounds": [0.0]},
        ROW | {"each": "class"},
        ROW | {"each": "label", "rows": [], "bounds": []},
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(tmp_path, keep):
    forged = Forged(tmp_path / "run", LINES, None)
    forged.manifest["claim"]["keep"] = keep
    forged.fails()


def test_rows_are_about_the_outputs_themselves(tmp_path):
    """A softmax keeps the order of the scores, not what rows say of them."""
    model = nn.Sequential(Mean(*LINES), nn.Softmax(1)).eval()
    images = torch.full((1, 1, 2, 2), 0.25)
    run = tp.RunFolder(tmp_path / "run")
    keep = tp.Linear([[1.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]], [0.2, -0.5])
    certificate = tp.certify(model, images, torch.tensor([0]), "B(0:0.5)", keep=keep, run=run)
    assert certificate.verdicts == ["certified"]
    assert "head" not in json.loads((tmp_path / "run" / "manifest.json").read_text())["claim"]
    check(tmp_path / "run", model, images, torch.tensor([0]))
