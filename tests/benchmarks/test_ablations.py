"""The paper's ablations in benchmarks/: each program runs, on very little data, and compares what it says."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiltproof
from tests.support.processes import ROOT
from tests.support.tiny_training import write_mnist
from tiltproof.pixels.api import bound_pixels
from tiltproof.training import read_recipe

FOLDER = ROOT / "benchmarks"
SAMPLE = Path(tiltproof.__file__).parent / "data" / "sample" / "cifar10" / "test_batch.bin.xz"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="not in a source checkout")


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        ((1, 9, 12), 14.75, 15.25),
        ((3, 8, 5), -0.001, 0.002),
        ((1, 7, 7), -70, 200),
        ((2, 6, 9), 88, 93),
        ((1, 1, 4), 5, 5),
    ],
)
def test_the_sequential_baselines_are_algorithm_1(program, shape, low, high):
    sequential = program("sequential_rotation")
    image = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = bound_pixels(image[None], "R(300)", "fgv", [low], [high])
    for function in (sequential.rotated, sequential.Compiled.make()):
        if function is not None:
            lower, upper = function(image, low, high)
            torch.testing.assert_close(lower, expected.lower[0], rtol=0, atol=1e-9)
            torch.testing.assert_close(upper, expected.upper[0], rtol=0, atol=1e-9)


def test_interval_speed(start):
    printed, found = start("interval_speed", "--quick", "--rows", "mnist", "--device", "cpu")
    (row,) = found["rows"]
    assert printed.startswith("quick run")
    assert "33.1" in printed
    assert "11250" in printed
    assert all(row["batch"][name] > 0 for name in ("sequential", "fgv", "affine", "affine shared"))
    assert all(row["single"][name] > 0 for name in ("sequential", "fgv", "affine"))


def test_a_shared_box_gives_the_same_affine_bounds(program):
    speed = program("interval_speed")
    row = speed.ROWS["mnist"]
    images = torch.rand(3, *row.shape, generator=torch.Generator().manual_seed(0))
    ours, alone = (
        speed.bounds("affine shared", images, row, 14.75, 15.25),
        speed.bounds("affine", images, row, 14.75, 15.25),
    )
    torch.testing.assert_close(ours.lower, alone.lower, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.upper, alone.upper, rtol=0, atol=1e-5)


def test_training_cost(start):
    printed, found = start("training_cost", "--quick", "--rows", "mnist-r30", "driving-r2", "--device", "cpu")
    assert [(line["row"], line["kind"]) for line in found["lines"]] == [
        (row, kind) for row in ("mnist-r30", "driving-r2") for kind in ("paper", "ours")
    ]
    assert "3.46 / " in printed
    for line, steps in zip(found["lines"], (15_000, 15_000, 1128, 1128), strict=True):
        assert line["seconds_per_epoch"] == pytest.approx(steps * line["seconds_per_step"])


def test_every_row_of_training_cost_has_the_papers_recipe(program):
    cost = program("training_cost")
    for row in cost.PAPER:
        recipe = cost.recipe_of(row, "paper")
        assert (recipe.loss.kind, recipe.loss.warm_up_epochs, recipe.loss.ramp_epochs) == ("certified", 0, 0)
        assert (recipe.model.architecture == "tinyimagenet_wide_resnet") == row.endswith("-wrn")


def methods_arguments(tmp_path, *methods):
    for split in ("train", "t10k"):
        write_mnist(tmp_path / "data" / "mnist", split)
    arguments = ["--quick", "--rows", "mnist-tu2-tv2", "--methods", *methods, "--device", "cpu", "--images", 2]
    return [*arguments, "--paper-images", 1, "--data-root", tmp_path / "data", "--out", tmp_path / "runs"]


def test_training_methods(start, tmp_path):
    arguments = methods_arguments(tmp_path, "Augment.")
    printed, found = start("training_methods", *arguments)
    assert printed.startswith("quick run")
    assert "99.40 / " in printed
    (line,) = found["lines"]
    assert (line["ours"]["images"], line["paper"]["images"]) == (2, 1)

    folder = tmp_path / "runs" / "mnist-tu2-tv2-augment-quick"
    weights, written = folder / "model.safetensors", (folder / "model.safetensors").stat().st_mtime_ns
    assert start("training_methods", *arguments)[1] == found, "nothing is done again"
    assert weights.stat().st_mtime_ns == written
    before = weights.read_bytes()
    for name in ("model.safetensors", "card.json"):  # stopped after the last epoch
        (folder / name).unlink()
    assert start("training_methods", *arguments)[1]["lines"][0]["ours"] == line["ours"]
    assert weights.read_bytes() == before


@pytest.mark.slow
def test_all_training_methods(start, tmp_path, program):
    methods = program("training_methods").METHODS
    _, found = start("training_methods", *methods_arguments(tmp_path, *methods))
    kinds = {
        path.parent.name: json.loads(path.read_text())["loss"]["kind"]
        for path in (tmp_path / "runs").glob("*/recipe.json")
    }
    expected = {"cgt": "certified", "ibp-a": "ibp", "pgd-a": "pgd", "augment": "augmentation", "ours": "worst-of"}
    assert kinds == {f"mnist-tu2-tv2-{name}-quick": kind for name, kind in expected.items()}
    assert [line["method"] for line in found["lines"]] == list(methods)


def test_the_baselines_are_the_papers(program):
    methods = program("training_methods")
    for row in methods.PAPER:
        usual = read_recipe(f"{row}-paper")
        for method in methods.KINDS:
            recipe = methods.recipe_of(row, method)
            assert (recipe.train, recipe.loss.nu, recipe.transform) == (usual.train, usual.loss.nu, usual.transform)
    assert methods.recipe_of("cifar10-r10", "IBP+A").loss.epsilon == pytest.approx(2 / 255)


def test_the_sizes_of_nu_are_the_papers(program):
    """Half the interval sizes of its appendix: c (0.01, 0.025) and o (0.02, 0.05); c 0.002 and o 0.01."""
    half_widths = program("nu_ablation").half_widths
    sizes = [half_widths("cifar10-r2-sh2", size) for size in program("nu_ablation").SIZES]
    expected = [[0.005, 0.0125], [0.0075, 0.01875], [0.01, 0.025], [0.0125, 0.03125], [0.015, 0.0375]]
    assert sizes == [pytest.approx(each) for each in expected]
    sizes = [half_widths("tinyimagenet-sc2", size) for size in program("nu_ablation").SIZES]
    assert sizes == [pytest.approx([each]) for each in (0.001, 0.003, 0.005, 0.007, 0.009)]


def test_nu_ablation(start, tmp_path):
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    records = lzma.decompress(SAMPLE.read_bytes())[: 10 * 3073]
    for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6))):
        (folder / f"{name}.bin").write_bytes(records)
    arguments = [
        "--quick",
        "--sizes",
        "c",
        "--device",
        "cpu",
        "--data-root",
        tmp_path / "data",
        "--out",
        tmp_path / "runs",
    ]
    printed, found = start("nu_ablation", *arguments, "--images", 2, "--paper-images", 1)
    (line,) = found["lines"]
    assert (line["size"], line["epochs"]) == ("c", 2)
    assert "45.6 / " in printed


def test_pixel_widths_of_tiny_imagenet(start, tmp_path, monkeypatch):
    root = tmp_path / "data" / "tinyimagenet" / "tiny-imagenet-200"
    images = root / "train" / "n01443537" / "images"
    images.mkdir(parents=True)
    (root / "wnids.txt").write_text("n01443537\n")
    monkeypatch.setattr("tiltproof.data.pixel_cache.cache_folder", lambda: tmp_path / "cache")
    for k in range(2):
        noise = np.random.default_rng(k).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(images / f"n01443537_{k}.JPEG")
    arguments = ["--data-root", tmp_path / "data", "--rows", "tinyimagenet-sc2", "--samples", 1, "--device", "cpu"]
    printed, found = start("pixel_widths", *arguments)
    assert "0.00239" in printed
    assert [line["images"] for line in found] == [2, 2]
    assert found[1]["nu"] == [0.001]
    assert 0 < found[1]["hull"]["average"] < found[1]["fgv"]["average"] < found[0]["fgv"]["average"]
