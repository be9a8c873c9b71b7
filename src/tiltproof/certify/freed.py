"""Memory that one step has freed stays with the process for the next, instead of going back to the system and coming again.

Every step of a bound makes some megabytes of numbers and frees them. glibc returns them to the system at once, which then clears every
page anew when it is touched: a tenth of a run's seconds and more on a CPU, and beside a GPU much of what the search's books take. Other
C libraries have no such switch, and keep their ways.

What is kept lies in pieces, some of them too small for the next step. So where a limit on memory was met, freed memory is returned after
all: blocks then live outside of the heap, and a run takes three times as long, in some tenths less memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3): free bytes on top of the heap above which they are returned; blocks from this size on live outside of the heap."""
MOST_KEPT, LARGEST_BLOCK, USUALLY_KEPT = 2**28, 2**25, 2**23
SMALL_BLOCK = 2**17
"""Smaller ones stay in the heap in any case; so many bytes are what glibc begins with."""
_ways = {"returned": False}


@cache
def library() -> Any:
    """glibc, or None; also where the user has set its ways by the environment."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return None
    try:
        glibc = ctypes.CDLL(None)
        return glibc if glibc.gnu_get_libc_version and glibc.mallopt and glibc.malloc_trim else None
    except (OSError, AttributeError, TypeError):
        return None


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, freed memory is kept, unless and until it is told to be returned; at the end it is given back."""
    _set(LARGEST_BLOCK, MOST_KEPT)
    try:
        yield
    finally:
        _set(LARGEST_BLOCK, USUALLY_KEPT)
        _ways["returned"] = False
        give_back()


def return_freed_memory() -> None:
    """For the rest of `freed_memory_kept`."""
    _set(SMALL_BLOCK, SMALL_BLOCK)
    _ways["returned"] = library() is not None
    give_back()


def is_returned() -> bool:
    """Whether freed memory is returned, as `return_freed_memory` says."""
    return _ways["returned"]


def give_back() -> None:
    """All that is free now."""
    if library() is not None:
        library().malloc_trim(0)


def _set(block: int, kept: int) -> None:
    if library() is not None:
        library().mallopt(M_MMAP_THRESHOLD, block)
        library().mallopt(M_TRIM_THRESHOLD, kept)
