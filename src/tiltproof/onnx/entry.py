"""What an ONNX file takes, and how images [N, C, H, W] become that: which axis is the channels, which size, which batch.

A file says the sizes of its input, but not what they mean. [N, 224, 224, 3] is 224 x 224 pixels of three channels, whatever a reader
that counts channels first makes of it; [N, 784] may be 28 x 28 pixels. What the sizes leave open is settled by what the graph does first
and by what the caller states, and is refused where these disagree or say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.onnx.module import MOST_NUMBERS
from tiltproof.onnx.protobuf import EXPORT_AGAIN, FLOAT16, FLOATS

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""
Open = tuple[int | None, ...]
"""Sizes of one image's input; None where the file leaves one open."""
LAYOUTS = ("nchw", "nhwc")
FEW = (1, 2, 3, 4)
"""Sizes of an axis that can be channels rather than rows or columns."""
COLOURS = (1, 3, 4)
"""Numbers of channels that an axis of pixels is taken for at the end."""
MOST_BATCH = 64
STATE_LAYOUT = "say what the axes are: --layout nchw or --layout nhwc (layout= in Python)"
STATE_SHAPE = "state the images' size: --shape CxHxW, e.g. --shape 3x224x224 (shape=(3, 224, 224) in Python)"


@dataclass(frozen=True)
class Entry:
    """The one input. ``shape``: of the images that the module takes; ``sizes``: of one image in the file; ``batch``: the only batch size
    that the file takes, or None; ``last``: whether channels come last in the file; ``half``: whether it takes float16."""

    name: str
    shape: Shape
    sizes: tuple[int, ...]
    batch: int | None
    last: bool
    dtype: torch.dtype
    half: bool

    @property
    def turned(self) -> bool:
        """Whether the numbers of an image come in another order in the file."""
        return self.last and self.shape[0] > 1

    @property
    def text(self) -> str:
        """What the file takes and how it was read."""
        batch = "N" if self.batch is None else str(self.batch)
        order = "channels last" if self.last else "channels first"
        size = "x".join(map(str, self.shape))
        return f"input {shown(self.name, 60)} [{', '.join([batch, *map(str, self.sizes)])}] as images {size}, {order}"

    def rounded(self, images: Tensor) -> Tensor:
        """The images [N, C, H, W] that the file can be given: in its own precision, held in the module's."""
        return (images.half() if self.half else images).to(self.dtype)

    def feed(self, images: Tensor) -> np.ndarray:
        """Images for the file, repeated where it takes a batch of another size alone."""
        values = images.permute(0, 2, 3, 1) if self.last else images
        values = values.reshape(len(images), *self.sizes)
        if self.batch is not None:
            values = values.repeat(self.batch, *[1] * len(self.sizes))[: self.batch]
        array: np.ndarray = (values.half() if self.half else values).contiguous().numpy()
        return array


def entry_of(
    graph: Any,
    inputs: Sequence[Any],
    shape: Sequence[int] | Callable[[], Sequence[int]] | None,
    layout: str | None,
    constants: dict[str, tuple[int, ...]],
) -> Entry:
    """Read the graph's one input. ``constants``: shapes of the file's own numbers, by name."""
    if layout is not None and layout not in LAYOUTS:
        raise InputError("unknown layout", got=shown(layout), do=f"use one of {', '.join(LAYOUTS)}")
    what = "the ONNX file must take one input, images [N, C, H, W]"
    if len(inputs) != 1:
        raise InputError(what, got=f"{len(inputs)} inputs: {shown([entry.name for entry in inputs])}")
    kind = inputs[0].type.tensor_type
    if kind.elem_type not in FLOATS:
        raise InputError(f"{what} of float16, float32 or float64", got=f"ONNX's type {kind.elem_type}", do=EXPORT_AGAIN)
    dims = [int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in kind.shape.dim]
    if len(dims) < 2 or len(dims) > 6:
        raise InputError(what, got=shown(f"{seen(dims)}") if dims else "an input of no shape", do=EXPORT_AGAIN)
    batch, sizes = dims[0], tuple(dims[1:])
    if batch is not None and batch > MOST_BATCH:
        raise InputError(
            "the ONNX file takes batches of one size", got=f"batches of {batch}, at most {MOST_BATCH}", do=EXPORT_AGAIN
        )
    name = str(inputs[0].name)
    stated = None if shape is None or callable(shape) else _stated(shape)
    first = first_use(graph, name, constants)
    images, last = _read(dims, sizes, stated, shape if callable(shape) else None, layout, first)
    if math.prod(images) > MOST_NUMBERS:
        raise InputError("the ONNX file takes images that are too large", got=shown("x".join(map(str, images))))
    full = (*images[1:], images[0]) if last else images
    own = full if len(sizes) == 3 and not _flat(sizes, images) else tuple(size or 0 for size in sizes)
    return Entry(name, images, own, batch, last, FLOATS[kind.elem_type], kind.elem_type == FLOAT16)


def _stated(shape: Sequence[int]) -> Shape:
    sizes = tuple(shape)
    if len(sizes) != 3 or not all(type(size) is int and 0 < size <= MOST_NUMBERS for size in sizes):
        raise InputError(
            "the shape of images is three whole numbers: channels, height and width", got=shown(shape), do=STATE_SHAPE
        )
    return sizes[0], sizes[1], sizes[2]


def seen(dims: Sequence[int | None]) -> str:
    """An input's sizes in words.

    >>> seen([None, 3, None, None])
    '[N, 3, ?, ?]'
    """
    batch = "N" if dims[0] is None else str(dims[0])
    return f"[{', '.join([batch, *('?' if size is None else str(size) for size in dims[1:])])}]"


def _flat(sizes: Open, images: Shape) -> bool:
    """Whether three sizes are a row of numbers, such as [1, 1, 784], rather than an image's."""
    orders = (images, (*images[1:], images[0]))
    return not any(_fits(sizes, order) for order in orders)


def _fits(sizes: Open, order: Sequence[int]) -> bool:
    return len(sizes) == 3 and all(size in (None, wanted) for size, wanted in zip(sizes, order, strict=True))


def _read(
    dims: Sequence[int | None],
    sizes: Open,
    stated: Shape | None,
    ask: Callable[[], Sequence[int]] | None,
    layout: str | None,
    first: str | None,
) -> tuple[Shape, bool]:
    """Shape of an image, and whether channels come last."""
    what = f"the ONNX file's input {seen(dims)}"
    if stated is not None:
        return _as_stated(what, sizes, stated, layout, first)
    if len(sizes) == 2 and None not in sizes and min(size or 0 for size in sizes) > max(FEW):
        return (1, sizes[0] or 0, sizes[1] or 0), layout == "nhwc"  # rows and columns of a gray image
    if len(sizes) != 3:
        count = math.prod(size or 0 for size in sizes)
        guess = {784: "1x28x28", 3072: "3x32x32"}.get(count, "CxHxW")
        raise InputError(
            f"{what} is a row of numbers, and does not say of which images",
            got=f"{count} numbers an image" if count else "a row of any length",
            do=f"state the images' size: --shape {guess} (shape= in Python)",
        )
    last = (layout or _recognised(what, sizes, first)) == "nhwc"
    channels, height, width = (sizes[2], *sizes[:2]) if last else sizes
    if channels is not None and height is not None and width is not None:
        return (channels, height, width), last
    if ask is None:
        raise InputError(f"{what} leaves the size of images open", do=STATE_SHAPE)
    return _as_stated(what, sizes, _stated(tuple(ask())), "nhwc" if last else "nchw", first)


def _as_stated(what: str, sizes: Open, stated: Shape, layout: str | None, first: str | None) -> tuple[Shape, bool]:
    """The stated shape, if the sizes are those of such images, in either layout, or a row of as many numbers."""
    orders = {"nchw": stated, "nhwc": (*stated[1:], stated[0])}
    fitting = [name for name in LAYOUTS if layout in (None, name) and _fits(sizes, orders[name])]
    if len(fitting) == 1 or (len(fitting) == 2 and stated[0] == 1 and stated[1] == stated[2] == 1):
        return stated, fitting[0] == "nhwc"
    if len(fitting) == 2:
        return stated, _recognised(what, sizes, first) == "nhwc"
    text = "x".join(map(str, stated))
    if None in sizes or math.prod(size or 0 for size in sizes) != math.prod(stated):
        raise InputError(
            f"{what} does not take images of shape {text}" + (f" with layout {layout}" if layout else ""),
            why="channels first and channels last mixed up, or other images",
            do="check --shape and --layout; without them the sizes are the file's own",
        )
    if stated[0] > 1 and layout is None:
        raise InputError(
            f"{what} holds the numbers of an image in an order that the file does not tell",
            got=f"images {text}",
            do="--layout nchw: one channel after the other; --layout nhwc: pixel by pixel (layout= in Python)",
        )
    return stated, layout == "nhwc"


def _recognised(what: str, sizes: Open, first: str | None) -> str:
    """The layout of three sizes, from which axes can be channels and from what the graph does first."""
    leading, trailing = sizes[0] in FEW, sizes[2] in COLOURS
    known = [name for name, there in (("nchw", leading), ("nhwc", trailing)) if there]
    if len(known) == 1 and first not in (None, known[0]):
        words = {"nchw": "channels first", "nhwc": "channels last"}
        raise InputError(
            f"{what} has the sizes of images with {words[known[0]]}, but its first layer takes {words[str(first)]}",
            got=f"{sizes[0]} channels if they come first, {sizes[2]} if they come last",
            do=STATE_LAYOUT,
        )
    if len(known) == 1:
        return known[0]
    if first is not None:
        return first
    if not known and None not in (sizes[0], sizes[2]):
        return "nchw"
    raise InputError(
        f"{what} can be read with channels first and with channels last",
        got=f"{sizes[0] or 'any number of'} or {sizes[2] or 'any number of'} channels",
        do=STATE_LAYOUT,
    )


PASSES = ("Identity", "Cast", "Sub", "Add", "Mul", "Div", "Pad", "Dropout", "Neg", "ImageScaler")
"""Operations that leave the axes where they are."""


def first_use(graph: Any, name: str, constants: dict[str, tuple[int, ...]]) -> str | None:
    """The layout that the first convolution or transposition of the input implies, or None."""
    for _ in range(16):
        users = [node for node in graph.node if name in node.input]
        for node in users:
            order = [list(entry.ints) for entry in node.attribute if entry.name == "perm"]
            if node.op_type == "Transpose" and order in ([[0, 3, 1, 2]], [[0, 2, 3, 1]]):
                return "nhwc" if order == [[0, 3, 1, 2]] else "nchw"
            weight = constants.get(node.input[1]) if len(node.input) > 1 else None
            if node.op_type == "Conv" and node.input[0] == name and weight is not None:
                return "nchw"
            if node.op_type in ("BatchNormalization", "MaxPool", "AveragePool") and node.input[0] == name:
                return "nchw"
        if len(users) != 1 or users[0].op_type not in PASSES or not users[0].output:
            return None
        name = users[0].output[0]
    return None
