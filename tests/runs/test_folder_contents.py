"""A run writes only its own files: anything else in the folder is kept, and a failed start can be repeated."""

import functools
import os
import sys
from contextlib import closing

import pytest

from tests.support.digits import problem
from tiltproof import Execution, InputError, RunFolder, Verdict, certify
from tiltproof.runs.curve import CurvePoint, write_curve
from tiltproof.runs.folder import StoredRun
from tiltproof.runs.manifest import claim
from tiltproof.verify.inputs import check_inputs, proof_on
from tiltproof.verify.results import ImageResult

FOREIGN = {
    "manifest.json": '{"name": "my web app", "icons": []}',
    "verdicts.jsonl": '{"case": "The people v. X"}\n',
    "batches.jsonl": "coffee roasts\n",
    "summary.json": '{"thesis": "three years of work"}',
}
OPTIONS = {"nothing": {}, "resume": {"resume": True}, "overwrite": {"overwrite": True}}


@functools.cache
def checked():
    model, images, labels = problem()
    return check_inputs(model, images[:2], labels[:2], "R(1)")


def opened(folder, seed=0, resume=False, overwrite=False):
    """Open the run folder of two images as `certify` does."""
    about = claim(checked(), 0, labels=checked().labels.tolist())
    plan = {"pairs_at_once": 1, "images_per_batch": 1}
    with proof_on(checked().images):
        return StoredRun(folder, checked(), about, {"seed": seed}, plan, {}, resume, overwrite)


def run(folder, **options):
    """Do a whole run; return its number of results."""
    with closing(opened(folder, **options)) as whole:
        for k in range(len(whole.results), 2):
            whole.append([ImageResult(k, 0, Verdict.UNKNOWN, -1.0, None, None, None, None, 1, 0.1)], (1,), "cpu", 0.1)
        whole.finish({"images": 2})
        return len(whole.results)


def contents(folder):
    return {
        path.name: path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in folder.iterdir()
    }


def refused(folder, words, **options):
    """Assert that the run is refused with these words in the message, and that nothing in the folder has changed."""
    before = contents(folder)
    with pytest.raises(InputError, match=words) as caught:
        run(folder, **options)
    assert contents(folder) == before
    return str(caught.value)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("names", [tuple(FOREIGN), *((name,) for name in FOREIGN)], ids=" ".join)
def test_foreign_files_by_a_runs_names(tmp_path, names, option):
    for name in names:
        (tmp_path / name).write_text(FOREIGN[name])
    said = refused(tmp_path, "holds no run|not empty|not the manifest of a run", **OPTIONS[option])
    assert "--resume" not in said.partition("What to do")[2]
    assert "--overwrite" not in said.partition("What to do")[2]


@pytest.mark.parametrize("option", ["resume", "overwrite"])
@pytest.mark.parametrize("name", ["verdicts.jsonl", "batches.jsonl", "summary.json"])
def test_foreign_files_beside_a_runs_manifest(tmp_path, name, option):
    run(tmp_path)
    (tmp_path / name).write_text(FOREIGN[name])
    refused(tmp_path, f"{name} .*was not written by a run", **OPTIONS[option])


NEARLY = {
    "verdicts.jsonl": ['{"image": "cat.png", "label": 3}\n', '{"image": 1}\n{"image": 2}\n'],
    "batches.jsonl": ['{"batch": 1, "loss": 0.3}\n', '{"batch": []\n'],
    "summary.json": ['{"see": "batches.jsonl"}', '["files"]'],
}


@pytest.mark.parametrize("option", ["resume", "overwrite"])
@pytest.mark.parametrize(("name", "content"), [(name, each) for name, contents in NEARLY.items() for each in contents])
def test_foreign_files_that_begin_as_a_runs_do(tmp_path, name, content, option):
    run(tmp_path)
    (tmp_path / name).write_text(content)
    refused(tmp_path, f"{name} .*was not written by a run", **OPTIONS[option])


def test_verdicts_without_a_journal_are_not_replaced_unasked(tmp_path):
    run(tmp_path)
    for name in ("batches.jsonl", "summary.json"):
        (tmp_path / name).unlink()
    assert "--overwrite" in refused(tmp_path, "not empty.*a run")


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_a_file_with_two_names_is_not_written_to(tmp_path, name, option):
    """A backup made of hard links would change with it."""
    run(tmp_path / "run")
    (tmp_path / "backup").hardlink_to(tmp_path / "run" / name)
    refused(tmp_path / "run", f"{name} .*hard link", **OPTIONS[option])


@pytest.mark.parametrize("content", ["", "{", "[]", "\udcff", '{"format": "other"}', '{"format": ["tiltproof-run"]}'])
def test_a_manifest_that_is_no_runs(tmp_path, content):
    run(tmp_path)
    (tmp_path / "manifest.json").write_text(content, errors="surrogateescape")
    refused(tmp_path, "holds no run|damaged|not the manifest of a run", overwrite=True)
    refused(tmp_path, "holds no run|damaged|not the manifest of a run", resume=True)


def test_a_folder_without_a_run_is_nothing_to_resume_or_to_replace(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    refused(tmp_path, "holds no run.*thesis.txt", resume=True)
    refused(tmp_path, "holds no run.*thesis.txt", overwrite=True)
    assert "--resume" not in refused(tmp_path, "not empty.*thesis.txt")


def test_other_files_beside_a_run_are_left_alone(tmp_path):
    run(tmp_path)
    (tmp_path / "notes.txt").write_text("keep")
    (tmp_path / "images").mkdir()
    assert "--resume to go on" in refused(tmp_path, "not empty")
    run(tmp_path, resume=True)
    assert run(tmp_path, seed=1, overwrite=True) == 2
    assert (tmp_path / "notes.txt").read_text() == "keep"
    assert {path.name for path in tmp_path.iterdir()} == {*FOREIGN, "notes.txt", "images"}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_missing_and_an_empty_folder(tmp_path, option):
    for folder in (tmp_path / "new" / "folder", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        assert run(folder, **OPTIONS[option]) == 2


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("whole", [True, False], ids=["a run", "no run"])
def test_links_and_what_is_no_file(tmp_path, name, option, whole):
    folder, target = tmp_path / "run", tmp_path / "precious"
    folder.mkdir()
    if whole:
        run(folder)
        (folder / name).rename(target)
    else:
        target.write_text("precious")
    before = target.read_bytes()
    (folder / name).symlink_to(target)
    refused(folder, f"{name} .*symbolic link", **OPTIONS[option])
    assert target.read_bytes() == before
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "not there")
    refused(folder, f"{name} .*symbolic link", **OPTIONS[option])
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} .*not a regular file"):
        run(folder, **OPTIONS[option])


class Broken:
    """Workers of a cluster that goes away; meanwhile somebody writes a log into the run folder."""

    def __init__(self, log=None):
        self.log = log

    def connect(self):
        pass

    def work(self, *_):
        if self.log is not None:
            self.log.write_text("beside it")
        raise InputError("no cluster can be reached")
        yield


def test_a_start_that_failed_leaves_nothing(tmp_path):
    model, images, labels = problem()
    execution, run = Execution(workers=Broken()), RunFolder(tmp_path / "more" / "run")
    with pytest.raises(InputError, match="no cluster"):
        certify(model, images[:2], labels[:2], "R(1)", execution=execution, run=run)
    assert list(tmp_path.iterdir()) == []


def test_the_corrected_command_accepts_the_folder_of_a_start_that_failed(tmp_path):
    model, images, labels = problem()
    with pytest.raises(InputError, match="no cluster"):
        certify(
            model,
            images[:2],
            labels[:2],
            "R(1)",
            execution=Execution(workers=Broken(tmp_path / "run" / "log.txt")),
            run=RunFolder(tmp_path / "run"),
        )
    assert contents(tmp_path / "run").keys() == {"manifest.json", "verdicts.jsonl", "batches.jsonl", "log.txt"}
    assert len(certify(model, images[:2], labels[:2], "R(2)", run=RunFolder(tmp_path / "run")).results) == 2
    assert (tmp_path / "run" / "log.txt").read_text() == "beside it"


@pytest.mark.parametrize("option", OPTIONS)
def test_a_run_without_results_is_nothing_to_lose(tmp_path, option):
    opened(tmp_path).close()
    assert run(tmp_path, **OPTIONS[option]) == 2


def test_a_run_that_has_just_begun_elsewhere_is_not_taken_over(tmp_path):
    with closing(opened(tmp_path)):
        for options in OPTIONS.values():
            refused(tmp_path, "another process", seed=1, **options)


CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink")
"""The events that Python sends to an audit hook before it changes a file."""


def die_at(number, folder, options):
    """In a fork, open the run folder and die with code 9 before the change with this number; code 0 if there are fewer."""
    seen = 0

    def count(event, arguments):
        nonlocal seen
        inside = event in CHANGES and str(folder) in str(arguments[0])
        seen += inside
        if inside and seen == number:
            os._exit(9)

    child = os.fork()
    if child == 0:
        sys.addaudithook(count)
        try:
            opened(folder, **options)
            os._exit(0)
        finally:
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("before", "option"), [*(("nothing", option) for option in OPTIONS), ("a run", "resume"), ("a run", "overwrite")]
)
def test_killed_while_the_folder_is_made_the_same_command_still_works(tmp_path, option, before):
    deaths = 0
    for number in range(1, 100):
        folder = tmp_path / str(number)
        if before == "a run":
            run(folder)
        code = die_at(number, folder, OPTIONS[option])
        assert code in (0, 9)
        assert run(folder, **OPTIONS[option]) == 2
        assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == set(FOREIGN)
        if code == 0:
            break
        deaths += 1
    assert deaths >= 3, "changes of files were seen"


def test_a_foreign_curve(tmp_path):
    run(tmp_path)
    points = [CurvePoint(1.0, "R(1)", 2, 0, 0, 0)]
    write_curve(tmp_path, points, 0.0)
    write_curve(tmp_path, points, 0.0)
    (tmp_path / "curve.json").write_text("the learning curve of my class")
    with pytest.raises(InputError, match="curve.json .*not written by a run"):
        write_curve(tmp_path, points, 0.0)
    (tmp_path / "curve.json").rename(tmp_path / "elsewhere")
    (tmp_path / "curve.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="curve.json .*symbolic link"):
        write_curve(tmp_path, points, 0.0)
    assert (tmp_path / "elsewhere").read_text() == "the learning curve of my class"


def test_the_run_folder_does_not_follow_a_link_that_appears(tmp_path, monkeypatch):
    """It appears between the test and the opening."""
    look = StoredRun._look

    def look_and_link(folder, *arguments):
        found = look(folder, *arguments)
        (tmp_path / "run" / "verdicts.jsonl").symlink_to(tmp_path / "precious")
        return found

    (tmp_path / "precious").write_text("precious")
    monkeypatch.setattr(StoredRun, "_look", look_and_link)
    with pytest.raises(InputError, match="cannot be written"):
        run(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "precious"
