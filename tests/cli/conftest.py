"""A workspace with five small images, and networks whose verdicts on them can be worked out by hand."""

import struct

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tiltproof.cli import app
from tiltproof.data import load as load_data

NETWORKS = """
import torch
from torch import nn


def linear(weights, biases):
    layer = nn.Linear(64, len(biases))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights)[:, None].expand(-1, 64) / 64)
        layer.bias.copy_(torch.tensor(biases))
    return nn.Sequential(nn.Flatten(), layer)


def brightness():
    '''Class 1 when the mean is above one half.'''
    return linear([0.0, 1.0], [0.5, 0.0]).eval()


def darkness():
    '''The same with other weights.'''
    return linear([0.0, 1.25], [0.5, 0.0]).eval()


def still_training():
    return linear([0.0, 1.0], [0.5, 0.0]).train()


def one_class():
    return linear([1.0], [0.0]).eval()


def overflowing():
    '''Infinite unless the mean is below 0.1.'''
    tenfold = nn.Linear(2, 2)
    with torch.no_grad():
        tenfold.weight.copy_(10 * torch.eye(2))
    return nn.Sequential(linear([3e38, 0.0], [0.0, 0.5]), tenfold).eval()


def not_finite():
    return linear([0.0, 1.0], [float("nan"), 0.0]).eval()


class Sorting(nn.Module):
    def forward(self, images):
        return images.flatten(1).sort(1).values


def sorting():
    return Sorting().eval()
"""

RECIPE = """
name = "tiny"
transform = "R(1)"
[data]
name = "mnist"
[model]
architecture = "mnist_cnn"
[train]
epochs = 2
batch_size = 16
[loss]
kind = "augmentation"
warm_up_epochs = 0
ramp_epochs = 0
[certify]
method = "affine"
"""

IMAGES = [("bright", 230, 1), ("dark", 25, 0), ("doubtful", 150, 1), ("wrong", 100, 1), ("black", 0, 0)]
"""Name, gray value of every pixel and label: under B(0.2) certified, certified, falsified, misclassified, certified."""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    (tmp_path / "photo_networks.py").write_text(NETWORKS)
    photos = tmp_path / "photos"
    photos.mkdir()
    rows = ["filename,label"]
    for name, grey, label in IMAGES:
        Image.new("L", (8, 8), grey).save(photos / f"{name}.png")
        rows.append(f"{name}.png,{label}")
    (photos / "labels.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TILTPROOF_DATA", raising=False)
    return tmp_path


@pytest.fixture
def digits(workspace):
    images, labels = load_data("mnist-sample")
    folder = workspace / "mnist"
    folder.mkdir()
    pixels = images.mul(255).round().to(torch.uint8).numpy().tobytes()
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 100, 28, 28) + pixels)
    (folder / "train-labels-idx1-ubyte").write_bytes(
        struct.pack(">2I", 0x801, 100) + labels.to(torch.uint8).numpy().tobytes()
    )
    (workspace / "tiny.toml").write_text(RECIPE)
    return workspace


@pytest.fixture
def tiltproof(workspace):  # noqa: ARG001
    """Run the program in the workspace, in this process."""

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


@pytest.fixture
def certify(tiltproof):
    """Run `tiltproof certify` on the small images; options given later replace these."""

    def run(*arguments, model="photo_networks:brightness", data="photos", transform="B(0.2)"):
        return tiltproof("certify", "--model", model, "--data", data, "--transform", transform, *arguments)

    return run
