"""Run the program on pseudo-terminals, each time in a fork of this process, which has already imported torch.

This is a separate process because a fork of the tests' process would lack the threads that other tests have started. It reads
requests from stdin, one JSON object per line, and answers with two lines each: the process number, then exit code and the
calls of live displays.
"""

import fcntl
import importlib
import json
import os
import pkgutil
import shutil
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import rich.live
import torch
from rich.progress import Progress

import tiltproof.cli
from tests.cli.terminal import END_OF_WIDTH

SOURCE = Path(tiltproof.cli.__file__).parent
MOST_SECONDS = 60


def recorded_calls():
    """From now on, record the callers of every live display within the command line's source: (file name, line)."""
    calls, begin = set(), rich.live.Live.start

    def start(display, *arguments, **options):
        frame = sys._getframe(1)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.parent == SOURCE:
                calls.add((path.name, frame.f_lineno))
            frame = frame.f_back
        return begin(display, *arguments, **options)

    rich.live.Live.start = start
    return calls


def wait_at(doing, completed):
    """Make the run wait at its first report of being ``doing`` this with ``completed`` done, so that it can be interrupted there."""
    update, waited = Progress.update, []

    def update_and_wait(display, task, **shown):
        update(display, task, **shown)
        if not waited and shown["description"] == doing and shown["completed"] >= completed:
            waited.append(doing)
            time.sleep(MOST_SECONDS)

    Progress.update = update_and_wait


def take_terminal(name):
    """Make this process the first one of a session on the terminal with this name, as a login shell is."""
    os.setsid()
    terminal = os.open(name, os.O_RDWR)  # becomes the controlling terminal: Ctrl-C there is SIGINT here
    for stream in (0, 1, 2):
        os.dup2(terminal, stream)
    sys.stdin, sys.stdout, sys.stderr = (open(k, mode, encoding="utf-8", closefd=False) for k, mode in enumerate("rww"))  # noqa: SIM115
    sys.stderr.reconfigure(line_buffering=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the process that started the tests may have ignored it


def run_elsewhere(folder, columns):
    """Run the program in a copy of the folder, on a terminal of this width; what it shows ends with a mark."""
    lines = os.get_terminal_size(1).lines
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    copy = Path(shutil.copytree(folder, f"{folder}-at-{columns}"))
    os.chdir(copy)
    code = run_program()
    print(f"{END_OF_WIDTH}{columns} {code}\n", end="", flush=True)  # noqa: T201
    shutil.rmtree(copy)


def run_program():
    """Return the exit code of the program's own `main`."""
    try:
        tiltproof.cli.main()
    except SystemExit as end:
        return end.code or 0
    return None


def run(request):
    take_terminal(request["terminal"])
    sys.argv = ["tiltproof", *request["arguments"]]
    calls = recorded_calls()
    if request["wait_at"]:
        wait_at(*request["wait_at"])
    exec(request["before"], {})
    columns = os.get_terminal_size(1).columns
    for other in request["also_at"]:
        run_elsewhere(request["folder"], other)
    os.chdir(request["folder"])
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", os.get_terminal_size(1).lines, columns, 0, 0))
    code = None
    try:
        code = run_program()
    finally:
        Path(request["calls"]).write_text(json.dumps(sorted(calls)))
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def load_everything():
    """Import and run once what forks would each import and run for the first time: commands, torch.export, a proof."""
    for name in tiltproof.__all__:
        getattr(tiltproof, name)
    for module in pkgutil.iter_modules(tiltproof.cli.__path__, "tiltproof.cli."):
        importlib.import_module(module.name)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)).eval()
    images = torch.full((1, 1, 8, 8), 0.5)
    tiltproof.certify(model, images, model(images).argmax(1), "R(1), B(0.1)")


def main():
    load_everything()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads, and a fork has one"
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                run(request)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            finally:
                os._exit(99)
        print(child, flush=True)  # noqa: T201
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
