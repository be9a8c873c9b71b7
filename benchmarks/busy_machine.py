"""Seconds of the demo on an idle and on a busy machine: spinning processes beside it, and OpenMP's threads waiting in both ways.

python benchmarks/busy_machine.py [--busy 2] [--repeats 3] [--json FILE]

"passive" is how the program waits by default. "spinning" is libgomp's default, which the program does not change if a user
asks for it (GOMP_SPINCOUNT). The machine should do nothing else; the load average at the start is printed to tell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator

WAYS = {"passive": {}, "spinning": {"GOMP_SPINCOUNT": "30000000000"}, "one thread": {"OMP_NUM_THREADS": "1"}}
SPIN = "while True: pass"
LIMIT = 30.0
"""Seconds after which a run is stopped; it then counts as infinitely long."""


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
    begin, whole = time.perf_counter(), [sys.executable, "-m", "tiltproof", *command]
    try:
        subprocess.run(whole, env=ours | WAYS[way], check=True, stdout=subprocess.DEVNULL, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return math.inf
    return time.perf_counter() - begin


def least(way: str, command: list[str], repeats: int) -> float:
    """Return the least time of some runs; a run over the limit is not repeated, so that the whole takes less than five minutes."""
    times: list[float] = []
    while len(times) < repeats and math.inf not in times:
        times.append(seconds(way, command))
    return min(times)


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
        alone = least(way, given.command, given.repeats)
        with busy(given.busy):
            beside = least(way, given.command, given.repeats)
        table[way] = {"idle_seconds": alone, "busy_seconds": beside, "ratio": beside / alone}
        print(f"{way:>10}: idle {alone:6.1f} s, busy {beside:6.1f} s, ratio {beside / alone:.2f}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as stream:  # noqa: PTH123
            finite = {way: {name: x if x < math.inf else None for name, x in row.items()} for way, row in table.items()}
            json.dump({"load": load, "busy": given.busy, "limit": LIMIT, "ways": finite}, stream, indent=1)


if __name__ == "__main__":
    main()
