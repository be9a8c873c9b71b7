"""The windows of a convolution, each as a row of a matrix: on a GPU in one pass over memory, where torch makes two slow ones.

Nothing is computed: entries are copied, and zeros stand where a window reaches beside the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.device import current
from tiltproof.kernels.registry import given_up, kernel, trusted

TILE, MOST_PLACES, LARGEST_PIECE, FEW = 2048, 128, 16, 16
"""Of the kernels: entries copied at a time, of one row at most, and known to lie together at most; and fewer channels than this are few."""
MOST_ROWS = 2**31 - 1
"""That are counted by 32 bits."""
_kernels: dict[str, Any] = {}


@dataclass(frozen=True)
class Reach:
    """Which windows of a picture: ``block`` of them below each other and ``wide`` beside each other, for every image; and after the last
    image those of ``tail`` more lines, which lie above a picture and are empty.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    block: int
    wide: int
    tail: int = 0

    def rows(self, images: int) -> int:
        return (images * self.block + self.tail) * self.wide

    def entries(self, x: Tensor) -> int:
        """In the windows of one of the pictures ``x``."""
        return self.block * self.wide * self.kernel[0] * self.kernel[1] * x.shape[1]


def windows(x: Tensor, reach: Reach) -> Tensor:
    """[N, C, H, W] -> [rows, entries of a window], without gaps: lines before columns before channels; images, lines, columns in order."""
    if x.is_cuda and x.numel() and not x.requires_grad and _kernel("spread") is not None:
        try:
            if _trusted(x.device, x.dtype):
                return _launch(x, reach)
        except Exception as error:
            given_up(_kernels, "spread", error, "convolutions")
    return reference(x, reach)


def reference(x: Tensor, reach: Reach) -> Tensor:
    """Pad, then one strided copy."""
    (high, wide), (down, right), (far_down, far_right) = reach.kernel, reach.stride, reach.dilation
    images, channels, height, width = x.shape
    above, left = reach.padding
    bottom = (reach.block - 1) * down + far_down * (high - 1) + 1 - height - above
    beside = (reach.wide - 1) * right + far_right * (wide - 1) + 1 - width - left
    rows = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, beside, above, bottom)).contiguous()
    image, line, step, _ = rows.stride()
    shape = images, reach.block, reach.wide, high, wide, channels
    strides = image, down * line, right * step, far_down * line, far_right * step, 1
    # of one channel and one column, the windows of a dilated kernel are a view with gaps, which a reshape does not close
    matrix = rows.as_strided(shape, strides).reshape(-1, high * wide * channels).contiguous()
    return matrix if not reach.tail else F.pad(matrix, (0, 0, 0, reach.tail * reach.wide))


def _launch(x: Tensor, reach: Reach) -> Tensor:
    images, channels, height, width = x.shape
    positions, rows = reach.kernel[0] * reach.kernel[1], reach.rows(images)
    out = x.new_empty(rows, positions * channels)
    of_image, of_channel, of_line, of_column = x.stride()
    steps = (*reach.stride, *reach.dilation, *reach.padding)
    if channels < FEW:
        entries = positions * channels
        places = min(power_of_two(entries), MOST_PLACES)
        grid, lines = (-(-rows // (TILE // places)) * -(-entries // places),), TILE // places
        apart = (of_image, of_line, of_column, of_channel)
        with current(x.device):
            _kernel("spread_few")[grid](
                x, out, rows, channels, entries, height, width, reach.block, reach.wide, *apart, reach.kernel[1], *steps, lines, places,
                rows + lines > MOST_ROWS,
            )  # fmt: skip
        return out
    piece = LARGEST_PIECE
    while of_channel != 1 or any(number % piece for number in (channels, of_image, of_line, of_column)):
        piece //= 2
        if piece == 1:
            break
    places = min(power_of_two(channels), MOST_PLACES)
    while places > 32 and -(-channels // places) * places >= channels + places // 2:
        places //= 2  # else half of the last tile would be empty
    lines = TILE // places
    apart = (of_image // piece, of_line // piece, of_column // piece, of_channel)
    grid = (-(-rows // lines) * positions * -(-channels // places),)
    with current(x.device):
        _kernel("spread")[grid](
            x, out, rows, channels // piece, height, width, reach.block, reach.wide, *apart, *reach.kernel, *steps, piece, lines, places,
            rows + lines > MOST_ROWS,
        )  # fmt: skip
    return out


def power_of_two(count: int) -> int:
    """The least that is no smaller: widths of a kernel's tiles."""
    return 1 << max(0, count - 1).bit_length()


def _trusted(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel does on this device what the reference does: looked at once."""
    key = f"{device} {dtype}"
    return trusted(
        _kernels, key, lambda: _agrees(device, dtype), f"Triton's copies and the reference's differ on {key}"
    )


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    reaches = [
        Reach((3, 3), (1, 1), (1, 1), (1, 1), 6, 5),
        Reach((1, 3), (1, 1), (1, 1), (2, 1), 8, 5, tail=2),
        Reach((2, 4), (2, 1), (1, 2), (0, 3), 3, 5),
        Reach((2, 3), (2, 2), (1, 1), (3, 1), 5, 3, tail=1),
    ]
    generator = torch.Generator().manual_seed(0)
    for channels in (1, 3, 16, 20, 48, 130):
        values = torch.randn(3, channels, 6, 5, dtype=dtype, generator=generator).to(device)
        values[0, 0, 0, 0], values[1, -1, 3, 2] = torch.nan, torch.inf
        for x in (values, values.contiguous(memory_format=torch.channels_last), values[:, :, :, 1:]):
            for reach in reaches:
                found, wanted = _launch(x, reach), reference(x, reach)
                if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True):
                    return False
    return True


def _kernel(name: str) -> Any:
    return kernel(_kernels, name, "tiltproof.kernels.triton.im2col")
