"""How many things to compute at a time: from the room in memory, and fewer after an out-of-memory error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tiltproof.certify.limit import Memory, shown_size
from tiltproof.device import is_out_of_memory
from tiltproof.errors import InputError
from tiltproof.network import Network

CPU_BYTES = 2**27
"""Working set aimed at on a CPU: larger batches only fall out of its caches."""
MOST_PAIRS_GPU, MOST_PAIRS_CPU = 65_536, 4096
FORMS_TWICE, PIXEL_STAGE = 1.7, 3.5
"""What pairs took at most, relative to the guess: the backward pass copies forms and holds coefficients; bounding pixels, temporaries."""
USED_SHARE = 0.8
"""Of the room under a limit: what a batch is allowed to take by all that is known."""
FIRST_SHARE, GROWTH = 1 / 8, 2
"""Under a limit the first batch takes this share of what is believed to fit, and later ones at most so many times the largest so far."""

TRIES = 3
"""Under a limit, for a single item: what libraries make once they need not make again."""


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


class Halving:
    """Runs a function on batches and halves the batch size, for good, whenever memory runs out.

    Under a limit of ``memory`` batches are smaller where less room is left: ``each`` is what one item is believed to take; it counts
    for more if it was seen to take more.
    """

    def __init__(self, size: int, memory: Memory | None = None, each: int = 0) -> None:
        self.size, self.believed, self.seen, self.largest = size, max(1, each), 0, 0
        self.memory = memory if memory is not None and memory.limit is not None else None

    def run(self, function: Callable[[int], Any]) -> Any:
        """``function(size)`` works on at most ``size`` items."""
        tries = TRIES
        while True:
            size = self.fitting()
            if self.memory is not None:
                self.memory.guard()
            before = (self.memory.taken(), self.memory.peak()) if self.memory else (0, 0)
            try:
                result = function(size)
                self._learn(size, *before)
                return result
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                tries -= size == 1 and self.memory is not None
                if size == 1 and (self.memory is None or not tries):
                    raise InputError(
                        "not enough memory for a single image and box",
                        got=str(error).splitlines()[0] if str(error) else type(error).__name__,
                        do="free memory, use a device with more, or a smaller network or picture" + self._limit(),
                    ) from error
            self.size = max(1, size // 2)
            if self.memory is not None:
                self.memory.release()
            elif torch.cuda.is_available():
                torch.cuda.empty_cache()

    def fitting(self) -> int:
        """How many items to take now."""
        if self.memory is None:
            return self.size
        each = max(self.believed, self.seen)
        fits = USED_SHARE * self.memory.room() / each
        if fits < self.size:  # less than wanted: see whether some of what is taken is free already
            self.memory.release()
            fits = USED_SHARE * self.memory.room() / each
        tried = GROWTH * self.largest if self.largest else max(1, math.floor(FIRST_SHARE * fits))
        return max(1, min(self.size, math.floor(fits), tried))

    def _learn(self, size: int, taken: int, peak: int) -> None:
        """An item took at most its share of all that was taken since. A first, small batch also pays for what is made once, such as
        libraries' own tables, so the largest batches are believed; smaller ones only where they took more than anything before."""
        if self.memory is None:
            return
        most = self.memory.peak()
        share = max(0, most - taken) // size
        if most > peak:
            self.seen = share if size >= self.largest else max(self.seen, share)
        elif size >= self.largest:
            self.seen = min(self.seen, share)
        self.largest = max(self.largest, size)

    def _limit(self) -> str:
        limit = None if self.memory is None else self.memory.limit
        return "" if limit is None else f"; or a higher limit than {shown_size(limit)} (--memory)"
