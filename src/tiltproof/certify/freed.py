"""Memory that one step has freed stays with the process for the next, instead of going back to the system and coming again.

Every step of a bound makes some megabytes of numbers and frees them. glibc returns them to the system at once, which then clears every
page anew when it is touched: a tenth of a run's seconds and more on a CPU, and beside a GPU much of what the search's books take. Other
C libraries have no such switch, and keep their ways.
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


@cache
def _library() -> Any:
    """glibc, or None; also where the user has set its ways by the environment."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return None
    try:
        library = ctypes.CDLL(None)
        return library if library.gnu_get_libc_version and library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError, TypeError):
        return None


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, freed memory is kept; at the end it is given back."""
    library = _library()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
    library.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
    try:
        yield
    finally:
        library.mallopt(M_TRIM_THRESHOLD, USUALLY_KEPT)
        library.malloc_trim(0)
