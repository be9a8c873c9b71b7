"""The full data sets, if $TILTPROOF_DATA has them: sizes, labels, and the statistics that networks contain."""

import os
from pathlib import Path

import pytest
import torch

from tiltproof.data import load as load_data
from tiltproof.data import load_frames
from tiltproof.data.loading import ROOT_VARIABLE, load_pixels
from tiltproof.models import ARCHITECTURES

pytestmark = pytest.mark.slow


@pytest.fixture
def full():
    """Load a data set by name, as bytes; skip the test if it is missing."""

    def load(name, split):
        root = os.environ.get(ROOT_VARIABLE)
        if not root or not (Path(root) / name).is_dir():
            pytest.skip(f"${ROOT_VARIABLE} holds no {name}")
        return load_pixels(name, root, split)

    return load


def statistics(pixels):
    """Return mean and standard deviation of each channel, with values in [0, 1]."""
    counts = torch.stack(
        [
            sum(part[:, k].flatten().bincount(minlength=256) for part in pixels.split(5000))
            for k in range(pixels.shape[1])
        ]
    ).double()
    shares, levels = counts / counts.sum(1, keepdim=True), torch.arange(256).double() / 255
    mean = shares @ levels
    return mean, (shares @ levels.square() - mean.square()).sqrt()


@pytest.mark.parametrize(
    ("name", "architecture", "near"),
    [
        ("mnist", "mnist_cnn", 1e-4),
        ("cifar10", "cifar10_cnn", 1e-4),
        (
            "tinyimagenet",
            "tinyimagenet_cnn7",
            5e-4,
        ),  # those of 400 and of all 500 images per class differ in the fourth digit
        ("driving", "driving_cnn", 1e-4),
    ],
)
def test_the_normalization_of_the_networks(full, name, architecture, near):
    pixels, _ = full(name, "train")
    normalize = ARCHITECTURES[architecture]().normalize
    for found, kept in zip(statistics(pixels), (normalize.mean, normalize.deviation), strict=True):
        assert torch.allclose(found.float(), kept.flatten(), atol=near, rtol=0)


def test_tinyimagenet(full):
    pixels, labels = full("tinyimagenet", "train")
    assert pixels.shape[1:] == (3, 64, 64)
    assert labels.bincount().tolist() in ([400] * 200, [500] * 200)
    pixels, labels = full("tinyimagenet", "test")
    assert pixels.shape == (10_000, 3, 56, 56)
    assert labels.bincount().tolist() == [50] * 200


def test_driving(full):
    for split, count, error in (("train", 4_514, 0.2085), ("test", 1_000, 0.2098)):
        pixels, angles = full("driving", split)
        assert pixels.shape == (count, 3, 66, 200)
        assert angles.square().mean().sqrt() == pytest.approx(error, abs=5e-5)
        frames = load_frames(split=split)
        assert angles.tolist() == torch.tensor([frame.angle_radians for frame in frames]).tolist()
    images, _ = load_data("driving")
    assert 0 <= images.min() < images.max() <= 1
