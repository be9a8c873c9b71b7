"""Settings for all tests: one thread each, because workers that share two cores wait for each other's threads."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny tensors: a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
