"""Uniform grids: every box of the grid is covered by a bound, alone or within a block, and no block changes a verdict."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiltproof
from tiltproof import BranchAndBound
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify import uniform_grid as uniform
from tiltproof.verify.attack import Counterexamples
from tiltproof.verify.options import BOUNDS
from tiltproof.verify.prover import BackwardPolicy, CostModel, MarginOutcome
from tiltproof.verify.results import Verdict
from tiltproof.verify.spec import ClassificationSpec
from tiltproof.verify.state import SearchState, Tiling
from tiltproof.verify.uniform_grid import UniformSearch, block_sizes

COUNTS = {1: (1, 7, 255, 256, 300, 1100), 2: (1, 3, 20, 33), 3: (1, 7, 12)}
PLACES = st.floats(-0.3, 1.3) | st.sampled_from([-0.02, -0.008, 1.004, 1.01])
TEXTS = {1: "R(-3:10)", 2: "R(10), Tu(-1:3)", 3: "R(10), Tu(2), Tv(0.5:0.6)"}


class Holes:
    """Stands in for a prover: image k has a hole at ``points[k]``.

    A box is proved if it keeps ``width`` away from the hole, and more if the box is large.
    """

    def __init__(self, transform, points, width, loose):
        self.transform, self.points, self.width, self.loose = transform, points, width, loose
        self.labels, self.dtype = torch.zeros(len(points), dtype=torch.int64), torch.float64
        self.cost = CostModel(1, 1.0)

    def bound(self, images, low, high, policy=None, dtype=None):
        point = self.points[images]
        away = torch.maximum(low - point, point - high).clamp(min=0).amax(1)
        bound = away - self.width - self.loose * (high - low).amax(1)
        return MarginOutcome(bound, bound, torch.zeros_like(bound), torch.zeros(len(images), low.shape[1]).double())


def search_of(prover, tiling, budget=None, attacker=None):
    """A search whose attack finds nothing."""
    count = len(prover.labels)
    attacker = attacker or SimpleNamespace(
        margins_at=lambda rows, _: torch.ones(len(rows)).double(), confirm=lambda *_: None
    )
    found = Counterexamples(
        torch.ones(count, dtype=torch.bool),
        torch.ones(count).double(),
        torch.zeros(count, dtype=torch.bool),
        [None] * count,
    )
    spec = ClassificationSpec(prover, attacker)
    return UniformSearch(spec, tiling, SearchState.start(spec, found, BackwardPolicy()), budget or BranchAndBound())


def results(search):
    return search.spec.results(search.state, search.tiling, 0, 0.0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_blocks_say_what_single_boxes_say(data):
    d = data.draw(st.integers(1, 3))
    transform = tiltproof.parse(TEXTS[d])
    grid = tuple(data.draw(st.sampled_from(COUNTS[d])) for _ in range(d))
    count, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 300))
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    part = torch.tensor([[data.draw(PLACES) for _ in range(d)] for _ in range(count)]).double()
    prover = Holes(
        transform,
        low + part * (high - low),
        data.draw(st.sampled_from([0.0, 1e-9, 0.05, 0.4])),
        data.draw(st.sampled_from([0.0, 3.0])),
    )
    search = search_of(prover, Tiling(transform, grid))
    with pytest.MonkeyPatch.context() as patch:  # however the boxes are chunked
        for name, values in (("SPREAD", [1, 8]), ("TOGETHER", [1, 2, 64]), ("MOST_PAIRS", [1, 20, 2**20])):
            patch.setattr(uniform, name, data.draw(st.sampled_from(values)))
        search.work(AdaptiveBatchSize(batch), lambda: None)
    found = results(search)
    tiling = Tiling(transform, grid)
    ends = tiling.bounds(tiling.first())
    for k, result in enumerate(found):
        alone = (
            Holes(transform, prover.points, prover.width, prover.loose)
            .bound(torch.full((len(ends[0]),), k), *ends)
            .bound
        )
        assert result.verdict == (Verdict.CERTIFIED if bool((alone > 0).all()) else Verdict.UNKNOWN)
        if result.verdict is Verdict.CERTIFIED:
            assert 0 < result.margin <= float(alone.min())
            assert result.tree == (f"{math.prod(grid)}." if math.prod(grid) > 1 else ".")


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("grid", [(1100,), (40, 40)])
def test_boxes_are_tried_where_their_block_fails(grid, end):
    """The hole lies just outside of the range: boxes at that end are proved, their blocks are not."""
    transform = tiltproof.parse(TEXTS[len(grid)])
    low, high = (torch.tensor([each], dtype=torch.float64) for each in (transform.low, transform.high))
    size = (high - low) / torch.tensor(grid)
    point = torch.where(torch.arange(len(grid)) == 0, (low - 4 * size, high + 4 * size)[end], (low + high) / 2)
    prover = Holes(transform, point, 0.0, loose=3 * float(size[0, 0] / size.max()))
    boxes, bound = [], prover.bound

    def noted(images, low, high, policy, dtype=None):
        outcome = bound(images, low, high, policy, dtype)
        boxes.extend(((high - low) / size).round().prod(1)[outcome.bound > 0].tolist())
        return outcome

    prover.bound = noted
    search = search_of(prover, Tiling(transform, grid))
    search.work(AdaptiveBatchSize(500), lambda: None)
    (result,) = results(search)
    assert result.verdict is Verdict.CERTIFIED
    assert sum(boxes) == math.prod(grid)  # nothing is proved twice
    assert 1 in boxes  # single boxes were needed
    assert max(boxes) > 1
    assert len(boxes) < math.prod(grid) / 4
    assert result.boxes < 2 * len(boxes)  # sizes are found, not guessed


def test_blocks_of_a_grid():
    assert block_sizes((127,)) == [(1,)]
    assert block_sizes((1024,)) == [(1,), (2,), (4,), (8,), (16,)]
    assert block_sizes((40, 20)) == [(1, 1), (2, 1), (4, 1), (4, 2)]
    assert block_sizes((300, 2)) == [(1, 1), (2, 1), (4, 1), (8, 1)]


def test_an_image_that_cannot_be_proved_costs_little():
    """Its hole is a single box, which no scout hits: found where blocks are smallest, though most of the range lies before it."""
    transform, grid = tiltproof.parse("R(-3:10)"), 100_000
    points = torch.tensor([[9.12345], [99.0]]).double()
    search = search_of(Holes(transform, points, 0.0, loose=3.0), Tiling(transform, (grid,)))
    search.work(AdaptiveBatchSize(100), lambda: None)
    failed, proved = results(search)
    assert failed.verdict is Verdict.UNKNOWN
    assert abs(failed.open_box[0][0] - 9.12345) < 0.001
    assert failed.boxes < 500
    assert proved.verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("method", ["fgv", "hull", "affine"])
def test_blocks_change_no_verdict_of_a_network(method, monkeypatch):
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    ).eval()
    images = torch.rand(12, 1, 6, 6)
    labels = model(images).argmax(1)
    blocks = tiltproof.certify(model, images, labels, "R(8)", bounds=BOUNDS[method], search=tiltproof.UniformGrid(300))
    monkeypatch.setattr(uniform, "FEWEST_REGIONS", 10**9)
    boxes = tiltproof.certify(model, images, labels, "R(8)", bounds=BOUNDS[method], search=tiltproof.UniformGrid(300))
    assert blocks.verdicts == boxes.verdicts
    assert Verdict.CERTIFIED in boxes.verdicts
    for fewer, all_of_them, verdict in zip(blocks.boxes, boxes.boxes, boxes.verdicts, strict=True):
        if verdict is Verdict.CERTIFIED:
            assert all_of_them == 300
            assert fewer < 300


@pytest.mark.parametrize("grid", [(5000,), (60, 60)])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_seconds_end_a_uniform_search(grid, batch):
    """The named box was never proved, alone or within a block, and no image is visited twice."""
    transform = tiltproof.parse(TEXTS[len(grid)])
    prover = Holes(transform, torch.full((2, len(grid)), 99.0).double(), 0.0, 0.0)
    proved, looked, bound = [], [], prover.bound
    nobody = SimpleNamespace(confirm=lambda *_: None)

    def noted(images, low, high, policy, dtype=None):
        outcome = bound(images, low, high, policy, dtype)
        proved.extend(zip(images.tolist(), low, high, strict=True))
        assert (outcome.bound > 0).all()
        return outcome

    prover.bound = noted
    nobody.margins_at = lambda rows, _: looked.extend(rows.tolist()) or torch.ones(len(rows)).double()
    search = search_of(prover, Tiling(transform, grid), BranchAndBound(max_seconds=1e-9), nobody)
    search.work(AdaptiveBatchSize(batch), lambda: None)
    for image, result in enumerate(results(search)):
        assert result.verdict is Verdict.UNKNOWN
        assert 1 <= result.boxes <= max(1, -(-batch // 2))
        middle = sum(torch.tensor(end).double() for end in result.open_box) / 2
        assert not any(k == image and ((low < middle) & (middle < high)).all() for k, low, high in proved)
    assert looked == [0, 1]
