"""`tiltproof tune`."""

import json

import pytest

from tiltproof import load_data
from tiltproof.train import pixel_widths


def test_widths_of_a_box(tiltproof, workspace):
    arguments = ["--data", "mnist-sample", "--transform", "R(30)", "--nu", "0.25", "--json", "widths.json"]
    result = tiltproof("tune", *arguments)
    assert result.exit_code == 0, result.output
    for word in ("nu = [0.25]", "fgv", "hull", "affine", "widest pixel", "remainder", "standard error", "100 images"):
        assert word in result.stdout
    content = json.loads((workspace / "widths.json").read_text())
    images, _ = load_data("mnist-sample")
    assert content["mu"] == pytest.approx(pixel_widths(images, "R(30)", [0.25]).maximum)
    assert (content["nu"], content["epsilon"], content["images"], content["splits"]) == ([0.25], None, 100, [240])
    assert set(content["widths"]) == {"fgv", "hull", "affine"}


def test_search(tiltproof, workspace):
    arguments = ["--data", "cifar10-sample", "--transform", "R(2), Sh(2)", "--images", 10, "--samples", 3]
    result = tiltproof("tune", *arguments, "--epsilon", 0.03, "--start", "0.01,0.025", "--json", "widths.json")
    assert result.exit_code == 0, result.output
    content = json.loads((workspace / "widths.json").read_text())
    assert content["mu"] == pytest.approx(0.03, rel=0.01)
    assert content["nu"][1] / content["nu"][0] == pytest.approx(2.5)
    assert "epsilon 0.03" in result.stdout
    assert "10 images, 3 boxes" in result.stdout


def test_a_box_beside_an_epsilon_and_a_folder_of_images(tiltproof):
    arguments = ["--data", "photos", "--transform", "B(0.2)", "--nu", "0.05", "--epsilon", 0.2, "--all"]
    result = tiltproof("tune", *arguments)
    assert result.exit_code == 0, result.output
    assert "% below epsilon 0.2" in result.stdout
    assert "5 images" in result.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ([], "nothing to tune"),
        (["--nu", "0.25,1"], "nu needs 1"),
        (["--nu", "a"], "--nu takes numbers"),
        (["--nu", "nan"], "nu needs 1"),
        (["--nu", "0.1", "--start", "0.1"], "--start"),
        (["--epsilon", 0], "epsilon"),
        (["--epsilon", 0.1, "--method", "magic"], "method"),
        (["--epsilon", 0.1, "--images", 0], "--images"),
        (["--epsilon", 0.1, "--images", 3, "--all"], "exclude"),
        (["--nu", "0.1", "--samples", 0], "at least one"),
        (["--nu", "0.1", "--json", "nowhere/x.json"], "cannot be written"),
        (["--nu", "0.1", "--device", "toaster"], "device"),
        (["--nu", "0.1", "--transform", "R(2:1)"], "reversed"),
        (["--nu", "0.1", "--data", "mnist", "--data-root", "nowhere"], "data folder"),
    ],
)
def test_bad_input(tiltproof, options, word):
    result = tiltproof("tune", "--data", "mnist-sample", "--transform", "R(30)", *options)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr


def test_help_teaches(tiltproof):
    text = tiltproof("tune", "--help").output
    for word in ("--epsilon", "--nu", "half widths", "Examples", "training sets"):
        assert word in text
