"""Batch sizes that fit into memory.

A limit set by the user bounds batches, not the process. Batch sizes come from an estimate per item, are corrected by the peak that the
first batches reach, and are halved when memory runs out (`AdaptiveBatchSize`). What the operating system does to a process that takes
too much is its own business: cgroups, ``systemd-run`` and ``ulimit`` set hard limits.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from tiltproof.device import is_out_of_memory, return_freed_memory
from tiltproof.errors import InputError
from tiltproof.network import Network
from tiltproof.network.arithmetic import unfold_at_most
from tiltproof.runtime.memory_size import shown_size

T = TypeVar("T")

FREE_SHARE = 0.4
"""Share of free memory for batches, without a limit."""
RESERVE = 24 * 2**20
"""With a limit on a CPU: bytes reserved for memory other than tensors, such as library pages loaded on first use."""
UNFOLDED_SHARE = 1 / 16
"""With a limit on a GPU: the share of it that the unfolded input of one convolution may take."""


@dataclass(frozen=True)
class Memory:
    """Memory of the device of a run; ``limit`` in bytes, None for all free memory.

    On a CPU the resident set of the whole process counts (interpreter, torch, network and images included), on a GPU
    what torch has allocated for tensors.
    """

    device: torch.device
    limit: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def taken(self) -> int:
        """Return the bytes in use; on a CPU including those that the C library has freed and not returned."""
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else _resident("VmRSS")

    def peak(self) -> int:
        """Return the peak in bytes; 0 if the system does not report it."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else _resident("VmHWM")

    def room(self, taken: int | None = None) -> int:
        """Return the bytes left for batches, in addition to the bytes ``taken`` (by default those in use)."""
        if self.limit is not None:
            return max(0, self.limit - (self.taken() if taken is None else taken) - (0 if self.on_gpu else RESERVE))
        if self.on_gpu:
            cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            return int(FREE_SHARE * (torch.cuda.mem_get_info(self.device)[0] + cached))
        return int(FREE_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))

    def check(self, each: int) -> None:
        """Raise if the limit leaves no room for a single item of ``each`` bytes."""
        if self.limit is None:
            return
        if not self.on_gpu:
            return_freed_memory()  # of what reading the network took, much is free again
        if self.room() >= each:
            return
        where = "tensors on the GPU" if self.on_gpu else "Python, torch, the network and the images"
        raise InputError(
            "the memory limit leaves no room for a single image and box",
            got=f"a limit of {shown_size(self.limit)}; {shown_size(self.taken())} are taken already by {where}, "
            f"and one image and box needs about {shown_size(each)}",
            do="give more memory, or fewer images at once",
        )

    def record(self) -> dict[str, int]:
        """Return limit and peak, for a run with a limit."""
        return {} if self.limit is None else {"memory_limit": self.limit, "memory_peak": self.peak()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, running out of memory is an InputError, and a peak above the limit is a warning."""
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
    """Read ``VmRSS``, the resident bytes of this process, and ``VmHWM``, their peak. Where only the peak is known, it
    stands for both."""
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


# How many things to compute at a time: from the room in memory, and fewer after an out-of-memory error.


CPU_BYTES = 2**27
"""Working set on a CPU; larger batches exceed its caches."""
MOST_PAIRS_GPU, MOST_PAIRS_CPU = 65_536, 4096
FORMS_TWICE, PIXEL_STAGE = 1.7, 3.5
"""Largest measured memory of pairs relative to the estimate: backward passes copy forms and hold coefficients; pixel
bounds use temporaries."""
USED_SHARE = 0.7
"""With a limit: planned share of the available memory."""
FIRST_SHARE, GROWTH = 1 / 8, 2
"""With a limit: the first batch as a share of the estimate; a later one is at most this many times the largest so
far."""


LARGEST_HEAP_BLOCK = 2**25 - 2**16
"""Just below the largest block that glibc takes from its heap."""


def keep_freed_memory(memory: Memory) -> None:
    """Make the C library keep freed memory for the next step, if no limit was set.

    glibc returns freed memory to the system once more is free than twice the largest block it has ever freed, and the
    system clears each page when it is used again: a tenth of a run's time or more. One large block is therefore freed
    here, untouched (mallopt(3), dynamic M_MMAP_THRESHOLD). On other systems this has no effect.
    """
    if memory.limit is None and not memory.on_gpu:
        torch.empty(LARGEST_HEAP_BLOCK, dtype=torch.uint8, device="cpu")


def pairs_at_a_time(network: Network, symbols: int, device: torch.device, memory: Memory | None = None) -> int:
    """Return a first estimate: all forms of all operations are kept for the backward pass, plus the pixel stage in
    float64."""
    memory = memory or Memory(device)
    per_pair = sum(_pair(network, symbols))
    fits = memory.room() / per_pair
    if memory.limit is not None:
        fits = USED_SHARE * memory.room() / pair_bytes(network, symbols)
    if device.type == "cuda":
        return int(max(1, min(MOST_PAIRS_GPU, fits)))
    return int(max(1, min(MOST_PAIRS_CPU, CPU_BYTES / per_pair, fits)))


def pair_bytes(network: Network, symbols: int) -> int:
    """Return the estimated most bytes of a pair; float64 takes twice as many."""
    forms, pixels = _pair(network, symbols)
    return int(FORMS_TWICE * forms + PIXEL_STAGE * pixels)


def fewest_together(network: Network, symbols: int) -> int:
    """Return how many backward passes to make at once even if fewer pairs were bounded: small ones are cheaper in one
    batch."""
    return max(1, min(64, CPU_BYTES // pair_bytes(network, symbols)))


def _pair(network: Network, symbols: int) -> tuple[int, int]:
    """Return the entries of the forms of all operations, and of the pixel stage."""
    pixels = math.prod(network.shape)
    return network.entries() * 4 * (symbols + 4), pixels * 8 * (30 + 4 * symbols)


def image_bytes(network: Network, gradient: bool) -> int:
    """Return the most bytes for evaluating the network on one transformed image, with or without what a gradient
    needs."""
    largest = max([math.prod(network.shape), *(math.prod(operation.shape) for operation in network.operations)])
    return 8 * (24 * math.prod(network.shape) + (2 * network.entries() if gradient else 4 * largest))


class AdaptiveBatchSize:
    """Runs a function on batches of items, and halves the batch size permanently when memory runs out.

    A function that failed is called again, so it must not change anything.

    With a limit of ``memory`` the batch size follows from the memory per item: first the estimate ``each``, then the
    measurement of the largest batch so far. A peak above the limit counts as running out of memory.
    """

    def __init__(self, size: int, memory: Memory | None = None, each: int = 0) -> None:
        self.size, self.each, self.largest = size, max(1, each), 0
        self.memory = memory if memory is not None and memory.limit is not None else None
        # what was in use before the first batch: later readings on a CPU count memory that was freed and not returned
        self.taken = 0 if self.memory is None else self.memory.taken()

    def run(self, function: Callable[[int], T]) -> T:
        """Run ``function(size)``, which works on at most ``size`` items."""
        while True:
            size = self.fitting()
            peak = 0 if self.memory is None else self.memory.peak()
            try:
                result = function(size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    raise InputError(
                        "not enough memory for a single image and box",
                        got=str(error).splitlines()[0] if str(error) else type(error).__name__,
                        do="free memory, use a device with more, or a smaller network or image",
                    ) from error
            else:
                # the function has succeeded and is never called again, whatever happens here
                with suppress(MemoryError):
                    self._learn(size, peak)
                return result
            self.size = max(1, size // 2)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def fitting(self) -> int:
        """Return the next batch size."""
        if self.memory is None:
            return self.size
        fits = USED_SHARE * self.memory.room(self.taken) / self.each
        most = min(fits, GROWTH * self.largest) if self.largest else FIRST_SHARE * fits
        return min(self.size, _rounded(max(1, math.floor(most))))

    def _learn(self, size: int, peak: int) -> None:
        """Estimate the memory per item from the peak after a batch of ``size`` items and the ``peak`` before it.

        Small batches measure poorly, because fixed allocations weigh on few items; so a batch counts only if none was
        larger. If the peak has not risen, an item took at most its share of the old one.
        """
        if self.memory is None or self.memory.limit is None:
            return
        reached = self.memory.peak()
        if reached > max(peak, self.memory.limit):
            self.size = max(1, size // 2)
        if size >= self.largest:
            share = max(1, (reached - self.taken) // size)
            self.each = share if reached > peak else min(self.each, share)
            self.largest = size


def _rounded(size: int) -> int:
    """Round down to three binary digits: libraries compile and cache programs and tables for every size."""
    digits = max(0, size.bit_length() - 3)
    return size >> digits << digits
