"""Freed memory stays with the process inside, and goes back at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tiltproof.certify.freed import freed_memory_kept, library

resource = pytest.importorskip("resource")
glibc = pytest.mark.skipif(library() is None, reason="another C library, or malloc is set by the environment")


def faults_of_some_steps():
    """Pages that the system hands out for ten steps of 12 MB each, after a first one."""
    parts = [torch.ones(2**20) for _ in range(3)]
    del parts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        parts = [torch.ones(2**20) for _ in range(3)]
        del parts
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_pages_are_not_fetched_again():
    with freed_memory_kept():
        # each of the ten steps touches 3072 pages of 4 kB; a few may come from another part of the heap
        assert faults_of_some_steps() < 5 * 3072


@glibc
def test_it_is_given_back_at_the_end_also_after_an_error():
    def resident():
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()

    held = []

    def fails():
        with freed_memory_kept():
            parts = [torch.ones(2**20) for _ in range(8)]
            del parts
            held.append(resident())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert resident() < held[0] - 2**24
