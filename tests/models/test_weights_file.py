"""Weight files that are not what they claim: refused by size or header before they are read into memory."""

import json
import os

import pytest
import torch
from safetensors.torch import save

from tiltproof.errors import InputError
from tiltproof.models import ARCHITECTURES, mnist_cnn
from tiltproof.models import load as load_model


def refused(path, message, architecture="mnist_cnn"):
    with pytest.raises(InputError, match=message) as caught:
        load_model(str(path), architecture, allow_pickle=True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_giant_file_is_not_read(tmp_path, suffix):
    path = tmp_path / f"model.{suffix}"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    refused(path, "far larger than mnist_cnn needs.*1,099,511,627,776 bytes.*take 2,651,144.*another architecture")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_pipes_devices_and_folders(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe.{suffix}")
    (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
    (tmp_path / f"folder.{suffix}").mkdir()
    for name in ("pipe", "zero", "folder"):
        refused(tmp_path / f"{name}.{suffix}", "not a regular file")


def test_a_path_that_cannot_be():
    refused("model\0.safetensors".replace("\0", "x" * 300), "cannot be read")
    with pytest.raises(InputError, match="cannot be read"):
        load_model("model\0.safetensors", "mnist_cnn")


@pytest.mark.parametrize("length", [0, 1, 2**20 + 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1])
def test_an_absurd_header_length(tmp_path, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + save(mnist_cnn().state_dict())[8:])
    refused(path, "not a readable safetensors file.*announce a header")


def with_header(header, data=bytes(40)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        {"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 40]}},
        {"a": {"dtype": "F32", "shape": [10], "data_offsets": [0, 2**63]}},
        {"a": {"dtype": "F4", "shape": [80], "data_offsets": [0, 40]}},
        {"a": {"dtype": "x" * 10_000 + "\x1b[2J\n", "shape": [10], "data_offsets": [0, 40]}},
        {"__metadata__": {"a": 5}},
    ],
    ids=["lists", "dicts", "empty giant", "giant", "offset", "dtype", "message", "metadata"],
)
def test_hostile_headers(tmp_path, header):
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(header))
    refused(path, "not a readable safetensors file|do not fit")


def test_hostile_names_of_tensors(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({**mnist_cnn().state_dict(), "\x1b[2J" + "x" * 5000: torch.zeros(1)}))
    refused(path, r"\?\[2Jxxx.*\.\.\. is unknown")


def test_the_counters_of_batch_norm_may_be_missing(tmp_path):
    model = ARCHITECTURES["cifar10_resnet20"]().eval()
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(weights))
    image = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(load_model(str(path), "cifar10_resnet20")(image), model(image))
    del weights["bn1.running_mean"]
    path.write_bytes(save(weights))
    refused(path, "bn1.running_mean is missing", "cifar10_resnet20")
