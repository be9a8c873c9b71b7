"""The epilogue of linear operations: the kernel (interpreted) against the reference, and where the reference must run."""

import pytest
import torch

from tiltproof import device as registry
from tiltproof.network.ops.base import shift_and_widen

pytest.importorskip("triton")
from tiltproof.kernels import linear_epilogue as fused_shift

PROGRAM = """
import warnings
import torch
from torch import nn
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import proof_arithmetic, read_network, run
from tiltproof import device as registry
from tiltproof.kernels import linear_epilogue as fused_shift

warnings.filterwarnings("ignore", category=RuntimeWarning)
device = torch.device("cpu")
assert fused_shift._agrees(device, torch.float32)
fused_shift.TILE, fused_shift.MOST_CHANNELS = 64, 8  # tiles that divide neither rows nor channels
assert fused_shift._agrees(device, torch.float64)

used, launch = [], fused_shift._launch
def counted(*rest):
    used.append(rest)
    return launch(*rest)
fused_shift._launch = counted
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 7), nn.ReLU(), nn.Linear(7, 3, bias=False)).to(dtype)
    center = torch.rand(4, 2, 6, 6, dtype=dtype).contiguous(memory_format=torch.channels_last)
    form = AffineForm(torch.stack([center, 0.02 * torch.randn_like(center)]), torch.full_like(center, 0.003))
    with torch.no_grad(), proof_arithmetic(device):
        network = read_network(model.eval(), (2, 6, 6), center[:1]).network_as(dtype)
        registry.INTERPRETED.clear()
        used.clear()
        wanted = run(network, form)
        assert not used
        registry.INTERPRETED.add("linear_epilogue:shift_and_widen")
        found = run(network, form)
        # the first linear operation and, where torch leaves the channels last, the convolution; the last has no shift
        assert len(used) >= 1, used
        for name, each in wanted.items():
            assert torch.equal(each.stack, found[name].stack) and torch.equal(each.radius, found[name].radius), name
print("ok")
"""


def test_the_kernel_is_the_reference(interpreted):
    interpreted(PROGRAM)


def numbers(dtype=torch.float32):
    center, radius = (torch.rand(5, 4, 4, 3, dtype=dtype).movedim(-1, 1) for _ in range(2))
    return [center, radius, torch.rand(3, 1, 1, dtype=dtype), torch.rand(3, 1, 1, dtype=dtype)]


def possible(center, radius, shift, extra):
    return fused_shift._possible(center, radius, shift, 2.0, extra)


def test_what_the_kernel_is_not_made_for(monkeypatch):
    """Another memory order, gradients, several dtypes, or a number for each entry."""
    assert possible(*numbers())
    assert possible(torch.rand(5, 3), torch.rand(5, 3), torch.rand(3), torch.rand(3))
    for index, change in [
        (0, lambda x: x.contiguous()),
        (1, lambda x: x.contiguous()),
        (1, lambda x: x.double()),
        (0, lambda x: x.clone().requires_grad_()),
        (2, lambda x: x.expand(3, 4, 4)),
        (3, lambda x: x.expand(3, 4, 4)),
        (3, lambda x: x[:1]),
        (2, lambda x: x.double()),
    ]:
        changed = numbers()
        changed[index] = change(changed[index])
        assert not possible(*changed), (index, change)
        if not changed[0].requires_grad and len({x.dtype for x in changed}) == 1:
            monkeypatch.setattr(fused_shift, "_launch", lambda *_: pytest.fail("not for these"))
            monkeypatch.setattr(registry, "INTERPRETED", {"linear_epilogue:shift_and_widen"})
            center, radius, shift, extra = changed
            wanted = center + shift, radius * 2.0 + extra
            shift_and_widen(center, radius, shift, 2.0, extra)
            assert torch.equal(center, wanted[0])
            assert torch.equal(radius, wanted[1])


def test_a_kernel_that_differs_is_not_trusted(monkeypatch):
    def launch(center, radius, shift, factor, extra):
        fused_shift.shift_and_widen.reference(center, radius, shift, factor, extra)
        radius.mul_(wrong)

    monkeypatch.setattr(fused_shift, "_launch", launch)
    monkeypatch.setattr(registry, "INTERPRETED", {"linear_epilogue:shift_and_widen"})
    monkeypatch.setattr(fused_shift.shift_and_widen, "checked", {})
    wrong, state = 1.0, torch.get_rng_state()
    assert fused_shift._agrees(torch.device("cpu"), torch.float64)
    assert torch.equal(torch.get_rng_state(), state), "a user's random numbers are others than without a GPU"
    wrong = 1 - 2.0**-52
    given = numbers(torch.float64)
    wanted = given[1] * 2.0 + given[3]
    with pytest.warns(UserWarning, match="differ"):
        shift_and_widen(*given[:3], 2.0, given[3])
    assert torch.equal(given[1], wanted)
