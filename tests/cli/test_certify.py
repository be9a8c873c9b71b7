"""`tiltproof certify` from end to end: verdicts, JSON, result folders, exit codes and output."""

import json
import os
import threading

import pytest
from PIL import Image

from tiltproof.cli.inputs import check_writable, write_atomically

EXPECTED = ["certified", "certified", "falsified", "misclassified", "certified"]
SUMMARY_KEYS = {"images", "correct", "certified", "falsified", "unknown", "boxes", "seconds", "method", "transform"}


def read(path):
    return json.loads(path.read_text())


def test_the_table_and_the_json_agree(certify, workspace):
    result = certify("--json", "result.json")
    assert result.exit_code == 0, result.output
    content = read(workspace / "result.json")
    assert set(content) >= SUMMARY_KEYS
    assert [record["verdict"] for record in content["records"]] == EXPECTED
    counts = {
        word: content[word] for word in ("images", "correct", "certified", "falsified", "unknown", "misclassified")
    }
    assert counts == {
        "images": 5,
        "correct": 4,
        "certified": 3,
        "falsified": 1,
        "unknown": 0,
        "misclassified": 1,
    }
    assert (content["method"], content["transform"], content["model"]) == (
        "affine",
        "B(0.2)",
        "photo_networks:brightness",
    )
    rows = {line.split()[1]: line.split()[3] for line in result.stdout.splitlines() if line.startswith("│")}
    assert all(rows[word] == str(counts[word]) for word in ("certified", "falsified", "unknown", "misclassified"))
    assert "60.00" in result.stdout


def test_a_falsified_image_comes_with_the_parameter_that_breaks_it(certify, workspace):
    certify("--json", "result.json")
    record = read(workspace / "result.json")["records"][2]
    (brightness,) = record["counterexample"]
    assert brightness >= -0.2
    assert 150 / 255 + brightness < 0.5
    assert record["margin"] < 0


def test_margins_of_certified_images_are_proved_lower_bounds(certify, workspace):
    certify("--json", "result.json")
    bright, dark = read(workspace / "result.json")["records"][:2]
    assert 0 < bright["margin"] <= 230 / 255 - 0.2 - 0.5 + 1e-6
    assert 0 < dark["margin"] <= 0.5 - 25 / 255 - 0.2 + 1e-6


@pytest.mark.parametrize("options", [("--start", 2, "--end", 4), ("--start", 2, "--limit", 2)])
def test_a_part_of_the_data_keeps_its_indices(certify, workspace, options):
    assert certify("--json", "result.json", *options).exit_code == 0
    records = read(workspace / "result.json")["records"]
    assert [(record["image"], record["label"], record["verdict"]) for record in records] == [
        (2, 1, "falsified"),
        (3, 1, "misclassified"),
    ]


def test_a_limit_beyond_the_end_takes_what_is_there(certify, workspace):
    assert certify("--json", "result.json", "--start", 3, "--limit", 100).exit_code == 0
    assert read(workspace / "result.json")["images"] == 2


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_every_method_with_uniform_splits(certify, workspace, method):
    result = certify(
        "--method", method, "--splits", "3,2", "--json", "result.json", "--limit", 2, transform="R(5), B(0.1)"
    )
    assert result.exit_code == 0, result.output
    content = read(workspace / "result.json")
    assert content["method"] == method
    assert content["records"][1]["verdict"] == "certified"
    assert content["records"][1]["boxes"] == 6


def test_padding_is_part_of_the_transform(certify, workspace):
    assert certify("--padding", "border", "--json", "result.json", transform="R(45)").exit_code == 0
    content = read(workspace / "result.json")
    assert content["transform"] == "R(45); padding=border"
    assert [record["verdict"] for record in content["records"]][2] == "certified"


def test_interpolation_is_part_of_the_transform(certify, workspace):
    options = ("--interpolation", "nearest", "--padding", "reflect", "--json", "result.json")
    assert certify(*options, transform="Ld(0.1); interpolation=bicubic").exit_code == 0
    assert read(workspace / "result.json")["transform"] == "Ld(0.1); padding=reflect; interpolation=nearest"


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_a_budget_that_runs_out_leaves_unknown(certify, workspace, method):
    """A rotated square loses its corners: 83 percent of it remains at worst, but one box for all angles proves less."""
    Image.new("L", (8, 8), 165).save(workspace / "photos" / "bright.png")
    result = certify("--boxes", 1, "--json", "result.json", "--limit", 1, "--method", method, transform="R(45)")
    assert result.exit_code == 0, result.output
    (record,) = read(workspace / "result.json")["records"]
    assert record["verdict"] == "unknown"
    low, high = record["open_box"]
    assert -45.001 <= low[0] < high[0] <= 45.001
    assert record["margin"] is None or record["margin"] <= 0


def test_out_writes_a_run_folder(certify, workspace):
    assert certify("--out", "runs/one", "--seed", 5).exit_code == 0
    folder = workspace / "runs" / "one"
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "verdicts.jsonl",
        "batches.jsonl",
        "summary.json",
    }
    assert set(read(folder / "summary.json")) >= SUMMARY_KEYS
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == EXPECTED
    manifest = read(folder / "manifest.json")
    assert manifest["notes"] == {"model": "photo_networks:brightness", "arch": None, "data": "photos"}
    assert (manifest["claim"]["transform"], manifest["settings"]["seed"]) == ("B(0.2)", 5)
    assert "torch" in manifest["environment"]


def test_a_finished_run_is_resumed_at_no_cost_and_says_the_same(certify, workspace):
    assert certify("--out", "runs").exit_code == 0
    before = (workspace / "runs" / "verdicts.jsonl").read_bytes()
    again = certify("--out", "runs", "--resume", "--json", "result.json")
    assert again.exit_code == 0
    assert (workspace / "runs" / "verdicts.jsonl").read_bytes() == before
    assert [record["verdict"] for record in read(workspace / "result.json")["records"]] == EXPECTED


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (("--transform", "B(0.1)"), "transform"),
        (("--limit", 4), "images"),
        (("--start", 1, "--end", 5), "first"),
        (("--seed", 9), "seed"),
        (("--method", "hull"), "method"),
        (("--semantics", "float32"), "semantics"),
        (("--model", "photo_networks:darkness"), "weights"),
    ],
)
def test_another_run_is_not_resumed(certify, workspace, changed, named):
    assert certify("--out", "runs").exit_code == 0
    before = {path: path.read_bytes() for path in (workspace / "runs").iterdir()}
    result = certify("--out", "runs", "--resume", *changed)
    assert result.exit_code == 2, result.output
    assert named in result.stderr
    assert {path: path.read_bytes() for path in (workspace / "runs").iterdir()} == before


def test_resume_needs_a_folder(certify):
    result = certify("--resume")
    assert result.exit_code == 2
    assert "--out" in result.stderr


def test_out_does_not_overwrite_unasked(certify, workspace):
    (workspace / "runs").mkdir()
    (workspace / "runs" / "precious.txt").write_text("keep me")
    result = certify("--out", "runs")
    assert result.exit_code == 2
    assert "not empty" in result.stderr
    assert "--overwrite" not in result.stderr
    for option, words in (("--overwrite", "holds no run to replace"), ("--resume", "holds no run to go on with")):
        result = certify("--out", "runs", option)
        assert result.exit_code == 2
        assert words in result.stderr
    assert [path.name for path in (workspace / "runs").iterdir()] == ["precious.txt"]


def test_out_replaces_a_run_if_asked(certify, workspace):
    assert certify("--out", "runs").exit_code == 0
    (workspace / "runs" / "precious.txt").write_text("keep me")
    result = certify("--out", "runs", "--seed", 7)
    assert result.exit_code == 2
    assert "not empty" in result.stderr
    assert "--overwrite" in result.stderr
    assert certify("--out", "runs", "--seed", 7, "--overwrite").exit_code == 0
    assert read(workspace / "runs" / "manifest.json")["settings"]["seed"] == 7
    assert (workspace / "runs" / "precious.txt").read_text() == "keep me"


def test_a_foreign_curve_is_noticed_before_the_run(certify, workspace):
    (workspace / "runs").mkdir()
    (workspace / "runs" / "curve.json").write_text("{}")
    result = certify("--out", "runs", "--curve")
    assert result.exit_code == 2
    assert "curve.json was not written by a run" in result.stderr
    assert [path.name for path in (workspace / "runs").iterdir()] == ["curve.json"]


@pytest.mark.parametrize(("percent", "code"), [(60, 0), (60.01, 1), (100, 1), (0, 0)])
def test_fail_under(certify, workspace, percent, code):
    result = certify("--fail-under", percent, "--json", "result.json", "--quiet")
    assert result.exit_code == code
    assert ("certified 60.00 % is below" in result.stderr) == bool(code)
    assert read(workspace / "result.json")["certified_percent"] == 60


def test_quiet_is_quiet(certify):
    result = certify("--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_no_control_characters_when_no_one_is_watching(certify):
    result = certify()
    assert "\x1b" not in result.output
    assert "\r" not in result.output
    assert "boxes/s" not in result.output


def test_json_replaces_the_old_file_and_leaves_nothing_else(certify, workspace):
    (workspace / "result.json").write_text("old")
    before = set(workspace.iterdir())
    assert certify("--json", "result.json").exit_code == 0
    assert read(workspace / "result.json")["images"] == 5
    assert {path for path in workspace.iterdir() if path.name != "__pycache__"} == before - {workspace / "__pycache__"}


def test_json_makes_its_folders(certify, workspace):
    assert certify("--json", "new/folder/result.json").exit_code == 0
    assert read(workspace / "new" / "folder" / "result.json")["images"] == 5


def test_json_on_standard_output_is_alone_there(certify, tiltproof, workspace):
    result = certify("--json", "-", model="photo_networks:still_training")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["certified"] == 3
    assert result.stderr.startswith("notice: ")
    network = ("--model", "photo_networks:brightness", "--data", "photos", "--transform", "B(0.2)")
    assert json.loads(tiltproof("attack", *network, "--json", "-").stdout)["falsified"] == 1
    widths = tiltproof("tune", *network[2:], "--nu", "0.1", "--json", "-")
    assert json.loads(widths.stdout)["nu"] == [0.1]
    assert not (workspace / "-").exists()


def test_a_model_in_training_mode_is_noticed(certify, workspace):
    result = certify("--json", "result.json", model="photo_networks:still_training")
    assert result.exit_code == 0
    assert result.stderr.startswith("notice: the model is in training mode")
    assert [record["verdict"] for record in read(workspace / "result.json")["records"]] == EXPECTED


def test_ctrl_c_ends_with_130(certify, workspace, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tiltproof.verify.api.certify", interrupted)
    result = certify("--json", "result.json")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert not (workspace / "result.json").exists()


def test_json_follows_a_link_and_writes_into_a_pipe(tmp_path):
    """A result path is not always a plain file: replacing a link or a device would surprise its owner."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    write_atomically(link, "text")
    assert link.is_symlink()
    assert real.read_text() == "text"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_text()))
    reader.start()
    check_writable(pipe)
    write_atomically(pipe, "through")
    reader.join()
    assert seen == ["through"]
    assert pipe.is_fifo()


def test_regression_ranges(certify, workspace):
    """The mean of a gray image under B(0.2) moves by 0.2, and not beyond black and white."""
    options = ("--task", "regression", "--model", "photo_networks:one_class")
    result = certify(*options, "--json", "result.json", "--out", "run")
    assert result.exit_code == 0
    assert all(words in result.stdout for words in ("proved width", "inner width", "certified error", "5 of 5 ranges"))
    summary = read(workspace / "result.json")
    assert (summary["task"], summary["images"], summary["complete"]) == ("regression", 5, 5)
    for record, grey in zip(summary["records"], (230, 25, 150, 100, 0), strict=True):
        low, high = max(0, grey / 255 - 0.2), min(1, grey / 255 + 0.2)
        assert record["lower"][0] <= low <= record["lower"][0] + 0.02
        assert record["upper"][0] >= high >= record["upper"][0] - 0.02
    assert (workspace / "run" / "summary.json").exists()
    again = certify(*options, "--out", "run", "--resume", "--json", "again.json")
    assert again.exit_code == 0
    assert read(workspace / "again.json")["records"] == summary["records"]
    wide = certify(*options, "--width", "10", "--json", "wide.json")
    assert wide.exit_code == 0
    assert read(workspace / "wide.json")["boxes"] < summary["boxes"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--task", "segmentation"), "unknown task"),
        (("--task", "regression", "--fail-under", "3"), "--fail-under"),
        (("--excess", "0.1"), "--excess"),
        (("--width", "0.1"), "--width"),
        (("--task", "regression", "--excess", "-1"), "excess"),
    ],
)
def test_options_of_the_other_task(certify, options, words):
    result = certify(*options)
    assert result.exit_code == 2
    assert words in result.stderr
