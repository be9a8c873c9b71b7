"""Data as people keep it, from the command line: layouts, preparation, normalization, targets; and check without repeating options."""

import json

import pytest
from PIL import Image

from tiltproof.checker import check
from tiltproof.data import load as load_data
from tiltproof.models import load as load_model

NETWORKS = """
import torch
from torch import nn


def wants_bytes():
    '''Brightness of 8 x 8 gray images in 0 to 255, centered: class 1 when the mean is above 127.5.'''
    layer = nn.Linear(64, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(-1, 64))
        layer.bias.zero_()
    return nn.Sequential(nn.Flatten(), layer).eval()


def two_numbers():
    layer = nn.Linear(64, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1 / 64], [-1 / 64]]).expand(-1, 64))
        layer.bias.zero_()
    return nn.Sequential(nn.Flatten(), layer).eval()


def color():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval()
"""
PREPARED = ("--resize", "8", "--crop", "8x8")
NORMALIZED = ("--mean", "127.5", "--std", "50", "--scale", "255")


@pytest.fixture
def animals(workspace):
    """Two classes of images of several sizes: dark ones and bright ones."""
    (workspace / "more_networks.py").write_text(NETWORKS)
    for name, gray, size in [("cat/0.png", 20, (9, 12)), ("cat/1.png", 30, (20, 10)), ("dog/0.png", 230, (8, 8))]:
        path = workspace / "animals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size, gray).save(path)
    return workspace / "animals"


@pytest.fixture
def run(animals, certify):
    arguments = (*PREPARED, *NORMALIZED, "--out", "run", "--json", "result.json", "--quiet")
    result = certify(*arguments, model="more_networks:wants_bytes", data="animals", transform="B(0.1)")
    assert result.exit_code == 0, result.output
    return animals.parent / "run"


MODEL = ("--model", "more_networks:wants_bytes", "--data", "animals")


def test_a_folder_per_class_prepared_and_normalized(run, workspace):
    result = json.loads((workspace / "result.json").read_text())
    assert (result["certified"], result["images"]) == (3, 3)
    assert [record["label"] for record in result["records"]] == [0, 0, 1]
    manifest = json.loads((run / "manifest.json").read_text())
    wanted = {"resize": "8", "crop": "8x8", "mean": "127.5", "std": "50", "scale": 255.0}
    assert manifest["notes"] == {"model": "more_networks:wants_bytes", "arch": None, "data": "animals"} | wanted
    assert manifest["claim"]["shape"] == [1, 8, 8]


@pytest.mark.usefixtures("run")
def test_check_and_report_follow_the_notes(tiltproof, workspace):
    result = tiltproof("check", "run", *MODEL)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("the certificate holds: 3 certified images")
    assert tiltproof("check", "run", *MODEL, *PREPARED, *NORMALIZED).exit_code == 0
    assert tiltproof("report", "run", *MODEL).exit_code == 0
    page = (workspace / "run" / "report.html").read_text(encoding="utf-8")
    assert "No model was given" not in page
    assert tiltproof("report", "run").exit_code == 0
    assert "data:image/png" in (workspace / "run" / "report.html").read_text(encoding="utf-8"), "images are found"
    exported = tiltproof("export", "run", "--vnnlib", *MODEL, "--out", "properties", "--quiet")
    assert exported.exit_code == 0, exported.output
    assert tiltproof("export", "run", *MODEL, "--csv", "rows.csv").exit_code == 0


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--scale", "254"), 1, "weights"),
        (("--mean", "127"), 1, "weights"),
        (("--resize", "9"), 0, ""),  # images of one color: the same pixels, and pixels are what is compared
        (("--crop", "7"), 1, "shape"),
        (("--rgb",), 1, "shape"),
        (("--crop", "9"), 2, "smaller than the crop"),
        (("--resize", "tiny"), 2, "length in pixels"),
        (("--std", "0"), 2, "std must be positive"),
        (("--mean", "imagenet"), 2, "same name"),
    ],
)
def test_other_options_are_another_claim(tiltproof, options, code, message):
    result = tiltproof("check", "run", *MODEL, *options)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.split())


@pytest.mark.usefixtures("run")
def test_a_run_is_not_resumed_with_another_preparation(certify):
    options = {"model": "more_networks:wants_bytes", "data": "animals", "transform": "B(0.1)"}
    again = certify(*PREPARED, *NORMALIZED, "--out", "run", "--resume", **options)
    assert again.exit_code == 0, again.output
    other = certify("--resize", "8x9", "--crop", "8", "--scale", "255", "--out", "run", "--resume", **options)
    assert other.exit_code == 2
    assert "not the run" in other.stderr


@pytest.mark.parametrize("notes", ['"resize": 7', '"resize": []', '"scale": true', '"scale": "a"', '"mean": {}'])
def test_notes_that_make_no_sense_are_left_to_the_checker(run, tiltproof, notes):
    manifest = run / "manifest.json"
    text = manifest.read_text()
    key = notes.split(":")[0]
    start = text.index(key)
    manifest.write_text(
        text[:start] + notes + text[text.index(",", start) if "scale" not in key else text.index("\n", start) :]
    )
    result = tiltproof("check", "run", *MODEL)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output


def test_an_image_of_another_size_says_what_to_do(animals, certify):  # noqa: ARG001
    result = certify(model="more_networks:wants_bytes", data="animals")
    assert result.exit_code == 2
    assert "--resize and --crop" in result.stderr


@pytest.mark.parametrize("command", ["attack", "bound"])
def test_other_commands(animals, tiltproof, command):  # noqa: ARG001
    where = ("--out", "bounds.png") if command == "bound" else ("--model", "more_networks:color")
    result = tiltproof(command, *where, "--data", "animals", "--transform", "B(0.1)", *PREPARED, "--rgb")
    assert result.exit_code == 0, result.output


def test_tune_and_bound_need_no_labels(animals, tiltproof):
    for path in animals.rglob("*.png"):
        Image.new("L", (8, 8), 9).save(path)
    (animals / "dog" / "0.png").unlink()
    (animals / "dog").rmdir()
    assert tiltproof("tune", "--data", "animals/cat", "--transform", "R(1)", "--nu", "0.1").exit_code == 0
    arguments = ("--data", "animals/cat", "--transform", "R(1)", "--out", "b.png")
    assert tiltproof("bound", *arguments).exit_code == 0


REGRESSION = {"model": "more_networks:two_numbers", "transform": "B(0.1)"}


@pytest.mark.parametrize(
    ("header", "rows", "values"),
    [
        ("filename,target_0,target_1", ["0.5,-0.5", "-1e-3,0", "2,3", "4,5", "6,7"], [[0.5, -0.5], [-0.001, 0]]),
        ("filename", None, None),
        (None, None, None),
    ],
)
def test_regression(animals, certify, tiltproof, workspace, header, rows, values):  # noqa: ARG001
    photos = workspace / "photos"
    names = sorted(path.name for path in photos.glob("*.png"))
    if header is None:
        (photos / "labels.csv").unlink()
    else:
        lines = names if rows is None else [f"{name},{row}" for name, row in zip(names, rows, strict=True)]
        (photos / "labels.csv").write_text("\n".join([header, *lines]) + "\n")
    refusal = certify(**REGRESSION)
    assert refusal.exit_code == 2
    assert "--task regression" in refusal.stderr
    result = certify("--task", "regression", "--limit", "2", "--out", "ranges", **REGRESSION)
    assert result.exit_code == 0, result.output
    assert json.loads((workspace / "ranges" / "manifest.json").read_text())["claim"]["values"] == values
    arguments = ("--model", REGRESSION["model"], "--data", "photos")
    checked = tiltproof("check", "ranges", *arguments)
    assert checked.exit_code == 0, checked.output
    images, targets = load_data("photos", task="regression", limit=2)
    again = check("ranges", load_model(REGRESSION["model"]), images, targets)
    assert (again.task, again.images) == ("regression", 2), "in Python, an empty [n, 0] stands for no targets, too"
    assert tiltproof("report", "ranges", *arguments).exit_code == 0
    assert tiltproof("export", "ranges", "--csv", "rows.csv", "--tolerance", "1").exit_code in (0, 2)


def test_a_target_for_another_number_of_outputs(animals, certify, workspace):  # noqa: ARG001
    (workspace / "photos" / "labels.csv").write_text("filename,target_0\nbright.png,1\n")
    result = certify("--task", "regression", **REGRESSION)
    assert result.exit_code == 2
    assert "(1, 2)" in result.stderr
