"""Raise errors at a chosen call of a chosen function, to test what they leave behind."""

from __future__ import annotations

import functools
from contextlib import ExitStack


class Fault:
    """Raises ``error`` once, at the ``call``-th call of a function: before or after it runs. Calls count where ``inside()`` holds."""

    def __init__(self, owner, name, call, error, after, inside=lambda: True):
        self.owner, self.name, self.call, self.error, self.after = owner, name, call, error, after
        self.calls, self.inside = 0, inside

    def __enter__(self):
        self.original = vars(self.owner)[self.name]
        function = self.original.__func__ if isinstance(self.original, staticmethod) else self.original

        @functools.wraps(function)
        def faulty(*args, **kwargs):
            counts = self.inside()
            self.calls += counts
            here = counts and self.calls == self.call
            if here and not self.after:
                raise self.error("injected")
            result = function(*args, **kwargs)
            if here:
                raise self.error("injected")
            return result

        setattr(self.owner, self.name, staticmethod(faulty) if isinstance(self.original, staticmethod) else faulty)
        return self

    def __exit__(self, *_):
        setattr(self.owner, self.name, self.original)


def counted(functions, work, inside=lambda: True):
    """Return how often each of these functions, pairs of owner and name, is called in one run of ``work``."""
    with ExitStack() as stack:
        faults = {each: stack.enter_context(Fault(*each, 0, MemoryError, False, inside)) for each in {*functions}}
        work()
    return {each: fault.calls for each, fault in faults.items()}


def sampled(count, most):
    """Return the calls at which to fail: all, or the first, the last and some in between."""
    return range(1, count + 1) if count <= most else sorted({1 + k * (count - 1) // (most - 1) for k in range(most)})
