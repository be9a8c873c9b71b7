"""Kernels that slide over a picture: their strides and padding, as ONNX writes them and as torch does."""

from __future__ import annotations

from dataclasses import dataclass

from tiltproof.errors import shown
from tiltproof.zoo.onnx_model.node import INTEGERS, TEXT, Node

MOST = 2**15
"""Size of a kernel, a stride, a padding or a dilation."""


@dataclass(frozen=True)
class Sliding:
    """A window's geometry in two dimensions; ``begin`` and ``end`` are the padding before and after each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    begin: tuple[int, int]
    end: tuple[int, int]

    @property
    def even(self) -> bool:
        """Whether the padding is the same on both sides, as torch's layers have it."""
        return self.begin == self.end


def sliding(node: Node, kernel: tuple[int, ...], shape: tuple[int, ...]) -> Sliding:
    """Take strides, dilations, pads and auto_pad off the node; ``shape`` [C, H, W] is that of what it reads."""
    if len(kernel) != 2 or len(shape) != 3:
        raise node.refusal(f"slides a kernel {list(kernel)} over {list(shape)}; pictures [C, H, W] alone have rules")
    stride, dilation = _pair(node, "strides", 1), _pair(node, "dilations", 1)
    how = node.take("auto_pad", TEXT) or "NOTSET"
    pads = node.take("pads", INTEGERS)
    size = (kernel[0], kernel[1])
    if how in ("SAME_UPPER", "SAME_LOWER") and pads is None:
        total = [
            max((-(-length // s) - 1) * s + (k - 1) * d + 1 - length, 0)
            for length, k, s, d in zip(shape[1:], size, stride, dilation, strict=True)
        ]
        less, more = (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)
        begin, end = (less, more) if how == "SAME_UPPER" else (more, less)
    elif how == "NOTSET" or (how == "VALID" and pads is None):
        pads = [0, 0, 0, 0] if pads is None else pads
        if len(pads) != 4:
            raise node.refusal(f"has {len(pads)} pads instead of 4")
        begin, end = (pads[0], pads[1]), (pads[2], pads[3])
    else:
        raise node.refusal(
            f"has auto_pad = {shown(how, 20)} together with pads" if pads else f"has auto_pad {shown(how, 20)}"
        )
    if any(not 1 <= n <= MOST for n in (*size, *stride, *dilation)) or any(not 0 <= n <= MOST for n in (*begin, *end)):
        raise node.refusal("has a kernel, stride, dilation or padding of no possible size")
    return Sliding(size, stride, dilation, begin, end)


def kernel_shape(node: Node) -> tuple[int, ...]:
    return tuple(node.take("kernel_shape", INTEGERS) or ())


def _pair(node: Node, name: str, default: int) -> tuple[int, int]:
    values = node.take(name, INTEGERS)
    if values is None:
        return default, default
    if len(values) != 2:
        raise node.refusal(f"has {len(values)} {name} instead of 2")
    return values[0], values[1]
