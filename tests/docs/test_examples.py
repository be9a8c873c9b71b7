"""The five programs of examples/ run, fit on one screen each, and print what they promise."""

import runpy

import pytest
import torch

import tiltproof
from tests.support.processes import ROOT

FOLDER = ROOT / "examples"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="not in a source checkout")
NAMES = {"certify_your_network", "certify_your_images", "train", "regression", "custom_transformation"}
ONE_SCREEN = 45


def test_there_are_five_of_one_screen_each():
    files = {path.stem: path for path in FOLDER.glob("*.py")}
    assert set(files) == NAMES
    for path in files.values():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= ONE_SCREEN, path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a program in an empty folder; return its names and its output."""

    def run(name):
        monkeypatch.chdir(tmp_path)
        names = runpy.run_path(str(FOLDER / f"{name}.py"))
        return names, capsys.readouterr().out

    return run


def test_certify_your_network(run):
    names, text = run("certify_your_network")
    assert names["certificate"].summary()["certified"] >= 7
    assert text.count("image ") == 10


def test_certify_your_images(run, tmp_path):
    names, text = run("certify_your_images")
    assert (tmp_path / "my-images" / "labels.csv").exists()
    assert text.count(": certified") == names["report"].certified >= 2
    assert names["report"].boxes > 0


@pytest.mark.filterwarnings("ignore:no TensorBoard")
def test_train(run, tmp_path):
    names, _ = run("train")
    assert (tmp_path / "runs" / "example" / "model.safetensors").exists()
    assert names["certificate"].summary()["certified"] >= 4


def test_regression(run):
    names, _ = run("regression")
    model, images, shift = names["model"], names["images"], names["shift"]
    for k, result in enumerate(names["certificate"].results):
        moved = torch.linspace(-2, 2, 41)[:, None]
        outputs = model(shift.apply(images[k : k + 1].expand(41, -1, -1, -1), moved))
        assert result.lower[0] - 1e-4 <= outputs.min() <= outputs.max() <= result.upper[0] + 1e-4
        assert result.upper[0] - result.lower[0] < 8  # a shift by 4 pixels is visible, and little more


def test_custom_transformation(run):
    names, text = run("custom_transformation")
    assert names["certificate"].summary()["certified"] >= 8
    assert "Fog(0:5)" in text
    assert names["transform"].parts[1].range == (0.0, 5.0)
    bounds_hold(names["Fog"](0, 40))


def bounds_hold(fog):
    """No sampled image leaves its bounds, with any method."""
    transform = tiltproof.transforms.Compose(fog, tiltproof.transforms.Rotation(10))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 1, 7, 6, generator=generator, dtype=torch.float64)
    for method in ("affine", "hull", "fgv"):
        for low, high in (([0, -10], [40, 10]), ([5, 2], [6, 2.5]), ([40, 3], [40, 3])):
            bounds = tiltproof.bound_pixels(images, transform, method, low, high)
            for _ in range(40):
                share = torch.rand(3, 2, generator=generator, dtype=torch.float64)
                ends = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
                transformed = transform.apply(images, ends[0] + share * (ends[1] - ends[0]))
                assert (transformed >= bounds.lower - 1e-12).all()
                assert (transformed <= bounds.upper + 1e-12).all()
