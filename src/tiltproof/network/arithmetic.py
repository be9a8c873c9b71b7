"""Which machine arithmetic may take part in a proof: IEEE float32 or float64 sums of products, in any order.

TF32, bf16 and Winograd or FFT convolutions have errors outside that model. `proof_arithmetic` switches the first two off whatever
the user's global settings are; convolutions on a GPU are done as unfold + matrix product, because cuDNN may choose
Winograd or FFT and offers no way to forbid them. On a CPU torch asks oneDNN for direct convolution only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

UNFOLD_BYTES = 2**30
"""Memory that the unfolded input of one convolution may take at a time."""


@contextmanager
def proof_arithmetic(device: torch.device) -> Iterator[None]:
    """Full-precision products and no autocast inside; the user's settings come back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn


def conv2d(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    """Convolution without bias whose every output is one sum of products."""
    if x.device.type == "cpu":
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)
    kernel = weight.shape[2:]
    out_height, out_width = (
        (x.shape[2 + k] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in (0, 1)
    )
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    results = []
    for rows in x.split(_rows_at_a_time(x.shape[1] * kernel.numel() * out_height * out_width, x)):
        columns = F.unfold(rows, kernel, dilation, padding, stride)
        if groups == 1:
            result = torch.matmul(matrix[0], columns)
        else:
            result = torch.matmul(matrix, columns.unflatten(1, (groups, -1))).flatten(1, 2)
        results.append(result)
    return torch.cat(results).view(len(x), weight.shape[0], out_height, out_width)


def conv2d_transposed(
    a: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int, size: tuple[int, int]
) -> Tensor:
    """The transpose of `conv2d` as a linear map, from output coefficients to input coefficients of ``size``."""
    kernel = weight.shape[2:]
    if a.device.type == "cpu":
        extra = [
            size[k] - ((a.shape[2 + k] - 1) * stride[k] - 2 * padding[k] + dilation[k] * (kernel[k] - 1) + 1) for k in (0, 1)
        ]
        return F.conv_transpose2d(a, weight, None, stride, padding, extra, groups, dilation)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1).transpose(1, 2)
    channels = weight.shape[1] * groups
    results = []
    for rows in a.split(_rows_at_a_time(channels * kernel.numel() * a.shape[2] * a.shape[3], a)):
        values = rows.flatten(2)
        if groups == 1:
            columns = torch.matmul(matrix[0], values)
        else:
            columns = torch.matmul(matrix, values.unflatten(1, (groups, -1))).flatten(1, 2)
        results.append(F.fold(columns, size, kernel, dilation, padding, stride))
    return torch.cat(results)


def _rows_at_a_time(entries: int, like: Tensor) -> int:
    return max(1, UNFOLD_BYTES // (entries * like.element_size()))
