"""Errors in the middle of a search: whatever fails, nothing is lost, counted twice or claimed without proof."""

import functools
import importlib
from dataclasses import replace

import pytest
import torch

from tests.support.faults import Fault, counted, sampled
from tests.support.small_regression import network, some_images
from tiltproof import Attack, BranchAndBound
from tiltproof.errors import InputError
from tiltproof.network import proof_arithmetic
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import Attacker, Counterexamples
from tiltproof.verify.batch import Job
from tiltproof.verify.branch_and_bound import BranchingSearch
from tiltproof.verify.inner_range import InnerRange, OutputSampler
from tiltproof.verify.inputs import check_inputs, check_model_and_images
from tiltproof.verify.options import Settings, Tolerance, search_for
from tiltproof.verify.prover import BackwardPolicy, Prover, RangeProver
from tiltproof.verify.results import Verdict
from tiltproof.verify.spec import ClassificationSpec, RangeSpec
from tiltproof.verify.state import Boxes, Frontier, Pairs, Search, SearchState, SplitLog, Tiling
from tiltproof.verify.uniform_grid import UniformSearch

state_module = importlib.import_module("tiltproof.verify.state")
CPU = torch.device("cpu")
BATCH, GRID = 16, (2,)
SEARCH = [
    (BranchingSearch, "_refill"), (BranchingSearch, "_branch"), (BranchingSearch, "_halve"), (SearchState, "count"),
    (SearchState, "settle"), (SearchState, "settle_certified"), (Pairs, "join"), (SplitLog, "note"), (Boxes, "split"),
    (Tiling, "best_axes"), (Tiling, "can_split"), (AdaptiveBatchSize, "_learn"), (state_module, "copied"),
]  # fmt: skip
STEP = {  # called inside steps alone
    "adaptive": [
        *SEARCH, (BranchingSearch, "_suspect"), (BranchingSearch, "_confirm"), (Frontier, "take"), (SplitLog, "forget"),
        *((ClassificationSpec, name) for name in ("bound", "done", "probe", "confirm")),
    ],
    "budget": [
        (ClassificationSpec, "exhaust"), (SearchState, "settle_unknown"), (Frontier, "take"), (BranchingSearch, "_confirm"),
    ],
    "uniform": [
        (UniformSearch, "_step"), (UniformSearch, "_bound"), (UniformSearch, "_leave"), (SearchState, "settle"), (SearchState, "count"),
        (ClassificationSpec, "bound"), (AdaptiveBatchSize, "_learn"), (state_module, "copied"),
    ],
    "range": [
        *SEARCH, (Frontier, "take"), *((RangeSpec, name) for name in ("bound", "inherit", "done", "probe", "exhaust")),
        (RangeProver, "bound"),
    ],
}  # fmt: skip
ANYWHERE = {  # also called outside of steps, without a retry: an error is allowed, a wrong result is not
    "adaptive": [
        (torch, "cat"), (Tiling, "bounds"), (Prover, "bound"), (BackwardPolicy, "learn"), (Attacker, "confirm"), (Attacker, "margins_at"),
        (Counterexamples, "add"), (torch, "where"), (state_module, "content"),
    ],
    "uniform": [(torch, "cat"), (Tiling, "bounds"), (Prover, "bound"), (BackwardPolicy, "learn")],
    "range": [
        (torch, "cat"), (Tiling, "bounds"), (OutputSampler, "evaluate"), (InnerRange, "widen"), (torch, "where"), (state_module, "content"),
    ],
}  # fmt: skip
CLASSES = {  # network seed, range, splits, budget: chosen so that verdicts do not depend on a few boxes
    "adaptive": (6, "R(30)", None, 300),
    "budget": (10, "R(45)", None, 10),
    "uniform": (6, "R(30)", (40,), 300),
}


@functools.cache
def case(kind):
    """Return checked inputs and a job with certified, falsified and unknown images, or complete and incomplete ranges."""
    if kind == "range":
        settings = Settings(search=BranchAndBound(max_boxes=24), attack=Attack(samples=4), tolerance=Tolerance(0.15))
        return check_model_and_images(network(), some_images(3), "R(30)"), Job(settings, 0)
    seed, text, splits, boxes = CLASSES[kind]
    model, images = network(3, seed), some_images(6)
    with torch.no_grad():
        labels = model(images).argmax(1)
    settings = Settings(search=search_for(splits, max_boxes=boxes), attack=Attack(samples=1))
    return check_inputs(model, images, labels, text), Job(settings, 0)


def results(kind):
    inputs, job = case(kind)
    with proof_arithmetic(CPU), torch.random.fork_rng():
        inputs = replace(inputs, batch_sizes={})
        return job.batch(inputs, GRID if kind != "uniform" else None, AdaptiveBatchSize(BATCH))[0]


@functools.cache
def undisturbed(kind):
    return results(kind)


@functools.cache
def reached():
    """Return outputs at many angles, evaluated by torch in float64: [images, angles]."""
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
    """Assert the same verdicts, or ranges that hold and are as tight as requested."""
    if kind != "range":
        assert [each.verdict for each in found] == [each.verdict for each in undisturbed(kind)]
        return
    for each, plain, outputs in zip(found, undisturbed(kind), reached(), strict=True):
        assert each.lower[0] <= float(outputs.min())
        assert float(outputs.max()) <= each.upper[0]
        assert each.complete == plain.complete
        assert each.upper[0] - each.lower[0] <= 1.3 * (plain.upper[0] - plain.lower[0])


COUNTED = {}


def calls(kind, owner, name, inside=None):
    """Return how often a run calls the function, or its steps do; all functions of a kind are counted in one run."""
    key = kind, inside is None
    if key not in COUNTED:
        undisturbed(kind)  # the first run of a process calls more
        functions = [*STEP[kind], *ANYWHERE.get(kind, [])]
        COUNTED[key] = counted(functions, lambda: results(kind), inside or (lambda: True))
    return COUNTED[key][owner, name]


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
    """The step is undone and repeated with fewer boxes: every image gets its undisturbed result."""
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


@pytest.fixture
def stepping(monkeypatch):
    """Says whether a step is running; and a step that was interrupted is taken again, as a caller may do who catches the interruption."""
    commit, running = Search.commit, []

    def again(self, *given):
        for _ in range(2):
            running.append(True)
            try:
                return commit(self, *given)
            except (KeyboardInterrupt, OSError):
                pass
            finally:
                running.clear()
        raise AssertionError("interrupted twice")

    monkeypatch.setattr(Search, "commit", again)
    return lambda: bool(running)


def identical(found, plain):
    return [replace(each, seconds=0) for each in found] == [replace(each, seconds=0) for each in plain]


def interrupted(kind, owner, name, after, stepping, numbers):
    for call in numbers:
        with Fault(owner, name, call, KeyboardInterrupt, after, stepping) as fault:
            found = results(kind)
        assert fault.calls > call - after
        assert identical(found, undisturbed(kind)), call


EVERYWHERE = {kind: [*STEP[kind], *ANYWHERE.get(kind, [])] for kind in STEP}


@pytest.mark.parametrize(("kind", "owner", "name"), functions(EVERYWHERE))
def test_a_step_that_was_interrupted_never_happened(kind, owner, name, stepping):
    """Taken again, the search goes on to the very results of an undisturbed run, to the last bit."""
    count = calls(kind, owner, name, stepping)
    assert count, "never called in a step"
    interrupted(kind, owner, name, True, stepping, sampled(count, 2))


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "owner", "name"), functions(EVERYWHERE))
def test_a_step_that_was_interrupted_at_any_call_never_happened(kind, owner, name, after, stepping):
    interrupted(kind, owner, name, after, stepping, range(1, calls(kind, owner, name, stepping) + 1))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("kind", ["adaptive", "uniform", "range"])
def test_other_errors_end_the_run_and_leave_nothing_behind(kind, error):
    """All batches share inputs: the next run with them is undisturbed."""
    for call in sampled(calls(kind, SearchState, "settle"), 2):
        with Fault(SearchState, "settle", call, error, True), pytest.raises(error):
            results(kind)
        assert identical(results(kind), undisturbed(kind))


@pytest.mark.parametrize("kind", ["adaptive", "range"])
def test_results_that_leave_parameters_out_are_refused(kind, monkeypatch):
    """A half of a box gets lost, as an error in the search might lose it, and the count of boxes to come agrees."""
    join, lost = Pairs.join, []
    certified = {each.image for each in undisturbed(kind) if each.verdict is Verdict.CERTIFIED}

    def loses(parts):
        if not lost and len(parts[1]) and int(parts[1].image[-1]) in certified:
            lost.append(int(parts[1].image[-1]))
            parts = [parts[0], parts[1][:-1]]
        return join(parts)

    count = SearchState.settle_certified

    def agrees(self, rows):
        for image in lost[:1]:
            if self.waiting[image] == 1:
                self.waiting[image] = 0
        count(self, rows)

    monkeypatch.setattr(Pairs, "join", staticmethod(loses))
    monkeypatch.setattr(SearchState, "settle_certified", agrees)
    with pytest.raises(RuntimeError, match="image .*leaves out some parameters"):
        results(kind)
    assert lost


def test_ranges_that_an_output_leaves_are_refused(monkeypatch):
    bound = RangeProver.bound

    def narrow(self, *given):
        outcome = bound(self, *given)
        lower, upper = outcome.bound.chunk(2, 1)
        middle = (lower - upper) / 2
        outcome.bound = torch.cat([middle, -middle], 1)
        return outcome

    monkeypatch.setattr(RangeProver, "bound", narrow)
    with pytest.raises(RuntimeError, match="an evaluation contradicts its proof"):
        results("range")


def test_an_output_outside_of_its_proof_by_less_than_the_room_is_refused(monkeypatch):
    """The published range is a little wider than the proved one; that may not hide a wrong bound."""
    inner = [(result.inner_lower, result.inner_upper) for result in results("range")]
    low, high = (torch.tensor([pair[end] for pair in inner], dtype=torch.float64) for end in (0, 1))
    less = 0.004 * (high - low)
    bound = RangeProver.bound

    def narrow(self, rows, *given):
        outcome = bound(self, rows, *given)
        outcome.bound = torch.cat([low + less, less - high], 1)[rows.cpu()].to(outcome.bound)
        return outcome

    monkeypatch.setattr(RangeProver, "bound", narrow)
    with pytest.raises(RuntimeError, match="an evaluation contradicts its proof"):
        results("range")
