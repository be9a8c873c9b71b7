"""What must hold, on the command line: options, names of classes, and what is refused."""

import json

import pytest

from tests.cli.test_bad_input import refused
from tiltproof.cli.kept import parse_classes
from tiltproof.errors import InputError


def kept(folder):
    return json.loads((folder / "manifest.json").read_text())["claim"].get("keep")


@pytest.fixture
def signs(workspace):
    """The small images in folders named after their classes, and one of labels unknown to anyone."""
    for name, image in (("black", "black"), ("white", "bright")):
        (workspace / "signs" / name).mkdir(parents=True)
        (workspace / "photos" / f"{image}.png").rename(workspace / "signs" / name / "one.png")
    return workspace / "signs"


@pytest.mark.parametrize(
    ("options", "words", "claim"),
    [
        (["--keep-own"], "gives the same answer", {"rule": "own"}),
        (["--top-k", 1], "the label as its largest", {"rule": "top", "k": 1}),
        (["--allow", "0:0"], "for the label 0 also class 0", {"rule": "allow", "by_label": {"0": [0]}}),
        (["--forbid", "1"], "never answers with class 1", {"rule": "forbid", "classes": [1]}),
        (["--forbid", "1:0", "--forbid", "0:1"], "never", {"rule": "forbid", "by_label": {"0": [1], "1": [0]}}),
    ],
)
def test_certify_check_report_and_export(tiltproof, certify, workspace, options, words, claim):
    done = certify("--out", "run", *options)
    assert done.exit_code == 0, done.output
    assert words in " ".join(done.stdout.split())
    assert kept(workspace / "run") == claim
    data = ("--model", "photo_networks:brightness", "--data", "photos")
    assert "the certificate holds" in tiltproof("check", "run", *data).stdout
    assert tiltproof("report", "run", *data).exit_code == 0
    assert words.split(" also ")[-1] in (workspace / "run" / "report.html").read_text()
    assert words.split(" also ")[-1] in tiltproof("export", "run", "--csv", "-").stdout
    again = certify("--out", "run", "--resume", *options)
    assert again.exit_code == 0, again.output
    assert refused(certify("--out", "run", "--resume"), "differs")


def test_a_plain_run_is_not_resumed_as_another(certify):
    assert certify("--out", "run").exit_code == 0
    assert refused(certify("--out", "run", "--resume", "--top-k", 1), "keep differs")


def test_own_answers_need_no_labels(tiltproof, certify, workspace):
    table = (workspace / "photos" / "labels.csv").read_text()
    rows = [line.split(",")[0] for line in table.splitlines()]
    (workspace / "photos" / "labels.csv").write_text("\n".join(rows) + "\n")
    assert refused(certify(), "label")
    done = certify("--keep-own", "--out", "run", "--json", "found.json", "-q")
    assert done.exit_code == 0, done.output
    found = json.loads((workspace / "found.json").read_text())
    assert (found["misclassified"], found["correct"], found["certified"], found["falsified"]) == (0, 5, 3, 2)
    assert [each["label"] for each in found["records"]] == [1, 0, 1, 0, 0]
    data = ("--model", "photo_networks:brightness", "--data", "photos")
    assert "holds: 3 certified" in tiltproof("check", "run", *data).stdout
    assert tiltproof("report", "run", *data).exit_code == 0
    assert tiltproof("report", "run").exit_code == 0


def test_names_of_classes(certify, signs, workspace):
    assert certify("--forbid", "white: black", "--out", "run", data=signs).exit_code == 0
    assert kept(workspace / "run") == {"rule": "forbid", "by_label": {"1": [0]}}
    assert refused(certify("--forbid", "grey", data=signs), "unknown class", "grey", "black, white")
    (workspace / "table.txt").write_text("# label: forbidden\nwhite: black\n\nblack: 1  # its number\n")
    assert certify("--forbid", "@table.txt", "--out", "two", data=signs).exit_code == 0
    assert kept(workspace / "two") == {"rule": "forbid", "by_label": {"0": [1], "1": [0]}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--top-k", 0], ["at least one"]),
        (["--top-k", -3], ["at least one"]),
        (["--top-k", 2], ["among all classes anyway", "2 of 2"]),
        (["--allow", "0", "--forbid", "1"], ["keeps one thing", "--allow and --forbid"]),
        (["--keep-own", "--top-k", 1], ["keeps one thing"]),
        (["--allow", "stop"], ["unknown class", "stop", "no names"]),
        (["--allow", "0,,1"], ["unknown class", "between two commas"]),
        (["--allow", "2"], ["does not have", "class 2", "0 to 1"]),
        (["--forbid", "5:1"], ["does not have", "class 5"]),
        (["--allow", "0,1"], ["nothing to prove"]),
        (["--forbid", "0,1"], ["no answer is left"]),
        (["--forbid", "0:0"], ["its own images"]),
        (["--allow", "1", "--allow", "0:1"], ["for all images or by label"]),
        (["--allow", "@nowhere.txt"], ["cannot be read", "nowhere.txt"]),
        (["--task", "regression", "--top-k", 1], ["no meaning for --task regression"]),
        (["--task", "regression", "--keep-own"], ["no meaning for --task regression"]),
    ],
)
def test_bad_input(certify, options, words):
    assert refused(certify(*options), *words)


def test_a_name_that_is_another_class_s_number():
    assert parse_classes("--allow", ["1"], lambda: ["0", "1"]) == [1]
    with pytest.raises(InputError, match="may be two classes"):
        parse_classes("--allow", ["3"], lambda: ["3", "5"])


def test_attack(tiltproof):
    data = ("--model", "photo_networks:brightness", "--data", "photos", "--transform", "B(0.2)")
    plain, own = tiltproof("attack", *data).stdout, tiltproof("attack", *data, "--keep-own").stdout
    assert "5 images, 4 correct: 1 falsified" in plain
    assert "to break: the network gives the same answer" in own
    assert "5 images, 5 satisfy it untransformed: 2 falsified" in own
    assert refused(tiltproof("attack", *data, "--top-k", 2), "among all classes anyway")
