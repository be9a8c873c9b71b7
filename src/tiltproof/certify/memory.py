"""How many (image, box) pairs to bound at a time: from free memory, and fewer after an out-of-memory error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tiltproof.errors import InputError
from tiltproof.network import Network

CPU_BYTES = 2**26
"""Working set aimed at on a CPU: larger batches only fall out of its caches."""


def pairs_at_a_time(network: Network, symbols: int, device: torch.device) -> int:
    """A first guess: all forms of all operations are kept for the backward pass, plus the pixel stage in float64."""
    pixels = 1
    for size in network.shape:
        pixels *= size
    entries = pixels
    for operation in network.operations:
        count = 1
        for size in operation.shape:
            count *= size
        entries += count
    per_pair = entries * 4 * (symbols + 4) + pixels * 8 * (30 + 4 * symbols)
    if device.type == "cuda":
        free = (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
        return int(max(1, min(16_384, 0.4 * free / per_pair)))
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(max(1, min(4096, CPU_BYTES / per_pair, 0.4 * available / per_pair)))


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text or "cublas_status_alloc" in text
    )


class Halving:
    """Runs a function on batches and halves the batch size, for good, whenever memory runs out."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, function: Callable[[int], Any]) -> Any:
        """``function(size)`` works on at most ``size`` items."""
        while True:
            try:
                return function(self.size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.size == 1:
                    raise InputError(
                        "not enough memory for a single image and box",
                        got=str(error).splitlines()[0],
                        do="free memory, use a device with more, or a smaller network or picture",
                    ) from error
            self.size = max(1, self.size // 2)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
