"""The kernels of pixel bounds: in Triton's interpreter against the reference and the exact picture, compiled for a GPU, and on one."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from places import coordinates_of

from tiltproof.bounds import fused_pixels, pair_bounds
from tiltproof.transforms.notation import parse

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

COMPILE = """
import sys, torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from tiltproof.bounds import fused_pixels
from tiltproof.transforms.notation import parse

class Absent:  # a GPU to compile for
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)

class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel
    def __getitem__(self, grid):
        return lambda *arguments, **options: names.append(self.kernel.warmup(*arguments, grid=grid, **options).name)

names = []
driver.set_active(Absent())
fused_pixels._kernel("pixels")
fused_pixels._kernels = {name: Compiled(kernel) for name, kernel in fused_pixels._kernels.items()}
transform = parse(sys.argv[1])
low = torch.tensor([transform.low] * 3, dtype=torch.float64)
entries = fused_pixels.written(transform, list(range(len(transform.parts))))
pictures = torch.rand(2, int(sys.argv[2]), 6, 7, dtype=torch.float64)
fused_pixels._launch(pictures, torch.tensor([0, 1, 0]), entries, low, low + 0.1, transform.padding, torch.float32)
assert names == ["entries", "pixels"], names
print("ok")
"""


def run(arguments, **environment) -> None:
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": source} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.strip() == "ok", done.stderr[-3000:]


@needs_triton
@pytest.mark.parametrize("what", ["same", "odd", "sound"])
def test_in_the_interpreter(what):
    run([str(Path(__file__).with_name("interpreted_pixels.py")), what], TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize(("transform", "channels"), [("Sh(2), R(2), Tu(1); padding=reflect", "3")])
def test_compiles_for_a_gpu(transform, channels, tmp_path):
    """The interpreter takes more than the compiler does."""
    run(["-c", COMPILE, transform, channels], TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")


def test_a_cpu_uses_the_reference(monkeypatch):
    monkeypatch.setattr(fused_pixels, "_launch", lambda *_: pytest.fail("not on a CPU"))
    low = torch.tensor([[1.0]], dtype=torch.float64)
    form = pair_bounds(
        torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([0]), parse("R(5)"), "affine", low, low + 1
    )
    assert form.symbols == 1


def test_the_last_dtype_is_that_of_a_conversion():
    pictures, low = torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)
    for method in ("affine", "hull"):
        arguments = pictures, torch.tensor([0]), parse("R(5)"), method, low, low + 1
        wanted, found = pair_bounds(*arguments).to(torch.float32), pair_bounds(*arguments, dtype=torch.float32)
        assert torch.equal(wanted.stack, found.stack)
        assert torch.equal(wanted.radius, found.radius)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "text", ["R(10)", "R(2), Sh(2)", "Sc(5), R(5), C(5); padding=border", "Tu(30), Sc(9); padding=reflect"]
)
def test_on_a_gpu(text, dtype, monkeypatch):
    """What the reference gives on the same GPU, pair by pair; and the pictures of sampled parameters lie within."""
    transform = parse(text)
    ends = [torch.tensor(end, dtype=torch.float64, device="cuda") for end in (transform.low, transform.high)]
    pictures = torch.rand(3, 3, 17, 20, dtype=torch.float64, device="cuda")
    place = torch.rand(24, len(transform.parts), dtype=torch.float64, device="cuda")
    half = 10.0 ** -torch.arange(24, device="cuda").remainder(8).double().unsqueeze(1) * (ends[1] - ends[0]) / 2
    middle = ends[0] + (ends[1] - ends[0]) * place
    low, high = (middle - half).clamp(*ends), (middle + half).clamp(*ends)
    rows_of = torch.arange(24, device="cuda") % 3
    used = []
    launch = fused_pixels._launch
    monkeypatch.setattr(fused_pixels, "_launch", lambda *arguments: used.append(1) or launch(*arguments))
    found = pair_bounds(pictures, rows_of, transform, "affine", low, high, dtype=dtype)
    assert used
    for share in (0.0, 0.3, 1.0):
        true = transform.apply(pictures[rows_of], low + share * (high - low))
        assert (found.lower.double() <= true + 1e-12).all()
        assert (true - 1e-12 <= found.upper.double()).all()
    monkeypatch.setattr(fused_pixels, "_on_gpu", lambda _: False)
    for k in range(24):
        box = low[k : k + 1], high[k : k + 1]
        wanted = pair_bounds(pictures, rows_of[k : k + 1], transform, "affine", *box, dtype=dtype)
        place = coordinates_of(transform, *box, *pictures.shape[-2:])
        assert fused_pixels.agree(found[k : k + 1], wanted, place, transform.padding).all()
