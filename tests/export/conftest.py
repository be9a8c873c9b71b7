"""Files of these tests, and the runs made by hand of the checker's."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "checker"), str(HERE.parent / "certify")]
