"""docs/training.md stays current: its code runs, its commands and recipes exist, and its tables match the code."""

import dataclasses
import itertools
import json
import re
import shlex

import pytest
import torch
from typer.testing import CliRunner

from tests.support.processes import ROOT
from tiltproof.cli import app
from tiltproof.data import load as load_data
from tiltproof.training import read_recipe, recipe_names, train
from tiltproof.training.recipe import LossPart
from tiltproof.training.recipe_schema import LOSSES, PARTS, Recipe

GUIDE = ROOT / "docs" / "training.md"
pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="not in a source checkout")


@pytest.fixture(scope="module")
def text():
    return GUIDE.read_text(encoding="utf-8")


def section(text, heading):
    """Return the lines below a heading, up to the next one."""
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def rows(text):
    """Return the cells of the table in a text, without its two header lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_code_runs(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(example, names)
    clean, certified, correct = map(float, capsys.readouterr().out.split()[:3])
    assert clean < 1.5  # guessing costs ln 10 = 2.3
    assert certified > clean
    assert correct > 50
    assert names["value"].size == 1
    assert names["result"].finished
    assert len(names["certificate"].verdicts) == 5
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()


def test_every_key_of_a_recipe_is_explained_as_it_is(text):
    expected = []
    for name, part in {"": Recipe, **PARTS}.items():
        for field in dataclasses.fields(part):
            if "rule" in field.metadata:
                key = f"`{name}.{field.name}`" if name else f"`{field.name}`"
                expected.append([key, field.metadata["rule"].expected, default(field)])
    table = rows(section(text, "Every key of a recipe"))
    assert [row[:3] for row in table] == expected
    assert all(len(row) == 4 and row[3] for row in table)


def default(field):
    if field.default is dataclasses.MISSING:
        return "needed"
    return "none" if field.default is None else f"`{json.dumps(field.default)}`"


def test_every_kind_of_loss_is_explained(text):
    kinds = [row[1] for row in rows(section(text, "Which loss"))]
    assert {word for cell in kinds for word in re.findall(r"`([a-z-]+)`", cell)} >= set(LOSSES)
    words = {word for cell in kinds for word in re.findall(r"`([a-z_]+)`", cell)}
    assert {"bounds", "propagation", "samples"} <= words & {field.name for field in dataclasses.fields(LossPart)}


def test_what_the_guide_says_of_bundled_recipes():
    for name in recipe_names():
        recipe = read_recipe(name)
        if name.startswith("driving-r2") and name != "driving-r2-paper":
            baseline = name in ("driving-r2-regular", "driving-r2-dropout")
            assert recipe.loss.kind == ("augmentation" if baseline else "certified")
        elif "-paper" in name:
            assert (recipe.loss.kind, recipe.loss.bounds, recipe.loss.propagation) == ("certified", "fgv", "interval")
        else:
            assert recipe.data.hold_out == 0
            bounded = recipe.transform in ("R(2), Sh(2)", "Sc(1), R(1), C(1), B(0.001)")
            assert recipe.loss.kind == ("certified" if bounded else "worst-of")
            if bounded:
                assert (recipe.loss.bounds, recipe.loss.propagation) == ("affine", "affine")
                assert recipe.loss.samples > 1


def test_commands_options_and_recipes_exist(text):
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    commands = [shlex.split(line.partition("tiltproof ")[2]) for line in lines if "tiltproof " in line]
    assert len(commands) >= 9
    for name, *arguments in commands:
        shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [name, "--help"])
        assert shown.exit_code == 0, name
        for option in (word for word in arguments if word.startswith("--")):
            assert option in shown.stdout, (name, option)
        if name == "train":
            settings = [value for word, value in itertools.pairwise(arguments) if word == "--set"]
            assert read_recipe(arguments[0]).with_settings(settings)


def test_what_a_run_leaves(text, tmp_path):
    images, labels = load_data("mnist-sample")
    recipe = read_recipe("mnist-r30").with_settings(["train.epochs=2", "train.batch_size=40", "data.hold_out=0.1"])
    result = train(recipe, images=images, labels=labels, out=tmp_path, device="cpu", certify_images=1, certify_every=1)
    explained = section(text, "What a run leaves")
    named = {row[0].strip("`/") for row in rows(explained)}
    found = {path.name for path in tmp_path.iterdir()}
    assert found <= named
    assert named - found <= {"tensorboard"}  # where that package is not installed
    for key in {key for record in result.log for key in record}:
        assert f"`{key}`" in explained
