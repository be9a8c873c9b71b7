"""What this process has of the machine's memory, as Linux and glibc tell it; 0 where they do not, but for what is resident."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path

from tiltproof.certify.freed import library

ARENA = 2**26
"""Threads have heaps of their own, which begin at multiples of this many bytes."""
MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-\S+ rw-p \S+ 00:00 0 *(?P<name>.*)\nSize: +(?P<size>\d+) kB\n(?:.*\n)*?Rss: +(?P<rss>\d+) kB",
    re.MULTILINE,
)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(f"before_{k}", ctypes.c_size_t) for k in range(8)] + [
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


def status(key: str) -> int:
    """A size that Linux tells of this process, in bytes."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return peak() if key == "VmRSS" else 0  # not less than what is resident now


def peak() -> int:
    """The most bytes that were ever resident."""
    if most := status("VmHWM"):
        return most
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # under Linux not less than its parent's
    return most if sys.platform == "darwin" else most * 1024


def heap_given_back() -> int:
    """Bytes of heaps that are not resident: they were freed and given back, and return when they are used again. Some milliseconds."""
    given_back = 0
    with suppress(OSError):
        for found in MAPPING.finditer(Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")):
            heap = found["name"] == "[heap]" or (not found["name"] and int(found["start"], 16) % ARENA == 0)
            given_back += heap * (int(found["size"]) - int(found["rss"])) * 1024
    return given_back


def heap_free() -> int | None:
    """Bytes of heaps that are free, resident or not; None where nobody tells."""
    tell = getattr(library(), "mallinfo2", None)  # of glibc, from 2.33 on
    if tell is None:
        return None
    tell.restype = _Mallinfo2
    return int(tell().fordblks)
