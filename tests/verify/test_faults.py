"""Errors in the middle of a search: whatever is raised at whichever call, nothing is lost, counted twice or claimed without proof."""

import functools
import importlib
from dataclasses import replace

import pytest
import torch

from tests.support.faults import Fault, sampled
from tests.support.small_regression import network, pictures
from tiltproof.errors import InputError
from tiltproof.network import proof_arithmetic
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import Attacker, InnerRange
from tiltproof.verify.batch import ClassJob, Settings
from tiltproof.verify.branch_and_bound import AdaptiveSearch
from tiltproof.verify.inputs import check_inputs, check_model_and_images
from tiltproof.verify.partition import Boxes, SplitLog, Tiling
from tiltproof.verify.prover import Prover
from tiltproof.verify.range_prover import RangeProver
from tiltproof.verify.range_search import RangeSearch, Wanted
from tiltproof.verify.refinement import BackwardPolicy
from tiltproof.verify.regression import RangeJob, RangeSettings
from tiltproof.verify.results import Budget, Verdict
from tiltproof.verify.state import SearchState
from tiltproof.verify.uniform_grid import UniformSearch

ledger = importlib.import_module("tiltproof.verify.state")
range_search = importlib.import_module("tiltproof.verify.range_search")
CPU = torch.device("cpu")
BATCH, GRID = 16, (2,)
SEARCH = [
    (AdaptiveSearch, "_top"), (AdaptiveSearch, "_begin"), (AdaptiveSearch, "_open"), (AdaptiveSearch, "_split"), (AdaptiveSearch, "_push"),
    (AdaptiveSearch, "_suspect"), (AdaptiveSearch, "_confirm"), (AdaptiveSearch, "_clear"), (AdaptiveSearch, "_give_up"),
    (SearchState, "record"),
    (SearchState, "settle_certified"), (SearchState, "wrong_middles"), (SplitLog, "note"), (SplitLog, "forget"), (Boxes, "split"),
    (Tiling, "best_axes"), (Tiling, "can_split"), (AdaptiveBatchSize, "_learn"),
]  # fmt: skip
STEP = {  # what runs inside of steps alone
    "adaptive": SEARCH,
    "budget": [(AdaptiveSearch, "_give_up"), (SearchState, "settle_unknown"), (AdaptiveSearch, "_clear"), (AdaptiveSearch, "_confirm")],
    "uniform": [(UniformSearch, "_step"), (UniformSearch, "_piece"), (UniformSearch, "_leave"), (SearchState, "record"),
    (AdaptiveBatchSize, "_learn")],
    "range": [
        (RangeSearch, "_top"), (RangeSearch, "_place"), (RangeSearch, "_settle"), (RangeSearch, "_give_up"), (RangeSearch, "_keep"),
        (RangeSearch, "_inside"), (RangeProver, "bound"), (SplitLog, "note"), (Boxes, "split"), (Tiling, "best_axes"),
        (AdaptiveBatchSize, "_learn"),
    ],
}  # fmt: skip
ANYWHERE = {  # also outside of steps, where nothing is tried again: an error is allowed, a wrong result is not
    "adaptive": [
        (torch, "cat"), (Tiling, "bounds"), (Prover, "bound"), (BackwardPolicy, "learn"), (Attacker, "confirm"), (Attacker, "margins_at"),
        (torch, "where"), (ledger, "content"),
    ],
    "uniform": [(torch, "cat"), (Tiling, "bounds"), (Prover, "bound")],
    "range": [
        (torch, "cat"), (Tiling, "bounds"), (InnerRange, "evaluate"), (torch, "isin"), (RangeSearch, "_push"), (range_search, "content"),
    ],
}  # fmt: skip
CLASSES = {  # seed of the network, range, splits, budget: verdicts that do not hang on a few boxes
    "adaptive": (6, "R(30)", None, 300),
    "budget": (10, "R(45)", None, 10),
    "uniform": (6, "R(30)", (40,), 300),
}


@functools.cache
def case(kind):
    """Checked inputs and a job: certified, falsified and unknown images, or ranges that are complete and such that are not."""
    if kind == "range":
        settings = RangeSettings("affine", None, Budget(boxes=24), 4, 0, Wanted(0.15, 0.0))
        return check_model_and_images(network(), pictures(3), "R(30)"), RangeJob(settings, 0, None)
    seed, text, splits, boxes = CLASSES[kind]
    model, images = network(3, seed), pictures(6)
    with torch.no_grad():
        labels = model(images).argmax(1)
    return check_inputs(model, images, labels, text), ClassJob(Settings("affine", splits, Budget(boxes=boxes), 1, 0), 0)


def results(kind):
    inputs, job = case(kind)
    with proof_arithmetic(CPU), torch.random.fork_rng():
        inputs = replace(inputs, halvings={})
        return job.batch(inputs, GRID if kind != "uniform" else None, AdaptiveBatchSize(BATCH))[0]


@functools.cache
def undisturbed(kind):
    return results(kind)


@functools.cache
def reached():
    """Outputs at many angles, evaluated by torch in float64: [images, angles]."""
    inputs, _ = case("range")
    model = network().double()
    angles = torch.linspace(-30, 30, 601, dtype=torch.float64)[:, None]
    with torch.no_grad():
        return torch.stack(
            [
                model(inputs.transform.apply(image.double().expand(601, 1, 8, 8), angles))[:, 0]
                for image in inputs.images
            ]
        )


def check(kind, found):
    """The same verdicts; and ranges that hold, as tight as they were asked to be."""
    if kind != "range":
        assert [each.verdict for each in found] == [each.verdict for each in undisturbed(kind)]
        return
    for each, plain, outputs in zip(found, undisturbed(kind), reached(), strict=True):
        assert each.lower[0] <= float(outputs.min())
        assert float(outputs.max()) <= each.upper[0]
        assert each.complete == plain.complete
        assert each.upper[0] - each.lower[0] <= 1.3 * (plain.upper[0] - plain.lower[0])


def calls(kind, owner, name):
    with Fault(owner, name, 0, MemoryError, False) as counted:
        results(kind)
    return counted.calls


def functions(table):
    return [
        pytest.param(kind, *function, id=f"{kind}-{function[1]}") for kind, many in table.items() for function in many
    ]


def test_the_cases_are_what_they_are_for():
    for kind, verdicts in {
        "adaptive": {Verdict.CERTIFIED, Verdict.FALSIFIED},
        "budget": {Verdict.UNKNOWN, Verdict.FALSIFIED},
        "uniform": {Verdict.CERTIFIED, Verdict.FALSIFIED},
    }.items():
        assert {each.verdict for each in undisturbed(kind)} == verdicts
    assert {each.complete for each in undisturbed("range")} == {True, False}


@pytest.mark.parametrize(("kind", "owner", "name"), functions(STEP))
def test_memory_that_runs_out_inside_of_a_step(kind, owner, name):
    """The step is undone and tried again with fewer boxes: every image still gets the result it would have got."""
    count = calls(kind, owner, name)
    assert count, "never called"
    for call in sampled(count, 2):
        with Fault(owner, name, call, MemoryError, after=True) as fault:
            found = results(kind)
        assert fault.calls >= call
        check(kind, found)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "owner", "name"), functions(STEP))
def test_memory_that_runs_out_at_every_call_of_a_step(kind, owner, name, after):
    for call in range(1, calls(kind, owner, name) + 1):
        with Fault(owner, name, call, MemoryError, after):
            check(kind, results(kind))


def anywhere(kind, owner, name, after, numbers):
    for call in numbers:
        with Fault(owner, name, call, MemoryError, after):
            try:
                found = results(kind)
            except (InputError, MemoryError):  # nothing is claimed
                continue
        check(kind, found)


@pytest.mark.parametrize(("kind", "owner", "name"), functions(ANYWHERE))
def test_memory_that_runs_out_anywhere(kind, owner, name):
    anywhere(kind, owner, name, True, sampled(calls(kind, owner, name), 2))


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "owner", "name"), functions(ANYWHERE))
def test_memory_that_runs_out_at_every_call(kind, owner, name, after):
    anywhere(kind, owner, name, after, range(1, calls(kind, owner, name) + 1))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("kind", ["adaptive", "uniform", "range"])
def test_other_errors_end_the_run_and_leave_nothing_behind(kind, error):
    """Inputs are shared by all batches: the next run with them is not disturbed."""
    owner, name = {
        "adaptive": (SearchState, "record"),
        "uniform": (SearchState, "record"),
        "range": (RangeSearch, "_settle"),
    }[kind]
    for call in sampled(calls(kind, owner, name), 2):
        with Fault(owner, name, call, error, True), pytest.raises(error):
            results(kind)
        assert [replace(each, seconds=0) for each in results(kind)] == [
            replace(each, seconds=0) for each in undisturbed(kind)
        ]


def test_ranges_that_leave_parameters_out_are_refused(monkeypatch):
    keep = RangeSearch._keep
    lost = []

    def loses(self, which):
        keep(self, which)
        if not lost and len(self.image):
            lost.append(True)
            keep(self, slice(0, len(self.image) - 1))

    monkeypatch.setattr(RangeSearch, "_keep", loses)
    with pytest.raises(RuntimeError, match="leaves out some parameters"):
        results("range")


def test_ranges_that_an_output_leaves_are_refused(monkeypatch):
    bound = RangeProver.bound

    def narrow(self, *given):
        outcome = bound(self, *given)
        middle = (outcome.lower + outcome.upper) / 2
        outcome.lower, outcome.upper = middle, middle
        return outcome

    monkeypatch.setattr(RangeProver, "bound", narrow)
    with pytest.raises(RuntimeError, match="leaves its proved range"):
        results("range")
