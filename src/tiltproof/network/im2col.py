"""im2col: the windows of a convolution as the rows of a matrix, so that the convolution is a matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tiltproof.kernel_registry import has_kernel


@dataclass(frozen=True)
class Reach:
    """Which windows to copy: ``block`` lines of ``wide`` windows for every image; after the last image ``tail`` more lines, which lie
    above an image and are empty.
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
        """Entries in the windows of one of the images ``x``."""
        return self.block * self.wide * self.kernel[0] * self.kernel[1] * x.shape[1]


@has_kernel("im2col:im2col")
def im2col(x: Tensor, reach: Reach) -> Tensor:
    """[N, C, H, W] -> [rows, entries of a window], contiguous: images, lines, columns of windows in order; in a window lines before
    columns before channels. Pad, then one strided copy."""
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
