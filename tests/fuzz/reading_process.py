"""Read damaged files in a separate process and report what was neither a valid value nor an `InputError`.

Run as a program with a folder: every line on stdin is ``[kind, count]``, every line on stdout the report on that kind. A file
that makes a reader ask for much memory, take long, warn, or raise anything else counts as a failure.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

import torch

from tests.fuzz.damage import mutants
from tests.fuzz.file_kinds import KINDS, Kind, tiny
from tiltproof.errors import InputError
from tiltproof.models import ARCHITECTURES

SPARE_BYTES = 200 * 2**20
"""How much memory the process may take after its start; the largest valid image needs a tenth of it."""
SECONDS_A_FILE = 4
MOST_LETTERS = 1500
MOST_FAILURES = 5


class TooSlow(BaseException):
    """Not an Exception, so that no reader mistakes it for damage."""


def main() -> None:
    folder = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    ARCHITECTURES["tiny"] = tiny
    for name, kind in KINDS.items():
        prepare(folder / name, kind)
    limit_memory()
    signal.signal(signal.SIGALRM, stop)
    for line in sys.stdin:
        name, count = json.loads(line)
        print(json.dumps(report(folder, name, count)), file=answers, flush=True)


def prepare(folder: Path, kind: Kind) -> None:
    """Read the undamaged file, which must succeed or the damaged ones prove nothing; this also runs lazy imports."""
    folder.mkdir(exist_ok=True)
    for name, content in kind.beside.items():
        (folder / name).write_bytes(content)
    path = folder / kind.file
    path.write_bytes(kind.finish(kind.make_seed()))
    kind.read(path)


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def stop(*_: object) -> None:
    raise TooSlow(f"more than {SECONDS_A_FILE} s")


def report(folder: Path, name: str, count: int) -> dict:
    kind, log = KINDS[name], folder / "log"
    said = log.stat().st_size
    valid, refused, failures = 0, 0, []
    for k, content in enumerate(mutants(kind.make_seed(), count, name)):
        path = folder / name / kind.file
        path.unlink()  # some file systems flush a truncated file to the disk at once
        path.write_bytes(kind.finish(content))
        wrong = None
        signal.setitimer(signal.ITIMER_REAL, SECONDS_A_FILE)
        try:
            kind.read(path)
            valid += 1
        except InputError as error:
            refused += 1
            wrong = complaint(error)
        except BaseException:
            wrong = traceback.format_exc(limit=-4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if wrong:
            kept = path.with_name(f"failure-{k}-{kind.file}")
            kept.write_bytes(path.read_bytes())
            failures.append(f"{kept}: {wrong}")
        if len(failures) == MOST_FAILURES:
            break
    with log.open(errors="replace") as stream:
        stream.seek(said)
        return {"valid": valid, "refused": refused, "failures": failures, "said": stream.read()[-2000:]}


def complaint(error: InputError) -> str | None:
    """Return what is wrong with an error: more than one short printable line, or a hidden MemoryError."""
    text = str(error)
    if len(text) > MOST_LETTERS or not text.isprintable():
        return f"an unreadable message of {len(text)} letters: {text[:MOST_LETTERS]!r}"
    behind = error.__context__
    while behind is not None:
        if isinstance(behind, MemoryError) or "allocat" in str(behind):
            return f"a giant allocation: {behind!r}"
        behind = behind.__context__
    return None


if __name__ == "__main__":
    main()
