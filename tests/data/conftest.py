"""A memory limit, so that a reader that asks for gigabytes gets a MemoryError."""

import contextlib
from pathlib import Path

import pytest


@pytest.fixture
def little_memory():
    """Return a context in which this process may take that many more bytes."""
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def limit(spare_bytes=100 * 2**20):
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    return limit
