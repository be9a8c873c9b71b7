"""A normalization in front of a network: its formula, its part in digest and proof, and the numbers that are refused."""

import pytest
import torch
from torch import nn

import tiltproof
from tiltproof.errors import InputError
from tiltproof.models import normalized
from tiltproof.runs.manifest import weights_digest

IMAGES = torch.rand(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))


def network(channels=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).eval()


def by_hand(images, mean, std, scale=1.0):
    mean, std = (torch.tensor(x).reshape(1, -1, 1, 1) for x in (mean, std))
    return (images * scale - mean) / std


@pytest.mark.parametrize(
    ("given", "formula"),
    [
        ({"mean": 0.5}, (0.5, 1.0)),
        ({"std": "0.25"}, (0.0, 0.25)),
        ({"mean": "0.485,0.456,0.406", "std": (0.229, 0.224, 0.225)}, ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])),
        ({"mean": "imagenet", "std": "imagenet"}, ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])),
        ({"mean": "cifar10", "std": "cifar10", "scale": 1}, ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])),
        ({"mean": "mnist", "std": "mnist"}, (0.1307, 0.3081)),
        ({"scale": 255}, (0.0, 1.0, 255.0)),
        ({"mean": "123.68,116.78,103.94", "scale": 255.0}, ([123.68, 116.78, 103.94], 1.0, 255.0)),
        ({"mean": 127.5, "std": [127.5], "scale": 255}, (127.5, 127.5, 255.0)),
    ],
)
def test_the_formula(given, formula):
    model = network()
    with torch.no_grad():
        assert torch.equal(normalized(model, **given)(IMAGES), model(by_hand(IMAGES, *formula)))


def test_type_mode_and_device_are_the_networks():
    double = normalized(network().double().train(), 0.1, 0.2, 255)
    assert {buffer.dtype for buffer in double.buffers()} == {torch.float64}
    assert double.training
    assert double(IMAGES.double()).dtype == torch.float64


def test_every_number_is_part_of_the_digest():
    digests = {weights_digest(network())} | {
        weights_digest(normalized(network(), *given)) for given in [(0.5,), (0.5, 0.5), (0.5, 0.5, 2), (0.4, 0.5, 2)]
    }
    assert len(digests) == 5


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_a_proof_is_about_the_normalized_network(tmp_path, semantics):
    model = normalized(network(), "118,117,104", 60, 255)
    labels = model(IMAGES).argmax(1)
    certificate = tiltproof.certify(
        model, IMAGES, labels, "R(0.5)", semantics=semantics, run=tiltproof.RunFolder(tmp_path / "run")
    )
    assert set(map(str, certificate.verdicts)) == {"certified"}
    assert tiltproof.check(tmp_path / "run", model, IMAGES, labels).certified == 4
    with pytest.raises(tiltproof.CheckFailed):
        tiltproof.check(tmp_path / "run", network(), IMAGES, labels)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to normalize"),
        ({"mean": "imagenet"}, "same name.*--mean imagenet --std imagenet"),
        ({"mean": "imagenet", "std": 0.2}, "same name"),
        ({"std": "cifar10", "mean": "imagenet"}, "same name"),
        ({"mean": "imagenet", "std": "imagenet", "scale": 255}, r"for pixels in \[0, 1\].*without --scale"),
        ({"mean": "imagnet"}, "mean is a number.*imagnet.*one of the names imagenet, cifar10, mnist"),
        ({"mean": "0.1,,0.2"}, "mean is a number"),
        ({"mean": [1, 2], "std": [1, 2, 3]}, "different numbers of channels.*2 and 3"),
        ({"mean": float("nan")}, "mean is a number"),
        ({"mean": [0.1] * 100}, "mean is a number"),
        ({"std": "inf"}, "std is a number"),
        ({"std": 0}, "std must be positive"),
        ({"std": [0.1, -0.1]}, "std must be positive"),
        ({"std": 1e-60}, "deviation is not a positive number"),
        ({"scale": 0}, "scale must be a positive"),
        ({"scale": float("inf")}, "scale must be a positive"),
        ({"scale": 1e60}, "scale is not a positive number"),
        ({"scale": "255"}, "scale must be a positive"),
        ({"mean": object()}, "mean is a number"),
    ],
)
def test_numbers_that_cannot_be_used(given, message):
    with pytest.raises(InputError, match=message):
        normalized(network(), **given)


def test_what_is_no_network_and_images_of_other_channels():
    with pytest.raises(InputError, match="torch.nn.Module"):
        normalized(lambda x: x, 0.5)
    model = normalized(network(), "imagenet", "imagenet")
    with pytest.raises(InputError, match="another number of channels.*1 and 3.*--rgb"):
        tiltproof.certify(model, IMAGES[:, :1].contiguous(), torch.zeros(4, dtype=torch.int64), "R(1)")
