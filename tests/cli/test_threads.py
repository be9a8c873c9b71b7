"""How many threads a command computes with, and how they wait for each other."""

import os
import subprocess
import sys

import pytest
import torch

from tests.support.processes import environment
from tiltproof import InputError, startup
from tiltproof.device import use_threads

VARIABLES = startup.WAITING


def clear(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_threads_wait_passively(monkeypatch):
    clear(monkeypatch)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is restored
    monkeypatch.delenv("OMP_WAIT_POLICY")
    startup.wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_says_stays(name, monkeypatch):
    clear(monkeypatch)
    monkeypatch.setenv(name, "7")
    startup.wait_passively()
    assert {each: os.environ.get(each) for each in VARIABLES} == dict.fromkeys(VARIABLES) | {name: "7"}


def test_the_program_says_so_before_torch_is_imported():
    code = (
        "import os, sys; sys.argv = ['tiltproof', '--version']; import tiltproof.cli as c\n"
        "print('torch' in sys.modules)\n"
        "try: c.main()\n"
        "except SystemExit: print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    ours = {name: value for name, value in environment().items() if name not in VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=ours, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"
    assert done.stdout.split()[-1] == "PASSIVE"


def test_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        use_threads(None)
        assert torch.get_num_threads() == before
        use_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    for wrong in (0, -1, 10**6):
        with pytest.raises(InputError, match="--threads"):
            use_threads(wrong)
