"""The initial grid: deep networks, whose float32 bounds drown in rounding, are proved in float64 from the start."""

import importlib
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.checker.test_deep import Plain
from tiltproof import certify, parse
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.branch_and_bound import PilotRun, PilotRuns, backward_pays, precision_pays, starting_grid
from tiltproof.verify.inputs import check_inputs
from tiltproof.verify.prover import PASS_CALL, PASS_COST, PASS_STEPS, WORTHWHILE, BackwardPolicy, CostModel, Prover

pytestmark = pytest.mark.usefixtures("in_proof")

TRANSFORM = parse("R(4)")


def chain(layers):
    """Rotate 64-dimensional space: values keep their magnitude, but |W| magnifies remainders about 6 times a layer."""
    generator = torch.Generator().manual_seed(0)
    parts = [nn.Flatten()]
    for _ in range(layers):
        layer = nn.Linear(64, 64, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.linalg.qr(torch.randn(64, 64, generator=generator))[0])
        parts.append(layer)
    parts.append(nn.Linear(64, 3))
    with torch.no_grad():
        parts[-1].weight.copy_(torch.randn(3, 64, generator=generator))
        parts[-1].bias.zero_()
    return nn.Sequential(*parts).eval()


def problem(layers):
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    model = chain(layers)
    with torch.no_grad():
        labels = model(images).argmax(1)
    return model, images, labels


def pilots(layers, size=512, transform=TRANSFORM):
    model, images, labels = problem(layers)
    prover = Prover(check_inputs(model, images, labels, transform), "affine")
    return PilotRuns(prover, BackwardPolicy(), torch.arange(4), AdaptiveBatchSize(size), 0)


def test_float64_pays_for_the_deep_network_alone():
    shallow, deep = pilots(1), pilots(9)
    assert not precision_pays(shallow, (16,))
    assert precision_pays(deep, (1024,))
    assert starting_grid(pilots(9), 20_000) != starting_grid(pilots(1), 20_000)


def test_float64_is_not_tried_where_float32_proves_finer_boxes():
    """With several parameters: for a single one float64 has quadratic forms as well."""
    for text, grid in ("R(4), Sh(2)", (4, 4)), ("R(4)", (16,)):
        one = pilots(1, 4096, parse(text))
        finer, calls, bound = (2 * grid[0], *grid[1:]), [], one.prover.bound
        one.known[grid, torch.float32] = PilotRun(2.0, 0.1, 0.5)
        one.prover.bound = lambda *given, bound=bound, calls=calls: (calls.append(given[-1]), bound(*given))[1]
        for share in (0.9, 0.99):
            one.known[finer, torch.float32] = PilotRun(1.0, share, share)
            one.known.pop((grid, torch.float64), None)
            calls.clear()
            precision_pays(one, grid)
            assert (torch.float64 in calls) == (share < 0.98 or len(grid) == 1)


def test_a_deep_network_is_proved():
    model, images, labels = problem(9)
    certificate = certify(model, images, labels, TRANSFORM)
    assert certificate.summary()["unknown"] == 0
    assert certificate.summary()["certified"] >= 1
    assert certificate.summary()["boxes"] < 3_000  # 13,076 when float32 is tried first on every box


def test_a_narrow_range_is_not_halved_for_what_float32_rounds():
    """Around an angle of zero, where all pixels cross grid lines, float64 does not prove the whole range either."""
    model, image = Plain().eval(), torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        label = model(image).argmax(1)
    certificate = certify(model, image, label, "R(0.001)")
    assert certificate.summary()["certified"] == 1
    assert certificate.summary()["boxes"] < 10  # 511 when halves are tried in float32


def test_a_half_of_a_box_that_failed_passes_less_often_than_any():
    """Rates as in a deep network: starting at 512 boxes takes 512 + 1024 * 0.35 + 2048 * 0.04 bounds, at 256 a tenth more."""
    shares = {256: 0.29, 512: 0.65, 1024: 0.96, 2048: 0.998}
    runs = PilotRuns.__new__(PilotRuns)
    runs.pairs = 256
    runs.run = lambda grid, dtype: PilotRun(1.0, shares.get(grid[0], 0.0), shares.get(grid[0], 0.0))  # noqa: ARG005
    least, grid, _ = runs.cheapest([(2**k,) for k in range(13)], torch.float64)
    assert grid == (512,)
    assert abs(least - (512 + 1024 * 0.35 + 2048 * 0.04)) < 15


def test_a_grid_that_was_tried_is_not_tried_again():
    one = pilots(1)
    grid = starting_grid(one, 20_000)
    one.prover.bound = None  # a call fails
    assert not precision_pays(one, grid)


def speculative(one, boxes):
    one.prover.cost = replace(one.prover.cost, speculative_boxes=boxes)


def test_rungs_that_are_tried_at_once_fare_as_one_by_one(monkeypatch):
    """A GPU tries them so: one call, in which every rung's backward passes are kept separate."""
    start = importlib.import_module("tiltproof.verify.branch_and_bound")
    plain, other = pilots(2, 4096), pilots(2, 4096)
    grid = starting_grid(plain, 20_000)
    monkeypatch.setattr(start, "bounds_pairs_alone", lambda *_: True)
    speculative(other, 6 * 256)
    calls, bound = [], other.prover.bound
    monkeypatch.setattr(other.prover, "bound", lambda *given: (calls.append(len(given[0])), bound(*given))[1])
    assert starting_grid(other, 20_000) == grid
    assert calls[0] == 6 * 256
    assert len(other.known) >= len(plain.known) > len(calls)
    for key, pilot in plain.known.items():
        mine = other.known[key]
        assert (mine.forward, mine.passed) == (pilot.forward, pilot.passed)
        assert mine.cost == pytest.approx(pilot.cost)
    assert len({pilot.cost for pilot in plain.known.values()}) > 1
    speculative(other, 2 * 256 - 1)  # no more than the device bounds meanwhile
    other.known.clear()
    calls.clear()
    starting_grid(other, 20_000)
    assert set(calls) == {256}


def test_rungs_are_tried_one_by_one_where_the_reference_bounds_pixels():
    """The reference bounds all boxes at the cost of the widest, so a coarse rung would slow down the others."""
    one, calls = pilots(1, 4096), []
    speculative(one, 2048)
    bound = one.prover.bound
    one.prover.bound = lambda *given: (calls.append(len(given[0])), bound(*given))[1]
    starting_grid(one, 20_000)
    assert set(calls) == {256}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_backward_pass_pays_where_halving_takes_long(device):
    """Of 16 boxes 30 % fail; bisecting until they are proved takes T more bounds for each, which a pass must save."""
    one = pilots(1, 4096)
    network = one.prover.networks[torch.float32]
    products = sum(operation.products for operation in network.operations) * 3
    model, images, labels = problem(1)
    one.prover.cost = CostModel.of(check_inputs(model, images, labels, TRANSFORM), network, torch.device(device))
    for halves, spared in ((0.97, 0.4), (0.91, 0.2), (0.85, 0.0), (0.7, 0.0)):  # T: 2.5, 5, or infinitely many bounds
        for grid, share in ((16,), 0.7), ((32,), halves):
            one.known[grid, torch.float32] = PilotRun(1.0, share, share)
        least, fewest = backward_pays(one, (16,), torch.float32)
        cost = PASS_COST + (PASS_STEPS / products if device == "cuda" else 0)
        assert least == pytest.approx(max(WORTHWHILE, cost * spared))
        assert fewest == pytest.approx(PASS_CALL / products * spared if device == "cuda" else 0, abs=1)
