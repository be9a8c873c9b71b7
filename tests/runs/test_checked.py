"""The result of a check beside its run: kept, shown only where it fits, forgotten with the run."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import torch
from torch import nn

from tiltproof import RunFolder, certify, check
from tiltproof.runs import checked as module
from tiltproof.runs.checked import COUNTS, Checked, read_checked, run_digest, write_checked
from tiltproof.runs.reader import read_finished


@pytest.fixture
def run(tmp_path):
    """Return a finished run of two images, one of them falsified, and a function that repeats it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    images = torch.rand(3, 1, 4, 4)
    labels = model(images).argmax(1)

    def again(**how):
        return certify(model, images, labels, "B(0.01)", run=RunFolder(tmp_path / "run", **how))

    again()
    return tmp_path / "run", model, images, labels, again


def result_of(run, **changes):
    folder, model, images, labels, _ = run
    report = check(folder, model, images, labels, sample=changes.pop("sample", None))
    found = {name: getattr(report, name) for name in (*COUNTS, "seconds", "sampled")}
    return Checked(**({"holds": True} | found | changes))


def test_it_is_kept_and_read(run):
    folder = run[0]
    assert read_finished(folder).checked is None
    assert write_checked(folder, run_digest(folder), result_of(run, by="<b>A</b>")) is None
    found = read_finished(folder)
    assert found.checked.by == "<b>A</b>"
    assert found.checked.holds
    assert abs(datetime.now(UTC) - found.checked.on) < timedelta(minutes=5)
    assert found.notices == []
    assert found.digest == run_digest(folder)
    assert datetime.fromisoformat(found.began) <= found.checked.on


def test_the_digest_does_not_change_when_a_finished_run_is_resumed(run):
    folder, *_, again = run
    write_checked(folder, run_digest(folder), result_of(run))
    again(resume=True)
    assert read_finished(folder).checked is not None
    again(overwrite=True)
    assert not (folder / "check.json").exists(), "the result of another run"


def test_a_sample_does_not_replace_a_complete_check(run):
    folder = run[0]
    sampled = result_of(run, sample=1)
    assert write_checked(folder, run_digest(folder), sampled) is None
    assert read_finished(folder).checked.sampled
    write_checked(folder, run_digest(folder), result_of(run))
    write_checked(folder, run_digest(folder), sampled)
    assert not read_finished(folder).checked.sampled
    write_checked(folder, run_digest(folder), Checked(False, reason="no"))
    assert not read_finished(folder).checked.holds


TOMORROW = (datetime.now(UTC) + timedelta(days=3)).isoformat()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run_sha256": "0" * 64}, "another run"),
        ({"checker": {"tiltproof": "0.1.0", "source_sha256": "0"}}, "another version"),
        ({"checker": None}, "another version"),
        ({"certified": 2}, "counts"),
        ({"images": 4}, "counts"),
        ({"counterexamples": 1}, "counts"),
        ({"images": 3, "sampled": True}, "counts"),
        ({"checked": TOMORROW}, "damaged"),
        ({"checked": "2026-01-01T00:00:00"}, "damaged"),
        ({"checked": 5}, "damaged"),
        ({"boxes": -1}, "damaged"),
        ({"boxes": True}, "damaged"),
        ({"holds": 1}, "damaged"),
        ({"version": 2}, "damaged"),
    ],
)
def test_what_does_not_fit_is_left_out_and_said(run, change, why):
    folder = run[0]
    write_checked(folder, run_digest(folder), result_of(run))
    path = folder / "check.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found = read_finished(folder)
    assert found.checked is None
    assert why in found.notices[0]
    assert "was left out" in found.notices[0]


def test_another_checker_does_not_count(run, monkeypatch):
    folder = run[0]
    write_checked(folder, run_digest(folder), result_of(run))
    monkeypatch.setattr(module, "source_digest", lambda *_: "another")
    assert read_finished(folder).checked is None


def test_nothing_is_written_over_or_about_another_run(run, tmp_path):
    folder, found = run[0], result_of(run)
    assert "changed" in write_checked(folder, "0" * 64, found)
    (folder / "check.json").write_text("my notes")
    assert "another program" in write_checked(folder, run_digest(folder), found)
    assert (folder / "check.json").read_text() == "my notes"
    assert "damaged" in read_checked(folder, run_digest(folder), 3, 3, 0)
    (folder / "check.json").unlink()
    (folder / "check.json").symlink_to(tmp_path / "elsewhere")
    assert write_checked(folder, run_digest(folder), found) is not None
    assert not (tmp_path / "elsewhere").exists()
