"""The float32 arithmetic of the kernel of pixel bounds: in Triton's interpreter, on exact numbers."""

from pathlib import Path

import pytest
from test_fused_pixels import needs_triton, run


@needs_triton
@pytest.mark.parametrize("what", ["edges", "positions", "pixels"])
def test_on_exact_numbers(what):
    run([str(Path(__file__).with_name("interpreted_single.py")), what], TRITON_INTERPRET="1")
