"""``--model net.onnx`` on the command line: certify, attack, check, and the messages for unusable files."""

import json
import sys
import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from tests.onnx.onnx_files import node, with_head
from tiltproof.models import load as load_model


@pytest.fixture
def network(workspace):
    """Write the small images' network as an ONNX file into the workspace."""

    def write(name="net.onnx", model="photo_networks:brightness"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                load_model(model), torch.zeros(1, 1, 8, 8), workspace / name, dynamo=False, input_names=["images"]
            )
        return name

    return write


def test_certify_and_check(certify, tiltproof, network, workspace):
    model = network()
    theirs, ours = (
        certify("--json", f"{k}.json", "--out", f"run{k}", model=m)
        for k, m in enumerate(("photo_networks:brightness", model))
    )
    assert (theirs.exit_code, ours.exit_code) == (0, 0)
    reports = [json.loads((workspace / f"{k}.json").read_text())["records"] for k in (0, 1)]
    assert [entry["verdict"] for entry in reports[0]] == [entry["verdict"] for entry in reports[1]]
    assert {entry["verdict"] for entry in reports[1]} == {"certified", "falsified", "misclassified"}
    checked = tiltproof("check", "run1", "--model", model, "--data", "photos")
    assert checked.exit_code == 0, checked.output
    assert "the certificate holds: 3 certified images" in checked.stdout
    other = tiltproof("check", "run1", "--model", network("other.onnx", "photo_networks:darkness"), "--data", "photos")
    assert other.exit_code == 1
    assert "sha256" in other.stderr


def flat_file(workspace, shape=(64,), open_size=False):
    """The sum of the upper half of the pixels against that of the lower half: flat, channels last, or of any size."""
    weights = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], 1)
    weights = torch.cat([weights, 1 - weights]).numpy()
    sizes = ("h", "w", 1) if open_size else shape
    proto = with_head([node("Relu", "images")], 64, shape=sizes)
    for tensor, value in zip(proto.graph.initializer, (weights, np.zeros(2, np.float32)), strict=True):
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    onnx.save(proto, workspace / "found.onnx")
    return "found.onnx"


def test_flat_files_and_files_of_any_size(tiltproof, workspace):
    """The same verdicts from a row of numbers, an image with channels last and one whose size the data tell."""
    verdicts = []
    for shape, options in (((64,), ["--shape", "1x8x8"]), ((8, 8, 1), []), (None, []), ((64,), [])):
        found = flat_file(workspace, shape or (), open_size=shape is None)
        arguments = ["--model", found, "--data", "photos", "--transform", "B(0.01)", *options]
        result = tiltproof("certify", *arguments, "--json", "found.json", "--out", "found-run", "--overwrite")
        if not options and shape == (64,):
            assert result.exit_code == 2
            assert "--shape" in result.stderr
            continue
        assert result.exit_code == 0, result.stderr
        verdicts.append([entry["verdict"] for entry in json.loads((workspace / "found.json").read_text())["records"]])
        notes = json.loads((workspace / "found-run" / "manifest.json").read_text())["notes"]
        assert notes.get("shape") == (options[1] if options else None)
        checked = tiltproof("check", "found-run", "--model", found, "--data", "photos", *options)
        assert checked.exit_code == 0, checked.output
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_attack(tiltproof, network):
    result = tiltproof(
        "attack", "--model", network(), "--data", "photos", "--transform", "B(0.2)", "--json", "found.json"
    )
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["certify", "attack", "check"])
def test_help_says_so(tiltproof, command):
    assert ".onnx" in tiltproof(command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model", "missing.onnx"], "the ONNX file cannot be read"),
        (["--model", "net.onnx", "--arch", "mnist_cnn"], "--arch goes with a .safetensors file only"),
        (["--model", "mnist-r30", "--layout", "nhwc"], "--layout goes with other files: "),
        (["--model", "mnist-r30", "--shape", "1x8x8"], "--shape goes with other files: "),
        (["--model", "net.onnx", "--shape", "8x8"], "write CxHxW, e.g. 3x224x224"),
        (["--model", "net.onnx", "--shape", "3x8x8"], "does not take images of shape 3x8x8"),
        (["--model", "net.onnx", "--layout", "hwc"], "unknown layout"),
        (["--model", "net.onnx", "--output", "none"], "has no such output"),
    ],
)
def test_what_cannot_be_used(tiltproof, network, arguments, text):
    network()
    result = tiltproof("certify", *arguments, "--data", "photos", "--transform", "B(0.2)")
    assert result.exit_code == 2
    assert text in result.stderr


def test_without_the_packages(certify, network, monkeypatch):
    model = network()
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = certify(model=model)
    assert result.exit_code == 2
    assert "pip install 'tiltproof[onnx]'" in result.stderr


def test_an_operation_without_a_rule(certify, network):
    result = certify(model=network("sorting.onnx", "photo_networks:sorting"))
    assert result.exit_code == 2
    assert "TopK at node '/TopK'" in result.stderr
    assert "supported operations" in result.stderr


def test_a_transformation_must_be_given(tiltproof, network):
    result = tiltproof("certify", "--model", network(), "--data", "photos")
    assert result.exit_code == 2
    assert "--transform is missing" in result.stderr
