"""Processes that tests start: with this checkout's package and helpers on their path, and one thread each."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def environment(*folders, **variables):
    """This process's environment, in which `tiltproof`, `tests` and what lies in these folders can be imported."""
    path = os.pathsep.join(map(str, (SOURCE, ROOT, *folders)))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables
