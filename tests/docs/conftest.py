"""Makes the helpers of these tests, and the scripts that the site is built with, importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts")]
