"""`tiltproof report` and `certify --curve` on the small images: exit codes, output files, refusals."""

import json
import re

import pytest


@pytest.fixture
def run(certify):
    assert certify("--out", "run", "--curve", "--quiet").exit_code == 0


def report(tiltproof, *arguments, model="photo_networks:brightness", data="photos"):
    return tiltproof("report", "run", "--model", model, "--data", data, *arguments)


@pytest.mark.usefixtures("run")
def test_it_writes_one_file(tiltproof, workspace):
    result = report(tiltproof)
    assert result.exit_code == 0, result.output
    assert "run/report.html" in result.output
    page = (workspace / "run" / "report.html").read_text(encoding="utf-8")
    assert "For 3 of the 5 images (60.00\u00a0%), it is proved" in page
    assert "every change of brightness between -0.2 and 0.2 units of pixel value" in page
    assert 'id="detail-4"' in page
    assert report(tiltproof, "--out", "new/folder/else.html", "--quiet").output == ""
    assert (workspace / "new" / "folder" / "else.html").exists()


@pytest.mark.usefixtures("run")
def test_the_curve_is_in_the_folder_and_in_the_page(tiltproof, workspace):
    points = json.loads((workspace / "run" / "curve.json").read_text())["points"]
    assert points[-1] == {
        "share": 1.0,
        "transform": "B(0.2)",
        "certified": 3,
        "falsified": 1,
        "unknown": 0,
        "misclassified": 1,
    }
    assert points[0]["certified"] == 4
    report(tiltproof)
    page = (workspace / "run" / "report.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))
    assert [point["share"] for point in data["curve"]][:2] == [0, 0.1]
    assert tiltproof("check", "run", "--model", "photo_networks:brightness", "--data", "photos").exit_code == 0


def test_the_curve_needs_a_folder_and_classes(certify):
    result = certify("--curve")
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert certify("--curve", "--out", "run", "--task", "regression").exit_code == 2


@pytest.mark.usefixtures("run")
def test_what_is_not_the_runs_is_refused(tiltproof, workspace):
    result = report(tiltproof, model="photo_networks:darkness")
    assert result.exit_code == 2
    assert "weights are not those of the run" in result.stderr
    result = report(tiltproof, data="mnist-sample")
    assert result.exit_code == 2
    assert "not the run's" in result.stderr
    assert tiltproof("report", "photos").exit_code == 2
    assert report(tiltproof, "--out", "photos/labels.csv/page.html").exit_code == 2
    assert report(tiltproof, "--details", -1).exit_code == 2
    assert not (workspace / "run" / "report.html").exists()


@pytest.mark.usefixtures("run")
def test_notes_choose_data_but_never_code(tiltproof, workspace):
    result = tiltproof("report", "run")
    assert result.exit_code == 0
    assert "no bundled model and no weight file" in result.stderr
    page = (workspace / "run" / "report.html").read_text(encoding="utf-8")
    assert "No model was given" in page
    assert "data:image/png" in page, "the folder of photos was found"


@pytest.mark.usefixtures("run")
def test_a_stale_curve_is_left_out(tiltproof, certify, workspace):
    assert certify("--out", "run", "--overwrite", "--samples", 30, "--quiet", "--end", 4).exit_code == 0
    report(tiltproof)
    page = (workspace / "run" / "report.html").read_text(encoding="utf-8")
    assert "belongs to other verdicts" in page
