"""Two processes on one mini-batch do what one does, up to float rounding."""

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny_training import start_two
from tiltproof.data import load as load_data
from tiltproof.errors import InputError
from tiltproof.training.distributed import Processes


def test_two_processes_equal_one(tmp_path, data_root, run):
    running = start_two(tmp_path, data_root, "two")
    images, labels = load_data("mnist", data_root, split="train")
    run("one", "train.epochs=2", images=images, labels=labels)
    spoken = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], spoken
    assert "2 epochs" in spoken[0][0]
    assert not spoken[1][0]  # only the first of two processes prints
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], atol=1e-5, rtol=0), (name, (one[name] - two[name]).abs().max())
    assert len((tmp_path / "two" / "log.jsonl").read_text().splitlines()) == 2


def test_rows_of_a_batch():
    assert [Processes(rank, 4).rows(8) for rank in (0, 3)] == [slice(0, 2), slice(6, 8)]
    with pytest.raises(InputError, match="multiple of the number of processes.*train.batch_size=6"):
        Processes(0, 3).rows(8)
