"""The speed measurements in benchmarks/: they run, on very little data, count correctly, and compare what they say."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import tiltproof
from tests.support.processes import ROOT
from tiltproof.pixels.api import pair_bounds
from tiltproof.verify import prover as prover_module
from tiltproof.verify.inputs import check_inputs
from tiltproof.verify.prover import ClassRefinement

FOLDER = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="not in a source checkout")


class Small(nn.Module):
    """One convolution (2 x 4 x 4 outputs of 9 products), one linear layer of 3."""

    def __init__(self):
        super().__init__()
        self.convolution, self.last = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(32, 3)

    def forward(self, x):
        return self.last(torch.relu(self.convolution(x - 0.5)).flatten(1))


def test_work_is_counted_as_the_formulae_say(program):
    work = program("floor_work")
    images = torch.rand(1, 1, 4, 4)
    network = check_inputs(Small(), images, torch.tensor([0]), "R(5)").network
    counts, tally = work.Counts(network, 4), work.Tally()
    symbols = {network.input: 1}
    counts.add_pixels(tally, 10, 1, "float32")
    counts.add_forward(tally, 10, symbols, "float32")
    counts.add_backward(tally, 7, symbols, "float64", {})
    assert tally.bytes["pixels", "float32"] == 10 * (16 * 4 + 16 * 3 * 4)
    assert tally.flop["forward", "float32"] == 10 * 3 * 2 * (32 * 9 + 3 * 32)
    assert tally.bytes["forward", "float32"] == 10 * 3 * 4 * ((16 + 32) + (32 + 32) + (32 + 3))
    assert tally.margins == 7
    assert tally.flop["backward", "float64"] == 7 * 2 * (32 * 9)
    assert tally.bytes["backward", "float64"] == 7 * 8 * (4 * 16 + (32 + 16) + (32 + 32) + 3 * 32)
    ceilings = {"float32": 1e3, "float64": 1e3, "copy": 1e9}
    floor = work.floor_seconds(tally, ceilings)
    assert floor["forward"] == pytest.approx(tally.flop["forward", "float32"] / 1e3)
    assert floor["pixels"] == pytest.approx(tally.bytes["pixels", "float32"] / 1e9)


def test_symbols_that_were_dropped_cost_nothing(program):
    work = program("floor_work")
    network = check_inputs(Small(), torch.rand(1, 1, 4, 4), torch.tensor([0]), "R(5)").network
    counts, tally = work.Counts(network, 4), work.Tally()
    relu = next(each.name for each in network.operations if each.kind == "relu")
    counts.add_forward(tally, 1, {network.input: 3, relu: 1}, "float64")
    assert tally.flop["forward", "float64"] == 2 * (5 * 32 * 9 + 3 * 3 * 32)


def test_watching_changes_nothing_and_counts_what_is_done(program, monkeypatch):
    watching, work = program("floor_watch"), program("floor_work")
    model, (images, labels) = tiltproof.models.load("mnist-r30"), tiltproof.data.load("mnist-sample")
    given = model, images[:4], labels[:4], "R(30)"
    plain = tiltproof.certify(*given)
    refined, refine = [], ClassRefinement._refine
    monkeypatch.setattr(
        ClassRefinement, "_refine", lambda *given, **how: refined.append(len(given[1])) or refine(*given, **how)
    )
    counts = work.Counts(check_inputs(*given).network, 4)
    watch = watching.Watch(torch.device("cpu"), counts)
    began = time.perf_counter()
    with watch.running():
        watched = tiltproof.certify(*given)
    assert sum(watch.seconds.values()) <= time.perf_counter() - began
    assert prover_module.pair_bounds is pair_bounds, "everything is put back"
    assert (watched.verdicts, watched.boxes, watched.margins) == (plain.verdicts, plain.boxes, plain.margins)
    search, pilots = watch.tallies["search"], watch.tallies["pilots"]
    assert sum(search.pairs.values()) == sum(plain.boxes) > 0
    assert pilots.pairs.total() > 0
    assert search.margins + pilots.margins == sum(refined) > 0
    assert set(watch.seconds) == set(watching.STAGES)
    assert all(seconds > 0 for seconds in watch.seconds.values())


def test_floor(start, tmp_path):
    stored = tmp_path / "here.json"
    arguments = ["--quick", "--device", "cpu", "--rows", "mnist-r30", "cnn7", "--images", 3, "--pairs", 2]
    printed, found = start("floor", *arguments, "--store", stored)
    assert printed.startswith("quick run")
    assert found.get("comparison", []) == [], "the stored baseline is of more images"
    certified, propagated = found["rows"]
    assert (certified["row"], certified["images"], certified["source"]) == ("mnist-r30", 3, "bundled")
    assert certified["boxes"] == certified["boxes_watched"] > 0
    assert (propagated["boxes"], propagated["margins_backward"]) == (2, 2)
    for row in found["rows"]:
        assert row["ratios"] == pytest.approx([row["seconds"][0] / row["floor_seconds"]])
        assert row["floor_seconds"] == pytest.approx(sum(row["floor_by_stage"].values()))
        assert row["forward_of_matrix_ceiling"] > 0
        assert row["pixels_of_copy_ceiling"] > 0
    # forward in 3 planes, each product two operations; backward all but the last layer
    products = 1024 * 27 * 64 + 1024 * 576 * 64 + 256 * 576 * 128 + 256 * 1152 * 128 + 64 * 1152 * 128 + 2048 * 256
    assert propagated["flop_per_box"] == 2 * 3 * (products + 256 * 10) + 2 * products
    assert json.loads(stored.read_text())["rows"] == found["rows"]


def test_floor_of_a_training_run(start, tmp_path):
    weights = Path(tiltproof.__file__).parent / "models" / "weights" / "mnist-r30"
    shutil.copyfile(f"{weights}.safetensors", tmp_path / "model.safetensors")
    card = json.loads(Path(f"{weights}.json").read_text()) | {"name": "mine", "transform": "R(1)"}
    (tmp_path / "card.json").write_text(json.dumps(card))
    _, found = start("floor", "--quick", "--device", "cpu", "--run", tmp_path, "--images", 1)
    (row,) = found["rows"]
    assert (row["row"], row["source"], row["transform"], row["certified"]) == ("mine", "run", "R(1)", 1)


def test_a_run_is_slower_only_beyond_the_noise_of_both(program):
    table = program("floor_table")

    def run(*ratios, images=3):
        same = {"row": "a", "source": "bundled", "transform": "R(1)", "images": images, "pairs": None, "boxes": 5}
        return {"rows": [same | {"ratios": sorted(ratios)}]}

    def verdict(now, then):
        return [(each["verdict"], each["change"]) for each in table.compared(now["rows"], then)]

    assert verdict(run(3, 4, 5), run(1, 2, 2.9)) == [("SLOWER", 2.0)]
    assert verdict(run(3, 4, 5), run(1, 2, 3.1)) == [("within noise", 2.0)]
    assert verdict(run(1, 1, 1), run(2, 4, 5)) == [("faster", 0.25)]
    assert verdict(run(1), run(1, images=4)) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--networks", "x"], "needs --data-root"),
        (["--networks", "x", "--data-root", "y", "--rows", "mnist-tu2-tv2"], "published no network for mnist-tu2-tv2"),
        (["--cpu-seconds", "--device", "cpu"], "needs --device cpu --threads 1"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--baseline", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_floor_says_what_it_cannot_do(start, capsys, arguments, text):
    with pytest.raises(SystemExit) as error:
        start("floor", *arguments)
    assert error.value.code == 2
    assert text in capsys.readouterr().err


def test_demo_ratio_compares_verdicts_and_times(program, start, monkeypatch):
    ratio = program("demo_ratio")
    answers = iter([(4.0, "unknown"), (2.0, "certified"), (3.0, "certified"), (9.0, "certified")])

    def once(source, task):
        assert (source, task["transform"]) == (None, "R(30)")
        seconds, verdict = next(answers)
        return {"wall": seconds, "cpu": 0.0, "verdicts": [verdict, "certified"], "boxes": 3}

    monkeypatch.setattr(ratio, "once", once)
    monkeypatch.setattr(ratio, "tree", lambda *_: None)
    printed, found = start("demo_ratio", "--rounds", 2, "--images", 2)
    (row,) = found["rows"]
    assert row["seconds"] == {"before": [4.0, 9.0], "after": [2.0, 3.0]}, "who goes first alternates"
    assert row["ratios"] == [2.0, 3.0]
    assert "ratio 2.50 (2.00 to 3.00)" in printed
    assert row["differing"] == [0]
    assert "VERDICTS DIFFER on images 0:" in printed


@pytest.mark.slow
def test_demo_ratio_runs_an_earlier_commit(program, start, monkeypatch, capsys):
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    if shutil.which("git") is None or subprocess.run(git, capture_output=True, check=False).returncode:
        pytest.skip("no git repository")
    printed, found = start("demo_ratio", "--before", "HEAD", "--rounds", 1, "--images", 1, "--transform", "R(1)")
    (row,) = found["rows"]
    assert row["differing"] == []
    assert row["boxes"]["before"] > 0
    assert "the same verdicts" in printed
    monkeypatch.setattr(sys, "argv", ["demo_ratio", "--before", "no-such-commit"])
    assert program("demo_ratio").main() == 2
    assert "cannot read commit 'no-such-commit'" in capsys.readouterr().err
