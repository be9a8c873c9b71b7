"""`tiltproof tune`."""

import json

import pytest

from tiltproof.data import load as load_data
from tiltproof.training import pixel_widths


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


@pytest.mark.parametrize("method", ["affine", "hull"])
@pytest.mark.parametrize("text", ["G(30)", "S(20)", "H(20)", "Bl(1)", "Mb(3)", "R(2), G(10)"])
def test_transformations_that_the_papers_method_has_no_bounds_for(tiltproof, workspace, text, method):
    """The widths for the other two methods are shown, and searched for."""
    arguments = ["tune", "--data", "cifar10-sample", "--images", 3, "--samples", 2, "--transform", text]
    nu = "0.5,0.5" if "," in text else "0.5"
    result = tiltproof(*arguments, "--method", method, "--nu", nu, "--json", "widths.json")
    assert result.exit_code == 0, result.output
    assert "fgv" not in result.stdout
    content = json.loads((workspace / "widths.json").read_text())
    assert set(content["widths"]) == {"hull", "affine"}
    assert content["mu"] == content["widths"][method]["maximum"] > 0
    result = tiltproof(*arguments, "--method", method, "--epsilon", "0.02", "--json", "widths.json")
    assert result.exit_code == 0, result.output
    assert json.loads((workspace / "widths.json").read_text())["mu"] == pytest.approx(0.02, rel=0.02)
    result = tiltproof(*arguments, "--nu", nu)
    assert result.exit_code == 2
    assert "the paper's method (fgv)" in result.stderr
    assert "use method affine or hull" in result.stderr


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
        (["--nu", "0.1", "--samples", 0], "at least 1"),
        (["--nu", "0.1", "--json", "photos/labels.csv/x.json"], "cannot be written"),
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
