"""Devices: choosing one, what suits each kind, and their out-of-memory errors."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
from torch import Tensor

from tiltproof.errors import InputError

MOST_THREADS = 1024


def choose_device(wanted: str | torch.device) -> torch.device:
    """Resolve ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; refuse a device that is not available.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError("unknown device", got=wanted, do="use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            "this device is not available",
            got=f"{wanted}, with {torch.cuda.device_count()} CUDA devices visible",
            why="no NVIDIA GPU or driver, or a torch built for the CPU",
            do='use --device cpu or --device auto (device="cpu")',
        )
    return device


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one, on which Triton launches its kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_recording(device: torch.device) -> bool:
    """Whether work on this device is being recorded into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def launch_bound(x: Tensor) -> bool:
    """Whether operations on ``x`` cost their launch (a GPU) rather than their passes over memory (a CPU).

    If so, one operation over a whole tensor is best; if not, several operations over parts that stay in the caches.
    """
    return x.is_cuda


def return_freed_memory() -> None:
    """Return to the system what the C library keeps of freed memory, which otherwise counts as taken; only glibc can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def use_threads(count: int | None) -> None:
    """Compute with this many CPU threads from now on; None: as many as torch takes by itself."""
    if count is None:
        return
    if not 1 <= count <= MOST_THREADS:
        raise InputError("--threads is the number of CPU threads", got=count, do="1 on a busy machine, or one per core")
    torch.set_num_threads(count)


def batch_entries(x: Tensor, on_cpu: int, on_gpu: int | None = None) -> int:
    """How many entries to compute at a time: ``on_cpu`` to stay in the caches, or ``on_gpu`` (by default, all of them)."""
    return (on_gpu or sys.maxsize) if launch_bound(x) else on_cpu


@contextmanager
def few_threads(device: torch.device) -> Iterator[None]:
    """Use one CPU thread while a GPU computes: the host's tensors are small, and waking threads costs more than it saves."""
    if device.type != "cuda":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "cublas_status_alloc",
    "bad_alloc",
    "could not create a primitive",  # oneDNN reports every lack of memory like this
    "could not create a memory",
)
"""Parts of the messages of RuntimeErrors that mean a lack of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, Python or a library ran out of memory, so that a smaller batch may go through."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(message in text for message in OUT_OF_MEMORY_MESSAGES)
