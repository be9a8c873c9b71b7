"""Devices: choosing one, what suits each kind, their out-of-memory errors, and where a GPU kernel stands in for its reference.

A reference function names its kernel (`has_kernel`); the module of that name declares it (`accelerates`). On a CPU the
reference runs, and neither Triton nor a module of kernels is imported. On a GPU the kernel runs if its arguments allow it
and if it passed its self-check. A kernel that differs from its reference, or that cannot be compiled, is reported once and
not used again. An out-of-memory error passes through, because a smaller batch may go through.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from tiltproof.errors import InputError

Reference = TypeVar("Reference", bound=Callable[..., Any])

MOST_THREADS = 1024
INTERPRETED: set[str] = set()
"""Kernels to use on a CPU as well: for tests, in Triton's interpreter."""


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
    """Compute with this many CPU threads from now on; None: as many as torch chooses."""
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


def has_kernel(name: str, on: int = 0) -> Callable[[Reference], Reference]:
    """Decorate a reference function: on a GPU, run kernel ``name`` ("module:function" of `tiltproof.kernels`) where it applies.

    ``on``: the position of the argument that tells the device.
    """

    def decorate(reference: Reference) -> Reference:
        @wraps(reference)
        def dispatch(*arguments: Any) -> Any:
            device = arguments[on].device
            if device.type == "cuda" or name in INTERPRETED:
                kernel = find(name)
                result = NotImplemented if kernel is None else kernel.run(device, *arguments)
                if result is not NotImplemented:
                    return result
            return reference(*arguments)

        return dispatch  # type: ignore[return-value]

    return decorate


@cache
def find(name: str) -> Kernel | None:
    """The kernel of this name; None where Triton is not installed."""
    module, function = name.split(":")
    try:
        kernel: Kernel = getattr(importlib.import_module(f"tiltproof.kernels.{module}"), function)
    except ImportError as error:
        if not (error.name or "").startswith("triton"):  # a damaged installation would only be slow
            raise
        return None
    return kernel


class Kernel:
    """A launch function with its conditions and its self-check; see `accelerates`."""

    def __init__(
        self,
        launch: Callable[..., Any],
        reference: Callable[..., Any],
        when: Callable[..., bool],
        check: Callable[..., bool] | None,
        key: Callable[..., Hashable] | None,
        plan: Callable[..., tuple[Any, ...] | None] | None,
        slows: str,
    ) -> None:
        self.launch, self.reference, self.when, self.check = launch, inspect.unwrap(reference), when, check
        self.key, self.plan, self.slows = key, plan, slows
        self.disabled = False
        self.checked: dict[Hashable, bool] = {}

    def run(self, device: torch.device, *arguments: Any) -> Any:
        """The kernel's result for the reference's arguments; `NotImplemented` where the reference has to compute it."""
        if self.disabled or not self.when(*arguments):
            return NotImplemented
        given = arguments if self.plan is None else self.plan(*arguments)
        if given is None:
            return NotImplemented
        try:
            with current(device):
                return self.launch(*given) if self._matches_reference(device, given) else NotImplemented
        except Exception as error:
            if is_out_of_memory(error):
                raise
            name = self.launch.__name__
            warnings.warn(f"Triton could not run kernel {name}, so {self.slows} take longer: {error}", stacklevel=3)
            self.disabled = True
            return NotImplemented

    def _matches_reference(self, device: torch.device, given: tuple[Any, ...]) -> bool:
        check, key = self.check, self.key
        if check is None or key is None:
            return True
        subject = key(*given)
        if subject not in self.checked and is_recording(device):
            return False  # nothing can be compiled or compared while a CUDA graph is recorded
        difference = f"kernel {self.launch.__name__} and its reference differ on {device}"
        return matches_reference(self.checked, subject, lambda: check(*given), difference)


def accelerates(
    reference: Callable[..., Any],
    *,
    when: Callable[..., bool],
    check: Callable[..., bool] | None = None,
    key: Callable[..., Hashable] | None = None,
    plan: Callable[..., tuple[Any, ...] | None] | None = None,
    slows: str = "bounds",
) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate the launch of a kernel that computes what ``reference`` does.

    ``when``: whether shapes, dtypes and gradients of the reference's arguments allow the kernel.
    ``plan``: the launch's arguments from the reference's, or None where there are none; by default they are the same.
    ``check``: the self-check, which gets the launch's arguments; run once for each ``key`` of these.
    ``slows``: what takes longer without the kernel, for the warning.
    """

    def decorate(launch: Callable[..., Any]) -> Kernel:
        return Kernel(launch, reference, when, check, key, plan, slows)

    return decorate


def matches_reference(checked: dict[Any, bool], key: Hashable, check: Callable[[], bool], difference: str) -> bool:
    """Run a self-check once for each ``key``; warn of the ``difference`` where it fails."""
    if key not in checked:
        checked[key] = False  # the reference is used during the check
        try:
            checked[key] = check()
        except BaseException:
            del checked[key]
            raise
        if not checked[key]:
            warnings.warn(f"{difference}; the reference is used", stacklevel=4)
    return checked[key]
