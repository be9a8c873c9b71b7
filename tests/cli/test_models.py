"""``tiltproof models``: a leaderboard that fits 80 columns, with the paper's figures in it."""

import fcntl
import hashlib
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import tiltproof as package
from tests.cli.terminal import read_to_the_end
from tiltproof import InputError
from tiltproof.models import load, models
from tiltproof.models.cards import PAPER_ROWS, WEIGHTS_FOLDER
from tiltproof.runs.manifest import weights_digest
from tiltproof.training import read_recipe, recipes
from tiltproof.transforms import parse

COLUMNS = 80


def card(name, architecture, dataset, transform, clean, certified, boxes=17.0):
    return {
        "name": name,
        "architecture": architecture,
        "dataset": dataset,
        "transform": transform,
        "trained": f"{name} by hand",
        "clean_percent": clean,
        "certified_percent": certified,
        "unfalsified_percent": certified + 0.25,
        "boxes_per_image": boxes,
        "measured": "no images",
        "sha256": f"digest of {name}",
        "recipe": {"name": name},
    }


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """Return a function that adds cards to a folder of models."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    monkeypatch.setattr("tiltproof.models.cards.WEIGHTS_FOLDER", folder)

    def add(*cards):
        for content in cards:
            (folder / f"{content['name']}.json").write_text(json.dumps(content))

    return add


@pytest.fixture
def shown(tiltproof):
    """Return the lines that the command prints."""

    def run(*arguments):
        result = tiltproof("models", *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    return run


def test_rows_in_the_papers_order_and_the_most_certified_first(bundle, shown):
    bundle(
        card("b-wide", "cifar10_wide", "cifar10", "R(2),Sh(2)", 80, 63),
        card("a", "cifar10_cnn", "cifar10", "R(2), Sh(2)", 75, 61),
        card("other", "mnist_cnn", "mnist", "R(7)", 99, 98),
        card("digits", "mnist_cnn", "mnist", "R(30)", 99.35, 97.83, 1234.5),
    )
    lines = shown()
    assert lines[0].split() == ["name", "network", "clean", "certified", "unfalsified", "boxes"]
    table = [line.split() for line in lines[1 : lines.index("", len(lines) - 4)] if line]
    assert table == [
        ["MNIST,", "R(30)"],
        ["digits", "cnn", "99.35", "97.83", "98.08", "1,234"],
        ["paper", "cnn", "99.1", "94.2", "-", "-"],
        ["CIFAR-10,", "R(2),", "Sh(2)"],
        ["b-wide", "wide", "80.00", "63.00", "63.25", "17"],
        ["a", "cnn", "75.00", "61.00", "61.25", "17"],
        ["paper", "cnn", "70.1", "51.0", "-", "-"],
        ["MNIST,", "R(7)"],
        ["other", "cnn", "99.00", "98.00", "98.25", "17"],
    ]


def test_steering_networks_have_a_table_of_their_own(bundle, shown):
    """In degrees; cards hold radians."""
    own = card("wheel", "driving_cnn", "driving", "R(2)", 0, 0)
    shares = {"clean_percent", "certified_percent", "unfalsified_percent"}
    own = {key: value for key, value in own.items() if key not in shares}
    means = {"mean_absolute_error": 0.1, "certified_mean_absolute_error": 0.125, "mean_width": 0.025}
    bundle(own | means)
    lines = shown()
    assert lines[0].split() == ["name", "network", "error", "certified", "width", "boxes"]
    assert lines[2:4] == ["Driving, R(2)", " wheel cnn      5.73      7.16  1.43    17"]
    assert "degrees of the steering wheel: error" in " ".join(lines)
    bundle(card("digits", "mnist_cnn", "mnist", "R(30)", 99, 98))
    both = shown()
    assert both[-len(lines) - 1 :] == ["", *lines]
    assert [content["name"] for content in json.loads("\n".join(shown("--json")))] == ["digits", "wheel"]
    bundle(own | means | {"mean_width": "narrow"})
    with pytest.raises(InputError, match="'mean_width' of the model card .* must be a number"):
        models()


def test_every_recipe_fits(bundle, shown):
    for recipe in recipes():
        bundle(card(recipe.name, recipe.model.architecture, recipe.data.name, recipe.transform, 99.99, 88.88, 20_000))
    lines = shown()
    assert max(map(len, lines)) <= COLUMNS
    rows = [line for line in lines if line.startswith(" ")]
    assert len({len(line) for line in rows}) == 1  # one line per model, columns aligned
    assert len(rows) == 1 + len(recipes()) + len(PAPER_ROWS)


def test_details(bundle, shown, tmp_path):
    """Both digests of the weights, as the report names them."""
    path = WEIGHTS_FOLDER / "mnist-r30.safetensors"
    folder = tmp_path / "bundle"
    (folder / "digits.safetensors").write_bytes(path.read_bytes())
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    bundle(card("digits", "mnist_cnn", "mnist", "R(30)", 99, 98) | {"sha256": sha256})
    last = [
        "digits: digits by hand; measured: no images",
        f"  weights file, sha256: {sha256}",
        f"  tensors, sha256: {weights_digest(load('digits'))}",
    ]
    assert last[0] not in shown()
    assert shown("--details")[-3:] == last


def test_json(bundle, shown):
    cards = [card(name, "mnist_cnn", "mnist", "R(30)", 99, share) for name, share in (("a", 90), ("b", 95))]
    bundle(*cards)
    printed = json.loads("\n".join(shown("--json")))
    assert printed == [content | {"environment": None} for content in reversed(cards)]


def test_an_empty_zoo_says_so(bundle, shown):  # noqa: ARG001
    assert shown() == ["no models are bundled with this installation"]
    assert json.loads("\n".join(shown("--json"))) == []


def test_a_terminal_and_a_pipe_see_the_same():
    environment = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1]), "TERM": "xterm"}
    command = [sys.executable, "-m", "tiltproof", "models"]
    piped = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
    assert "\x1b" not in piped
    assert max(map(len, piped.splitlines())) <= COLUMNS
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
    running = subprocess.Popen(command, env=environment, stdout=writer)
    os.close(writer)
    seen = read_to_the_end(reader)
    assert running.wait(timeout=60) == 0
    text = seen.decode().replace("\r\n", "\n")
    assert text != piped  # the headings are bold
    assert text.replace("\x1b[1m", "").replace("\x1b[0m", "") == piped


def test_the_papers_rows_are_those_of_its_recipes():
    rows = {(recipe.data.name, str(parse(recipe.transform))): recipe for recipe in recipes()}
    assert len(PAPER_ROWS) == 7
    for row in PAPER_ROWS:
        name = (
            rows[row.dataset, row.transform].name.removesuffix("-wide").removesuffix("-resnet9").removesuffix("-paper")
        )
        assert read_recipe(f"{name}-paper").model.architecture == row.architecture
        assert 40 < row.certified_percent < row.clean_percent < 100
    assert [row.certified_percent for row in PAPER_ROWS] == [94.2, 89.8, 92.6, 96.3, 63.2, 51.0, 42.3]
    assert [row.clean_percent for row in PAPER_ROWS] == [99.1, 99.2, 99.1, 99.1, 80.5, 70.1, 71.3]
