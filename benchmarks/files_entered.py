"""How much of the package one `certify` call enters on a CPU: files and functions, without and with a run folder.

    python benchmarks/files_entered.py [--images N] [--list] [--json FILE]

A reader who wants to follow a proof has to open these files. They are counted with ``sys.setprofile`` during the call
alone, in a fresh process for each case, so that no cache hides a function; importing the package is not counted. The
job is the demo's: mnist-r30 on bundled digits under R(30). --list names the files and their functions.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import multiprocessing
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import tiltproof
from tiltproof.data import load as load_data
from tiltproof.models import load as load_model

PACKAGE = Path(tiltproof.__file__).parent
CASES = ("certify", "certify with a run folder")


def entered(call: Callable[[], Any]) -> dict[str, list[str]]:
    """The package's files that ``call`` enters, each with the functions entered there."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    prefix = f"{PACKAGE}/"

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # the bodies of modules and classes are not
        if event == "call" and is_function and code.co_filename.startswith(prefix):
            found[code.co_filename.removeprefix(prefix)].add(code.co_qualname)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {file: sorted(names) for file, names in sorted(found.items())}


def measured(case: str, count: int) -> dict[str, list[str]]:
    """What one case enters, on the first ``count`` images."""
    for name in tiltproof.__all__:
        getattr(tiltproof, name)  # modules are imported when a name is first used
    model, (images, labels) = load_model("mnist-r30"), load_data("mnist-sample")
    job = (model, images[:count], labels[:count], "R(30)")
    if case == "certify":
        return entered(lambda: tiltproof.certify(*job))
    with tempfile.TemporaryDirectory() as folder:
        return entered(lambda: tiltproof.certify(*job, run=tiltproof.RunFolder(Path(folder) / "run")))


def main() -> None:
    """Print the counts of each case, and write them as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--list", action="store_true", help="name the files and their functions")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = {}
    for case in CASES:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            rows[case] = process.submit(measured, case, arguments.images).result()
        print(f"{case}: {len(rows[case])} files, {sum(map(len, rows[case].values()))} functions")
        for file, names in rows[case].items() if arguments.list else ():
            print(f"  {file}: {', '.join(names)}")
    total = sum(1 for _ in PACKAGE.rglob("*.py"))
    print(f"the package: {total} files")
    if arguments.json is not None:
        found = {
            case: {"files": list(files), "functions": sum(map(len, files.values()))} for case, files in rows.items()
        }
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
