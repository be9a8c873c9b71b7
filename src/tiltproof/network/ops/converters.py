"""The table from torch's ATen calls to operations: each module of this package registers its own converters.

A converter takes the output's shape and the call's arguments and returns the operation to build, or raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor


class Refused(Exception):
    """The operation is known but not in this use; the text says why."""


class Input(NamedTuple):
    """An argument that depends on the image: the operation that makes it, and its shape without the batch."""

    name: str
    shape: tuple[int, ...]


@dataclass(eq=False)
class Built:
    """The operation that a converter builds; ``derived`` holds settings to compute from the constants of the live network.

    An input is the name of an operation or an operation built here as well, which must state its ``shape``; None stands for that of the
    call.
    """

    kind: str
    inputs: tuple[str | Built, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    derived: dict[str, Callable[[dict[str, Tensor]], Any]] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None


CONVERTERS: dict[str, Callable[..., Built]] = {}
"""ATen overload (without ``aten.``) -> its converter."""


CONDITIONS = {"gt.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar"}
"""Calls that give truth values, which stand for 0 and 1."""
READS_CONDITIONS = {"where.self", "mul.Tensor"}
"""Calls that may read truth values; elsewhere they would not be numbers (1 + 1 = 1)."""


def converter(*names: str) -> Callable[[Callable[..., Built]], Callable[..., Built]]:
    """Decorator: the function converts calls of these ATen overloads."""

    def register(function: Callable[..., Built]) -> Callable[..., Built]:
        taken = [name for name in names if name in CONVERTERS]
        assert not taken, f"two converters of {taken}"
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def supported() -> str:
    """The supported ATen operations, for error messages."""
    return ", ".join(sorted({name.split(".")[0] for name in CONVERTERS if not name.startswith("_")}))


def require_constants(x: Any, *constants: Any) -> None:
    """Refuse weights that depend on the image."""
    if not isinstance(x, Input) or any(isinstance(constant, Input) for constant in constants):
        raise Refused("the weights must not depend on the image")


def pair(value: Any) -> tuple[int, int]:
    """A size in both dimensions; one number stands for two."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    first, second = values * 2 if len(values) == 1 else values
    return first, second
