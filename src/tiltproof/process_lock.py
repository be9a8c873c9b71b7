"""One lock per process for its global state: torch's precision settings, a model's mode, logging.

torch keeps which arithmetic float32 products may use in settings of the whole process, and a module has one mode for all threads. Code
that changes such state for a while holds this lock, so that a proof in another thread neither runs under it nor restores it too early.
The other thread waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock; the thread that holds it may enter again."""
    with _lock:
        yield


def _renew() -> None:
    """A forked child has no other threads, so nobody in it would release a lock that one of them held."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
