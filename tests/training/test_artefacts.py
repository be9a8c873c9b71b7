"""The log: torn lines, superfluous lines, and TensorBoard if it is installed."""

import json
import sys
import types

import pytest

from tiltproof.training.artefacts import EpochLog


def record(epoch):
    return {"epoch": epoch, "step": 5 * epoch, "clean_loss": 0.5, "certified_loss": None}


@pytest.fixture
def written(monkeypatch):
    """A TensorBoard that records its calls."""
    notes = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            notes.append(("open", purge_step))

        def add_scalar(self, *arguments):
            notes.append(arguments)

        def flush(self):
            notes.append("flush")

        def close(self):
            notes.append("close")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return notes


def test_events(tmp_path, written):
    log = EpochLog(tmp_path, 0)
    log.append(record(1))
    log.close()
    EpochLog(tmp_path, 1).close()
    assert written == [("open", 1), ("clean_loss", 0.5, 1), "flush", "close", ("open", 2), "close"]


def test_no_tensorboard_is_a_notice(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(UserWarning, match="no TensorBoard event files"):
        log = EpochLog(tmp_path, 0)
    log.append(record(1))
    assert json.loads((tmp_path / "log.jsonl").read_text()) == record(1)


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("tail", ["", '{"epoch": 4, "st', "[]\n", '{"epoch": 9}\n'])
def test_what_a_killed_process_left_is_cut_off(tmp_path, tail):
    lines = "".join(json.dumps(record(epoch)) + "\n" for epoch in (1, 2, 3))
    (tmp_path / "log.jsonl").write_text(lines + tail)
    log = EpochLog(tmp_path, 2)
    assert log.records == [record(1), record(2)]
    log.append(record(3))
    assert (tmp_path / "log.jsonl").read_text() == lines
