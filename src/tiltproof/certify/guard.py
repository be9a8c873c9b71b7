"""A guard on a CPU's memory: under Linux, the next allocation above a limit fails, and a smaller batch can be tried.

Linux limits a process's private memory, resident or not, by RLIMIT_DATA. Of what is private some is never resident (stacks of threads,
libraries' tables, oneDNN's programs), and that grows; some was freed and given back, and is resident when it is used again. So the guard
lets private memory grow by the room there is, less what will come back unseen, and is set anew before every batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from tiltproof.certify.apart import Apart
from tiltproof.certify.freed import freed_memory_kept, give_back, is_returned, return_freed_memory
from tiltproof.certify.resident import heap_free, heap_given_back, status

Found = TypeVar("Found")
LARGE, FEW = 2**24, 3
"""Where fewer items than this have room, of more bytes than that, no freed memory is kept: it lies in pieces, too small for the next."""
PARALLEL = 2**17
"""Numbers that torch fills with all its threads: more than at::internal::GRAIN_SIZE, 2**15."""
_lock, _mine = threading.Lock(), threading.local()
"""``_mine.apart``: of each thread, while a limit holds that it has set."""
_held: list[tuple[Callable[[], int], tuple[int, int]]] = []
"""Of limits that hold now, of all threads since RLIMIT_DATA is the process's: how much room they leave; (soft, hard) before the first."""
_then = {"given back": 0, "not resident": 0}
"""When it was last looked: bytes of heaps that had been given back, and of all that is private and was not resident."""


@contextmanager
def guarded(room: Callable[[], int], each: int) -> Iterator[None]:
    """Inside, memory runs out where there is no ``room``, in bytes; ``each``: what an item of the work takes."""
    try:
        import resource
    except ImportError:
        yield
        return
    outermost = not hasattr(_mine, "apart")
    try:
        with freed_memory_kept():
            with _lock:
                if not _held:
                    give_back()
                    # where the heap's free part is not known, what is kept could not be told from what is used
                    if (each > LARGE and each * FEW > room()) or heap_free() is None:
                        return_freed_memory()
                    _look()
                entry = (room, _held[0][1] if _held else resource.getrlimit(resource.RLIMIT_DATA))
                _held.append(entry)
            if outermost:
                _mine.apart = Apart()
            try:
                renew()
                yield
            finally:
                if outermost:
                    _mine.apart.end()
                    del _mine.apart
                with _lock:
                    _held.remove(entry)
                    _set(entry[1])
    finally:
        with _lock:
            if _held:  # another thread's: what was kept is given back now
                _look()


def run(function: Callable[[], Found], short: bool) -> Found:
    """``function()`` with a new guard; where memory is ``short``, or was, in a thread apart. Such threads have heaps of their own, which
    keep less."""
    apart = getattr(_mine, "apart", None)
    if apart is None or not (short or is_returned()):
        if apart is not None:
            apart.end()  # OpenMP's threads are slower where there are more of them than cores
        return _renewed(function)
    if not apart.started:
        with _lock:
            _lift(_held[0][1])
            apart.start()
    return apart.run(lambda: _renewed(function))


def _renewed(function: Callable[[], Found]) -> Found:
    renew()
    return function()


def renew() -> None:
    """Set the guard by the room there is now."""
    with _lock:
        if _held:
            _set(_held[0][1])


def spare() -> None:
    """Memory ran out: do with less of it from now on."""
    with _lock:
        if _held:
            _lift(_held[0][1])  # to look takes some memory, too; whatever is tried next sets it again
        if is_returned():
            give_back()
        else:
            return_freed_memory()
            _look()


def kept() -> int:
    """Bytes that are free and resident, under a guard: the next step has them again."""
    return 0 if is_returned() or not _held else max(0, (heap_free() or 0) - _unseen())


def _look() -> None:
    """After all that is free was given back."""
    _then.update({"given back": heap_given_back(), "not resident": _not_resident()})


def _not_resident() -> int:
    return status("VmData") - status("RssAnon")


def _unseen() -> int:
    """Bytes at most of heaps that are not resident, and will be when they are used again, which no guard sees: what had been given back,
    less what came back since then. Where freed memory is returned, small blocks may come back beside that."""
    came_back = _then["not resident"] - _not_resident()
    return max(0, _then["given back"] - max(0, came_back))


def _set(before: tuple[int, int]) -> None:
    """For the limit that leaves the least room; none where no limit holds. For whoever has the lock."""
    import resource

    _lift(before)
    if not _held:
        return
    _start_threads()
    if data := status("VmData"):
        grow = max(0, min(room() for room, _ in _held) - kept() - _unseen())
        least = min(end for end in (data + grow, *before) if end != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (least, before[1]))


def _lift(before: tuple[int, int]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, before)


def _start_threads() -> None:
    """All of OpenMP's, for this thread: it ends the process when one cannot start, and their stacks are private memory. Some end when
    an operation uses fewer, so they are started again whenever a guard is set, with none in the way."""
    if torch.get_num_threads() > 1:
        torch.zeros(PARALLEL).fill_(1)
