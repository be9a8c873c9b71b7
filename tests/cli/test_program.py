"""The program as a process: ``python -m tiltproof``, its help, its version, Ctrl-C and a terminal that watches."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import tiltproof
from tests.cli.terminal import read_to_the_end
from tiltproof import __version__
from tiltproof.cli import app
from tiltproof.cli.app import COMMANDS
from tiltproof.cli.options import LETTERS_HELP, Files
from tiltproof.transforms import LETTERS

CERTIFY = ["certify", "--model", "photo_networks:brightness", "--data", "photos", "--transform", "B(0.2)"]


@pytest.fixture
def process(workspace):
    """Start the program in the workspace as a separate process."""
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


SLOW_TORCH = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
USE = "import tiltproof\ntiltproof.certify\n"
SCRIPT = "import sys\nfrom tiltproof.cli import main\nsys.exit(main())\n"


@pytest.fixture
def importing(tmp_path):
    """Start Python with these arguments; return the process as soon as it imports torch, which takes a minute here."""
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    (tmp_path / "bin").mkdir()
    for name, script in (("tiltproof", SCRIPT), ("mine", USE)):
        (tmp_path / "bin" / name).write_text(script)
    source = str(Path(tiltproof.__file__).parents[1])

    def start(*arguments):
        running = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path / "bin",
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{source}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert running.stdout.readline() == "importing\n"
        return running

    return start


@pytest.mark.parametrize("arguments", [("-m", "tiltproof", "models"), ("tiltproof", "models")])
def test_ctrl_c_while_torch_is_imported(importing, arguments):
    running = importing(*arguments)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert (running.returncode, stderr) == (130, "interrupted\n")


BETWEEN = """
import os, signal, sys, time
from tiltproof.cli import main
from tiltproof.cli.app import Program

def make_context(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

Program.make_context = make_context
sys.exit(main())
"""


def test_ctrl_c_between_the_imports_and_the_command(tmp_path):
    """The parser would end with its own exit code and without a word."""
    (tmp_path / "tiltproof").write_text(BETWEEN)
    done = subprocess.run(
        [sys.executable, "tiltproof", "models"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(tiltproof.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("arguments", [("mine",), ("-c", USE), ("-c", USE, "-m", "tiltproof")])
def test_ctrl_c_is_left_to_other_programs(importing, arguments):
    """A program that uses the package keeps Python's own answer to Ctrl-C."""
    running = importing(*arguments)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_terminal_sees_progress(process):
    reader, writer = pty.openpty()
    running = process(*CERTIFY, stdout=writer)
    os.close(writer)
    seen = read_to_the_end(reader)
    assert running.wait(timeout=60) == 0
    assert b"proving" in seen
    assert b"5/5" in seen
    assert b"certified 3, falsified 1, unknown 0" in seen


DEFECTS = {
    "check": ("check", "photos", *CERTIFY[1:5]),
    "certify": CERTIFY,
    "tune": ("tune", "--data", "photos", *CERTIFY[5:], "--nu", "0.1"),
}


@pytest.mark.parametrize("command", DEFECTS)
def test_a_defect_is_no_verdict(tiltproof, monkeypatch, command):
    """Exit codes 1 and 2 mean something else; a CI job must not mistake a defect for them."""

    def broken(*_, **__):
        raise RuntimeError("first line\nsecond \x1b[2J line")

    monkeypatch.setattr("tiltproof.device.choose_device", broken)
    result = tiltproof(*DEFECTS[command])
    assert (result.exit_code, result.stdout) == (70, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("internal error: RuntimeError: first line second ?[2J line (cli/test_program.py, line ")
    assert f"called from tiltproof/cli/{command}.py, line " in line
    assert "Please report it" in line
    for debug in (True, False):
        if not debug:
            monkeypatch.setenv("TILTPROOF_DEBUG", "1")
        result = tiltproof(*["--debug"] * debug, *DEFECTS[command])
        assert result.exit_code == 70
        assert "Traceback (most recent call last):" in result.stderr
        assert 'raise RuntimeError("first line' in result.stderr
        assert result.stderr.splitlines()[-1] == line


def test_debug_shows_where_the_users_own_code_failed(tiltproof, workspace):
    (workspace / "failing.py").write_text("def build():\n    raise FileNotFoundError('weights.pt')\n")
    arguments = ["certify", "--model", "failing:build", "--data", "photos", "--transform", "R(1)"]
    result = tiltproof(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"Got: FileNotFoundError: weights.pt ({workspace}/failing.py, line 2, in build)" in result.stderr
    result = tiltproof("--debug", *arguments)
    assert result.exit_code == 2
    assert 'failing.py", line 2, in build' in result.stderr


FAILING = """
import torch
class Failing(torch.nn.Module):
    def forward(self, images):
        return torch.nn.functional.linear(images, torch.zeros(3, 3))
def build():
    return Failing().eval()
"""


def test_the_line_of_a_failing_forward_is_named(tiltproof, workspace):
    (workspace / "failing_forward.py").write_text(FAILING)
    (workspace / "needing.py").write_text("import no_such_package\n")
    arguments = ("--data", "photos", "--transform", "R(1)")
    result = tiltproof("certify", "--model", "failing_forward:build", *arguments)
    assert result.exit_code == 2
    assert "the model cannot run on images of shape (1, 8, 8). Got: RuntimeError: " in result.stderr
    assert f"({workspace}/failing_forward.py, line 5, in forward)" in result.stderr
    result = tiltproof("certify", "--model", "needing:build", *arguments)
    assert "importing the module of --model needing:build failed" in result.stderr
    assert f"({workspace}/needing.py, line 1, in <module>)" in result.stderr


SCREENS = 72
"""Lines of three screens."""


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_teaches_on_three_screens(tiltproof, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    result = tiltproof(*[name] * bool(name), "--help")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= SCREENS
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: tiltproof {name}".rstrip())
    assert f"    tiltproof {name or 'certify'}" in result.stdout.partition("  Examples:\n")[2]
    codes = " ".join(result.stdout.partition("  Exit codes:")[2].split())
    assert all(code in codes for code in ("0 done", "2 bad input", "70 internal error", "130 Ctrl-C", "143 SIGTERM"))


def test_rarely_used_options_come_last(tiltproof):
    headings = re.findall(r"^(\w.*):$", tiltproof("certify", "--help").stdout, re.MULTILINE)
    must = "What must hold (by default: the label is the answer)"
    first = ["The problem", must, "How hard to try", "Where it runs", "Results and evidence"]
    files = "Reading files and preparing images"
    assert headings == [*first, files + " (see tiltproof inspect --help)", "Rarely used"]
    assert re.findall(r"^(\w.*):$", tiltproof("inspect", "--help").stdout, re.MULTILINE)[-2] == files


def test_options_for_files_are_named_everywhere_and_explained_once(tiltproof):
    assert all(f"--{name.replace('_', '-')}" in tiltproof("certify", "--help").stdout for name in Files._fields)
    assert "Architecture of a .safetensors file" in tiltproof("inspect", "--help").stdout


def test_every_option_and_letter_is_explained():
    group = typer.main.get_command(app)
    for command in group.commands.values():
        assert all(parameter.help and parameter.rich_help_panel for parameter in command.params)
        assert all(parameter.metavar for parameter in command.params if not getattr(parameter, "is_flag", False))
    assert all(re.search(rf"\b{letter}\b", LETTERS_HELP) for letter in LETTERS)


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
        ("tiltproof certify --mean image", "imagenet"),
        ("tiltproof radius --ray loc", "local"),
    ],
)
def test_a_shell_completes(typed, offered):
    words = {"_TILTPROOF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    result = CliRunner().invoke(app, [], env=words, prog_name="tiltproof")
    assert (result.exit_code, result.stdout.split()) == (0, [offered])
