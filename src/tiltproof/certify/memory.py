"""How many things to compute at a time: from the room in memory, and fewer after an out-of-memory error."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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
            size, short = self.fitting()
            try:
                if self.memory is None:
                    return function(size)
                return self.memory.run(partial(self._watched, function, size), short)
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
                self.memory.spare()
            elif torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _watched(self, function: Callable[[int], Any], size: int) -> Any:
        """Under a limit: what is taken is learnt from."""
        assert self.memory is not None
        before = self.memory.taken(), self.memory.peak()
        result = function(size)
        self._learn(size, *before)
        return result

    def fitting(self) -> tuple[int, bool]:
        """How many items to take now, and whether memory is short: not all that are wanted fit."""
        if self.memory is None:
            return self.size, False
        fits = USED_SHARE * self.memory.room() / max(self.believed, self.seen)
        tried = GROWTH * self.largest if self.largest else max(1, math.floor(FIRST_SHARE * fits))
        return min(self.size, _rounded(max(1, min(math.floor(fits), tried)))), fits < self.size

    def _learn(self, size: int, taken: int, peak: int) -> None:
        """An item took at most its share of all that was taken since. A first, small batch also pays for what is made once, such as
        libraries' own tables, so the largest batches are believed; smaller ones only where they took more than anything before."""
        assert self.memory is not None
        assert self.memory.limit is not None
        most = self.memory.peak()
        share = max(0, most - taken) // size
        if most > peak and size < self.largest:  # freed memory in pieces that are too small takes some room, too
            self.seen = max(self.seen, max(0, most - taken - self.memory.limit // 32) // size)
        elif most > peak:
            self.seen = share
        elif size >= self.largest:
            self.seen = min(self.seen, share)
        self.largest = max(self.largest, size)

    def _limit(self) -> str:
        limit = None if self.memory is None else self.memory.limit
        return "" if limit is None else f"; or a higher limit than {shown_size(limit)} (--memory)"


def _rounded(size: int) -> int:
    """Down to three digits of the binary system: libraries make programs and tables for every size anew, and keep them."""
    digits = max(0, size.bit_length() - 3)
    return size >> digits << digits
