"""How much memory a run has taken and may take: what batches are sized by.

A limit set by the user bounds batches, not the process. Batch sizes come from an estimate per item, are corrected by the peak that the
first batches reach, and are halved when memory runs out (`certify.memory`). What the operating system does to a process that takes
too much is its own business: cgroups, ``systemd-run`` and ``ulimit`` set hard limits.
"""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tiltproof.device import is_out_of_memory
from tiltproof.errors import InputError
from tiltproof.network.arithmetic import unfold_at_most

UNITS = {"": 1, "B": 1} | {
    f"{letter}{middle}B": base**power
    for middle, base in (("", 1000), ("I", 1024))
    for power, letter in enumerate("KMGT", start=1)
}
FREE_SHARE = 0.4
"""Without a limit: the share of free memory that batches may take."""
RESERVE = 24 * 2**20
"""Under a limit on a CPU: bytes kept for what grows beside tensors, such as library pages loaded on first use."""
UNFOLDED_SHARE = 1 / 16
"""Under a limit on a GPU: the share of it that the unfolded input of one convolution may take."""


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
    """Memory of the device that a run computes on; ``limit`` in bytes, None for what is free.

    On a CPU the resident set of the whole process counts (interpreter, torch, network and images included), on a GPU what torch
    has allocated there for tensors.
    """

    device: torch.device
    limit: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def taken(self) -> int:
        """Bytes in use now; on a CPU with what the C library has freed and not yet returned."""
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else _resident("VmRSS")

    def peak(self) -> int:
        """The most bytes ever in use; 0 where the system does not say."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else _resident("VmHWM")

    def room(self, taken: int | None = None) -> int:
        """Bytes that batches may take beside the bytes ``taken`` (by default those in use now)."""
        if self.limit is not None:
            return max(0, self.limit - (self.taken() if taken is None else taken) - (0 if self.on_gpu else RESERVE))
        if self.on_gpu:
            cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            return int(FREE_SHARE * (torch.cuda.mem_get_info(self.device)[0] + cached))
        return int(FREE_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))

    def check(self, each: int) -> None:
        """Raise if the limit leaves no room for a single item of ``each`` bytes."""
        if self.limit is None or self.room() >= each:
            return
        where = "tensors on the GPU" if self.on_gpu else "Python, torch, the network and the images"
        raise InputError(
            "the memory limit leaves no room for a single image and box",
            got=f"a limit of {shown_size(self.limit)}; {shown_size(self.taken())} are taken already by {where}, "
            f"and one image and box needs about {shown_size(each)}",
            do="give more memory, or fewer images at once",
        )

    def record(self) -> dict[str, int]:
        """Of a run under a limit: the limit, and the peak so far."""
        return {} if self.limit is None else {"memory_limit": self.limit, "memory_peak": self.peak()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around a run: memory that runs out anywhere is an InputError, and a peak above the limit is a warning."""
        before = self.peak()
        try:
            with unfold_at_most(int(self.limit * UNFOLDED_SHARE) if self.limit is not None and self.on_gpu else None):
                yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                "memory ran out, in batches of any size",
                got=str(error).splitlines()[0] if str(error) else type(error).__name__,
                do="free memory, or take fewer images at once",
            ) from error
        if self.limit is not None and self.peak() > max(self.limit, before):
            text = f"memory reached {shown_size(self.peak())}, above the {shown_size(self.limit)} that batches were sized for"
            warnings.warn(text, stacklevel=3)


def _resident(key: str) -> int:
    """``VmRSS``: resident bytes of this process; ``VmHWM``: the most there ever were. Where only the peak is known, it stands for both."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
