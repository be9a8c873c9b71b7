"""Killed with SIGKILL at random moments, repeatedly, a run still ends with the verdicts of an undisturbed one."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support.digits import evidence, run
from tests.support.processes import environment

LIMIT = 12
"""Images of the run by the program itself: several batches."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.digits_ready"])


@pytest.fixture(scope="module", autouse=True)
def server():
    """Start the fork server with the first child; it finds modules by PYTHONPATH alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        child = FORKS.Process(target=run)
        child.start()
        child.join()
        assert child.exitcode == 0
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder)
    began = time.perf_counter()
    run()  # timed once everything is loaded, as in a forked child
    return folder, time.perf_counter() - began


def kill_until_done(folder, longest, rng):
    """Run and kill, early at first; return how often.

    A child is forked, so that it starts working at once, and from a separate process (`digits_ready`): a fork of this one would
    lack the threads that other tests have started.
    """
    kills = 0
    while not (folder / "summary.json").exists():
        child = FORKS.Process(target=run, args=(folder,), kwargs={"resume": True})
        child.start()
        child.join(rng.uniform(0, longest / 3 if kills < 2 else longest))
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    return kills


def test_killed_at_random_moments(whole, tmp_path):
    kills = kill_until_done(tmp_path / "run", whole[1], random.Random(1))
    assert kills >= 2
    assert evidence(tmp_path / "run") == evidence(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_killed_at_many_random_moments(whole, tmp_path, seed, record_property):
    kills = kill_until_done(tmp_path / "run", whole[1], random.Random(seed))
    record_property("kills", kills)
    print(f"{kills} kills survived")  # noqa: T201
    assert evidence(tmp_path / "run") == evidence(whole[0])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_program_itself(tmp_path, how):
    """`tiltproof certify --out`, stopped after its first batch, loses no more than the batch in flight."""
    command = [
        sys.executable,
        "-m",
        "tiltproof",
        "certify",
        "--model",
        "mnist-r30",
        "--data",
        "mnist-sample",
        "--batch-size",
        "4",
    ]
    command += [
        "--transform",
        "R(30)",
        "--limit",
        str(LIMIT),
        "--device",
        "cpu",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    journal = tmp_path / "run" / "batches.jsonl"
    while not (journal.exists() and journal.read_bytes().count(b"\n")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(how)
    _, stderr = process.communicate()
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert how == signal.SIGKILL or "--resume" in stderr
    done = journal.read_bytes().count(b"\n")
    assert not (tmp_path / "run" / "summary.json").exists()
    before = (tmp_path / "run" / "verdicts.jsonl").read_bytes()
    subprocess.run([*command, "--resume"], check=True, env=environment())
    assert (tmp_path / "run" / "verdicts.jsonl").read_bytes()[: len(before) // 2] == before[: len(before) // 2]
    assert journal.read_bytes().count(b"\n") > done
    assert len(evidence(tmp_path / "run")) == LIMIT
