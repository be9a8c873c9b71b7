"""The module that an ONNX file becomes, and the list of its steps while it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.onnx.protobuf import Node
from tiltproof.step_module import Step, StepModule

if TYPE_CHECKING:
    from tiltproof.onnx.crosscheck import FileAnswers

TRY_BATCH = 2
MOST_NUMBERS = 2**26
"""Maximum number of entries in one step's output for one image."""


@dataclass(frozen=True)
class Image:
    """A value that depends on the image: the step that gives it (0: the input) and its shape without the batch."""

    place: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """Whole numbers out of shapes, such as a reshape's target; None stands for the batch size. One number may be a scalar."""

    numbers: tuple[int | None, ...]
    scalar: bool = False


@dataclass(frozen=True)
class Quantized:
    """A value that was quantized: whole numbers, which nothing but a DequantizeLinear reads. ``image``: what that one gives."""

    image: Image
    scale: float
    zero: int
    kind: torch.dtype


@dataclass(frozen=True)
class Truth:
    """Truth values that depend on the image. ``image``: 1 where they are true, 0 elsewhere."""

    image: Image


@dataclass(frozen=True)
class Masked:
    """A value with minus infinity in some places, which nothing but a softmax reads. ``taking``: 1 where it is ``image``'s, else 0."""

    image: Image
    taking: Tensor


Value = Image | Sizes | Quantized | Truth | Masked | Tensor
"""A tensor is a constant of the file."""


class OnnxModule(StepModule):
    """The network of an ONNX file."""

    file: FileAnswers | None = None

    def __init__(
        self, steps: Mapping[str, Step], result: int, shape: tuple[int, ...], content: bytes, read_as: str = ""
    ) -> None:
        """``read_as``: how the file was read, in words."""
        super().__init__(steps, result, shape, content)
        self.read_as = read_as

    def refuse(self, shape: tuple[int, ...]) -> Exception:
        return InputError(
            f"the ONNX file takes images of shape {self.shape}, not {shape}",
            got=self.read_as or None,
            why="images of another size, or channels first and channels last mixed up",
            do="resize the images, or say what the file's axes are: --layout nchw or nhwc (layout= in Python)",
        )

    def compare_with_file(self, images: Tensor) -> None:
        """Refuse to go on where onnxruntime answers otherwise than this module. Nothing is compared by a copy."""
        if self.file is not None:
            self.file.compare(self, images)


class Draft:
    """The list while it is made; every step is tried at once, on tensors that have shapes and no numbers."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, batch: int | None, half: bool = False) -> None:
        """``batch``: the only batch size that the file takes, if there is one; ``half``: it computes in float16."""
        self.dtype, self.batch, self.half = dtype, batch, half
        self.labels: list[str] = []
        self.steps: list[Step] = []
        self.nodes: list[Node] = []
        self.input = Image(0, shape)

    def add(
        self,
        node: Node,
        function: Callable[..., Tensor],
        images: tuple[Image, ...],
        constants: Mapping[str, Tensor] | None = None,
        **settings: Any,
    ) -> Image:
        """A new step at the end of the list."""
        constants = constants or {}
        for tensor in constants.values():
            if tensor.dtype != self.dtype:
                raise node.refusal(f"has constants of type {tensor.dtype} in a network of {self.dtype}")
            if not bool(tensor.isfinite().all()):
                raise node.refusal(
                    "has constants that are infinite; as a mask of a softmax, minus infinity is supported"
                )
        tried = [torch.empty(TRY_BATCH, *image.shape, dtype=self.dtype, device="meta") for image in images]
        try:
            result = function(*tried, **{name: tensor.to("meta") for name, tensor in constants.items()}, **settings)
        except UnsupportedOperation:
            raise
        except Exception as error:
            raise InputError(
                f"ONNX operation {node} does not fit what it reads, {[list(image.shape) for image in images]}",
                got=shown(" ".join(str(error).split()), 160),
            ) from None
        shape = tuple(result.shape[1:])
        if result.ndim < 1 or result.shape[0] != TRY_BATCH or not 0 < math.prod(shape) <= MOST_NUMBERS:
            raise node.refusal(f"gives a tensor of shape [N, {', '.join(map(str, shape))}] for a batch of N images")
        label = re.sub(r"[^0-9A-Za-z]+", "_", f"{node.op}_{len(self.steps) + 1}_{node.name[:60]}").strip("_")
        self.labels.append(label)
        self.nodes.append(node)
        self.steps.append(Step(function, tuple(image.place for image in images), constants, settings))
        return Image(len(self.steps), shape)

    def unread(self, result: int) -> set[int]:
        """The places of steps without constants that the step at ``result`` does not need."""
        needed = {result}
        for place in range(len(self.steps), 0, -1):
            if place in needed or self.steps[place - 1].names:
                needed.update(self.steps[place - 1].reads)
        return {
            place for place in range(1, len(self.steps) + 1) if place not in needed and not self.steps[place - 1].names
        }

    def without(self, gone: set[int], result: int) -> int:
        """Take out the steps at these places, which no other step reads; returns the new place of the step at ``result``."""
        place, new = 0, {0: 0}
        for old in range(1, len(self.steps) + 1):
            place += old not in gone
            new[old] = place
        kept = [number for number in range(len(self.steps)) if number + 1 not in gone]
        self.labels, self.steps = [self.labels[number] for number in kept], [self.steps[number] for number in kept]
        self.nodes = [self.nodes[number] for number in kept]
        for step in self.steps:
            step.reads = tuple(new[read] for read in step.reads)
        return new[result]
