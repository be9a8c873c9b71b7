"""The table of operators: each module of operators registers its own readers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tiltproof.tflite.module import Draft, Given, Value
from tiltproof.tflite.schema import Node

Reader = Callable[[Draft, Node, list[Given]], Value | Tensor]
"""Adds an operator's steps and returns the value of its one output, or refuses it."""
READERS: dict[str, Reader] = {}
"""TFLite's name of the operator -> its reader."""


def reads(*ops: str) -> Callable[[Reader], Reader]:
    """Decorator: the function reads these operators."""

    def register(function: Reader) -> Reader:
        READERS.update(dict.fromkeys(ops, function))
        return function

    return register
