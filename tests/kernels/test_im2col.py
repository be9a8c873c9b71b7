"""im2col: the reference against torch's own, the kernel (interpreted) against the reference."""

import pytest
import torch
import torch.nn.functional as F

from tiltproof import device as registry
from tiltproof.network.arithmetic import Reach, im2col

pytest.importorskip("triton")
from tiltproof.kernels import im2col as fused

PROGRAM = """
import warnings
import torch
import torch.nn.functional as F
from tiltproof.network import arithmetic
from tiltproof.kernels import im2col as fused
from tiltproof.network.arithmetic import Reach, im2col

warnings.filterwarnings("ignore", category=RuntimeWarning)
device = torch.device("cpu")
assert fused._agrees(device, torch.float32)
# tiles that do not divide the rows, nor the channels, and all orders in memory
fused.TILE, fused.MOST_TILE = 64, 8
torch.manual_seed(0)
for number, channels in enumerate((1, 3, 8, 12, 19)):
    x = torch.randn(2, 7, channels, 9, dtype=(torch.float64, torch.float32)[number % 2])
    for order, turned in enumerate((x.permute(0, 2, 1, 3), x.permute(0, 2, 3, 1), x.permute(3, 2, 0, 1))):
        height, width = turned.shape[2:]
        reach = Reach((2, 3), (1, 2), (1, 1), (1, 2), height + 1, (width + 1) // 2 + 1)
        fused.MOST_ROWS = (2**31 - 1, 9)[(number + order) % 2]  # counted by 32 bits, and by 64
        assert torch.equal(fused._launch(turned, reach), im2col(turned, reach))
# convolutions by lines, of integers: kernel and stride, of images that need no lines below them and of others
arithmetic.im2col, arithmetic.LEAST_OUTPUTS, fused.TILE = fused._launch, 1, 2048
for channels, high, down, above in ((16, 4, 2, 1), (18, 5, 2, 2), (16, 3, 2, 3), (11, 5, 3, 3), (16, 3, 1, 1)):
    x, weight = torch.randint(-9, 10, (3, channels, 7, 6)).float(), torch.randint(-9, 10, (2, channels, high, 3)).float()
    window = arithmetic.Window((down, 2), (above, 1), (1, 1), 1)
    for turned in (x, x.contiguous(memory_format=torch.channels_last)):
        found = arithmetic.conv2d_as_product(turned, weight, window)
        assert torch.equal(found, F.conv2d(x, weight, None, window.stride, window.padding))
print("ok")
"""


def test_the_kernel_copies_what_the_reference_does(interpreted):
    interpreted(PROGRAM)


@pytest.mark.parametrize("padding", [(0, 0), (1, 2), (3, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)])
def test_whole_windows_are_those_of_torch(padding, stride):
    x = torch.randn(3, 4, 7, 9)
    unfolded = F.unfold(x, (3, 2), (1, 2), padding, stride).unflatten(1, (4, 6))  # [N, channels, positions, windows]
    high = (7 + 2 * padding[0] - 3) // stride[0] + 1
    reach = Reach((3, 2), stride, (1, 2), padding, high, unfolded.shape[-1] // high)
    assert torch.equal(im2col(x, reach).view(3, -1, 6, 4), unfolded.permute(0, 3, 2, 1))


def test_lines_of_the_next_image_begin_with_zeros():
    x = torch.rand(2, 3, 4, 5) + 1
    reach = Reach((1, 1), (1, 1), (1, 1), (2, 0), 6, 5, tail=2)
    lines = im2col(x, reach).view(-1, 5, 3)
    assert len(lines) == 14
    assert reach.rows(2) == 70
    empty = (lines == 0).all((1, 2))
    assert empty.tolist() == [True, True, *[False] * 4] * 2 + [True, True]
    assert torch.equal(lines[2:6], x[0].permute(1, 2, 0))
    assert torch.equal(lines[8:12], x[1].permute(1, 2, 0))


def test_a_kernel_that_differs_is_not_trusted(monkeypatch):
    """For instance, one that omits a zero outside the image."""

    def launch(x, reach):
        found = fused.im2col.reference(x, reach)
        found.view(-1)[0] += wrong
        return found

    monkeypatch.setattr(fused, "_launch", launch)
    monkeypatch.setattr(registry, "INTERPRETED", {"im2col:im2col"})
    monkeypatch.setattr(fused.im2col, "checked", {})
    wrong, state = 0.0, torch.get_rng_state()
    assert fused._agrees(torch.device("cpu"), torch.float32)
    assert torch.equal(torch.get_rng_state(), state), "a user's random numbers are others than without a GPU"
    wrong = 1e-30
    with pytest.warns(UserWarning, match="differ"):
        im2col(torch.rand(1, 1, 3, 3), Reach((2, 2), (1, 1), (1, 1), (0, 0), 2, 2))
