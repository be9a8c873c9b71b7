"""im2col in one pass over memory; the reference makes two slow ones. Nothing is computed: entries are copied, and zeros padded."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.device import accelerates
from tiltproof.kernels.triton.im2col import spread, spread_few
from tiltproof.network import arithmetic
from tiltproof.network.arithmetic import Reach

TILE = 2048
"""Entries that a program copies."""
MOST_TILE = 128
"""Entries of one row among them, at most."""
LARGEST_PIECE = 16
"""Entries that the kernel is told are adjacent, at most."""
FEW_CHANNELS = 16
"""Fewer channels than this have their own kernel, `spread_few`."""
MOST_ROWS = 2**31 - 1
"""Rows that are counted by 32 bits."""


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare with the reference, bit for bit, in all memory orders."""
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
                found, wanted = _launch(x, reach), im2col.reference(x, reach)
                if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True):
                    return False
    return True


@accelerates(
    arithmetic.im2col,
    when=lambda x, _: bool(x.numel()) and not x.requires_grad,
    key=lambda x, _: (x.device, x.dtype),
    check=lambda x, _: _agrees(x.device, x.dtype),
    slows="convolutions",
)
def im2col(x: Tensor, reach: Reach) -> Tensor:
    return _launch(x, reach)


def _launch(x: Tensor, reach: Reach) -> Tensor:
    images, channels, height, width = x.shape
    positions, rows = reach.kernel[0] * reach.kernel[1], reach.rows(images)
    out = x.new_empty(rows, positions * channels)
    of_image, of_channel, of_line, of_column = x.stride()
    steps = (*reach.stride, *reach.dilation, *reach.padding)
    if channels < FEW_CHANNELS:
        entries = positions * channels
        tile = min(power_of_two(entries), MOST_TILE)
        grid, lines = (-(-rows // (TILE // tile)) * -(-entries // tile),), TILE // tile
        strides = (of_image, of_line, of_column, of_channel)
        spread_few[grid](
            x, out, rows, channels, entries, height, width, reach.block, reach.wide, *strides, reach.kernel[1], *steps, lines, tile,
            rows + lines > MOST_ROWS,
        )  # fmt: skip
        return out
    piece = LARGEST_PIECE
    while of_channel != 1 or any(number % piece for number in (channels, of_image, of_line, of_column)):
        piece //= 2
        if piece == 1:
            break
    tile = min(power_of_two(channels), MOST_TILE)
    while tile > 32 and -(-channels // tile) * tile >= channels + tile // 2:
        tile //= 2  # else half of the last tile would be empty
    lines = TILE // tile
    strides = (of_image // piece, of_line // piece, of_column // piece, of_channel)
    grid = (-(-rows // lines) * positions * -(-channels // tile),)
    spread[grid](
        x, out, rows, channels // piece, height, width, reach.block, reach.wide, *strides, *reach.kernel, *steps, piece, lines, tile,
        rows + lines > MOST_ROWS,
    )  # fmt: skip
    return out


def power_of_two(count: int) -> int:
    """The least power of two that is no smaller: the width of a kernel's tiles."""
    return 1 << max(0, count - 1).bit_length()
