"""Fixtures for all tests: one thread per process, the proof's arithmetic, programs of benchmarks/."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from tests.support.processes import environment

collect_ignore = ["support"]
"""Helpers, in which `--doctest-modules` would look for doctests: there are none, and one works when it is imported."""


@pytest.fixture(autouse=True)
def one_thread():
    """Limit torch to one thread: tensors are tiny, and parallel workers would wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_proof():
    """Enter the proof's arithmetic, outside of which rules, networks and searches refuse to compute."""
    from tiltproof.network import proof_arithmetic

    with proof_arithmetic(torch.device("cpu")):
        yield


@pytest.fixture
def program():
    """Import a program of benchmarks/ as a module."""
    return importlib.import_module


@pytest.fixture
def start(program, monkeypatch, capsys, tmp_path):
    """Run a program with these arguments; return what it printed, and its JSON."""

    def run(name, *arguments):
        file = tmp_path / f"{name}.json"
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments), "--json", str(file)])
        program(name).main()
        return capsys.readouterr().out, json.loads(file.read_text())

    return run


@pytest.fixture
def interpreted():
    """Run a program that ends by printing ok in a process where Triton interprets its kernels on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")

    def run(text):
        variables = environment(TRITON_INTERPRET="1")
        done = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, text=True, timeout=300)
        assert done.stdout.strip() == "ok", done.stderr[-2000:]

    return run
