"""Where to compute: the one place that turns what a user says into a device that is there, and knows its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from tiltproof.errors import InputError


def choose_device(wanted: str | torch.device) -> torch.device:
    """``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or ``cuda:N``, which must be there.

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
    """Makes a GPU the current one, which is where Triton launches whatever it is given."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def few_threads(device: torch.device) -> Iterator[None]:
    """While a GPU does the work, the host's tensors are small: to wake other threads for them costs more than it saves."""
    if device.type != "cuda":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cublas_status_alloc",
    "bad_alloc",
    "could not create a primitive",  # oneDNN, whatever it lacked memory for
    "could not create a memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Of torch, Python or a library below them; a smaller batch may go through."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)
