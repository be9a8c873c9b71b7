"""``--model net.onnx`` on the command line: certify, attack, check, and the messages for unusable files."""

import json
import sys
import warnings

import pytest
import torch

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
