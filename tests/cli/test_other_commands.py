"""`attack`, `bound` and `demo`."""

import hashlib
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import save

from tiltproof.data import load as load_data
from tiltproof.models import mnist_cnn, models
from tiltproof.transforms import parse


def test_attack_finds_what_certify_finds(tiltproof, workspace):
    arguments = ["--model", "photo_networks:brightness", "--data", "photos", "--transform", "B(0.2)"]
    result = tiltproof("attack", *arguments, "--json", "found.json", "--start", 1)
    assert result.exit_code == 0, result.output
    content = json.loads((workspace / "found.json").read_text())
    assert [content[key] for key in ("images", "correct", "falsified", "unfalsified")] == [4, 3, 1, 2]
    (found,) = content["counterexamples"]
    assert (found["image"], found["label"]) == (2, 1)
    assert 150 / 255 + found["parameters"][0] < 0.5
    assert "4 images, 3 correct: 1 falsified, 2 unfalsified" in result.stdout


def test_attack_quiet_and_bad_input(tiltproof):
    arguments = ["attack", "--model", "photo_networks:brightness", "--data", "photos", "--transform"]
    assert tiltproof(*arguments, "B(0.01)", "--quiet").output == ""
    for extra in (["B(0.01)", "--samples", 0], ["B(1:0)"], ["B(0.01)", "--steps", -1]):
        result = tiltproof(*arguments, *extra)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")


def test_attack_reads_the_transformation_from_a_bundled_models_card(tiltproof, workspace, zoo_of_one):
    arguments = ["attack", "--data", "mnist-sample", "--limit", 2, "--json", "found.json", "--model"]
    result = tiltproof(*arguments, "mnist-r30")
    assert result.exit_code == 0, result.output
    assert json.loads((workspace / "found.json").read_text())["transform"] == "R(30)"
    assert tiltproof(*arguments, "mnist-r30", "--transform", "R(2)").exit_code == 0
    assert json.loads((workspace / "found.json").read_text())["transform"] == "R(2)"
    assert tiltproof(*arguments, zoo_of_one / "mnist-r30.safetensors", "--padding", "border").exit_code == 0
    assert json.loads((workspace / "found.json").read_text())["transform"] == "R(30); padding=border"


@pytest.mark.parametrize("command", ["attack", "certify"])
def test_without_a_card_the_transformation_has_to_be_given(tiltproof, command):
    result = tiltproof(command, "--model", "photo_networks:brightness", "--data", "photos")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --transform is missing. Got: --model photo_networks:brightness")


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_bound_draws_a_image(tiltproof, workspace, method):
    arguments = ["--data", "cifar10-sample", "--index", 3, "--transform", "R(1), C(2)", "--method", method]
    result = tiltproof("bound", *arguments, "--out", "new/bounds.png")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("new/bounds.png: widest pixel 0.")
    with Image.open(workspace / "new" / "bounds.png") as image:
        assert image.format == "PNG"
        assert image.width > 4 * 250


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--index", 100], "images 0 to 99"),
        (["--index", -1], "images 0 to 99"),
        (["--out", "bounds.jpg"], ".png"),
        (["--out", "photos/labels.csv/bounds.png"], "cannot be written"),
        (["--method", "magic"], "method"),
        (["--transform", "R(2:1)"], "reversed"),
    ],
)
def test_bound_refuses(tiltproof, options, word):
    result = tiltproof("bound", "--data", "mnist-sample", "--transform", "R(1)", "--out", "bounds.png", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert word in result.stderr


@pytest.fixture
def zoo_of_one(tmp_path, monkeypatch):
    """Set up bundled models whose mnist-r30 is untrained."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    torch.manual_seed(0)
    content = save(mnist_cnn().state_dict())
    (folder / "mnist-r30.safetensors").write_bytes(content)
    texts = {"name": "mnist-r30", "architecture": "mnist_cnn", "dataset": "mnist", "transform": "R(30)"}
    notes = {"trained": "not at all", "measured": "no images", "sha256": hashlib.sha256(content).hexdigest()}
    numbers = {"clean_percent": 9.5, "certified_percent": 1.25, "unfalsified_percent": 2.0, "boxes_per_image": 3.0}
    (folder / "mnist-r30.json").write_text(json.dumps(texts | notes | numbers | {"recipe": {"name": "none"}}))
    monkeypatch.setattr("tiltproof.models.cards.WEIGHTS_FOLDER", folder)
    return folder


@pytest.mark.usefixtures("zoo_of_one")
def test_an_unknown_model_lists_the_known_ones(tiltproof):
    result = tiltproof("certify", "--model", "mnist-r31", "--data", "mnist-sample", "--transform", "R(1)")
    assert result.exit_code == 2
    assert "use one of mnist-r30" in result.stderr


def check_demo(tiltproof, workspace, monkeypatch, count):
    images, labels = load_data("mnist-sample")
    monkeypatch.setattr("tiltproof.data.load", lambda _: (images[:count], labels[:count]))
    result = tiltproof("demo", "--out", "images")
    assert result.exit_code == 0, result.output
    for name in ("pixel-bounds.png", "margin.png"):
        assert f"images/{name}" in result.stdout
        with Image.open(workspace / "images" / name) as image:
            assert image.width > 800
    assert result.stdout.rstrip().endswith("images/report.html")
    assert "it is proved" in (workspace / "images" / "report.html").read_text(encoding="utf-8")
    return result


def test_demo_proves_steering_angles(tiltproof, workspace, monkeypatch):
    frames, angles = load_data("driving-sample")
    assert frames.shape == (24, 3, 66, 200)
    assert frames.min() >= 0 < frames.std()
    assert (angles.double().abs() < 1).all()
    monkeypatch.setattr("tiltproof.data.load", lambda _: (frames[14:15], angles[14:15]))
    monkeypatch.setattr("tiltproof.transforms.Rotation", lambda _: parse("R(-0.1:0)"))
    result = tiltproof("demo", "--task", "driving", "--out", "drive")
    assert result.exit_code == 0, result.output
    assert "1 of 1 ranges as tight as asked for" in result.stdout
    assert "widest range: frame 0, from 14." in result.stdout
    with Image.open(workspace / "drive" / "steering.png") as image:
        assert image.width > 600
    assert "certified range" in (workspace / "drive" / "report.html").read_text(encoding="utf-8")


def test_demo_of_an_unknown_task(tiltproof, workspace):
    result = tiltproof("demo", "--task", "flying")
    assert result.exit_code == 2
    assert "use one of digits, driving" in result.stderr
    assert not (workspace / "tiltproof-demo").exists()


@pytest.mark.usefixtures("zoo_of_one")
def test_demo_draws_its_images_whatever_the_verdicts(tiltproof, workspace, monkeypatch):
    assert "misclassified" in check_demo(tiltproof, workspace, monkeypatch, 2).stdout


@pytest.mark.skipif("mnist-r30" not in {card.name for card in models()}, reason="the model is not bundled")
def test_demo_certifies_digits_with_the_bundled_model(tiltproof, workspace, monkeypatch):
    result = check_demo(tiltproof, workspace, monkeypatch, 3)
    certified = next(line for line in result.stdout.splitlines() if "certified" in line and "│" in line)
    assert certified.split()[3] == "3"
