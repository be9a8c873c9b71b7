"""A thread apart for work that may be refused memory.

oneDNN makes its programs while it runs, and remembers of each thread that memory for one was refused there: it never makes another in that
thread, however much memory there is later ("could not create a primitive"). So what runs under a limit on a CPU runs in a thread of its
own, and in a new one as soon as something went wrong in that. The caller's own thread stays as good as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

Found = TypeVar("Found")


class Apart:
    """``started``: whether there is a thread. Whoever starts one sees to it that there is memory: Python waits for a thread forever that
    had too little of it to begin."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self._thread = ThreadPoolExecutor(1, "tiltproof-apart")
        self._thread.submit(int).result()  # the executor starts it when it has something to do

    def run(self, function: Callable[[], Found]) -> Found:
        """``function()`` in the thread, with the caller's settings; after an exception there is no thread any more."""
        assert self._thread is not None
        context, inference, gradients = copy_context(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()

        def work() -> Found:
            with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
                return function()

        try:
            return self._thread.submit(context.run, work).result()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Of the thread, once it has done what it was given: nothing goes on unseen after an interruption."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
