"""Makes the forger's tool and the exact oracle importable, and keeps torch to one thread."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "soundness")]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
