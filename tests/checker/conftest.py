"""Makes the forger's tool, the exact oracle and the small networks of the prover's tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "checker"), str(TESTS / "soundness"), str(TESTS / "certify")]
