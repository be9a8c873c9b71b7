"""A limit on memory that the user sets: how much is taken, how much room is left, and a guard that turns excess into an error.

On a CPU it is the process's resident set that counts, with the interpreter, torch, network and images; on a GPU what torch holds there
for tensors. `Halving` chooses batches that leave room; should one need more all the same, the guard makes it run out of memory, and
`Halving` halves it.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tiltproof.certify.freed import freed_memory_kept
from tiltproof.device import is_out_of_memory
from tiltproof.errors import InputError
from tiltproof.network.arithmetic import unfold_at_most

UNITS = {"": 1, "B": 1} | {
    f"{letter}{middle}B": base**power
    for middle, base in (("", 1000), ("I", 1024))
    for power, letter in enumerate("KMGT", start=1)
}
FREE_SHARE = 0.4
"""Of the memory that is free, where no limit is set."""
RESERVE = 24 * 2**20
"""On a CPU, kept for what grows beside tensors: libraries are loaded into memory page by page."""
UNFOLDED_SHARE = 1 / 16
PARALLEL = 2**17
"""Numbers that torch fills with all its threads: more than at::internal::GRAIN_SIZE, 2**15."""


def parse_memory(size: int | str | None) -> int | None:
    """A limit in bytes: a whole number, or text such as 500MB (1000s), 1.5GiB (1024s).

    >>> parse_memory("1.5GiB"), parse_memory("500MB"), parse_memory("2 GB")
    (1610612736, 500000000, 2000000000)
    """
    if size is None:
        return None
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([a-zA-Z]*)\s*", str(size))
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or isinstance(size, bool) or not isinstance(size, (int, str)):
        raise InputError(
            "a memory limit is a number of bytes or a size", got=repr(size), do="write e.g. 500MB, 2GB or 1.5GiB"
        )
    result = math.floor(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if result < 1:
        raise InputError("a memory limit is more than nothing", got=repr(size), do="write e.g. 500MB, 2GB or 1.5GiB")
    return result


def shown_size(size: float) -> str:
    """Bytes for people.

    >>> shown_size(1_610_612_736)
    '1.61 GB'
    """
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


@dataclass(frozen=True)
class Memory:
    """Of the device that a run computes on; ``limit`` in bytes, None for what is free."""

    device: torch.device
    limit: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def taken(self) -> int:
        """Bytes that are in use now."""
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else _status("VmRSS")

    def peak(self) -> int:
        """The most bytes that were ever in use; 0 where the system does not say."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else _peak()

    def room(self) -> int:
        """Bytes that may be taken in addition."""
        if self.limit is not None:
            return max(0, self.limit - self.taken() - (0 if self.on_gpu else RESERVE))
        if self.on_gpu:
            cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            return int(FREE_SHARE * (torch.cuda.mem_get_info(self.device)[0] + cached))
        return int(FREE_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))

    def release(self) -> None:
        """Give back what was freed and is kept for later."""
        if self.on_gpu:
            torch.cuda.empty_cache()
        else:
            with suppress(OSError, AttributeError, TypeError):  # glibc alone has it
                ctypes.CDLL(None).malloc_trim(0)

    def check(self) -> None:
        """Refuse a limit that leaves no room."""
        if self.limit is None:
            return
        self.release()
        if self.room() <= 0:
            raise InputError(
                "the memory limit leaves no room for work",
                got=f"a limit of {shown_size(self.limit)}, {shown_size(self.taken())} taken already by "
                + ("tensors on the GPU" if self.on_gpu else "Python, torch, the network and the images"),
                do="give more, or fewer images at once",
            )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, memory runs out when the limit is reached, as far as the system can see to it."""
        if self.limit is None:
            with freed_memory_kept():
                yield
            return
        before = self.peak()
        try:
            with self._gpu_guard() if self.on_gpu else self._cpu_guard():
                yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                "the run does not fit into the memory limit, in batches of any size",
                got=f"a limit of {shown_size(self.limit)} ({str(error).splitlines()[0] if str(error) else 'no memory'})",
                do="give more, or fewer images at once",
            ) from error
        if self.peak() > max(self.limit, before):
            text = f"the memory limit of {shown_size(self.limit)} was passed: {shown_size(self.peak())} were taken"
            warnings.warn(text, stacklevel=3)

    @contextmanager
    def _gpu_guard(self) -> Iterator[None]:
        assert self.limit is not None
        before = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: 1.0)(self.device)
        whole = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(before, self.limit / whole), self.device)
        try:
            with unfold_at_most(int(self.limit * UNFOLDED_SHARE)):
                yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, self.device)

    @contextmanager
    def _cpu_guard(self) -> Iterator[None]:
        """Linux limits a process's private memory, resident or not, by RLIMIT_DATA; see `guard`."""
        try:
            import resource
        except ImportError:
            yield
            return
        with _lock:
            entry = (self, _held[0][1] if _held else resource.getrlimit(resource.RLIMIT_DATA))
            _held.append(entry)
        try:
            self.guard()
            yield
        finally:
            with _lock:
                _held.remove(entry)
                _set_guard(entry[1])

    def guard(self) -> None:
        """Inside `kept`, on a CPU: let private memory grow by as much as there is room now. Of what is private some is never resident
        (stacks of threads, libraries' tables), and that grows too, so the guard is set anew before every batch."""
        if self.on_gpu:
            return
        with _lock:
            if _held:
                _set_guard(_held[0][1])


_lock = threading.Lock()
_held: list[tuple[Memory, tuple[int, int]]] = []
"""Limits that hold now, of all threads since RLIMIT_DATA is the process's, each with that (soft, hard) from before the first of them."""


def _set_guard(before: tuple[int, int]) -> None:
    """For the limit that leaves the least room; none where no limit holds. For whoever has the lock."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, before)
    if not _held:
        return
    _start_threads()
    if data := _status("VmData"):
        ends = (data + min(memory.room() for memory, _ in _held) + RESERVE, *before)
        least = min(end for end in ends if end != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (least, before[1]))


def _start_threads() -> None:
    """All of OpenMP's, for this thread: it ends the process when one cannot start, and their stacks are private memory. Some end when
    an operation uses fewer, so they are started again whenever a guard is set, with none in the way."""
    if torch.get_num_threads() > 1:
        torch.zeros(PARALLEL).fill_(1)


def _status(key: str) -> int:
    """A size that Linux tells of this process, in bytes; 0 elsewhere, but for the resident set."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return _peak() if key == "VmRSS" else 0  # not less than what is resident now


def _peak() -> int:
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
