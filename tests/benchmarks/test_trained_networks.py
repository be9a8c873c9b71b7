"""From training to a bundled model: benchmarks/trained_networks.py --cards writes a card that the package reads."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import tiltproof
from tests.support.processes import ROOT, environment
from tests.support.tiny_training import write_mnist
from tiltproof.errors import InputError
from tiltproof.models import models
from tiltproof.models.cards import read_card
from tiltproof.models.loading import load_bundled
from tiltproof.verify.results import Certificate

PROGRAM = ROOT / "benchmarks" / "trained_networks.py"


@pytest.mark.skipif(not PROGRAM.exists(), reason="not in a source checkout")
def test_from_a_run_to_a_card(run, tmp_path):
    run("a", "transform='R(1)'", "train.epochs=1", "data.hold_out=0.0")
    write_mnist(tmp_path / "data" / "mnist", "t10k")
    command = [sys.executable, str(PROGRAM), str(tmp_path / "a"), "--data-root", str(tmp_path / "data")]
    command += ["--device", "cpu", "--limit", "5", "--cards", str(tmp_path / "cards")]
    subprocess.run(command, check=True, env=environment(), capture_output=True, timeout=120)
    (card,) = models(tmp_path / "cards")
    assert (card.name, card.transform) == ("tiny", "R(1)")
    assert card.recipe == json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert card.environment["torch"]
    assert 0 <= card.certified_percent <= card.unfalsified_percent <= card.clean_percent <= 100
    assert card.boxes_per_image >= 0
    assert "5 test images" in card.measured
    assert not load_bundled("tiny", tmp_path / "cards").training


@pytest.mark.skipif(not PROGRAM.exists(), reason="not in a source checkout")
def test_within_so_many_seconds_figures_are_of_the_images_reached(program, monkeypatch):
    module = program("trained_networks")
    clock, asked = [0.0], []
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module, "PART", 500)
    labels = torch.arange(1_800)

    def prove(rows, search):
        asked.append((rows.start, len(labels[rows]), search.max_seconds))
        clock[0] += 25
        results = [
            SimpleNamespace(verdict="certified" if k % 5 else "falsified", boxes=1, reason=None, pictures=None)
            for k in range(len(labels[rows]))
        ]
        return Certificate("R(1)", "affine", "real", results, 25.0)

    whole = module.within(1_000, tiltproof.BranchAndBound(), labels, prove)
    assert (len(whole.results), whole.seconds) == (1_800, 100)
    assert asked[0] == (0, 500, pytest.approx(2 * 1_000 / (1_800 * 0.5)))
    assert asked[1] == (500, 500, pytest.approx(2 * 975 / (1_300 * 0.8)))
    assert asked[3][:2] == (1_500, 300)
    part = module.within(40, tiltproof.BranchAndBound(), labels, prove)
    assert (len(part.results), part.seconds) == (1_000, 50)
    assert part.summary()["images"] == 1_000


def test_a_card_without_measurements_is_not_bundled(run, tmp_path):
    """The keys are right, but a bundled model's figures must be numbers."""
    run("a", "train.epochs=1", "data.hold_out=0.0")
    with pytest.raises(InputError, match="'clean_percent' of the model card .* must be a number. Got: None"):
        read_card(tmp_path / "a" / "card.json")


def test_a_measured_card_is_readable(run, tmp_path):
    run("a", "transform='R(1)'", "train.epochs=1", certify_images=2)
    assert read_card(tmp_path / "a" / "card.json").recipe["loss"]["kind"] == "worst-of"
