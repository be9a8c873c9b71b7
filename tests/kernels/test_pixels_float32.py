"""The float32 arithmetic of the kernel of pixel bounds: in Triton's interpreter, on exact numbers."""

import pytest

from tests.kernels.child import needs_triton, run


@needs_triton
@pytest.mark.parametrize("what", ["edges", "positions", "pixels"])
def test_on_exact_numbers(what):
    run(["-m", "tests.kernels.interpreted_float32", what], TRITON_INTERPRET="1")
