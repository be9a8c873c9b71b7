"""Seconds of the demo on an idle and on a busy machine: spinning processes beside it, and OpenMP's threads waiting in both ways.

python benchmarks/busy_machine.py [--busy 2] [--repeats 3] [--json FILE]

"passive" is how the program waits by default. "spinning" is libgomp's default, which the program does not change if a user
asks for it (GOMP_SPINCOUNT). The machine should do nothing else; the load average at the start is printed to tell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

WAYS = {"passive": {}, "spinning": {"GOMP_SPINCOUNT": "30000000000"}, "one thread": {"OMP_NUM_THREADS": "1"}}
SPIN = "while True: pass"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run this many processes that do nothing but spin."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds(way: str, command: list[str]) -> float:
    """Time the command with OpenMP's variables of this way, and no others."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "tiltproof", *command], env=ours | WAYS[way], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, default=2, help="spinning processes")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs; the shortest counts")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json")
    parser.add_argument("command", nargs="*", default=["demo"])
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before; tiltproof {' '.join(given.command)}")
    table = {}
    for way in given.ways.split(","):
        alone = min(seconds(way, given.command) for _ in range(given.repeats))
        with busy(given.busy):
            beside = min(seconds(way, given.command) for _ in range(given.repeats))
        table[way] = {"idle_seconds": alone, "busy_seconds": beside, "ratio": beside / alone}
        print(f"{way:>10}: idle {alone:6.1f} s, busy {beside:6.1f} s, ratio {beside / alone:.2f}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as stream:  # noqa: PTH123
            json.dump({"load": load, "busy": given.busy, "ways": table}, stream, indent=1)


if __name__ == "__main__":
    main()
