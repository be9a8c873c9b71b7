"""On a local cluster of two workers, one of them killed or not, a run ends as it does in a single process."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.support.digits import IMAGES, TRANSFORM, evidence, problem, run
from tests.support.processes import environment
from tests.support.small_regression import network, some_images
from tiltproof import Execution, InputError, RayWorkers, RunFolder, certify, certify_range, check
from tiltproof.cli import app
from tiltproof.distributed import ray_workers

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Start two workers; `auto` is the cluster that the process is connected to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        yield
        ray.shutdown()


def plain(certificate):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in certificate.records()]


def test_one_worker_killed(tmp_path, monkeypatch):
    """The evidence is that of a single process, the folder passes the check, and both report the same final progress."""
    started, reports = [], []
    start = ray_workers._WorkerPool.start

    def start_and_kill(crew, hand, task, *what):
        start(crew, hand, task, *what)
        started.append((hand.process, task.rows.start, task.scouting))
        if len(started) == 5:
            os.kill(hand.process, signal.SIGKILL)

    monkeypatch.setattr(ray_workers._WorkerPool, "start", start_and_kill)
    with pytest.warns(UserWarning, match="was lost; another one does its images"):
        shared = run(tmp_path / "shared", workers=RayWorkers("auto"), progress=reports.append)
    single = run(tmp_path / "single")
    assert evidence(tmp_path / "shared") == evidence(tmp_path / "single")
    assert plain(shared) == plain(single)
    without = {"seconds", "files"}
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("shared", "single")]
    assert len({json.dumps({k: v for k, v in each.items() if k not in without}) for each in summaries}) == 1
    proved = [start for _, start, scouting in started if not scouting]
    assert len(proved) == IMAGES // 2 + 1  # batches of two images, one of them twice
    assert sorted({*proved}) == list(range(0, IMAGES, 2))
    assert len({process for process, *_ in started}) >= 2
    done = [report.done for report in reports]
    assert done == sorted(done)
    assert done[-1] == IMAGES
    model, images, labels = problem()
    assert check(tmp_path / "shared", model, images, labels).certified == shared.summary()["certified"]


def test_the_command_with_regression_and_resumption(tmp_path, monkeypatch):
    """This process starts the run, and the cluster resumes it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("filename,label\n" + "".join(f"{k}.png,{k}\n" for k in range(4)))
    for k, image in enumerate(some_images(4)):
        Image.fromarray((image[0] * 255).byte().numpy()).save(f"{k}.png")
    command = [
        "certify",
        "--task",
        "regression",
        "--model",
        "tests.support.small_regression:network",
        "--data",
        ".",
        "--transform",
        "R(5)",
    ]
    command += ["--excess", "0.5", "--batch-images", "1", "--out", "run", "--device", "cpu"]
    begun = CliRunner().invoke(app, command)
    assert begun.exit_code == 0, begun.output
    single = evidence(tmp_path / "run")
    journal = tmp_path / "run" / "batches.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    result = CliRunner().invoke(app, [*command, "--resume", "--ray", "auto"])
    assert result.exit_code == 0, result.output
    assert len(journal.read_text().splitlines()) == 4
    assert evidence(tmp_path / "run") == single


def test_a_machine_with_another_version_is_not_used(monkeypatch):
    model, images, labels = problem()
    monkeypatch.setattr(ray_workers, "versions", lambda: {"tiltproof": "0.0.0"})
    with (
        pytest.warns(UserWarning, match="is not used"),
        pytest.raises(InputError, match="no worker for this run.*0.0.0"),
    ):
        certify(model, images, labels, TRANSFORM, execution=Execution(workers=RayWorkers("auto")))


def test_a_model_that_cannot_be_sent():
    model, images, labels = problem()
    model.lock = threading.Lock()
    with pytest.raises(InputError, match="cannot be sent.*lock"):
        certify(model, images, labels, TRANSFORM, execution=Execution(workers=RayWorkers("auto")))


def test_no_machine_has_a_gpu():
    model, images, labels = problem()
    with pytest.raises(InputError, match="no machine of the cluster has a GPU"):
        certify(model, images, labels, TRANSFORM, execution=Execution(workers=RayWorkers("auto", device="cuda")))


@pytest.mark.slow
def test_bad_input_that_a_worker_meets_is_bad_input_here():
    model = network()
    with torch.no_grad():
        model[-1].weight.fill_(3e38)
    with pytest.raises(InputError, match="image . are not finite") as alone:
        certify_range(model, some_images(4), None, "R(5)", execution=Execution(batch_images=4))
    with pytest.raises(InputError) as shared:
        certify_range(
            model, some_images(4), None, "R(5)", execution=Execution(workers=RayWorkers("auto"), batch_images=4)
        )
    assert str(shared.value) == str(alone.value)
    assert "Traceback" not in str(shared.value)


@pytest.mark.slow
def test_a_machine_is_lost_and_another_joins(tmp_path):
    """Run in a separate process, which is connected to another cluster."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.two_machines", tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "on lost machines" in done.stdout
    run(tmp_path / "single")
    assert evidence(tmp_path / "shared") == evidence(tmp_path / "single")


@pytest.mark.slow
def test_pictures_of_8_bits(tmp_path):
    """Workers look for the program's bounds themselves, and decide as a single process does."""
    model, images, labels = problem()
    results = []
    for name, workers in (("shared", RayWorkers("auto")), ("single", None)):
        execution, folder = Execution(workers=workers), RunFolder(tmp_path / name)
        results.append(
            certify(model, images[:6], labels[:6], "R(4)", semantics="uint8", execution=execution, run=folder)
        )
        assert check(tmp_path / name, model, images[:6], labels[:6]).images == 6
    assert plain(results[0]) == plain(results[1])
    assert evidence(tmp_path / "shared") == evidence(tmp_path / "single")
