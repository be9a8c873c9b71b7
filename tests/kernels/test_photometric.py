"""The kernel of contrast and brightness: in Triton's interpreter against the reference and exact numbers, and compiled for a GPU."""

import pytest
import torch

from tests.kernels.child import needs_triton, run
from tiltproof import device as registry
from tiltproof.pixels.api import pair_bounds
from tiltproof.transforms.base import Pixelwise, parse

pytest.importorskip("triton")
from tiltproof.kernels import photometric as fused

PROGRAM = """
import warnings
from fractions import Fraction
import torch
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof import device as registry
from tiltproof.kernels import photometric as fused
from tiltproof.pixels.api import affine_pixelwise, pair_bounds
from tiltproof.kernels.photometric import _reference as reference, changes_of
from tiltproof.transforms.base import parse

warnings.filterwarnings("ignore", category=RuntimeWarning)
registry.INTERPRETED.add("photometric:values")
used, launch = [], fused._launch
fused._launch = lambda *given: used.append(1) or launch(*given)
torch.manual_seed(0)
runs = {"R(5), C(5), B(0.01)": [1, 2], "Tu(1), B(0.3), C(40)": [1, 2], "Sc(5), C(-60:-40)": [1], "R(2), B(0.2:0.4), Tv(1)": [1]}
for text, run in runs.items():
    transform = parse(text)
    ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
    middle = ends[0] + (ends[1] - ends[0]) * torch.rand(5, len(ends[0]), dtype=torch.float64)
    half = torch.tensor([0.0, 1e-9, 0.01, 0.3, 1.0], dtype=torch.float64).unsqueeze(1) * (ends[1] - ends[0]) / 2
    low, high = (middle - half).clamp(*ends), (middle + half).clamp(*ends)
    stack = torch.rand(1 + len(ends[0]), 5, 1, 3, 67, dtype=torch.float64)
    stack[0], stack[1:] = 1.4 * stack[0] - 0.2, (stack[1:] - 0.5) * 10.0 ** -torch.randint(0, 12, stack[1:].shape)
    radius = torch.rand(5, 1, 3, 67, dtype=torch.float64) * 10.0 ** -torch.randint(0, 14, (5, 1, 3, 67))
    image = AffineForm(stack, radius)
    for dtype in (torch.float64, torch.float32):
        before = len(used)
        found = affine_pixelwise(image, transform, run, low, high, dtype)
        assert len(used) == before + 2, "checked once, and used"
        wanted = reference(image, transform, run, low, high, dtype)
        assert found.stack.dtype == found.radius.dtype == dtype and found.unit == wanted.unit
        for mine, theirs in ((found.stack, wanted.stack), (found.radius, wanted.radius)):
            assert torch.isclose(mine, theirs, rtol=4 * found.unit, atol=4 * 2.0**-53).all()
        # exact values at corners, with the remainder at its ends
        exact = lambda tensor, at: Fraction(float(tensor[at]))
        for signs in range(2 ** (len(ends[0]) + 1)):
            e = [1 if signs >> k & 1 else -1 for k in range(len(ends[0]) + 1)]
            for pair, place in [(p, (p, 0, j % 3, j)) for p in range(5) for j in range(0, 67, 9)]:
                x = exact(stack[0], place) + sum(exact(g, place) * s for g, s in zip(stack[1:], e)) + exact(radius, place) * e[-1]
                for k in run:
                    value = exact(high if e[k] > 0 else low, (pair, k))
                    x = x * (1 + value / 100) if "C(" in transform.parts[k].text else x + value
                x = min(max(x, 0), 1)
                middle_ = exact(found.stack[0], place) + sum(exact(g, place) * s for g, s in zip(found.stack[1:], e))
                assert abs(x - middle_) <= exact(found.radius, place), (text, dtype, place, e)
# the whole way, also where a stage follows
for text in ("Tu(1), C(5), B(0.01)", "Tu(1), B(0.1), Tv(1)"):
    transform = parse(text)
    low, high = (torch.tensor([end] * 2, dtype=torch.float64) * 0.2 for end in (transform.low, transform.high))
    given = torch.rand(1, 1, 4, 5, dtype=torch.float64), torch.tensor([0, 0]), transform, "affine", low, high
    before = len(used)
    found = pair_bounds(*given, dtype=torch.float32)
    assert len(used) > before
    registry.INTERPRETED.clear()
    wanted = pair_bounds(*given, dtype=torch.float32)
    registry.INTERPRETED.add("photometric:values")
    assert torch.isclose(found.stack, wanted.stack, atol=1e-7).all() and torch.isclose(found.radius, wanted.radius, rtol=1e-5).all()
# kernels that go wrong in one respect are refused
transform = parse("R(5), C(5), B(0.01)")
changes, fused._launch = changes_of(transform, (1, 2)), launch
for dtype in (torch.float64, torch.float32):
    results = []
    def harmed(*given):
        results[:] = results or [launch(*given)]
        form = AffineForm(results[0].stack.clone(), results[0].radius.clone())
        harm(form)
        return form
    fused._launch = harmed
    agrees = lambda: fused._agrees(transform, [1, 2], changes, dtype, torch.device("cpu"))
    harm = lambda form: None
    assert agrees()
    for harm in (
        lambda form: form.radius.sub_(16 * form.unit),
        lambda form: form.radius.mul_(1 - 2.0**-18),
        lambda form: form.center.flatten(1)[:, -1].add_(0.01),
        lambda form: form.slopes.neg_(),
        lambda form: form.center.nan_to_num_(),
        lambda form: form.radius.nan_to_num_(),
    ):
        assert not agrees()
print("ok")
"""

COMPILE = """
import torch
from tests.kernels.absent_gpu import compiled
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.kernels import photometric as fused
from tiltproof.transforms.base import parse

names = compiled(fused, "entries", "values")
transform = parse("Sc(5), R(5), C(5), B(0.01)")
low = torch.tensor([transform.low] * 3, dtype=torch.float64)
image = AffineForm(torch.rand(5, 3, 1, 6, 7, dtype=torch.float64), torch.rand(3, 1, 6, 7, dtype=torch.float64))
for dtype in (torch.float32, torch.float64):
    fused._launch(image, fused.changes_of(transform, (2, 3)), low, low + 0.001, dtype)
assert names == ["entries", "values"] * 2, names
print("ok")
"""


@needs_triton
def test_the_kernel_is_the_reference_and_sound():
    run(["-c", PROGRAM], TRITON_INTERPRET="1")


@needs_triton
def test_compiles_for_a_gpu(tmp_path):
    """The interpreter accepts more than the compiler does."""
    run(["-c", COMPILE], TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")


def test_a_cpu_uses_the_reference(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda _: pytest.fail("not on a CPU"))
    low = torch.tensor([[0.1, 1.0]], dtype=torch.float64)
    pair_bounds(
        torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([0]), parse("Tu(1), C(5)"), "affine", low, low + 1
    )


def test_formulas_that_cannot_be_written_down_are_left_to_the_reference():
    class Strange(Pixelwise):
        letter, unit = "Strange", "units"

        def pixels(self, image, value):
            return image * image + value

    class Number(Strange):
        def pixels(self, image, value):
            return (image + value) * 0.5

    assert fused.changes_of(Strange(-1, 1), (0,)) is None
    assert fused.changes_of(Number(-1, 1), (0,)) is None
    assert fused.changes_of(parse("C(5)"), (0,)) is not None


def test_parts_of_one_class_with_numbers_of_their_own_are_told_apart():
    class Gain(Pixelwise):
        letter, unit = "Gain", "units"

        def __init__(self, low, high, strength):
            self.strength = strength
            super().__init__(low, high)

        def pixels(self, image, value):
            return image * (1 + value * self.strength)

    weak, strong = (fused.changes_of(Gain(-1, 1, strength), (0,)) for strength in (1.0, 3.0))
    assert [step[3] for step in weak[0].steps] == [1.0, 1.0]
    assert [step[3] for step in strong[0].steps] == [3.0, 1.0]


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu(dtype, monkeypatch):
    """The reference's results on the same GPU; and the images of sampled parameters lie inside."""
    transform = parse("Sc(5), R(5), C(5), B(0.01)")
    ends = [torch.tensor(end, dtype=torch.float64, device="cuda") for end in (transform.low, transform.high)]
    images = torch.rand(3, 3, 17, 20, dtype=torch.float64, device="cuda")
    half = 10.0 ** -torch.arange(24, device="cuda").remainder(8).double().unsqueeze(1) * (ends[1] - ends[0]) / 2
    middle = ends[0] + (ends[1] - ends[0]) * torch.rand(24, 4, dtype=torch.float64, device="cuda")
    low, high = (middle - half).clamp(*ends), (middle + half).clamp(*ends)
    given = images, torch.arange(24, device="cuda") % 3, transform, "affine", low, high
    used, launch = [], fused._launch
    monkeypatch.setattr(fused, "_launch", lambda *arguments: used.append(1) or launch(*arguments))
    found = pair_bounds(*given, dtype=dtype)
    assert used
    for share in (0.0, 0.3, 1.0):
        true = transform.apply(images[given[1]], low + share * (high - low))
        assert (found.lower.double() <= true + 1e-12).all()
        assert (true - 1e-12 <= found.upper.double()).all()
    monkeypatch.setattr(fused.values, "disabled", True)
    wanted = pair_bounds(*given, dtype=dtype)
    assert torch.isclose(found.stack, wanted.stack, rtol=8 * found.unit, atol=16 * 2.0**-53).all()
    assert torch.isclose(found.radius, wanted.radius, rtol=8 * found.unit, atol=4 * 2.0**-53).all()
