"""Options as objects: their checks, their `repr`, and what a run's manifest says of them."""

import math
from pathlib import Path

import pytest

from tiltproof import (
    FGV,
    AffineBounds,
    Attack,
    BranchAndBound,
    Execution,
    InputError,
    IntervalHull,
    RayWorkers,
    RunFolder,
    Tolerance,
    UniformGrid,
)
from tiltproof.verify.options import BOUNDS, Settings, search_for

OBJECTS = {
    "AffineBounds()": AffineBounds(),
    "IntervalHull()": IntervalHull(),
    "FGV()": FGV(),
    "BranchAndBound()": BranchAndBound(),
    "BranchAndBound(max_boxes=50, max_seconds=2.5)": BranchAndBound(max_boxes=50, max_seconds=2.5),
    "UniformGrid(240)": UniformGrid(240),
    "UniformGrid((20, 80), max_boxes=9)": UniformGrid([20, 80], max_boxes=9),
    "Attack()": Attack(samples=24),
    "Attack(samples=3)": Attack(3),
    "Tolerance(relative=0.2, absolute=1.5)": Tolerance(0.2, 1.5),
    "Execution(memory='2GB', batch_size=8)": Execution(memory="2GB", batch_size=8),
    "RunFolder('runs/r30', resume=True)": RunFolder(Path("runs/r30"), resume=True),
    "RunFolder('runs/r30', notes={'model': 'mine'})": RunFolder("runs/r30", notes={"model": "mine"}),
}


@pytest.mark.parametrize("text", OBJECTS)
def test_the_repr_is_the_call(text):
    assert repr(OBJECTS[text]) == text
    assert repr(eval(text)) == text


def test_workers_show_their_call():
    workers = object.__new__(RayWorkers)  # Ray need not be installed
    workers.address, workers.device = "auto", "cuda"
    assert repr(Execution(workers=workers)) == "Execution(workers=RayWorkers('auto', device='cuda'))"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BranchAndBound(max_boxes=0), r"max_boxes 0.*--boxes"),
        (lambda: BranchAndBound(max_boxes=1e4), "max_boxes 10000.0"),
        (lambda: BranchAndBound(max_seconds=-1), r"max_seconds -1.*--seconds"),
        (lambda: BranchAndBound(max_seconds="2"), "max_seconds '2'"),
        (lambda: UniformGrid(0), r"splits must be .*splits 0.*UniformGrid\(240\).*--splits"),
        (lambda: UniformGrid(()), "splits must be"),
        (lambda: UniformGrid((20, 0.5)), "splits must be"),
        (lambda: UniformGrid(None), "splits must be"),
        (lambda: UniformGrid(4, max_boxes=0), "max_boxes 0"),
        (lambda: Attack(samples=0), r"samples 0.*--samples"),
        (lambda: Attack(2.5), "samples 2.5"),
        (lambda: Tolerance(relative=-1), r"relative -1.*--excess"),
        (lambda: Tolerance(absolute=math.nan), r"absolute nan.*--width"),
        (lambda: Execution(memory="much"), "memory"),
        (lambda: Execution(memory=0), "memory"),
        (lambda: Execution(workers="auto"), r"RayWorkers.*--ray"),
        (lambda: Execution(batch_size=0), r"batch_size 0.*--batch-size"),
        (lambda: Execution(batch_images=0), r"batch_images 0.*--batch-images"),
        (lambda: RunFolder(None), "folder None"),
        (lambda: RunFolder("runs/r30", resume=True, overwrite=True), r"either resumed or replaced.*--overwrite"),
    ],
)
def test_bad_values_are_refused_by_their_names(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_what_a_manifest_says_of_settings():
    assert Settings().record() == {
        "method": "affine",
        "splits": None,
        "budget_boxes": 20_000,
        "budget_seconds": None,
        "samples": 24,
        "seed": 0,
    }
    ranges = Settings(FGV(), UniformGrid((20, 80), max_boxes=7, max_seconds=1.5), Attack(5), 3, Tolerance(0.1, 2.0))
    assert list(ranges.record().items()) == [
        ("method", "fgv"),
        ("splits", [20, 80]),
        ("budget_boxes", 7),
        ("budget_seconds", 1.5),
        ("samples", 5),
        ("seed", 3),
        ("excess", 0.1),
        ("width", 2.0),
    ]


def test_names_and_splits_choose_objects():
    assert {name: bounds.method for name, bounds in BOUNDS.items()} == {
        name: name for name in ("affine", "hull", "fgv")
    }
    assert search_for() == BranchAndBound()
    assert search_for((3, 4), max_boxes=5) == UniformGrid((3, 4), max_boxes=5)
