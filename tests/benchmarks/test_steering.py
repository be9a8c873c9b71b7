"""benchmarks/steering.py: all runs in one command, resumed rows, and the plots, for a one-layer network and tiny frames."""

import hashlib
import json
import math

import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import nn

import tiltproof
from tests.support.processes import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="not in a source checkout")
FRAMES, ANGLES = torch.rand(8, 3, 6, 9, generator=torch.Generator().manual_seed(0)), torch.linspace(-0.3, 0.3, 8)


@pytest.fixture
def steering(program, start, monkeypatch, tmp_path):
    """Return (a function that runs the program on folders, the names of networks whose rows it measured)."""
    module, measured = program("steering"), []
    honest = module.measured
    monkeypatch.setattr(tiltproof.data, "load", lambda *_, **__: (FRAMES, ANGLES))
    monkeypatch.setattr(module, "load_model", lambda path: network(int(path.split("/")[-2])))
    monkeypatch.setattr(module, "measured", lambda folder, *rest: measured.append(folder.name) or honest(folder, *rest))

    def run(*arguments):
        return start("steering", *arguments, "--data-root", tmp_path, "--device", "cpu")

    return run, measured


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(162, 1)).eval()


def training_run(folder, seed):
    path = folder / str(seed)
    path.mkdir()
    card = {
        "name": f"net-{seed}",
        "transform": "R(2)",
        "recipe": {"train": {"seed": seed}},
        "sha256": hashlib.sha256(save(network(seed).state_dict())).hexdigest(),
    }
    (path / "card.json").write_text(json.dumps(card))
    return path


def test_rows_in_the_file_are_kept_and_the_others_measured(steering, tmp_path):
    run, measured = steering
    first, second = training_run(tmp_path, 1), training_run(tmp_path, 2)
    _, rows = run(first)
    printed, both = run(first, second)
    assert measured == ["1", "2"]
    assert both[0] == rows[0]
    assert [row["name"] for row in both] == ["net-1", "net-2"]
    assert "(from the file)" in printed
    _, more = run(second, "--excess", 0.5, "--limit", 4)  # measured with other options: a separate row
    assert [(row["excess"], row["frames"]) for row in more] == [(0.02, 8), (0.02, 8), (0.5, 4)]
    with torch.no_grad():
        error = (network(2)(FRAMES)[:, 0] - ANGLES).abs().mean()
    assert both[1]["standard_mae_degrees"] == pytest.approx(math.degrees(error), rel=1e-4)
    assert both[1]["certified_mae_degrees"] >= both[1]["standard_mae_degrees"]
    assert both[1]["width_degrees"] >= both[1]["inner_width_degrees"] > 0


def test_less_excess_gives_narrower_ranges_for_more_boxes(steering, tmp_path):
    run, _ = steering
    folder = training_run(tmp_path, 3)
    run(folder, "--excess", 0.5)
    _, (loose, tight) = run(folder, "--excess", 0.01)
    assert tight["boxes_per_image"] > loose["boxes_per_image"]
    assert tight["width_degrees"] < loose["width_degrees"]
    assert tight["certified_mae_degrees"] <= loose["certified_mae_degrees"]


def test_it_draws_frames_and_a_strip(steering, tmp_path):
    run, _ = steering
    printed, _ = run(training_run(tmp_path, 4), "--images", tmp_path / "images")
    for name in ("frames.png", "strip.png"):
        assert name in printed
        assert Image.open(tmp_path / "images" / name).width > 2 * 3 * 9


def test_few_frames_come_from_all_over_the_set(program):
    spread = program("steering").spread
    assert spread(1000, 4).tolist() == [125, 375, 625, 875]
    assert spread(3, 5).tolist() == spread(3, None).tolist() == [0, 1, 2]
