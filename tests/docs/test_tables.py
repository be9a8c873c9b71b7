"""Every table of measurements has a file with commit, date and machine, a page that shows it, and a command that reproduces it."""

import json
import re
import runpy
from datetime import date

import docs_pages
import docs_tables
import pytest

import tiltproof
from tests.support.processes import ROOT
from tiltproof.runs.reader import read_finished

pytestmark = pytest.mark.skipif(not docs_tables.RESULTS.exists(), reason="not in a source checkout")
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def commands():
    """The text of each section of the page of commands, by its anchor."""
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-"): body for title, body in SECTION.findall(text)}


@pytest.mark.parametrize("name", docs_tables.names())
def test_a_file_says_where_its_figures_are_from(name, commands):
    data = docs_tables.read(name)
    assert set(data) == docs_tables.KEYS
    assert data["rows"]
    assert all(len(row) == len(data["columns"]) for row in data["rows"])
    assert all(isinstance(cell, str) for row in data["rows"] for cell in row)
    assert data["machine"]
    assert (ROOT / data["program"]).exists()
    assert f"python {data['program']}" in commands[data["reproduce"]]
    for entry in data["recorded"]:
        assert re.fullmatch(r"[0-9a-f]{8}", entry["commit"])
        assert date(2026, 11, 1) <= date.fromisoformat(entry["date"]) <= date.today()


def test_every_file_is_shown_and_every_measured_table_is_from_a_file():
    marks = [mark for path in docs_pages.PAGES for mark in docs_pages.MARK.findall(path.read_text(encoding="utf-8"))]
    assert {arguments.split()[0] for kind, arguments, _ in marks if kind == "table"} == set(docs_tables.names())
    for page in ("benchmarks", "speed", "ablations", "board"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert "|---" not in docs_pages.MARK.sub("", text), f"a table of {page}.md is written by hand"


def test_the_date_of_a_table_in_words():
    data = docs_tables.read("reference-networks") | {
        "recorded": [{"commit": "0" * 8, "date": f"2026-11-{day}"} for day in ("05", "16")]
    }
    assert docs_tables.measured(data).startswith(
        "*5 to 16 November 2026, `00000000`, `00000000`; one H200; [`reference_networks.py`]"
    )


def test_the_rows_of_the_board_can_be_right():
    rows = json.loads((docs_tables.RESULTS / "board.json").read_text(encoding="utf-8"))
    assert len({(row["network"], row["origin"], row["data"], row["transform"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["certified"] <= row["unfalsified"] <= row["correct"] <= row["images"], row
        assert row["unfalsified"] - row["certified"] == row["unknown"], row
        assert re.fullmatch(r"[0-9a-f]{64}|", row["run"])
        assert row["run"] or not row["checked"], "only a run that was kept can be checked"
        tiltproof.parse(row["transform"])


def test_the_board_has_the_runs_that_it_names():
    rows = json.loads((docs_tables.RESULTS / "board.json").read_text(encoding="utf-8"))
    folders = [read_finished(path) for path in sorted((docs_tables.RESULTS / "runs").iterdir())]
    runs = {run.digest: run for run in folders}
    assert {row["run"] for row in rows if row["run"]} == set(runs)
    for row in (row for row in rows if row["run"]):
        summary = runs[row["run"]].summary
        assert all(
            row[key] == summary[key]
            for key in ("images", "correct", "certified", "unfalsified", "unknown", "transform")
        )
        assert row["weights"] == runs[row["run"]].claim["weights_sha256"]


def test_a_run_folder_becomes_a_row(tmp_path, monkeypatch):
    board = runpy.run_path(str(ROOT / "benchmarks" / "board.py"))
    model = tiltproof.models.load("mnist-r30")
    images, labels = tiltproof.data.load("mnist-sample")
    certificate = tiltproof.certify(model, images[:2], labels[:2], "R(1)", run=tiltproof.RunFolder(tmp_path / "run"))
    run = read_finished(tmp_path / "run")
    row = board["row"](run, "a network", "me")
    assert (row["images"], row["certified"], row["correct"]) == (2, certificate.count("certified"), 2)
    assert (row["run"], row["checked"], row["transform"]) == (run.digest, "", "R(1)")
    monkeypatch.setitem(board["add"].__globals__, "BOARD", tmp_path / "board.json")
    board["add"](tmp_path / "run", "a network", "me")
    tiltproof.check(tmp_path / "run", model, images[:2], labels[:2])
    board["add"](tmp_path / "run", "a network", "me")
    (kept,) = json.loads((tmp_path / "board.json").read_text())
    assert kept["run"] == run.digest
    monkeypatch.setattr(docs_tables, "RESULTS", tmp_path)
    assert f"`{run.digest[:12]}`" in docs_tables.board()
    assert "| a network (me) |" in docs_tables.board()
