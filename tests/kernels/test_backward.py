"""The kernels of the backward pass, run by Triton's interpreter on the CPU, against the reference and against exact numbers."""

import pytest
import torch

from tiltproof import device as registry
from tiltproof.enclosures.affine_form import AffineForm, GatheredForm
from tiltproof.network.backward import concretized, relaxation_shares
from tiltproof.network.ops.activations import relu_backward

pytest.importorskip("triton")
from tiltproof.kernels import backward as fused

KERNELS = {"pull": fused.relu_backward, "meet": fused.concretized}

PROGRAM = """
import warnings
from fractions import Fraction
import torch
from torch import nn
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.affine_form import GatheredForm
from tiltproof.network import proof_arithmetic, read_network, refine, run
from tiltproof.network.backward import relaxation_shares
from tiltproof import device as registry
from tiltproof.kernels import backward as fused

ALL = ["backward:relu_backward", "backward:concretized", "backward:relaxation_shares"]
warnings.filterwarnings("ignore", category=RuntimeWarning)
fused.BLOCK = 64
device = torch.device("cpu")
for dtype in (torch.float32, torch.float64):
    for symbols in (0, 1, 4):
        for name in ("pull", "meet"):
            assert fused._agrees(name, device, dtype, symbols), (name, dtype, symbols)

used, launch = [], fused._launch
def counted(name, *rest):
    used.append(name)
    return launch(name, *rest)
fused._launch = counted

# a whole backward pass, whatever the order in memory: tighter than the reference or as good, and never above the true margin
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype).eval()
    center = torch.rand(4, 2, 6, 6, dtype=dtype)
    slopes = torch.randn(2, 4, 2, 6, 6, dtype=dtype) * 0.02
    form = AffineForm(torch.cat([center[None], slopes]), torch.full_like(center, 0.003))
    with torch.no_grad(), proof_arithmetic(device):
        network = read_network(model, (2, 6, 6), center[:1]).network_as(dtype)
        forms = run(network, form)
        for last in (False, True):
            if last:
                for name, each in forms.items():
                    if each.radius.ndim == 4:
                        stack = each.stack.movedim(2, -1).contiguous().movedim(-1, 2)
                        forms[name] = AffineForm(stack, each.radius.contiguous(memory_format=torch.channels_last))
            pairs, labels = torch.tensor([[0, 2, 2, 3, 1]] * 2, dtype=torch.int32).T[:, 0], torch.tensor([0, 1, 2, 0])
            classes = (labels[pairs] + torch.tensor([1, 1, 2, 2, 1])) % 3
            wanted = refine(network, forms, labels, pairs, classes)[0]
            registry.INTERPRETED.update(ALL)
            refine(network, forms, labels, pairs, classes)  # with the self-checks
            used.clear()
            found = refine(network, forms, labels, pairs, classes)[0]
            registry.INTERPRETED.clear()
            assert used.count("pull") == 2 and used.count("meet") >= 1, used
            assert torch.allclose(found, wanted, rtol=0, atol=1e-3 if dtype == torch.float32 else 1e-10), (found, wanted)
            e = torch.rand(300, 2, 1, 1, 1, 1, dtype=torch.float64) * 2 - 1
            images = form.center.double() + (e * slopes.double()).sum(1) + 0.003 * (torch.rand(300, *center.shape) * 2 - 1)
            outputs = model.double()(images.flatten(0, 1)).view(300, 4, 3)[:, pairs]
            model.to(dtype)
            margins = outputs[:, range(5), labels[pairs]] - outputs[:, range(5), classes]
            assert (found <= margins.amin(0)).all()

# shares of parameters: a choice of work, and the same as the reference's
for dtype in (torch.float32, torch.float64):
    for last, symbols, shape in ((False, 3, (2, 5, 11)), (True, 2, (3, 4, 6)), (False, 4, (70,)), (False, 0, (9,))):
        stack, radius = torch.randn(1 + symbols, 5, *shape, dtype=dtype), torch.rand(5, *shape, dtype=dtype)
        stack[1:, 2], stack[1:, 1, 0] = 0.0, 1e-35
        grown = radius + torch.rand_like(radius) - 0.3
        if last:
            stack = stack.movedim(-3, -1).contiguous().movedim(-1, -3)
            radius, grown = (each.movedim(-3, -1).contiguous().movedim(-1, -3) for each in (radius, grown))
        rows = torch.tensor([4, 0, 2, 2, 1, 3, 4])
        before, after = (GatheredForm(AffineForm(stack, each), rows) for each in (radius, grown))
        for a in (None, torch.randn(7, *shape, dtype=dtype)):
            for later in (None, after):
                wanted = relaxation_shares(a, before, later)
                registry.INTERPRETED.add("backward:relaxation_shares")
                found = relaxation_shares(a, before, later)
                registry.INTERPRETED.clear()
                assert found.shape == (7, symbols) and torch.allclose(found, wanted, rtol=1e-5, atol=0), (found, wanted)

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(48, 3)
    def forward(self, x):
        return self.last(torch.relu((x - 0.5).reshape(-1, 2, 2, 3, 4).permute(0, 1, 4, 2, 3)).flatten(1))

# five dimensions, channels last in memory but in the middle of the shape
model = Turned().double().eval()
center = torch.rand(3, 1, 6, 8, dtype=torch.float64)
form = AffineForm(torch.stack([center, torch.randn_like(center) * 0.3]), torch.full_like(center, 0.01))
with torch.no_grad(), proof_arithmetic(device):
    network = read_network(model, (1, 6, 8), center[:1]).network_as(torch.float64)
    forms = run(network, form)
    assert any(fused._channels_last(each.radius) and each.radius.ndim == 5 for each in forms.values())
    pairs, labels, classes = torch.tensor([0, 1, -1]), torch.tensor([0, 1, 2]), torch.tensor([1, 0, 0])
    wanted = refine(network, forms, labels, pairs, classes)[0]
    registry.INTERPRETED.update(ALL)
    refine(network, forms, labels, pairs, classes)
    used.clear()
    found = refine(network, forms, labels, pairs, classes)[0]
assert used.count("pull") == 1, used
assert torch.allclose(found, wanted, rtol=0, atol=1e-10), (found, wanted)
print("ok")
"""


def test_the_kernels_are_the_reference_and_sound(interpreted):
    interpreted(PROGRAM)


@pytest.mark.parametrize("name", ["pull", "meet"])
def test_a_kernel_that_differs_is_not_trusted(name, monkeypatch):
    """For instance, one whose sum is a little too small."""

    def launch(name, a, stack, radius, rows):
        out, sums, _ = fused.reference(name, a, AffineForm(stack, radius)[rows])
        return out, sums * (1 - 1e-5 * wrong)

    monkeypatch.setattr(fused, "_launch", launch)
    wrong = 0
    assert fused._agrees(name, torch.device("cpu"), torch.float32, 2)
    wrong = 1
    assert not fused._agrees(name, torch.device("cpu"), torch.float32, 2)
    monkeypatch.setattr(registry, "INTERPRETED", {"backward:relu_backward", "backward:concretized"})
    monkeypatch.setattr(KERNELS[name], "checked", {})
    form, a = GatheredForm(AffineForm(torch.randn(2, 3, 4), torch.rand(3, 4)), torch.tensor([0, 2])), torch.randn(2, 4)
    with pytest.warns(UserWarning, match="differ"):
        found = relu_backward(a, form, 0.0, 0.0) if name == "pull" else concretized(a, form)
    wanted = KERNELS[name].reference(a, form, *([0.0, 0.0] if name == "pull" else []))
    if name == "pull":
        assert torch.equal(found.inputs[0], wanted.inputs[0])
        assert torch.equal(found.rounding_budget, wanted.rounding_budget)
    else:
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_a_cpu_uses_the_reference(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda _: pytest.fail("not on a CPU"))
    form = GatheredForm(AffineForm(torch.randn(2, 3, 4), torch.rand(3, 4)), torch.tensor([0, 2]))
    relu_backward(torch.randn(2, 4), form, 0.0, 0.0)
    concretized(torch.randn(2, 4), form)
    relaxation_shares(None, form, None)
