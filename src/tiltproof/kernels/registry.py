"""Kernels on probation: compared with the reference before they are used, and left alone for good if they cannot be compiled."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from tiltproof.device import is_out_of_memory


def kernel(known: dict[str, Any], name: str, module: str) -> Any:
    """The kernel of this name in a module that needs Triton; None where that is missing, or the kernel was given up. Looked for once."""
    if name not in known:
        try:
            known[name] = getattr(importlib.import_module(module), name)
        except ImportError as error:
            if not (error.name or "").startswith("triton"):  # a damaged installation, which would only be slow
                raise
            known[name] = None
    return known[name]


def trusted(known: dict[Any, Any], key: Any, agrees: Callable[[], bool], difference: str) -> bool:
    """Whether a kernel does what the reference does: looked at once for each ``key``, and said (``difference``) where it does not."""
    if key not in known:
        known[key] = False  # while it is being looked at, the reference is used
        try:
            known[key] = agrees()
        except BaseException:
            del known[key]
            raise
        if not known[key]:
            warnings.warn(f"{difference}; the reference is used", stacklevel=4)
    return bool(known[key])


def given_up(known: dict[str, Any], name: str, error: Exception, what: str) -> None:
    """A compiler that is missing or fails is not worth a run: the kernel is not tried again. Memory that runs out is another matter."""
    if is_out_of_memory(error):  # a smaller batch may go through
        raise error
    warnings.warn(f"Triton could not compile a kernel, so {what} take longer: {error}", stacklevel=3)
    known[name] = None
