"""What the system and the C library tell of this process's memory, against allocations of known size; in a process of its own."""

import subprocess
import sys

import pytest

from tiltproof.certify import resident
from tiltproof.certify.freed import library

PROGRAM = """
import ctypes
from tiltproof.certify import resident
from tiltproof.certify.freed import freed_memory_kept, give_back, is_returned, return_freed_memory

libc, MB = ctypes.CDLL(None), 10**6
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
near = lambda found, wanted: abs(found - wanted) < 3 * MB

def blocks(count):
    made = [libc.malloc(MB) for _ in range(count)]
    for block in made:
        ctypes.memset(block, 1, MB)
    return made

def let_go(made):
    for block in made:
        libc.free(block)

with freed_memory_kept():
    made = blocks(60)
    last = libc.malloc(MB)  # on top of them, so that the heap cannot end before them
    free, back, rss = resident.heap_free(), resident.heap_given_back(), resident.status("VmRSS")
    let_go(made)
    assert near(resident.heap_free() - free, 60 * MB)
    assert near(resident.heap_given_back(), back) and near(resident.status("VmRSS"), rss)
    give_back()
    assert near(resident.heap_free() - free, 60 * MB)
    assert near(resident.heap_given_back() - back, 60 * MB) and near(rss - resident.status("VmRSS"), 60 * MB)
    assert resident.peak() >= rss - MB  # the system counts by and by
    return_freed_memory()
    assert is_returned()
    free, made = resident.heap_free(), blocks(200)  # more than the heap has to give
    rss = resident.status("VmRSS")
    let_go(made[70:])
    assert rss - resident.status("VmRSS") > 120 * MB
assert not is_returned()
print("as it should be")
"""


@pytest.mark.skipif(library() is None or resident.heap_free() is None, reason="another C library, or an older one")
def test_sizes_of_a_heap():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as it should be\n"


@pytest.mark.skipif(library() is None or resident.heap_free() is None, reason="another C library, or an older one")
def test_heaps_of_threads_are_found():
    program = """
import ctypes, threading
from tiltproof.certify import resident
from tiltproof.certify.freed import freed_memory_kept, give_back
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def work():
    with freed_memory_kept():
        made = [libc.malloc(10**6) for _ in range(40)]
        for block in made:
            ctypes.memset(block, 1, 10**6)
        libc.malloc(10**6)
        for block in made:
            libc.free(block)
        before = resident.heap_given_back()
        give_back()
        print(resident.heap_given_back() - before > 35 * 10**6)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_where_nobody_tells(monkeypatch):
    monkeypatch.setattr(resident, "library", lambda: None)
    assert resident.heap_free() is None
    assert resident.status("NoSuchKey") == 0
