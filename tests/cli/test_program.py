"""The program as a process: ``python -m tiltproof``, its help, its version, Ctrl-C and a terminal that watches."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import read_to_the_end
from typer.testing import CliRunner

import tiltproof
from tiltproof import __version__
from tiltproof.cli import app

CERTIFY = ["certify", "--model", "photo_networks:brightness", "--data", "photos", "--transform", "B(0.2)"]


@pytest.fixture
def process(workspace):
    """Start the program in the workspace as its own process."""
    source = str(Path(tiltproof.__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}

    def start(*arguments, stdout=subprocess.PIPE):
        return subprocess.Popen(
            [sys.executable, "-m", "tiltproof", *arguments],
            cwd=workspace,
            env={**environment, "PYTHONPATH": source, "TERM": "xterm", "COLUMNS": "120"},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_a_run_as_a_process(process, workspace):
    running = process(*CERTIFY, "--json", "result.json", "--fail-under", "90")
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "certified 60.00 % is below --fail-under 90 %" in stderr
    assert "certified" in stdout
    assert "\x1b" not in stdout + stderr
    assert json.loads((workspace / "result.json").read_text())["certified"] == 3


def test_bad_input_as_a_process(process):
    running = process(*CERTIFY[:-1], "R(10:-10)")
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (2, "")
    assert stderr.count("\n") == 1
    assert stderr.startswith("error: Rotation's range is reversed")


def test_ctrl_c(process, workspace):
    (workspace / "waiting.py").write_text(
        "import time\ndef build():\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    running = process("certify", "--model", "waiting:build", "--data", "photos", "--transform", "R(1)")
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130
    assert stderr.startswith("interrupted")
    assert "Traceback" not in stderr


def test_a_terminal_sees_progress(process):
    reader, writer = pty.openpty()
    running = process(*CERTIFY, stdout=writer)
    os.close(writer)
    seen = read_to_the_end(reader)
    assert running.wait(timeout=60) == 0
    assert b"proving" in seen
    assert b"5/5" in seen
    assert b"certified 3, falsified 1, unknown 0" in seen


def test_help_teaches(tiltproof):
    overview = tiltproof("--help")
    assert overview.exit_code == 0
    assert all(name in overview.stdout for name in ("certify", "attack", "bound", "demo", "models", "Examples"))
    for name in ("certify", "check", "report", "export", "attack", "bound", "demo", "models"):
        text = tiltproof(name, "--help").stdout
        assert "Examples" in text
        assert f"tiltproof {name}" in text


def test_version(tiltproof):
    result = tiltproof("--version")
    assert result.exit_code == 0
    assert result.stdout == f"tiltproof {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tiltproof exp", "export"),
        ("tiltproof certify --sem", "--semantics"),
        ("tiltproof certify --model mnist-r3", "mnist-r30"),
        ("tiltproof check run --data mnist-s", "mnist-sample"),
        ("tiltproof train mnist-tu2-tv2-p", "mnist-tu2-tv2-paper"),
    ],
)
def test_a_shell_completes(typed, offered):
    words = {"_TILTPROOF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    result = CliRunner().invoke(app, [], env=words, prog_name="tiltproof")
    assert (result.exit_code, result.stdout.split()) == (0, [offered])
