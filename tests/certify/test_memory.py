"""The limit on memory: what can be written, that a run stays below it with the same verdicts, and what does not fit."""

import contextvars
import itertools
import json
import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from small_regression import network, pictures

import tiltproof
from tiltproof import Budget, InputError
from tiltproof.certify.limit import Memory, parse_memory
from tiltproof.certify.memory import Halving

CPU = torch.device("cpu")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much is taken is asked of Linux")

PROGRAM = """
import json, sys
from pathlib import Path
import tiltproof
from tiltproof.certify.limit import Memory
import torch

def peak():  # ru_maxrss would begin with that of the process which started this one
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

model, (images, labels) = tiltproof.load_model("mnist-r30"), tiltproof.load_data("mnist-sample")
images, labels = images[:8], labels[:8]
tiltproof.certify(model, images[:1], labels[:1], "R(1)", batch_size=1)  # loads whatever is loaded when it is needed
limit = Memory(torch.device("cpu")).taken() + int(sys.argv[1])
before = peak()
common = {"splits": 96, "method": sys.argv[2], "batch_size": 768}
first = tiltproof.certify(model, images, labels, sys.argv[3], memory=limit, **common)
with_limit = peak()
second = tiltproof.certify(model, images, labels, sys.argv[3], **common)
print(json.dumps({"limit": limit, "before": before, "with_limit": with_limit, "without": peak(),
    "same": first.verdicts == second.verdicts, "certified": first.verdicts.count("certified")}))
"""


def in_a_process(*arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@LINUX
def test_the_peak_stays_below_the_limit_and_the_verdicts_stay():
    """Without the limit the same run, with its 768 boxes at once, takes far more: the resident set as the system saw it."""
    seen = in_a_process(100_000_000, "affine", "R(10)")
    assert seen["before"] < seen["with_limit"] <= seen["limit"] < seen["without"] - 100_000_000
    assert seen["same"]
    assert seen["certified"] >= 6


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("method", ["hull", "fgv"])
@pytest.mark.parametrize("room", [60_000_000, 200_000_000])
def test_the_peak_stays_below_any_limit(method, room):
    seen = in_a_process(room, method, "R(0.1)")  # which these prove: they end at a first box that is not
    assert seen["with_limit"] <= seen["limit"] < seen["without"]
    assert seen["same"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 500_000_000),
        ("2GB", 2_000_000_000),
        ("1.5GiB", 3 * 2**29),
        ("64 kib", 65536),
        ("1tb", 10**12),
        ("12345", 12345),
        ("7B", 7),
        (10**9, 10**9),
        (None, None),
    ],
)
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "2 G B", "2XB", "two", "nan", "1e9", "0", "0.1B", 0, -5, 2.5e9, True]
)
def test_sizes_that_are_none(text):
    with pytest.raises(InputError, match="memory limit is"):
        parse_memory(text)


@LINUX
def test_a_limit_below_what_is_taken_already():
    model, images = network(), pictures()
    with pytest.raises(InputError, match="leaves no room.*a limit of 1 MB.*taken already by Python"):
        tiltproof.certify_range(model, images, "R(8)", memory="1MB")


@LINUX
def test_the_guard_turns_excess_into_a_clear_error_and_is_taken_away():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    memory = Memory(CPU, Memory(CPU).taken() + 150_000_000)
    with pytest.raises(InputError, match="does not fit into the memory limit"), memory.kept():
        torch.ones(10**9)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before

    def too_much(size):
        return torch.ones(size, 10**8)

    with memory.kept(), pytest.raises(InputError, match=r"not enough memory for a single.*--memory"):
        Halving(8, memory, each=1).run(too_much)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(too_much(1)) == 1


@LINUX
def test_the_guard_of_overlapping_runs_is_the_tightest_and_goes_with_the_last():
    import resource

    def soft():
        return resource.getrlimit(resource.RLIMIT_DATA)[0]

    before, taken, seen = soft(), Memory(CPU).taken(), {}
    inside, both, outside = threading.Event(), threading.Event(), threading.Event()

    def first():
        with Memory(CPU, taken + 2 * 10**9).kept():
            seen["one"] = soft()
            inside.set()
            both.wait(20)
        outside.set()

    def second():
        inside.wait(20)
        with Memory(CPU, taken + 8 * 10**9).kept():
            seen["two"] = soft()
            both.set()
            outside.wait(20)
            seen["left"] = soft()

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen["two"] == pytest.approx(seen["one"], abs=5e8)  # the larger limit takes nothing from the smaller
    assert seen["left"] > seen["one"] + 4e9
    assert soft() == before


@LINUX
def test_the_guard_is_taken_away_in_another_context():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    kept = Memory(CPU, Memory(CPU).taken() + 10**9).kept()
    contextvars.copy_context().run(kept.__enter__)
    assert resource.getrlimit(resource.RLIMIT_DATA) != before
    kept.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@LINUX
def test_room_on_a_gpu_is_none_of_the_guards_business():
    import resource

    with Memory(CPU, Memory(CPU).taken() + 10**9).kept():
        guarded = resource.getrlimit(resource.RLIMIT_DATA)
        assert Memory(torch.device("cuda"), 1).run(lambda: "done", short=True) == "done"
        assert resource.getrlimit(resource.RLIMIT_DATA) == guarded


THREADS = """
import torch
import tiltproof
from tiltproof.certify.limit import Memory
from tiltproof.certify.memory import Halving

torch.set_num_threads(16)  # torch begins with no more than there are cores
taken, zeros = Memory(torch.device("cpu")).taken, torch.zeros(1).expand(10**7)
memory = Memory(torch.device("cpu"), taken() + 60_000_000)
with memory.kept():
    assert Halving(8, memory, each=1).run(lambda size: zeros.sum()) == 0
model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 10))
model, images = model.eval(), torch.rand(2, 1, 28, 28)
print(len(tiltproof.certify(model, images, model(images).argmax(1), "R(1)", memory=taken() + 500_000_000).verdicts))
"""


@LINUX
def test_threads_that_start_under_the_guard_do_not_end_the_process():
    """OpenMP exits when a thread's stack, 8 MB of private memory, is refused."""
    command, environment = [sys.executable, "-W", "error", "-c", THREADS], os.environ | {"OMP_NUM_THREADS": "16"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


REFUSED = """
import resource
import torch
import torch.nn.functional as F
from tiltproof.certify.limit import Memory
from tiltproof.certify.memory import Halving
from tiltproof.certify.resident import status

torch.set_num_threads(1)

def convolved(channels):  # each number of channels needs programs of its own
    return F.conv2d(torch.ones(2, channels, 9, 9), torch.ones(channels, channels, 3, 3)).sum().item()

sizes = []

def work(size):
    sizes.append(size)
    if size > 2:
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData"), -1))
    return convolved(20 + size)

convolved(8)
memory = Memory(torch.device("cpu"), Memory(torch.device("cpu")).taken() + 300_000_000)
with memory.kept():
    found = Halving(1000, memory, each=10**6).run(work)
print(sizes[0] > 2 >= sizes[-1], found == 2 * 7 * 7 * (20 + sizes[-1]) ** 2 * 9, [convolved(n) > 0 for n in (50, 51)])
"""


@LINUX
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="without oneDNN")
def test_memory_that_was_refused_to_onednn_breaks_neither_the_run_nor_the_callers_thread():
    """oneDNN makes no more programs in a thread in which it was refused memory for one ("could not create a primitive")."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True [True, True]\n"


@LINUX
def test_a_limit_that_was_passed_is_owned_up_to(monkeypatch):
    """Where the system has no guard: what was taken is at least said."""
    from tiltproof.certify import limit

    peaks = itertools.chain([1], itertools.repeat(10**15))
    monkeypatch.setattr(limit, "peak", lambda: next(peaks))
    with pytest.warns(UserWarning, match="was passed"), Memory(CPU, 10**12).kept():
        pass


class Pretended(Memory):
    """A device of 1000 bytes of which 100 are taken for good, and whose peak is the largest batch's."""

    worst = 100

    def taken(self):
        return 100

    def peak(self):
        return Pretended.worst

    def room(self):
        return self.limit - 100

    def release(self):
        pass


def test_batches_begin_small_grow_and_follow_what_was_seen():
    Pretended.worst, sizes = 100, []
    batch = Halving(10_000, Pretended(CPU, 1100), each=1)

    def work(size, each):
        sizes.append(size)
        Pretended.worst = max(Pretended.worst, 100 + size * each)

    for each in (2, 2, 2, 2, 8, 2):
        batch.run(lambda size: work(size, each))  # noqa: B023
    # an eighth of 800; twice that; then 2 bytes each were seen, and later 8; all in three binary digits
    assert sizes == [96, 192, 384, 384, 384, 96]


def test_the_size_that_was_asked_for_is_not_rounded():
    sizes = []
    Halving(77, Pretended(CPU, 10**6), each=1).run(sizes.append)
    Halving(1, Pretended(CPU, 10**6), each=1).run(sizes.append)
    assert sizes == [77, 1]


def test_pieces_of_freed_memory_are_not_taken_for_larger_items():
    """A batch smaller than the largest so far that takes a few bytes more than anything before: items are believed to be no larger."""
    Pretended.worst, batch = 100, Halving(10_000, Pretended(CPU, 6500), each=1)
    batch.run(id)
    batch.largest, batch.seen = 5000, 1

    def work(worst):
        Pretended.worst = worst

    batch.size = 10
    batch.run(lambda _size: work(100 + 200))  # within a 32nd of the limit
    assert batch.seen == 1
    batch.run(lambda _size: work(100 + 900))
    assert batch.seen == (900 - 6500 // 32) // 10


def test_a_limit_changes_no_range_and_a_resumed_run_goes_on_under_it(tmp_path):
    model, images = network(outputs=2), pictures(5)
    options = {"budget": Budget(boxes=40), "batch_images": 2}
    free = tiltproof.certify_range(model, images, "R(8), B(0.02)", **options)

    def stop(progress):
        if progress.done:
            raise KeyboardInterrupt

    folder = {"out": tmp_path / "run", "memory": "64GB"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = tiltproof.certify_range(model, images, "R(8), B(0.02)", memory="64GB", **options)
        with pytest.raises(KeyboardInterrupt):
            tiltproof.certify_range(model, images, "R(8), B(0.02)", progress=stop, **folder, **options)
        resumed = tiltproof.certify_range(
            model, images, "R(8), B(0.02)", resume=True, **(folder | {"memory": "32GB"}), **options
        )
    for one, other, third in zip(free.results, kept.results, resumed.results, strict=True):
        assert one.complete == other.complete
        assert one.lower == pytest.approx(other.lower)
        assert other.upper == pytest.approx(third.upper)
