"""Put one deliberate defect at a time into a copy of the package and run the short tests on it.

    python -m tests.soundness.mutations [--only TEXT] [--begin 10] [--workers 2]

Prints one row per defect of `mutation_table.py`: caught (and by which test) or SURVIVED. Exit status 1 if any survives, or if
a row of the table no longer matches the source.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soundness.mutation_table import MUTATIONS, Mutation
from tests.support.processes import ROOT

SECONDS = 600
"""Time limit of the tests: a defect that makes them run forever counts as caught."""


def source(mutation: Mutation, root: Path = ROOT) -> Path:
    return root / "src" / "tiltproof" / mutation.file


def fits(mutation: Mutation, root: Path = ROOT) -> bool:
    return source(mutation, root).read_text().count(mutation.old) == 1


def apply(mutation: Mutation, root: Path) -> None:
    file = source(mutation, root)
    file.write_text(file.read_text().replace(mutation.old, mutation.new))


def attempt(mutation: Mutation) -> tuple[str, str, float]:
    """Return ("caught" or "SURVIVED" or "DOES NOT FIT", by what, seconds)."""
    if not fits(mutation):
        return "DOES NOT FIT", f"{mutation.file}: bring mutation_table.py up to date", 0.0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder)
        for name in ("src", "tests", "docs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, copy / name)
        apply(mutation, copy)
        tests = [f"tests/{name}" for name in mutation.tests]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            *tests,
        ]
        environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        try:
            result = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            by = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(\S.*?)(?: - .*)?$", result.stdout, re.MULTILINE)
            status, by = result.returncode, by[0] if by else result.stdout[-200:]
        except subprocess.TimeoutExpired:
            status, by = 1, f"no end after {SECONDS} s"
    if status not in (0, 1):  # pytest failed to start: no test noticed anything
        return "DOES NOT RUN", str(by), time.perf_counter() - began
    return "caught" if status == 1 else "SURVIVED", str(by) if status == 1 else "", time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description="deliberate defects, and whether the short tests notice them")
    parser.add_argument("--only", default="", help="only defects whose name contains this text")
    parser.add_argument("--begin", type=int, default=0, help="leave out that many defects at the head of the table")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS[options.begin :] if options.only in mutation.name]
    began, bad = time.perf_counter(), 0
    with ThreadPoolExecutor(options.workers) as pool:
        for mutation, (outcome, by, seconds) in zip(chosen, pool.map(attempt, chosen), strict=True):
            bad += outcome != "caught"
            print(f"{outcome:12} {seconds:4.0f} s  {mutation.name:34} {by}", flush=True)  # noqa: T201
    print(f"{len(chosen)} defects, {len(chosen) - bad} caught, {time.perf_counter() - began:.0f} s")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
