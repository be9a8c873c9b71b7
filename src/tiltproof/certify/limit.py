"""A limit on memory that the user sets: how much is taken, how much room is left, and a guard that turns excess into an error.

On a CPU it is the process's resident set that counts, with the interpreter, torch, network and images; on a GPU what torch holds there
for tensors. `Halving` chooses batches that leave room; should one need more all the same, the guard makes it run out of memory, and
`Halving` halves it.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tiltproof.certify import guard
from tiltproof.certify.freed import freed_memory_kept, give_back
from tiltproof.certify.resident import peak, status
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
        """Bytes that are in use now; what is freed and kept is not, where a run keeps it."""
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else status("VmRSS") - guard.kept()

    def peak(self) -> int:
        """The most bytes that were ever in use; 0 where the system does not say."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else peak()

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
            give_back()

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
    def kept(self, each: int = 0) -> Iterator[None]:
        """Inside, memory runs out when the limit is reached, as far as the system can see to it. ``each``: bytes that an item takes."""
        if self.limit is None:
            with freed_memory_kept():
                yield
            return
        before = self.peak()
        try:
            with self._gpu_guard() if self.on_gpu else guard.guarded(self.room, each):
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

    def run(self, function: Callable[[], Any], short: bool) -> Any:
        """``function()``, inside `kept`, with what the guard needs: on a CPU a new one, and a thread apart where memory is ``short``."""
        return function() if self.on_gpu else guard.run(function, short)

    def spare(self) -> None:
        """Memory ran out: do with less of it from now on."""
        if self.on_gpu:
            torch.cuda.empty_cache()
        else:
            guard.spare()
