"""`tiltproof export` on the small images: what it writes, and what it refuses."""

import csv
import json
import sys
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

VNNLIB = ["export", "--vnnlib", "--model", "photo_networks:brightness", "--data", "photos"]
ONE = "photo_networks:one_class"


@pytest.fixture
def run(certify):
    assert certify("--out", "run", "--quiet").exit_code == 0


@pytest.mark.usefixtures("run")
def test_results_of_a_run(tiltproof, workspace):
    result = tiltproof("export", "run", "--csv", "run.csv", "--jsonl", "run.jsonl", *VNNLIB[2:])
    assert (result.exit_code, result.output) == (0, "run.csv: 5 rows\nrun.jsonl: 5 rows\n")
    rows = [json.loads(line) for line in (workspace / "run.jsonl").read_text().splitlines()]
    assert [row["result"] for row in rows] == ["safe", "safe", "unsafe", "unsafe", "safe"]
    assert rows[3]["verdict"] == "misclassified"
    assert (rows[0]["model"], rows[0]["data"]) == ("photo_networks:brightness", "photos")
    with (workspace / "run.csv").open() as stream:
        assert [row["result"] for row in csv.DictReader(stream)] == [row["result"] for row in rows]


def test_results_of_a_regression_run(tiltproof, certify, workspace):
    """The first image has the mean 230/255 and the label 1: 0.15 away at most, 0.05 at least."""
    assert certify("--task", "regression", "--out", "ranges", model=ONE, transform="B(0.05)").exit_code == 0
    for tolerance, word in (("0.15", "safe"), ("0.1", "unsafe"), ("0.04", "unsafe")):
        assert tiltproof("export", "ranges", "--jsonl", "r.jsonl", "--tolerance", tolerance).exit_code == 0
        rows = [json.loads(line) for line in (workspace / "r.jsonl").read_text().splitlines()]
        assert rows[0]["result"] == word
    result = tiltproof("export", "ranges", "--vnnlib", "--model", ONE, "--data", "photos", "--out", "p")
    assert result.exit_code == 2
    assert "ranges of outputs" in result.stderr


def test_properties_of_chosen_images(tiltproof, workspace):
    result = tiltproof(*VNNLIB, "--transform", "B(0.2)", "--images", "4,0-1", "--splits", 2, "--out", "p")
    assert result.exit_code == 0, result.output
    assert "6 properties of 3 images" in result.stdout
    rows = [json.loads(line) for line in (workspace / "p" / "boxes.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == [4, 4, 0, 0, 1, 1]
    assert [row["label"] for row in rows] == [0, 0, 1, 1, 0, 0]
    assert len((workspace / "p" / "1.0" / "instances.csv").read_text().splitlines()) == 6


@pytest.mark.usefixtures("run")
def test_properties_of_a_run(tiltproof, workspace):
    assert tiltproof(*VNNLIB, "run", "--out", "p", "--quiet").output == ""
    rows = [json.loads(line) for line in (workspace / "p" / "boxes.jsonl").read_text().splitlines()]
    assert {row["image"] for row in rows} == {0, 1, 4}, "the certified ones"
    assert tiltproof(*VNNLIB, "run", "--images", "1", "--out", "q").exit_code == 0
    result = tiltproof(*VNNLIB, "run", "--images", "2", "--out", "r")
    assert result.exit_code == 2
    assert "verdict falsified" in result.stderr


BAD = [
    (["export"], "nothing to write"),
    (["export", "run"], "nothing to write"),
    (["export", "--csv", "x.csv"], "exported from a run"),
    (["export", "photos", "--csv", "x.csv"], "no run folder"),
    (["export", "run", "--csv", "photos/labels.csv/x.csv"], "cannot be written"),
    (["export", "run", "--csv", "-", "--jsonl", "-"], "one of"),
    (["export", "run", "--csv", "x.csv", "--tolerance", "1"], "regression"),
    (["export", "run", "--csv", "x.csv", "--splits", "3"], "--splits has no meaning without --vnnlib"),
    (["export", "run", "--vnnlib"], "--model, --data and --out"),
    (["export", "run", "--csv", "x.csv", *VNNLIB[2:4]], "--model and --data"),
    (["export", "run", "--csv", "x.csv", *VNNLIB[4:]], "--model and --data"),
    (["export", "run", "--csv", "x.csv", *VNNLIB[2:4], "--data", "mnist-sample"], "not the run's"),
    ([*VNNLIB, "--transform", "B(0.2)", "--out", "p"], "--images is missing"),
    ([*VNNLIB, "--images", "0", "--out", "p"], "--transform is missing"),
    ([*VNNLIB, "--transform", "B(0.2)", "--images", "0,9", "--out", "p"], "numbers from 0 to 4"),
    ([*VNNLIB, "--transform", "B(0.2)", "--images", "1,0-2", "--out", "p"], "twice"),
    ([*VNNLIB, "--transform", "B(0.2)", "--images", "x", "--out", "p"], "numbers from 0 to 4"),
    ([*VNNLIB, "--transform", "B(0.2)", "--images", "0", "--out", "photos"], "new folder"),
    ([*VNNLIB, "run", "--splits", "3", "--out", "p"], "--splits has no meaning with a run"),
    ([*VNNLIB, "run", "--images", "7", "--out", "p"], "numbers from 0 to 4"),
    (["export", "--vnnlib", "run", "--model", "photo_networks:darkness", "--data", "photos", "--out", "p"], "weights"),
]


@pytest.mark.usefixtures("run")
def test_what_is_misclassified_is_confirmed_or_unknown(tiltproof, workspace):
    result = tiltproof("export", "run", "--jsonl", "run.jsonl")
    assert (result.exit_code, result.stdout) == (0, "run.jsonl: 5 rows\n")
    assert result.stderr.startswith("notice: 1 misclassified image is exported as unknown")
    assert "give --model and --data" in result.stderr
    words = [json.loads(line)["result"] for line in (workspace / "run.jsonl").read_text().splitlines()]
    assert words == ["safe", "safe", "unsafe", "unknown", "safe"]
    assert tiltproof("export", "run", "--jsonl", "run.jsonl", "--quiet").output == ""
    result = tiltproof("export", "run", "--jsonl", "run.jsonl", *VNNLIB[2:], "--vnnlib", "--out", "p")
    assert result.exit_code == 0
    assert json.loads((workspace / "run.jsonl").read_text().splitlines()[3])["result"] == "unsafe"


@pytest.mark.usefixtures("run")
def test_a_dash_is_standard_output(tiltproof, workspace):
    result = tiltproof("export", "run", "--csv", "-", "--jsonl", "new/run.jsonl", *VNNLIB[2:])
    assert (result.exit_code, result.stderr) == (0, "")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert [row["result"] for row in rows] == ["safe", "safe", "unsafe", "unsafe", "safe"]
    assert len((workspace / "new" / "run.jsonl").read_text().splitlines()) == 5
    result = tiltproof(*VNNLIB, "run", "--out", "p", "--jsonl", "-")
    assert [json.loads(line)["image"] for line in result.stdout.splitlines()] == [0, 1, 2, 3, 4]
    assert not (workspace / "-").exists()


@pytest.mark.usefixtures("run")
def test_bad_input(tiltproof, workspace):
    for arguments, said in BAD:
        result = tiltproof(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert said in result.stderr, arguments
    assert not (workspace / "p").exists()
    assert not (workspace / "x.csv").exists()


@pytest.mark.usefixtures("run")
def test_junit(tiltproof, workspace):
    """A test case per image; the counterexample is in the failure's message."""
    result = tiltproof("export", "run", "--junit", "run.xml")
    assert (result.exit_code, result.stdout) == (0, "run.xml: 5 rows\n")
    suite = ElementTree.parse(workspace / "run.xml").getroot().find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "2", "errors": "0", "skipped": "0",
    }  # fmt: skip
    assert suite.get("name") == "photos B(0.2)"
    assert {each.get("name"): each.get("value") for each in suite.iter("property")}["semantics"] == "real"
    failed = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert [name for name, failure in failed.items() if failure is not None] == ["image 2", "image 3"]
    assert [failed[name].get("type") for name in ("image 2", "image 3")] == ["falsified", "misclassified"]
    assert failed["image 2"].get("message").startswith("falsified: counterexample [-0.")
    assert float(suite.get("time")) >= 0
    assert tiltproof("export", "run", "--junit", "-").stdout == (workspace / "run.xml").read_text()


def test_junit_of_ranges(tiltproof, certify, workspace):
    assert certify("--out", "run", "--quiet", "--task", "regression", model=ONE).exit_code == 0
    assert tiltproof("export", "run", "--junit", "run.xml", "--tolerance", "0.3").exit_code == 0
    suite = ElementTree.parse(workspace / "run.xml").getroot().find("testsuite")
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["image 2", "image 3"]  # means of 0.588 and 0.392, to be 1


@pytest.mark.usefixtures("run")
def test_names_cannot_break_the_xml(tiltproof, workspace):
    (workspace / "<&\"'>").symlink_to(workspace / "photos")
    text = tiltproof("certify", "--model", "photo_networks:brightness", "--data", "<&\"'>", "--transform", "B(0.2)",
                     "--out", "odd")  # fmt: skip
    assert text.exit_code == 0
    assert tiltproof("export", "odd", "--junit", "odd.xml").exit_code == 0
    assert ElementTree.parse(workspace / "odd.xml").getroot()[0].get("name") == "<&\"'> B(0.2)"


@pytest.fixture
def mlflow(monkeypatch):
    """A module that records what it is told."""
    module, told = ModuleType("mlflow"), []
    module.told, module.active_run = told, lambda: None
    module.start_run = lambda run_name: (
        told.append(("start", run_name)) or SimpleNamespace(info=SimpleNamespace(run_id="7e"))
    )
    for name in ("log_params", "log_metrics", "log_artifacts"):
        setattr(module, name, lambda *values, name=name, **_: told.append((name, *values)))
    module.end_run = lambda: told.append(("end",))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


@pytest.mark.usefixtures("run")
def test_mlflow(tiltproof, mlflow):
    result = tiltproof("export", "run", "--mlflow")
    assert (result.exit_code, result.stdout) == (0, "run: logged as MLflow run 7e\n")
    assert [each[0] for each in mlflow.told] == ["start", "log_params", "log_metrics", "log_artifacts", "end"]
    assert mlflow.told[0][1] == mlflow.told[3][1] == "run"
    parameters, metrics = mlflow.told[1][1], mlflow.told[2][1]
    assert parameters["transform"] == "B(0.2)"
    assert parameters["model"] == "photo_networks:brightness"
    assert max(map(len, parameters.values())) <= 250
    assert (metrics["certified"], metrics["images"], metrics["certified_percent"]) == (3.0, 5.0, 60.0)
    mlflow.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="of mine"))
    mlflow.told.clear()
    assert "of mine" in tiltproof("export", "run", "--mlflow").stdout
    assert [each[0] for each in mlflow.told] == ["log_params", "log_metrics", "log_artifacts"]


@pytest.mark.usefixtures("run")
def test_mlflow_that_refuses_or_is_missing(tiltproof, mlflow, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no server")

    mlflow.log_params = refuse
    result = tiltproof("export", "run", "--mlflow")
    assert result.exit_code == 2
    assert "MLflow refused the run. Got: ConnectionError: no server" in result.stderr
    assert mlflow.told[-1] == ("end",)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    result = tiltproof("export", "run", "--mlflow")
    assert result.exit_code == 2
    assert "MLflow is not installed" in result.stderr
    assert "pip install mlflow" in result.stderr
