"""Only one run at a time writes into a folder; the lock ends with the process that holds it."""

import os
import signal
import time

import pytest

from tests.support.tiny_training import start_program, start_two
from tiltproof.data import load as load_data
from tiltproof.errors import InputError
from tiltproof.runs.atomic_io import lock

LONG = 5000
NAMES_OF_THREADS = """
import atexit, sys
from pathlib import Path
atexit.register(lambda: print("threads:", *(t.read_text() for t in Path("/proc/self/task").glob("*/comm")), file=sys.stderr))
"""


@pytest.fixture
def under_way(tmp_path, data_root):
    """Start a run of thousands of epochs in another process, and stop it at its first checkpoint: it lives, and takes no time."""
    process = start_program(tmp_path, data_root, "run", epochs=LONG)
    try:
        while not any((tmp_path / "run" / "checkpoint").glob("*.json")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_until_the_first_is_dead(under_way, tmp_path, data_root, run):
    second = start_program(tmp_path, data_root, "run", "--resume", epochs=LONG)
    _, stderr = second.communicate(timeout=120)
    assert second.returncode == 2
    assert stderr.splitlines()[-1].startswith("error: another process is writing to this run. Got: ")
    assert "Traceback" not in stderr
    log = tmp_path / "run" / "log.jsonl"
    epochs = len(log.read_text().splitlines())
    under_way.send_signal(signal.SIGCONT)
    while len(log.read_text().splitlines()) <= epochs:  # and the first one goes on undisturbed
        assert under_way.poll() is None, under_way.communicate()
        time.sleep(0.02)
    images, labels = load_data("mnist", data_root, split="train")
    os.kill(under_way.pid, signal.SIGKILL)
    under_way.wait()
    rest = run("run", f"train.epochs={LONG}", images=images, labels=labels, resume=True, stop_after=1)
    assert rest.epochs >= 1


def test_all_processes_of_torchrun_are_told(tmp_path, data_root):
    """Only the first process takes the lock, or the others would be refused by their own group (test_distributed)."""
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "sitecustomize.py").write_text(NAMES_OF_THREADS)
    with (folder / ".lock").open("ab") as stream:
        lock(stream, folder)
        running = start_two(tmp_path, data_root, "run")
        spoken = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [2, 2], spoken
    assert "another process is writing to this run" in spoken[0]
    assert "the first process could not lock the run folder" in spoken[1]
    assert not any("Traceback" in text for text in spoken)
    assert all("threads: " in text and "gloo" not in text for text in spoken)  # a process left alone can abort
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_run_that_came_in_between_is_not_overwritten(run, monkeypatch):
    """Both found the folder empty; the other one finished before this one may write."""
    from tiltproof.training import loop

    load = loop.TrainingSet

    def slowly(*arguments):
        monkeypatch.setattr(loop, "TrainingSet", load)
        assert run("a", "train.epochs=1").finished
        return load(*arguments)

    monkeypatch.setattr(loop, "TrainingSet", slowly)
    with pytest.raises(InputError, match="already contains a training run"):
        run("a")
