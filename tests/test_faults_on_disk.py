"""Errors in the middle of writing: whatever is raised at whichever call, the same command resumes and ends undisturbed.

Covers runs, curves, reports and training checkpoints. `tests/verify/test_faults.py` covers the steps of a search.
"""

import functools
import importlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support import digits, small_regression, tiny_training
from tests.support.faults import Fault, counted, sampled
from tiltproof import Attack, Execution, InputError, RunFolder, certify, certify_range
from tiltproof.checker import check
from tiltproof.reports import report
from tiltproof.runs.curve import CURVE, certified_curve, write_curve
from tiltproof.runs.folder import StoredRun
from tiltproof.training import train
from tiltproof.verify.batch import Run

run_folder = importlib.import_module("tiltproof.runs.folder")
writing = importlib.import_module("tiltproof.runs.atomic_io")
checkpoint = importlib.import_module("tiltproof.training.checkpoint")
training_loop = importlib.import_module("tiltproof.training.loop")
ERRORS = (OSError, MemoryError, KeyboardInterrupt)
RANGE = "R(8), B(0.02)"
SHORT = 2
"""How many calls of each function fail in the short tests, each with another error; in the long ones all fail, with every error."""


def cases(functions):
    """Return function, error and whether it fails before or after the call; a third of them in the short tests."""
    for number, (owner, name) in enumerate(functions):
        for k, (error, after) in enumerate((error, after) for after in (False, True) for error in ERRORS):
            short = k == (2 * number) % 6
            mark = [] if short else [pytest.mark.slow]
            when = "after" if after else "before"
            yield pytest.param(
                owner, name, error, after, short, marks=mark, id=f"{error.__name__} {when} {owner.__name__}.{name}"
            )


def images_of(count=6):
    model, images, labels = digits.problem()
    return model, images[:count], labels[:count]


def certified(folder, resume=False):
    return certify(
        *images_of(), RANGE, execution=Execution(batch_size=2, batch_images=2), run=RunFolder(folder, resume=resume)
    )


def bounded(folder, resume=False):
    return certify_range(
        small_regression.network(),
        small_regression.some_images(4),
        None,
        "R(10)",
        attack=Attack(samples=4),
        execution=Execution(batch_images=2),
        run=RunFolder(folder, resume=resume),
    )


WRITERS = [
    (os, "fsync"), (os, "replace"), (Path, "replace"), (json, "dumps"), (run_folder, "replace_bytes"), (StoredRun, "append"),
    (StoredRun, "_look"), (StoredRun, "_agree"), (StoredRun, "finish"), (Run, "append"), (Run, "work"), (writing, "lock"), (io, "open"),
    (os, "open"), (run_folder, "graph_digest"), (run_folder, "_seal"),
]  # fmt: skip


KINDS = {"classes": certified, "ranges": bounded}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the evidence of undisturbed runs, and how often each of the functions is called in them."""
    folder = tmp_path_factory.mktemp("whole")
    for kind, work in KINDS.items():  # the first run of a process calls more
        work(folder / kind)
    calls = {kind: counted(WRITERS, functools.partial(work, folder / f"{kind} again")) for kind, work in KINDS.items()}
    return {kind: digits.evidence(folder / kind) for kind in KINDS}, calls


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):  # noqa: ARG001 - the first run of a process calls more
    """Return the folder of a run that was stopped midway, and how often its resumption calls each of the functions."""
    folder = tmp_path_factory.mktemp("stopped")

    def progress(state):
        if state.done > 2:  # a batch is reported before it is on disk: now the first one is
            raise KeyboardInterrupt

    execution = Execution(batch_size=2, batch_images=2)
    with pytest.raises(KeyboardInterrupt):
        certify(*images_of(), RANGE, execution=execution, run=RunFolder(folder / "run"), progress=progress)
    shutil.copytree(folder / "run", folder / "counted")
    return folder / "run", counted(WRITERS, lambda: certified(folder / "counted", resume=True))


def disturbed(work, folder, owner, name, error, after, call):
    """Run with a fault, then resume as often as the command asks to be repeated; return whether there was a fault."""
    with Fault(owner, name, call, error, after) as fault:
        try:
            work(folder)
        except (InputError, *ERRORS):
            pass
    work(folder, resume=True)
    return fault.calls >= call


@pytest.mark.parametrize(("owner", "name", "error", "after", "short"), cases(WRITERS))
@pytest.mark.parametrize("kind", ["classes", "ranges"])
def test_a_run_goes_on_from_whatever_was_raised(kind, owner, name, error, after, short, whole, tmp_path):
    work, evidence, calls = KINDS[kind], whole[0][kind], whole[1][kind][owner, name]
    if not calls:
        pytest.skip("only called where something was there before")
    for call in sampled(calls, SHORT if short else calls):
        folder = tmp_path / str(call)
        assert disturbed(work, folder, owner, name, error, after, call)
        assert digits.evidence(folder) == evidence, (call, calls)
        assert sorted(path.name for path in folder.iterdir()) == sorted(run_folder_names())
        if kind == "classes" and call == 1:
            assert check(folder, *images_of()).images == 6


def run_folder_names():
    return ["manifest.json", "verdicts.jsonl", "batches.jsonl", "summary.json"]


@pytest.mark.parametrize(("owner", "name", "error", "after", "short"), cases(WRITERS))
def test_a_run_that_is_resumed_may_fail_again(owner, name, error, after, short, whole, stopped, tmp_path):
    """A fault during the resumption of a run that was stopped midway."""
    midway, calls = stopped[0], stopped[1][owner, name]
    for call in sampled(calls, SHORT if short else calls):
        folder = tmp_path / str(call)
        shutil.copytree(midway, folder)
        with Fault(owner, name, call, error, after):
            try:
                certified(folder, resume=True)
            except (InputError, *ERRORS):
                pass
        certified(folder, resume=True)
        assert digits.evidence(folder) == whole[0]["classes"]


PAGES = [(os, "fsync"), (Path, "replace"), (json, "dumps"), (io, "open"), (writing, "replace_bytes")]


@pytest.mark.parametrize(("owner", "name", "error", "after", "short"), cases(PAGES))
def test_a_report_and_a_curve_are_old_or_new(owner, name, error, after, short, tmp_path):
    model, images, labels = images_of()
    certificate = certified(tmp_path)
    points = certified_curve(model, images, labels, RANGE, certificate, shares=(0.5, 1.0))

    def both():
        write_curve(tmp_path, points, began=0.0)
        return report(tmp_path, model, images, labels, details=1)

    def read():
        content = json.loads((tmp_path / CURVE).read_text())
        return (tmp_path / "report.html").read_bytes(), content["points"]

    both()
    before = read()
    with Fault(owner, name, 0, error, after) as counted:
        both()
    for call in sampled(counted.calls, SHORT if short else counted.calls):
        with Fault(owner, name, call, error, after):
            try:
                both()
            except (InputError, *ERRORS):
                pass
        assert read() == before, "it is the old one or a new one, and both say the same"
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing half written stays"
        both()
        assert read() == before


CHECKPOINTS = [
    (os, "fsync"),
    (Path, "replace"),
    (json, "dumps"),
    (checkpoint, "replace_bytes"),
    (checkpoint, "save"),
    (io, "open"),
]


def trained(folder, resume=False):
    recipe = tiny_training.make_recipe(folder.parent, "train.epochs=2", "data.hold_out=0")
    return train(recipe, out=folder, resume=resume, **tiny_training.DIGITS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the network of an undisturbed training, and how often it calls each of the functions."""
    folder = tmp_path_factory.mktemp("trained")
    model = trained(folder / "run").model
    return model, counted(CHECKPOINTS, lambda: trained(folder / "counted"))


@pytest.mark.parametrize(("owner", "name", "error", "after", "short"), cases(CHECKPOINTS))
def test_a_training_goes_on_from_whatever_was_raised(owner, name, error, after, short, undisturbed, tmp_path):
    weights, calls = undisturbed[0], undisturbed[1][owner, name]
    for call in sampled(calls, SHORT if short else calls):
        folder = tmp_path / str(call)
        with Fault(owner, name, call, error, after):
            try:
                trained(folder)
            except (InputError, *ERRORS):
                pass
        again = trained(folder, resume=True)
        assert again.finished
        assert tiny_training.same_weights(weights, again.model), (call, calls)
