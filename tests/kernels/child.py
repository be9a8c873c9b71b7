"""Processes in which Triton interprets kernels on the CPU, or compiles them for a GPU that is not there."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.processes import environment

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

COMPILE = """
import sys, torch
from tests.kernels.absent_gpu import compiled
from tiltproof.kernels import pixels as fused_pixels
from tiltproof.transforms.base import parse

names = compiled(fused_pixels, "entries", "pixels", "smooth", "kinks")
transform = parse(sys.argv[1])
low = torch.tensor([transform.low] * 3, dtype=torch.float64)
quadratic = sys.argv[3:] == ["quadratic"]
dtype = torch.float64 if quadratic else torch.float32
entries = fused_pixels.trace(transform, list(range(len(transform.parts))), quadratic)
images = torch.rand(2, int(sys.argv[2]), 6, 7, dtype=torch.float64)
fused_pixels._launch(images, torch.tensor([0, 1, 0]), entries, low, low + 0.1, transform.padding, dtype)
assert names == ["entries", "pixels"] + quadratic * ["smooth", "kinks"], names
print("ok")
"""


def run(arguments, **variables) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.strip() == "ok", done.stderr[-3000:]
