"""Choosing a device: one that is missing or unknown is bad input, also for a caller of `train`."""

import pytest
import torch

from tiltproof import InputError
from tiltproof.device import choose_device, few_threads
from tiltproof.training import read_recipe, train


@pytest.mark.parametrize("wanted", ["cpu", torch.device("cpu")])
def test_a_device_that_is_there(wanted):
    assert choose_device(wanted) == torch.device("cpu")


@pytest.mark.parametrize(("count", "kind"), [(0, "cpu"), (2, "cuda")])
def test_auto_takes_a_gpu_where_there_is_one(monkeypatch, count, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    assert str(choose_device("auto")) == kind


def test_a_gpu_has_to_be_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InputError, match="not available. Got: cuda:2, with 2 CUDA devices"):
        choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="not available"):
        choose_device(torch.device("cuda"))


@pytest.mark.parametrize("wanted", ["abacus", "meta", "", "cpu:x"])
def test_what_is_no_device(wanted, tmp_path):
    with pytest.raises(InputError, match="unknown device"):
        choose_device(wanted)
    with pytest.raises(InputError, match="unknown device"):
        train(read_recipe("mnist-r30"), device=wanted, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_beside_a_gpu_the_host_uses_one_thread_and_gives_the_others_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with few_threads(torch.device("cpu")):
            assert torch.get_num_threads() == 3
        with few_threads(torch.device("cuda")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
