"""The table of operators: each module of operators registers its own readers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tiltproof.step_module import adds_to
from tiltproof.tflite.module import Draft, Given, Value
from tiltproof.tflite.schema import Node

Reader = Callable[[Draft, Node, list[Given]], Value | Tensor]
"""Adds an operator's steps and returns the value of its one output, or refuses it."""
READERS: dict[str, Reader] = {}
"""TFLite's name of the operator -> its reader."""
reads = adds_to(READERS)
"""Decorator: the function reads these operators."""
