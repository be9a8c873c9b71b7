"""Ctrl-C while the program imports torch, which takes seconds: one line and exit code 130 instead of a traceback.

The package imports this module first; it needs the standard library alone and changes nothing for other programs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
NAMES = ("tiltproof", "tiltproof.exe", "tiltproof-script.py")


def is_the_program() -> bool:
    """Whether this process is ``tiltproof`` or ``python -m tiltproof``, not another program or a worker process.

    While Python looks for the module of ``-m``, ``sys.argv[0]`` is "-m".
    """
    name, given = sys.argv[0] if sys.argv else "", sys.orig_argv
    if name == "-m":
        return given[given.index("-m") + 1 :][:1] == ["tiltproof"] if "-m" in given else False
    return os.path.basename(name) in NAMES and name in given  # noqa: PTH119


def finish_start() -> None:
    """A command begins: Ctrl-C is an exception again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    # An exception could be caught or reworded by the module being imported; there is nothing to clean up yet.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _begin() -> None:
    ours = is_the_program() and threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which a user says how OpenMP's threads wait; libgomp, which torch's wheels hold, reads the first two."""


def wait_passively() -> None:
    """Let torch's threads sleep while they wait for each other, unless the user says how they wait.

    By default they spin. Beside other busy processes that takes the very core for which the thread that they wait for
    is waiting, and a proof then takes many times as long as with one thread. OpenMP reads this when torch is imported.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


_begin()
