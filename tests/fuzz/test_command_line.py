"""Damaged files on the command line: exit code 2, one message on stderr, no traceback."""

import gzip
import io

import pytest
import torch
from PIL import Image
from safetensors.torch import save
from typer.testing import CliRunner

from tiltproof.cli import app
from tiltproof.models import mnist_cnn


def torch_file(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def png():
    buffer = io.BytesIO()
    Image.new("L", (28, 28)).save(buffer, "PNG")
    return buffer.getvalue()


IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(784)
WEIGHTS = ["--arch", "mnist_cnn", "--data", "mnist-sample"]
PICKLE = ["--model", "net.pt", "--allow-pickle", *WEIGHTS]
MNIST = ["--model", "mnist-r30", "--data", "mnist", "--data-root", "."]
CIFAR = ["--model", "mnist-r30", "--data", "cifar10", "--data-root", "."]
FOLDER = ["--model", "mnist-r30", "--data", "."]
CASES = {
    "safetensors": (["--model", "net.safetensors", *WEIGHTS], {"net.safetensors": save(mnist_cnn().state_dict())[:-1]}),
    "onnx": (["--model", "net.onnx", "--data", "mnist-sample"], {"net.onnx": bytes(range(200))}),
    "refused pickle": (["--model", "net.pt", *WEIGHTS], {"net.pt": torch_file(mnist_cnn().state_dict())}),
    "cut pickle": (PICKLE, {"net.pt": torch_file(mnist_cnn().state_dict())[:-100]}),
    "whole module": (PICKLE, {"net.pt": torch_file(mnist_cnn())}),
    "idx": (MNIST, {"t10k-images-idx3-ubyte": IMAGES[:-1], "t10k-labels-idx1-ubyte": b""}),
    "idx in gz": (MNIST, {"t10k-images-idx3-ubyte.gz": gzip.compress(IMAGES)[:-9], "t10k-labels-idx1-ubyte": b""}),
    "cifar": (CIFAR, {"test_batch.bin": bytes(3072)}),
    "table": (FOLDER, {"labels.csv": b"filename,label\na\0.png,1\n"}),
    "outside": (FOLDER, {"labels.csv": b"filename,label\n../a.png,1\n"}),
    "image": (FOLDER, {"labels.csv": b"filename,label\na.png,1\n", "a.png": png()[:-20]}),
}


@pytest.mark.parametrize("command", ["certify", "attack"])
@pytest.mark.parametrize("case", CASES)
def test_a_damaged_file_gets_one_message(tmp_path, monkeypatch, command, case):
    arguments, files = CASES[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, *arguments, "--transform", "R(1)"], catch_exceptions=False)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_a_pickle_of_tensors_is_read_when_allowed(tmp_path, monkeypatch, command):
    (tmp_path / "net.pt").write_bytes(torch_file(mnist_cnn().state_dict()))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, *PICKLE, "--transform", "B(0.001)", "--limit", "1"])
    assert result.exit_code == 0, result.output
