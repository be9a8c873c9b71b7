"""Child processes for tests, with this checkout's package and helpers on their path and one thread each."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def environment(*folders, **variables):
    """Return this process's environment, extended so that `tiltproof`, `tests` and these folders can be imported."""
    path = os.pathsep.join(map(str, (SOURCE, ROOT, *folders)))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables
