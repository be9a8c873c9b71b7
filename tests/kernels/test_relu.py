"""The kernel of the ReLU relaxation, run by Triton's interpreter on the CPU, against the reference and against exact numbers."""

import pytest
import torch

from tiltproof import device as registry
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import kinked, relax_relu, zonotope_relu

pytest.importorskip("triton")
from tiltproof.kernels import relu as fused

PROGRAM = """
import sys, warnings
from fractions import Fraction
import torch
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.relu import kinked
from tiltproof import device as registry
from tiltproof.enclosures.relu import zonotope_relu
from tiltproof.kernels.relu import relu

warnings.filterwarnings("ignore", category=RuntimeWarning)
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64):
    for symbols in (0, 1, 2, 5):
        stack = torch.randn(1 + symbols, 5, 211, dtype=dtype)
        stack[1:] *= 10.0 ** -torch.randint(0, 9, (symbols, 5, 211))
        radius = torch.rand(5, 211, dtype=dtype) * 10.0 ** -torch.randint(0, 12, (5, 211))
        stack[0, 0, :3], radius[1, :2] = torch.tensor([torch.inf, -torch.inf, torch.nan]), torch.tensor([torch.inf, torch.nan])
        stack[:, 2, :4], radius[2, 2:6] = 0.0, 0.0
        form = AffineForm(stack, radius.to(dtype))
        quadratic = AffineForm(form.stack, form.radius, quadratic=symbols > 0)
        wanted = zonotope_relu(form)
        registry.INTERPRETED.add("relu:relu")
        found = zonotope_relu(quadratic)
        registry.INTERPRETED.clear()
        assert list(relu.checked.values()) == [True] * (1 + (dtype == torch.float64)), "the kernel passed its check"
        kinks = quadratic.kinks
        assert not symbols or kinks.dtype == torch.bool and torch.equal(kinks, kinked(form))
        found = found.stack, found.radius, found.magnitude()
        for mine, reference in zip(found, (wanted.stack, wanted.radius, wanted.magnitude()), strict=True):
            assert torch.isclose(mine, reference, rtol=4 * form.unit, atol=0.0, equal_nan=True).all()
        stack, radius, _ = (x.double() for x in found)
        for index in [(k, j) for k in range(5) for j in range(10, 211, 7)]:
            for signs in range(2 ** (symbols + 1)):
                e = [1 if signs >> k & 1 else -1 for k in range(symbols + 1)]
                planes = [Fraction(float(plane[index])) for plane in form.stack]
                x = planes[0] + sum(g * s for g, s in zip(planes[1:], e)) + Fraction(float(form.radius[index])) * e[-1]
                new = [Fraction(float(plane[index])) for plane in stack]
                middle = new[0] + sum(g * s for g, s in zip(new[1:], e))
                assert abs(max(x, 0) - middle) <= Fraction(float(radius[index])), (dtype, symbols, index)
print("ok")
"""


def test_the_kernel_is_the_reference_and_sound(interpreted):
    interpreted(PROGRAM)


def test_a_cpu_uses_the_reference(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda _: pytest.fail("not on a CPU"))
    relax_relu(AffineForm(torch.randn(2, 3, 4), torch.rand(3, 4)))


def test_running_out_of_memory_leaves_the_kernel_in_use(monkeypatch):
    errors = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no compiler")]

    def launch(*_):
        raise errors.pop(0)

    monkeypatch.setattr(registry, "INTERPRETED", {"relu:relu"})
    monkeypatch.setattr(fused.relu, "disabled", False)
    monkeypatch.setattr(fused.relu, "checked", {})
    monkeypatch.setattr(fused, "_launch", launch)
    form = AffineForm(torch.randn(2, 3, 4), torch.rand(3, 4))
    with pytest.raises(torch.OutOfMemoryError):
        zonotope_relu(form)
    assert not fused.relu.disabled
    assert not fused.relu.checked, "nothing is decided about the device either"
    with pytest.warns(UserWarning, match="no compiler"):
        assert torch.equal(zonotope_relu(form).stack, fused.relu.reference(form).stack)
    assert fused.relu.disabled


def test_a_kernel_that_sees_other_kinks_is_not_trusted(monkeypatch):
    """Everything else is correct; a parabola where there is no kink is not sound."""

    def launch(stack, radius, unit):
        form = AffineForm(stack, radius, unit)
        result = zonotope_relu(form)
        kinks = kinked(form) if form.symbols else torch.zeros_like(radius, dtype=torch.bool)
        kinks[-1] ^= wrong
        return result.stack, result.radius, result.magnitude(), kinks

    monkeypatch.setattr(fused, "_launch", launch)
    wrong = False
    assert fused._agrees(torch.device("cpu"), torch.float32)
    wrong = True
    assert not fused._agrees(torch.device("cpu"), torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_on_a_gpu(dtype):
    form = AffineForm(torch.randn(3, 4, 10_001, dtype=dtype).cuda(), torch.rand(4, 10_001, dtype=dtype).cuda())
    found, wanted = relax_relu(form), fused.relu.reference(form)
    assert any(fused.relu.checked.values())
    assert torch.equal(found.stack, wanted.stack)
    assert torch.isclose(found.radius, wanted.radius, rtol=4 * form.unit, atol=0.0).all()
