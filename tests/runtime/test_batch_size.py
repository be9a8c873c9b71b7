"""Memory limits: their notation, the resulting batches, the same verdicts, and what does not fit."""

import functools
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

import tiltproof
from tests.support.small_regression import network, some_images
from tiltproof import BranchAndBound, Execution, InputError, RunFolder
from tiltproof.runtime import batch_size as limits
from tiltproof.runtime.batch_size import AdaptiveBatchSize, Memory
from tiltproof.runtime.memory_size import parse_memory

CPU = torch.device("cpu")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much is taken is asked of Linux")

PROGRAM = """
import json, sys
import tiltproof, torch
from tiltproof.runtime.batch_size import Memory
from tiltproof.verify.options import BOUNDS

model, (images, labels) = tiltproof.models.load("mnist-r30"), tiltproof.data.load("mnist-sample")
images, labels = images[:8], labels[:8]
first_use = tiltproof.Execution(batch_size=1)  # loads whatever is loaded when it is first needed
tiltproof.certify(model, images[:1], labels[:1], "R(1)", execution=first_use)
memory = Memory(torch.device("cpu"))
limit, before = memory.taken() + int(sys.argv[1]), memory.peak()
common = {"search": tiltproof.UniformGrid(96), "bounds": BOUNDS[sys.argv[2]]}
limited, free = (tiltproof.Execution(batch_size=768, memory=memory) for memory in (limit, None))
first = tiltproof.certify(model, images, labels, sys.argv[3], execution=limited, **common)
with_limit = memory.peak()
second = tiltproof.certify(model, images, labels, sys.argv[3], execution=free, **common)
print(json.dumps({"limit": limit, "before": before, "with_limit": with_limit, "without": memory.peak(),
    "reported": first.settings["memory_peak"], "same": first.verdicts == second.verdicts, "certified": first.verdicts.count("certified")}))
"""


def in_a_process(*arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@LINUX
def test_batches_fit_the_limit_and_the_verdicts_stay():
    """Without the limit the same run, with its 768 boxes at once, takes far more, measured by the system's resident set size."""
    seen = in_a_process(150_000_000, "affine", "R(10)")
    assert seen["before"] < seen["with_limit"] <= seen["limit"] < seen["without"] - 100_000_000
    assert seen["reported"] == seen["with_limit"]
    assert seen["same"]
    assert seen["certified"] >= 6


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("method", ["hull", "fgv"])
@pytest.mark.parametrize("room", [80_000_000, 180_000_000])
def test_batches_fit_any_limit(method, room):
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
@pytest.mark.parametrize("room", [-(10**8), 0, limits.RESERVE])
def test_no_room_for_a_single_box_is_said_before_any_work(room, monkeypatch, tmp_path):
    """Nothing is evaluated, and no folder is created."""
    monkeypatch.setattr(limits, "_resident", lambda _key: 5 * 10**8)
    model, images = network(), some_images()
    message = r"no room for a single image and box.*500 MB are taken already by Python.*needs about"
    with pytest.raises(InputError, match=message):
        tiltproof.certify_range(
            model,
            images,
            None,
            "R(8)",
            execution=tiltproof.Execution(memory=5 * 10**8 + room),
            run=tiltproof.RunFolder(tmp_path / "run"),
        )
    with pytest.raises(InputError, match=message):
        tiltproof.certify(
            network(2), images, torch.zeros(3).long(), "R(8)", execution=tiltproof.Execution(memory=5 * 10**8 + room)
        )
    assert not (tmp_path / "run").exists()


def test_what_reading_the_network_freed_is_no_reason_to_refuse(monkeypatch):
    """The C library keeps it, and it counts as taken until it is returned."""
    taken = [900_000_000]
    monkeypatch.setattr(limits, "_resident", lambda _key: taken[-1])
    monkeypatch.setattr(limits, "return_freed_memory", lambda: taken.append(400_000_000))
    Memory(CPU, 10**9).check(500_000_000)
    with pytest.raises(InputError, match="400 MB are taken"):
        Memory(CPU, 10**9).check(600_000_000)


def test_memory_that_runs_out_outside_of_a_batch_is_a_clear_error():
    with pytest.raises(InputError, match=r"memory ran out.*DefaultCPUAllocator"), Memory(CPU).watched():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    with pytest.raises(RuntimeError, match="another reason"), Memory(CPU).watched():
        raise RuntimeError("another reason")


def test_a_peak_above_the_limit_is_a_warning(monkeypatch):
    peaks = iter([1, 10**15, 10**15])
    monkeypatch.setattr(limits, "_resident", lambda _key: next(peaks))
    with (
        pytest.warns(UserWarning, match=r"reached 1000000\.00 GB, above the 1000\.00 GB"),
        Memory(CPU, 10**12).watched(),
    ):
        pass


class Pretended(Memory):
    """A device of 1000 bytes of which 100 are permanently taken, and whose peak is the largest batch's."""

    worst = 100

    def taken(self):
        return 100

    def peak(self):
        return Pretended.worst

    def room(self, taken=None):
        return self.limit - 100


def batches(limit, each, items, most=10_000):
    """Return sizes of batches whose items take ``items`` bytes each, and are expected to take ``each``."""
    Pretended.worst, sizes = 100, []
    batch = AdaptiveBatchSize(most, Pretended(CPU, limit), each=each)

    def work(size, item):
        sizes.append(size)
        Pretended.worst = max(Pretended.worst, 100 + size * item)

    for item in items:
        batch.run(lambda size: work(size, item))  # noqa: B023
    return sizes


def test_batches_begin_small_grow_and_follow_what_was_measured():
    # an eighth of 700, in three binary digits; twice that; then 2 bytes each were measured
    assert batches(1100, 1, [2] * 5) == [80, 160, 320, 320, 320]


def test_an_estimate_that_is_too_large_is_corrected():
    assert batches(1100, 8, [2] * 6) == [10, 20, 40, 80, 160, 320]


def test_a_batch_above_the_limit_halves_the_size():
    # 320 items of 8 bytes exceed the limit of 1,100: half of them, with the largest batch's bytes per item
    assert batches(1100, 1, [2, 2, 2, 8, 2, 2]) == [80, 160, 320, 320, 80, 80]


def test_the_size_that_was_asked_for_is_not_rounded():
    assert batches(10**6, 1, [1], most=77) == [77]
    assert batches(10**6, 1, [1], most=1) == [1]


def test_memory_that_runs_out_halves_the_size_under_a_limit_as_well():
    sizes = []
    batch = AdaptiveBatchSize(64, Pretended(CPU, 10**6), each=1)

    def scarce(size):
        sizes.append(size)
        if size > 20:
            raise MemoryError
        return size

    assert batch.run(scarce) == 16
    assert batch.run(scarce) == 16
    assert sizes == [64, 32, 16, 16]


def test_a_function_that_succeeded_is_not_called_again(monkeypatch):
    """This holds whatever happens while its memory is measured."""
    calls, batch = [], AdaptiveBatchSize(8, Pretended(CPU, 1100), each=1)
    monkeypatch.setattr(batch, "_learn", lambda *_: (_ for _ in ()).throw(MemoryError))
    assert batch.run(lambda size: calls.append(size) or "done") == "done"
    assert calls == [8]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_errors_are_not_tried_again(error):
    sizes, batch = [], AdaptiveBatchSize(8)

    def fails(size):
        sizes.append(size)
        raise error

    with pytest.raises(error):
        batch.run(fails)
    assert (sizes, batch.size) == ([8], 8)


def test_a_limit_changes_no_range_and_a_resumed_run_goes_on_under_it(tmp_path):
    model, images = network(outputs=2), some_images(5)
    free_run, first, second = (Execution(memory=memory, batch_images=2) for memory in (None, "64GB", "32GB"))
    prove = functools.partial(
        tiltproof.certify_range, model, images, None, "R(8), B(0.02)", search=BranchAndBound(max_boxes=40)
    )
    free = prove(execution=free_run)

    def stop(progress):
        if progress.done:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = prove(execution=first)
        with pytest.raises(KeyboardInterrupt):
            prove(execution=first, run=RunFolder(tmp_path / "run"), progress=stop)
        resumed = prove(execution=second, run=RunFolder(tmp_path / "run", resume=True))
    assert kept.settings["memory_limit"] == 64 * 10**9 > kept.settings["memory_peak"] > 0
    assert "memory_limit" not in free.settings
    for one, other, third in zip(free.results, kept.results, resumed.results, strict=True):
        assert one.complete == other.complete
        assert one.lower == pytest.approx(other.lower)
        assert other.upper == pytest.approx(third.upper)
