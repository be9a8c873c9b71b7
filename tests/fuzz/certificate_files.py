"""Damaged run folders, read by the checker and by a run that is to be resumed."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from tiltproof import BranchAndBound, Execution, InputError, RunFolder, certify
from tiltproof.checker import CheckFailed
from tiltproof.checker.folder import read_run
from tiltproof.runs.folder import RUN_FILES, StoredRun
from tiltproof.runs.manifest import claim
from tiltproof.verify.api import certify_range
from tiltproof.verify.inputs import Inputs, check_inputs, proof_on
from tiltproof.verify.options import Settings

BUDGET = BranchAndBound(max_boxes=40)


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor, str]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    images = torch.rand(6, 1, 2, 3)
    labels = model(images).argmax(1)
    labels[0] = 1 - labels[0]
    return model, images, labels, "R(20), C(3)"


@functools.cache
def run_files(task: str) -> dict[str, bytes]:
    """Return a real run of three batches; for regression, with two outputs and the first output's target values as labels."""
    model, images, labels, transform = problem()
    with tempfile.TemporaryDirectory() as folder:
        if task == "regression":
            values = torch.stack([labels, -labels], 1)
            certify_range(
                model,
                images,
                values,
                transform,
                search=BUDGET,
                execution=Execution(batch_size=2),
                run=RunFolder(folder),
            )
        else:
            certify(
                model,
                images,
                labels,
                transform,
                search=BUDGET,
                execution=Execution(batch_size=2),
                run=RunFolder(folder),
            )
        return {name: (Path(folder) / name).read_bytes() for name in RUN_FILES}


def check(path: Path, task: str = "classification") -> None:
    """Check the damaged folder, and again after a forger has recomputed all digests."""
    for name, content in run_files(task).items():
        if name != path.name:
            (path.parent / name).write_bytes(content)
    with suppress(CheckFailed):
        read_run(path.parent)
    reseal(path.parent)
    try:
        read_run(path.parent)
    except CheckFailed as failure:
        raise InputError(str(failure)) from None


def check_ranges(path: Path) -> None:
    check(path, "regression")


def reseal(folder: Path) -> None:
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError):
        verdicts = (folder / "verdicts.jsonl").read_bytes()
        entry = json.loads((folder / "batches.jsonl").read_bytes().splitlines()[0])
        sealed = {
            "batch": 0,
            "images": len(verdicts.splitlines()),
            "bytes": len(verdicts),
            "sha256": hashlib.sha256(verdicts).hexdigest(),
        }
        (folder / "batches.jsonl").write_text(json.dumps(entry | sealed) + "\n")
        summary = json.loads((folder / "summary.json").read_bytes())
        for name in summary["files"]:
            summary["files"][name] = hashlib.sha256((folder / Path(name).name).read_bytes()).hexdigest()
        (folder / "summary.json").write_text(json.dumps(summary))


@functools.cache
def checked() -> Inputs:
    return check_inputs(*problem())


def resume(path: Path) -> None:
    """Resume: a damaged run is either refused or continues from whole batches of the real run."""
    for name, content in run_files("classification").items():
        if name != path.name:
            (path.parent / name).write_bytes(content)
    settings = Settings(search=BUDGET)
    plan = {"pairs_at_once": 2, "images_per_batch": 2}
    about = claim(checked(), 0, labels=checked().labels.tolist())
    with proof_on(checked().images), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is damaged; it is proved again")  # which the user is told, once
        run = StoredRun(path.parent, checked(), about, settings.record(), plan, {}, resume=True)
    try:
        true = [json.loads(line) for line in run_files("classification")["verdicts.jsonl"].splitlines()]
        kept = json.loads(json.dumps([result.record() for result in run.results]))
        assert kept == true[: len(kept)]
        if len(kept) < len(true):
            raise InputError("batches were lost to the damage")
    finally:
        run.close()
