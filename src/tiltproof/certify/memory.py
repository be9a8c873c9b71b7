"""How many things to compute at a time: from the room in memory, and fewer after an out-of-memory error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol

import torch

from tiltproof.certify.limit import Memory
from tiltproof.device import is_out_of_memory
from tiltproof.errors import InputError
from tiltproof.network import Network

CPU_BYTES = 2**27
"""Working set aimed at on a CPU: larger batches only fall out of its caches."""
MOST_PAIRS_GPU, MOST_PAIRS_CPU = 65_536, 4096
FORMS_TWICE, PIXEL_STAGE = 1.7, 3.5
"""What pairs took at most, relative to the guess: the backward pass copies forms and holds coefficients; bounding pixels, temporaries."""
USED_SHARE = 0.7
"""Under a limit: the share of the room that a batch is planned to take."""
FIRST_SHARE, GROWTH = 1 / 8, 2
"""Under a limit: the first batch is this share of what the estimate says fits; a later one at most this many times the largest so far."""


LARGEST_HEAP_BLOCK = 2**25 - 2**16
"""Just below the largest block that glibc ever takes from its heap."""


def keep_freed_memory(memory: Memory) -> None:
    """Let the C library keep what a step frees for the next one, where no limit was set.

    glibc returns freed memory to the system once more is free than twice the largest block it has ever freed, and the system clears every
    page anew when it comes back: a tenth of a run's seconds and more. So one large block is freed here, untouched (mallopt(3), dynamic
    M_MMAP_THRESHOLD). Elsewhere this does nothing.
    """
    if memory.limit is None and not memory.on_gpu:
        torch.empty(LARGEST_HEAP_BLOCK, dtype=torch.uint8, device="cpu")


def pairs_at_a_time(network: Network, symbols: int, device: torch.device, memory: Memory | None = None) -> int:
    """A first guess: all forms of all operations are kept for the backward pass, plus the pixel stage in float64."""
    memory = memory or Memory(device)
    per_pair = sum(_pair(network, symbols))
    fits = memory.room() / per_pair
    if memory.limit is not None:
        fits = USED_SHARE * memory.room() / pair_bytes(network, symbols)
    if device.type == "cuda":
        return int(max(1, min(MOST_PAIRS_GPU, fits)))
    return int(max(1, min(MOST_PAIRS_CPU, CPU_BYTES / per_pair, fits)))


def pair_bytes(network: Network, symbols: int) -> int:
    """What a pair takes at most, as far as is known beforehand; in float64 twice that."""
    forms, pixels = _pair(network, symbols)
    return int(FORMS_TWICE * forms + PIXEL_STAGE * pixels)


def fewest_together(network: Network, symbols: int) -> int:
    """Backward passes that are worth making together though fewer pairs were bounded: small ones, which cost more apart."""
    return max(1, min(64, CPU_BYTES // pair_bytes(network, symbols)))


def _pair(network: Network, symbols: int) -> tuple[int, int]:
    """Forms of all operations, and the pixel stage."""
    pixels = math.prod(network.shape)
    return _entries(network) * 4 * (symbols + 4), pixels * 8 * (30 + 4 * symbols)


def _entries(network: Network) -> int:
    return math.prod(network.shape) + sum(math.prod(operation.shape) for operation in network.operations)


def picture_bytes(network: Network, gradient: bool) -> int:
    """What evaluating the network on one transformed picture takes at most, with all that a gradient needs or without."""
    largest = max([math.prod(network.shape), *(math.prod(operation.shape) for operation in network.operations)])
    return 8 * (24 * math.prod(network.shape) + (2 * _entries(network) if gradient else 4 * largest))


class Changing(Protocol):
    """Something that a step of a search changes: ``STATE`` names the attributes that hold its whole state."""

    STATE: ClassVar[tuple[str, ...]]


class Halving:
    """Runs a function on batches of items, and halves the batch size, for good, whenever memory runs out.

    A function that failed is called again, so it must leave nothing behind: either it changes nothing, or the objects it changes are named,
    and whatever it raises their state is put back.

    Under a limit of ``memory`` the batch size follows from what an item takes: first the estimate ``each``, then what the largest batch so
    far was measured to take. A peak above the limit counts as memory that ran out.
    """

    def __init__(self, size: int, memory: Memory | None = None, each: int = 0) -> None:
        self.size, self.each, self.largest = size, max(1, each), 0
        self.memory = memory if memory is not None and memory.limit is not None else None
        # what was in use before the first batch: later readings on a CPU count memory that was freed and not returned
        self.taken = 0 if self.memory is None else self.memory.taken()

    def run(self, function: Callable[[int], Any], changes: Sequence[Changing] = ()) -> Any:
        """``function(size)`` works on at most ``size`` items; ``changes``: the objects whose state it changes."""
        while True:
            size = self.fitting()
            peak = 0 if self.memory is None else self.memory.peak()
            before: list[tuple[Changing, dict[str, Any]]] = []
            try:
                before = [(each, {name: _copied(getattr(each, name)) for name in each.STATE}) for each in changes]
                result = function(size)
            except BaseException as error:
                for each, state in before:
                    vars(each).update(state)
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
        """How many items to take now."""
        if self.memory is None:
            return self.size
        fits = USED_SHARE * self.memory.room(self.taken) / self.each
        most = min(fits, GROWTH * self.largest) if self.largest else FIRST_SHARE * fits
        return min(self.size, _rounded(max(1, math.floor(most))))

    def _learn(self, size: int, peak: int) -> None:
        """What an item takes, from the peak after a batch of ``size`` items and the ``peak`` before it.

        Small batches are a poor measure, since what is allocated once weighs on few items; so a batch counts only if none was larger. If
        the peak has not risen, an item took at most its share of the old one.
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


def _copied(value: Any) -> Any:
    """A copy that later changes in place do not reach."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, (list, dict)) else value


def _rounded(size: int) -> int:
    """Down to three binary digits: libraries compile programs and tables for every size, and keep them."""
    digits = max(0, size.bit_length() - 3)
    return size >> digits << digits
