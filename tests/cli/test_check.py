"""`tiltproof check` on a run folder of the small images: exit codes and messages."""

from __future__ import annotations

import json

import pytest

from tests.support.run_folder import manifest_of, record, write_run
from tiltproof import RunFolder
from tiltproof.data import load as load_data
from tiltproof.models import load as load_model
from tiltproof.verify.api import certify_range


@pytest.fixture
def run(workspace):
    """Images 1 to 3 of the workspace: certified, falsified, misclassified."""
    images, labels = load_data("photos")
    model = load_model("photo_networks:brightness")
    manifest = manifest_of(model, images[1:4], labels[1:4], "B(0.2)", first=1)
    records = [
        record(1, int(labels[1]), "certified", margin=0.1, grid=[2], tree="2."),
        record(2, int(labels[2]), "falsified", margin=-0.01, counterexample=[-0.2]),
        record(3, int(labels[3]), "misclassified", margin=-0.1),
    ]
    folder = workspace / "run"

    def write():
        write_run(folder, manifest, records)
        return records

    write()
    return write


def kept(workspace):
    return json.loads((workspace / "run" / "check.json").read_text())


def check(tiltproof, *arguments, model="photo_networks:brightness"):
    return tiltproof("check", "run", "--model", model, "--data", "photos", *arguments)


def test_it_holds(tiltproof, run, workspace):  # noqa: ARG001
    result = check(tiltproof)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(
        "the certificate holds: 1 certified image, 2 boxes re-proved (2 sub-boxes), 1 counterexample re-run"
    )
    assert check(tiltproof, "--quiet").output == ""
    assert "sample of 1 images" in check(tiltproof, "--sample", 1).output
    assert kept(workspace)["holds"]
    assert not kept(workspace)["sampled"], "the complete check counts"
    check(tiltproof, "--by", "A. Reader")
    assert kept(workspace)["by"] == "A. Reader"
    (workspace / "run" / "check.json").write_text("something else")
    result = check(tiltproof)
    assert result.exit_code == 0
    assert "another program's file" in result.stderr


def test_it_does_not_hold(tiltproof, run, workspace):
    run()[0].update(verdict="misclassified", grid=None, tree=None)
    run()
    result = check(tiltproof)
    assert result.exit_code == 1
    assert result.stderr == (
        "the certificate does not hold: image 1: it is said to be misclassified, but the network is right about it\n"
    )
    assert not kept(workspace)["holds"]
    assert "image 1" in kept(workspace)["reason"]


def test_spoilt_manifest_and_missing_folder(tiltproof, run, workspace):  # noqa: ARG001
    (workspace / "run" / "manifest.json").write_text('{"claim": {"first": 1e999, "labels": []}}')
    assert check(tiltproof).exit_code == 1
    (workspace / "run" / "manifest.json").unlink()
    result = check(tiltproof)
    assert result.exit_code == 2
    assert "no run folder" in result.stderr


def test_a_network_that_the_checker_cannot_follow(tiltproof, run, workspace):
    folder = workspace / "run"
    images, labels = load_data("photos")
    manifest = manifest_of(load_model("photo_networks:sorting"), images[1:2], labels[1:2], "B(0.2)", first=1)
    write_run(folder, manifest, run()[:1])
    result = check(tiltproof, model="photo_networks:sorting")
    assert result.exit_code == 2
    assert "no rule for torch function" in result.stderr


REGRESSION = ("--model", "photo_networks:one_class", "--data", "photos")


@pytest.mark.parametrize("with_values", [True, False])
def test_a_regression_run(tiltproof, workspace, with_values):
    """Images 1 to 3 of the workspace, with their mean as output; the data's labels are the target values."""
    images, labels = load_data("photos")
    values = labels[1:4].double() if with_values else None
    certify_range(
        load_model("photo_networks:one_class"), images[1:4], values, "B(0.1), R(3)", run=RunFolder("ranges"), first=1
    )
    result = tiltproof("check", "ranges", *REGRESSION)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("the certificate holds: the output ranges of 3 images, ")
    assert "boxes re-proved" in result.output
    assert "counterexample" not in result.output
    assert "sample of 2 images" in tiltproof("check", "ranges", *REGRESSION, "--sample", 2).output
    for path in sorted((workspace / "ranges").iterdir()):  # a byte in the middle of every file
        content = path.read_bytes()
        spoilt = bytearray(content)
        spoilt[len(content) // 2] ^= 1
        path.write_bytes(spoilt)
        unread = path.name in ("summary.json", "check.json")  # the latter is no part of the run
        assert unread or tiltproof("check", "ranges", *REGRESSION).exit_code == 1
        path.write_bytes(content)
    other = tiltproof("check", "ranges", "--model", "photo_networks:brightness", "--data", "photos")
    assert other.exit_code == 1
    assert "weights" in other.stderr


def test_values_that_are_not_the_labels_of_the_data(tiltproof, workspace):  # noqa: ARG001
    images, labels = load_data("photos")
    certify_range(load_model("photo_networks:one_class"), images, labels + 0.5, "B(0.1)", run=RunFolder("ranges"))
    result = tiltproof("check", "ranges", *REGRESSION)
    assert result.exit_code == 1
    assert result.stderr == "the certificate does not hold: image 0: its value is not that of the run\n"


def test_help_teaches(tiltproof):
    result = tiltproof("check", "--help")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for word in ("DIR", "--sample", "shares no code", "Examples", "Exit code"):
        assert word in text


def test_what_certify_wrote_holds_and_any_changed_letter_is_found(tiltproof, workspace):
    """The real writer with the real checker; a byte in the middle of every line of every file."""
    arguments = ("--model", "photo_networks:brightness", "--data", "photos")
    assert tiltproof("certify", *arguments, "--transform", "B(0.2), R(3)", "--out", "true", "--quiet").exit_code == 0
    assert tiltproof("check", "true", *arguments).exit_code == 0
    changed = 0
    (workspace / "true" / "check.json").unlink()  # no part of the run
    for path in sorted((workspace / "true").iterdir()):
        content, place = path.read_bytes(), 0
        for line in content.splitlines(keepends=True):
            spoilt = bytearray(content)
            spoilt[place + len(line) // 2] ^= 1
            place += len(line)
            path.write_bytes(spoilt)
            result = tiltproof("check", "true", *arguments)
            (workspace / "true" / "check.json").unlink(missing_ok=True)
            in_vain = path.name == "summary.json" and any(key in line for key in INFORMATION)
            assert in_vain or result.exit_code == 1, (path.name, bytes(line), result.output)
            changed += 1
        path.write_bytes(content)
    assert changed > 50
    assert tiltproof("check", "true", *arguments).exit_code == 0


INFORMATION = (
    b"seconds",
    b"boxes",
    b"settings",
    b"percent",
    b"budget",
    b"splits",
    b"samples",
    b"seed",
    b"grid",
    b"device",
    b"precision",
    b"]",
    b"}",
    b"   ",
)
"""Lines of summary.json that claim nothing: what the run cost, and how it was asked for (the manifest says so too)."""
