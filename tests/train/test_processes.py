"""Two processes on one mini-batch do what one does, to float rounding."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import RECIPE

import tiltproof
from tiltproof.errors import InputError
from tiltproof.train.processes import Processes


def start(folder, data_root, out, **variables):
    """The program, as torchrun starts it."""
    (folder / "tiny.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "tiltproof", "train", str(folder / "tiny.toml"), "--data-root", str(data_root)]
    command += ["--device", "cpu", "--set", "train.epochs=2", "--certify-images", "0", "--out", str(folder / out)]
    source = str(Path(tiltproof.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_equal_one(tmp_path, data_root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [start(tmp_path, data_root, "one")]
    running += [start(tmp_path, data_root, "two", RANK=str(k), LOCAL_RANK=str(k), **together) for k in (0, 1)]
    spoken = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], spoken
    assert "2 epochs" in spoken[1][0]
    assert not spoken[2][0]  # of two processes the first one speaks
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], atol=1e-5, rtol=0), (name, (one[name] - two[name]).abs().max())
    assert len((tmp_path / "two" / "log.jsonl").read_text().splitlines()) == 2


def test_rows_of_a_batch():
    assert [Processes(rank, 4).rows(8) for rank in (0, 3)] == [slice(0, 2), slice(6, 8)]
    with pytest.raises(InputError, match="multiple of the number of processes.*train.batch_size=6"):
        Processes(0, 3).rows(8)
