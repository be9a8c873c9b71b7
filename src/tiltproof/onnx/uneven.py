"""Windows of pooling whose padding is not the same on both sides, as TensorFlow's "same" and Caffe's are written: where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from tiltproof.onnx.ops import Sliding
    from tiltproof.onnx.protobuf import Node

Parts = tuple[tuple[int, int, int], ...]


def windows_kept(node: Node, shape: tuple[int, ...], w: Sliding, ceil: bool) -> tuple[tuple[int, int], Parts]:
    """Return the larger padding of both axes and which of the windows at every position, with it on both sides, the file has.

    For largest values alone: what pads never wins, so that there may be more of it. With ceil_mode, which tools read in different ways
    beside uneven padding, the windows have to end where the padding ends.
    """
    sides = max(w.begin[0], w.end[0]), max(w.begin[1], w.end[1])
    parts = [(0, shape[0], 1)]
    for axis, size in enumerate(shape[1:]):
        stride, reach = w.stride[axis], (w.kernel[axis] - 1) * w.dilation[axis] + 1
        room = size + w.begin[axis] + w.end[axis] - reach
        if room < 0 or (ceil and room % stride):
            raise node.refusal(f"pads by {list(w.begin + w.end)} and has windows that reach behind that")
        start = sides[axis] - w.begin[axis]
        parts.append((start, start + room // stride * stride + 1, stride))
    return sides, tuple(parts)


def zeros_of(w: Sliding) -> tuple[int, ...]:
    """The padding as torch's `pad` takes it, last axis first."""
    return w.begin[1], w.end[1], w.begin[0], w.end[0]


def entries_inside(shape: tuple[int, ...], w: Sliding) -> Tensor:
    """The share of each window that lies inside of the image, [1, H, W], float64."""
    ones = F.pad(torch.ones(1, *shape[1:], dtype=torch.float64), zeros_of(w))
    return F.avg_pool2d(ones, w.kernel, w.stride)
