"""Matrix products by oneDNN: as exact as any order of summation, and used only where that holds."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tiltproof
from tiltproof.enclosures.rounding import gamma
from tiltproof.network import arithmetic, proof_arithmetic
from tiltproof.network.arithmetic import product

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch):
    monkeypatch.setattr(arithmetic, "_onednn_trust", {})
    monkeypatch.setattr(arithmetic, "ONEDNN_PRODUCTS", 1)


@pytest.fixture
def used(monkeypatch):
    """Count the calls of oneDNN."""
    arithmetic._onednn_exact()
    calls, inner = [], arithmetic.by_onednn
    monkeypatch.setattr(arithmetic, "by_onednn", lambda x, matrix: calls.append(x.shape) or inner(x, matrix))
    return calls


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (17, 1000, 9), (64, 33, 130), (300, 257, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_every_entry_is_a_sum_of_float32_products(shape, turned, used):
    rows, inputs, outputs = shape
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=generator) * 10 ** torch.randn(rows, inputs, generator=generator)
    matrix = torch.randn(outputs, inputs, generator=generator)
    given = matrix.T.contiguous().T if turned else matrix
    with proof_arithmetic(CPU), torch.no_grad():
        found = [product(x, given) for _ in range(2)]
    assert used[-2:] == [x.shape] * 2
    assert torch.equal(*found)
    exact, size = (F.linear(*(each.double() for each in pair)) for pair in ((x, matrix), (x.abs(), matrix.abs())))
    room = size * (gamma(inputs, 2.0**-24) + 1e-12) + 1e-37
    assert bool(((found[0] - exact).abs() <= room).all())


@needs_onednn
def test_small_numbers_exactly(used):
    """Products that float32 can hold, so nothing may be lost: fewer bits on the way would show."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-2047, 2048, (20, 3), generator=generator).float()
    matrix = torch.randint(-1023, 1024, (20, 3), generator=generator).float()
    with proof_arithmetic(CPU), torch.no_grad():
        found = product(x, matrix)
    assert used[-1] == x.shape
    for i, row in enumerate(x.tolist()):
        for j, column in enumerate(matrix.tolist()):
            assert Fraction(found[i, j].item()) == sum(
                Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True)
            )


@needs_onednn
def test_what_is_not_a_number_stays_none(used):
    x = torch.ones(40, 64)
    x[3, 5], x[7, 2] = torch.nan, torch.inf
    with torch.no_grad():
        found = product(x, torch.rand(50, 64) - 0.5)
    assert used[-1] == x.shape
    assert not bool(torch.isfinite(found[[3, 7]]).any())
    assert int(torch.isfinite(found).all(1).sum()) == 38


@pytest.mark.parametrize("kind", ["float64", "gradient", "three dimensions", "switched off", "small"])
def test_torch_itself_elsewhere(kind, used, monkeypatch):
    dtype = torch.float64 if kind == "float64" else torch.float32
    x, matrix = torch.rand(6, 8, dtype=dtype), torch.rand(4, 8, dtype=dtype)
    if kind == "three dimensions":
        x = x.view(2, 3, 8)
    monkeypatch.setattr(arithmetic, "ONEDNN_PRODUCTS", 10**9 if kind == "small" else 1)
    matrix.requires_grad_(kind == "gradient")
    with torch.backends.mkldnn.flags(enabled=False) if kind == "switched off" else nullcontext():
        found = product(x, matrix)
    assert not used
    assert found.requires_grad == (kind == "gradient")
    torch.testing.assert_close(found, F.linear(x, matrix))


DAMAGE = {
    "bf16": lambda x, matrix: F.linear(x.bfloat16().float(), matrix),
    "16 bits of the matrix": lambda x, matrix: F.linear(x, (matrix * 257 - matrix * 256)),
    "half a sum": lambda x, matrix: F.linear(x, matrix).half().float(),
    "lost numbers": lambda x, matrix: F.linear(x.nan_to_num(0.0, 0.0, 0.0), matrix),
    "failing": lambda *_: (_ for _ in ()).throw(RuntimeError("could not create a primitive descriptor")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_products_that_differ_are_not_used(kind, monkeypatch):
    monkeypatch.setattr(arithmetic, "by_onednn", DAMAGE[kind])
    assert not arithmetic._onednn_exact()
    if not torch.backends.mkldnn.is_available():
        return
    x, matrix = torch.rand(6, 8), torch.rand(4, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="oneDNN"):
        found = product(x, matrix)
    assert torch.equal(found, F.linear(x, matrix))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        product(x, matrix)  # warned once


@needs_onednn
def test_the_check_does_not_depend_on_the_users_defaults():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert arithmetic._onednn_exact()
    finally:
        torch.set_default_dtype(before)


def test_memory_that_runs_out_is_an_error(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(arithmetic, "by_onednn", full)
    with pytest.raises(torch.OutOfMemoryError):
        arithmetic._onednn_exact()


@needs_onednn
def test_a_run_with_and_without(used):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4)
    ).eval()
    images = torch.rand(3, 1, 8, 8)
    labels = model(images).argmax(1)
    with_it = tiltproof.certify(model, images, labels, "R(2)")
    assert used
    with torch.backends.mkldnn.flags(enabled=False):
        without = tiltproof.certify(model, images, labels, "R(2)")
    assert with_it.verdicts == without.verdicts
    assert with_it.margins == pytest.approx(without.margins, abs=1e-4)
