"""Tables of the supported operations: how a node is read, what rounding does to a step, and how an operation is written.

A module of operations registers all three side by side, with `reads`, `rounds` and `writes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from tiltproof.errors import UnsupportedOperation
from tiltproof.onnx.module import Draft, Image, Value
from tiltproof.onnx.protobuf import Node, package
from tiltproof.step_module import Step, adds_to

Reader = Callable[[Draft, Node, list[Value | None]], Value | tuple[Value, ...]]
"""Turns a node and the values it reads into the value it gives, or several, or refuses the node."""
READERS: dict[str, Reader] = {}
"""ONNX op -> its reader."""
reads = adds_to(READERS)
"""Decorator: the function reads nodes of these ops."""


def image(node: Node, value: Value | None) -> Image:
    if not isinstance(value, Image):
        raise node.refusal("reads a constant where only a value computed from the image is supported")
    return value


def constant(node: Node, value: Value | None) -> Tensor:
    if not isinstance(value, Tensor):
        raise node.refusal("has weights that are not constants of the file")
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise node.refusal("has weights that are infinite")
    return value


# Rounding of one step: with |computed x - real x| <= e for what it reads, the error of its result. See `crosscheck`.


ErrorRule = Callable[[Step, list[Tensor], list[Tensor], Tensor, float], Tensor]
"""Maps a step, the values it reads, their errors, its result and the unit roundoff to the error of its result."""
ERRORS: dict[Callable[..., Tensor], ErrorRule] = {}
"""A step's function -> its error rule."""
STEPPED: set[Callable[..., Tensor]] = set()
"""Functions that a rounding of what they read may move by a whole step, so that a coarse bound says nothing."""
Function = TypeVar("Function", bound=Callable[..., Tensor])


def rounds(rule: ErrorRule) -> Callable[[Function], Function]:
    """Decorator: a step of this function rounds as the rule says."""

    def register(function: Function) -> Function:
        ERRORS[function] = rule
        return function

    return register


def gamma(count: int, unit: float) -> float:
    return count * unit / (1 - count * unit) if count * unit < 0.5 else math.inf


def rearranged(step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    """Errors move with the entries; the largest of several numbers has at most their largest error."""
    moved: Tensor = step.function(*errors, **step.settings)
    return moved


def exact(_step: Step, _read: list[Tensor], errors: list[Tensor], _result: Tensor, _unit: float) -> Tensor:
    """Error of a function with Lipschitz constant 1 that floating point computes exactly."""
    return errors[0]


# Writing


class Operation(Protocol):
    """What a writer reads of a `tiltproof.network` operation. Models load ONNX files, and do not import the prover for it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass
class GraphDraft:
    """Nodes and numbers of an ONNX graph under construction; ``shapes`` of the values so far, without the batch."""

    shapes: dict[str, tuple[int, ...]]
    nodes: list[Any] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        made = package("onnx").helper.make_node(op, inputs, [output], name=f"{output}/{op}", **attributes)
        self.nodes.append(made)

    def constant(self, name: str, value: Tensor | list[int]) -> str:
        """Floats as float32 (what is wider is rounded), whole numbers as int64."""
        tensor = torch.as_tensor(value)
        tensor = tensor.float() if tensor.is_floating_point() else tensor.long()
        array = tensor.detach().cpu().contiguous().numpy()
        self.numbers.append(package("onnx").numpy_helper.from_array(array, name))
        return name


Writer = Callable[[GraphDraft, Operation, list[str], str], None]
"""Adds the nodes that compute the value of this name from the values of those names."""
WRITERS: dict[str, Writer] = {}
"""Kind of operation -> its writer."""


def writes(kind: str) -> Callable[[Writer], Writer]:
    """Decorator: the function writes operations of this kind."""

    def register(function: Writer) -> Writer:
        WRITERS[kind] = function
        return function

    return register


def writes_one_node(kind: str, op: str) -> None:
    """The operation is one node without attributes."""
    writes(kind)(lambda draft, _, inputs, output: draft.add(op, inputs, output))


def refused(operation: Operation, why: str) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"operation {operation.kind!r} at node {operation.name!r} cannot be written as ONNX", got=why
    )
