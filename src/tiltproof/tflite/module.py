"""The module that a TFLite file becomes, its values, and the list of its steps while it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.keras.module import Draft as Steps
from tiltproof.keras.module import Value as Place
from tiltproof.step_module import Step, StepModule
from tiltproof.tflite.schema import RANGES, File, Node, TensorEntry

if TYPE_CHECKING:
    from tiltproof.tflite.crosscheck import FileAnswers


@dataclass(frozen=True)
class Whole:
    """How whole numbers q stand for real ones, scale (q - zero); the module holds q - zero."""

    scale: float
    zero: int
    low: int
    high: int

    @property
    def ends(self) -> tuple[int, int]:
        """The range of q - zero."""
        return self.low - self.zero, self.high - self.zero

    @property
    def farthest(self) -> int:
        return max(map(abs, self.ends))


@dataclass(frozen=True)
class Value(Place):
    """What a step gives, with images as [C, H, W]; ``whole``: for whole numbers, what they stand for; ``head``: the file's operators at
    the network's end, last one first, that were left out because they keep the order of the numbers."""

    whole: Whole | None = None
    head: tuple[str, ...] = ()


Given = Value | Tensor | None
"""What an operator reads: a value that depends on the image, a constant in the file's own order, or nothing."""


class TfliteModule(StepModule):
    """The network of a TFLite file.

    Attributes
    ----------
    notes : tuple of str
        What the network lacks of the file's, such as a softmax of whole numbers at its end.
    """

    file: FileAnswers | None = None

    def __init__(
        self, steps: Mapping[str, Step], result: int, shape: tuple[int, ...], content: bytes, notes: tuple[str, ...]
    ) -> None:
        super().__init__(steps, result, shape, content)
        self.notes = notes

    def compare_with_file(self, images: Tensor) -> None:
        """Refuse to go on where TFLite's interpreter, if installed, answers otherwise. Nothing is compared by a copy."""
        if self.file is not None:
            self.file.compare(self, images)


class Draft(Steps):
    """The list while it is made; it remembers which steps each operator became."""

    def __init__(self, shape: tuple[int, ...], file: File) -> None:
        super().__init__(shape)
        self.file = file
        self.start = Value(0, shape)
        self.operators: list[tuple[Node, int, int]] = []
        """(operator, number of steps before it, number of steps after it)."""
        self.largest = 0.0
        """The most that whole numbers may add up to."""

    def step(
        self,
        node: Node,
        function: Callable[..., Tensor],
        values: tuple[Place, ...],
        constants: Mapping[str, Tensor] | None = None,
        whole: Whole | None = None,
        **settings: Any,
    ) -> Value:
        """A new step; constants of float64 keep it (`add` tries all steps in float32)."""
        constants = constants or {}
        tried = {name: tensor.float() for name, tensor in constants.items()}
        try:
            made = self.add(node.label, function, values, tried, **settings)
        except UnsupportedOperation as error:
            raise node.refusal(f"does not fit what it reads: {error.got}") from None
        step = next(reversed(self.steps.values()))
        for name, tensor in constants.items():
            setattr(step, name, nn.Parameter(tensor, requires_grad=False))
        return Value(made.place, made.shape, whole)

    def entry(self, node: Node, output: int = 0) -> TensorEntry:
        if len(node.outputs) <= output:
            raise InputError("the TFLite file has an operator without outputs", got=shown(str(node.label)))
        return self.file.tensors[node.outputs[output]]


def here(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The file's shape [N, H, W, C], without the batch and channels first; other shapes keep their order."""
    return (shape[3], shape[1], shape[2]) if len(shape) == 4 else shape[1:]


def whole_of(entry: TensorEntry, node: Node) -> Whole:
    """How a tensor's whole numbers are to be read; refused without a rule for its type or its scales."""
    if entry.type not in RANGES or entry.scales is None or len(entry.scales.scale) != 1:
        raise node.refusal("computes with other whole numbers than int8 or uint8 with one scale")
    scale, zero = float(entry.scales.scale[0]), int(entry.scales.zero[0])
    low, high = RANGES[entry.type]
    if not 2.0**-60 < scale < 2.0**60 or not low <= zero <= high:
        raise node.refusal(f"has the scale {scale:g} and the zero point {zero}")
    return Whole(scale, zero, low, high)


def value(node: Node, given: Given) -> Value:
    """What an operator computes with; not a constant, and not what only a head may read."""
    if not isinstance(given, Value):
        raise node.refusal("reads a constant where only a value computed from the image is supported")
    if given.head:
        raise node.refusal(f"reads what {given.head[0]} gives, which has a bound rule at the network's end only")
    return given


def constant(node: Node, given: Given) -> Tensor:
    if not isinstance(given, Tensor):
        raise node.refusal("has weights or settings that are not constants of the file")
    return given


def image(node: Node, given: Given) -> Value:
    found = value(node, given)
    if len(found.shape) != 3:
        raise node.refusal(f"reads no image but a value of shape {list(found.shape)}")
    return found


def as_whole(found: Value, whole: Whole | None) -> Value:
    return replace(found, whole=whole)
