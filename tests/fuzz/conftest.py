"""The process that reads damaged files: little memory, a time limit per file, one report per kind."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment


class ReadingProcess:
    """Starts `reading_process.py` at the first request, and again after it died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def read(self, kind: str, count: int, seconds: float) -> dict:
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-m", "tests.fuzz.reading_process", str(self.folder)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
            )
        self.process.stdin.write(json.dumps([kind, count]) + "\n")
        self.process.stdin.flush()
        answered, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if answered else ""
        if not line:
            how = "ended" if answered else f"gave no answer within {seconds:g} s"
            self.stop()
            log = (self.folder / "log").read_text(errors="replace")[-2000:]
            pytest.fail(f"{kind}: the reading process {how}; the file it read last lies in {self.folder / kind}\n{log}")
        return json.loads(line)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="session")
def reading_process(tmp_path_factory):
    process = ReadingProcess(tmp_path_factory.mktemp("fuzz"))
    yield process
    process.stop()
