"""Ranges of many outputs: memory and passes grow with their number, the seconds hold, and every phase is reported."""

import torch
from torch import nn

from tests.support.small_regression import some_images
from tiltproof import Attack, BranchAndBound, Tolerance, parse
from tiltproof.verify import batch, inner_range, prover
from tiltproof.verify.api import certify_range

OUTPUTS = 300


def many(outputs=OUTPUTS):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(outputs)).eval()


def ready(outputs=OUTPUTS):
    model, images = many(outputs), some_images()[:1]
    model(images)
    return model, images


def test_directions_of_a_pass_are_few_entries(monkeypatch):
    """All directions at once are the square of the number of outputs."""
    model, images = ready()
    sizes, found = [], prover.refine_outputs

    def noted(network, forms, pairs, directions, *more):
        sizes.append(directions.numel())
        return found(network, forms, pairs, directions, *more)

    monkeypatch.setattr(prover, "refine_outputs", noted)
    monkeypatch.setattr(prover, "ENTRIES_PER_PASS", 2**13)
    monkeypatch.setattr(batch, "ASCENT_STEPS", 0)
    search = BranchAndBound(max_boxes=1)
    certify_range(model, images, None, "R(0.5)", search=search, attack=Attack(samples=2), tolerance=Tolerance(10.0))
    assert max(sizes) <= 2**13
    assert sum(sizes) % (2 * OUTPUTS * OUTPUTS) == 0


def test_points_are_confirmed_once_for_all_outputs(monkeypatch):
    model, images = ready(400)
    points, found = [], inner_range.pair_bounds

    def noted(images, rows, *more):
        points.append(len(rows))
        return found(images, rows, *more)

    monkeypatch.setattr(inner_range, "pair_bounds", noted)
    budget = BranchAndBound(max_boxes=1, max_seconds=1e-9)  # no gradient steps, whose ends differ by output
    (result,) = certify_range(model, images, None, "R(5)", search=budget, attack=Attack(samples=20)).results
    ends = {*result.lowest_at, *result.highest_at}
    assert sum(points) == len(ends) < 40
    exact, every = model.double(), torch.arange(400)
    for end, at in ((result.inner_lower, result.lowest_at), (result.inner_upper, result.highest_at)):
        turned = parse("R(5)").apply(images.double().expand(400, -1, -1, -1), torch.tensor(at, dtype=torch.float64))
        torch.testing.assert_close(torch.tensor(end).double(), exact(turned)[every, every], atol=1e-6, rtol=0)


def test_bounds_hold_where_time_ran_out_between_outputs(monkeypatch):
    """Some outputs have their backward pass, the others the forward bounds."""
    model, images = ready(200)
    monkeypatch.setattr(batch, "ASCENT_STEPS", 0)
    calls = iter(range(10**6))

    class Clock:
        """Each look at it takes a second."""

        @staticmethod
        def perf_counter():
            return float(next(calls))

    monkeypatch.setattr(prover, "time", Clock)
    bounds = prover.RangeProver.bound
    made = []

    def noted(self, rows, low, high, _until=None, _network=None):
        full, part = bounds(self, rows, low, high), bounds(self, rows, low, high, next(calls) + 2.5)
        made.append((full.bound, part.bound, bounds(self, rows, low, high, 0.0).bound))
        return full

    monkeypatch.setattr(prover.RangeProver, "bound", noted)
    certify_range(model, images, None, "R(40)", search=BranchAndBound(max_boxes=1), attack=Attack(samples=2))
    full, part, none = made[0]
    assert bool((part <= full).all())
    assert bool((none <= part).all())
    assert bool((part == full).any())
    assert bool((part == none).any())
    assert not torch.equal(part, none)
    assert not torch.equal(part, full)


def test_every_phase_is_reported():
    seen = []
    model, images = ready(20)
    certify_range(model, images, None, "R(2)", search=BranchAndBound(max_boxes=4), progress=seen.append)
    phases = [each.phase for each in seen]
    assert phases.count("attack") > 20
    assert phases.count("prove") >= 2
