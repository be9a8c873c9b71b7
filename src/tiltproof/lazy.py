"""Packages that import a name's module when the name is first used: help, completion and ``--version`` need no torch, which takes seconds.

    __getattr__, __dir__ = lazy(__name__, {"verify.api": ("certify", "certify_range")})

Type checkers and documentation read the same imports under ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    package: str, names: Mapping[str, tuple[str, ...]], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    ``names``: modules of tiltproof, each with the names taken from it; ``modules``: those of the package that are
    themselves such names. No name may be that of another module of the package: importing that would replace it.
    """
    where = {name: f"tiltproof.{module}" for module, taken in names.items() for name in taken}

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *where, *modules})
