"""A pseudo-terminal, to test what a person at a terminal sees."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import environment

LINES, COLUMNS = 24, 80
ENVIRONMENT = environment(TERM="xterm-256color", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
    ENVIRONMENT.pop(name, None)
MOST_SECONDS = 120
CTRL_C = b"\x03"
BAR = "\u2501"
"""What rich draws bars with."""
END_OF_WIDTH = "\x1b]0;end of width\x07"
"""Follows what a program showed at another width, then that width and the exit code."""
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def read_to_the_end(reader: int) -> bytes:
    """Return everything written to the terminal; its writing end is closed here and in the process."""
    seen = b""
    try:
        while piece := os.read(reader, 4096):
            seen += piece
    except OSError:  # Linux reports the end of a pseudo-terminal as an error
        pass
    return seen


def open_terminal(columns: int = COLUMNS) -> tuple[int, int]:
    """Open both ends of a new terminal."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", LINES, columns, 0, 0))
    return reader, writer


@dataclass(frozen=True)
class Seen:
    """The outcome of a run of the program."""

    code: int
    raw: str
    calls: list[tuple[str, int]]
    """Where the command line's source called for a live display: file name and line."""
    others: dict[int, Seen] = field(default_factory=dict)
    """What was shown at other widths."""

    @property
    def text(self) -> str:
        return plain(self.raw)

    @property
    def lines_after_display(self) -> list[str]:
        """Return what was printed once the cursor was shown again; the terminal itself echoes Ctrl-C."""
        text = plain(self.raw.rpartition(SHOW_CURSOR)[2]).replace("^C", "")
        return [line for line in text.splitlines() if line.strip()]

    @property
    def live_lines(self) -> list[str]:
        """Return every state of the live line."""
        return [line.rstrip() for line in plain(self.raw).splitlines() if BAR in line]


def plain(raw: str) -> str:
    """Remove control sequences and carriage returns."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw).replace("\r", "\n").replace("\n\n", "\n")


class Terminals:
    """Runs the program on terminals; close it when done."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.terminal_server"],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait(MOST_SECONDS)

    def run(
        self,
        *arguments: object,
        folder: Path,
        wait_at: tuple[str, int] | None = None,
        at: str | None = None,
        press: bytes | None = None,
        send: signal.Signals | None = None,
        before: str = "",
        columns: int = COLUMNS,
        also_at: tuple[int, ...] = (),
    ) -> Seen:
        """Run the program in ``folder``; ``before``: code to run first; ``also_at``: widths at which the same process runs it in
        copies of the folder before, which costs much less than processes of their own.

        Keys are pressed or a signal is sent when the pattern ``at`` appears; ``wait_at``: the activity, and its progress, at which
        the run waits for that.
        """
        calls = folder / ".display-calls"
        reader, writer = open_terminal(columns)
        request = {
            "arguments": [str(each) for each in arguments],
            "folder": str(folder),
            "terminal": os.ttyname(writer),
        }
        request |= {"calls": str(calls), "wait_at": wait_at, "before": before, "also_at": also_at}
        self.server.stdin.write(json.dumps(request).encode() + b"\n")
        child = int(self.server.stdout.readline())
        seen, done, began = b"", False, time.monotonic()
        while True:
            ready, _, _ = select.select([reader] if done else [reader, self.server.stdout], [], [], 0 if done else 1)
            if reader in ready:
                seen += os.read(reader, 65536)
            elif done:
                break
            done = done or self.server.stdout in ready
            if at is not None and re.search(at, plain(seen.decode(errors="ignore"))):
                if send is not None:
                    os.kill(child, send)
                if press is not None:
                    os.write(reader, press)
                at = None
            if time.monotonic() - began > MOST_SECONDS:
                os.kill(child, signal.SIGKILL)
        code = int(self.server.stdout.readline())
        os.close(reader)
        os.close(writer)
        found = json.loads(calls.read_text()) if calls.exists() else []
        calls.unlink(missing_ok=True)
        others = {}
        *parts, last = seen.decode().split(END_OF_WIDTH)
        for k, part in enumerate(parts):
            width, _, rest = [*parts, last][k + 1].partition(" ")
            others[int(width)] = Seen(int(re.match(r"-?\d+", rest)[0]), part.partition("\n")[2] if k else part, [])
        raw = last.partition("\n")[2] if parts else last
        return Seen(code, raw, [(name, line) for name, line in found], others)
