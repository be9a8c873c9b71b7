"""Branch and bound with a stand-in for bounds: whatever is halved how often at once, what is certified was proved box by box."""

import importlib
import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from tiltproof import BranchAndBound
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.transforms.base import parse
from tiltproof.verify.attack import Counterexamples
from tiltproof.verify.branch_and_bound import PRECISE_FROM, BranchingSearch
from tiltproof.verify.prover import BackwardPolicy, CostModel, MarginOutcome
from tiltproof.verify.results import Verdict
from tiltproof.verify.spec import ClassificationSpec
from tiltproof.verify.state import Pairs, SearchState, Tiling


class Stand:
    """Proves boxes that are narrow enough for their image and exclude its bad point; now and then memory runs out."""

    def __init__(self, images, tiling, few, luck):
        axes = len(tiling.low)
        self.labels, self.luck, self.proved = torch.zeros(images, dtype=torch.int64), luck, []
        self.cost = CostModel(1, 1.0, speculative_boxes=few)
        self.share = torch.tensor([[2.0 ** -luck.randint(0, 4) for _ in range(axes)] for _ in range(images)])
        place = torch.tensor(
            [[luck.choice([0.0, 1.0, 0.5, luck.random()]) for _ in range(axes)] for _ in range(images)]
        )
        self.bad = tiling.low + (tiling.high - tiling.low) * place.double()
        self.bad[torch.tensor([luck.random() < 0.7 for _ in range(images)])] = torch.inf
        self.span = tiling.high - tiling.low

    def bound(self, images, low, high, policy, dtype=None):
        if len(images) > 1 and self.luck.random() < 0.1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        narrow = ((high - low) <= self.span * self.share[images] * 1.001).all(1)
        wrong = ((low <= self.bad[images]) & (self.bad[images] <= high)).all(1)
        bound = torch.where(narrow & ~wrong, 1.0, torch.where(wrong, torch.nan, -1.0)).double()
        self.given = [*zip(images.tolist(), low.tolist(), high.tolist(), bound.tolist(), strict=True)]
        shares = torch.rand(low.shape, generator=torch.Generator().manual_seed(self.luck.randrange(99))).double()
        return MarginOutcome(bound, bound, torch.zeros_like(bound), shares)


class Noting(ClassificationSpec):
    """Notes what was proved, once a call has come through for all of its pairs."""

    def hopeless(self, state, rows, low, high):
        return torch.zeros_like(rows, dtype=torch.bool)

    def bound(self, *arguments):
        met, inner = [], self.prover.bound

        def noted(*given):
            outcome = inner(*given)
            met.extend(self.prover.given)
            return outcome

        self.prover.bound = noted
        try:
            outcome = super().bound(*arguments)
        finally:
            self.prover.bound = inner
        self.prover.proved += [(image, low, high) for image, low, high, bound in met if bound > 0]
        return outcome


def search_of(prover, tiling, budget, confirm=None, margins_at=None, precise_from=PRECISE_FROM):
    """A search whose attack finds nothing, unless told otherwise."""
    count = len(prover.labels)
    attacker = SimpleNamespace(
        margins_at=margins_at or (lambda rows, _: torch.ones(len(rows))), confirm=confirm or (lambda *_: None)
    )
    found = Counterexamples(
        torch.ones(count, dtype=torch.bool),
        torch.ones(count).double(),
        torch.zeros(count, dtype=torch.bool),
        [None] * count,
    )
    spec = Noting(prover, attacker)
    state = SearchState.start(spec, found, BackwardPolicy())
    return BranchingSearch(spec, tiling, state, budget, precise_from)


def results(search):
    return search.spec.results(search.state, search.tiling, 0, 0.0)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_certified_was_proved_box_by_box(seed, monkeypatch):
    """This holds even if middles of boxes look like counterexamples, confirmed or not."""
    luck = random.Random(seed)
    monkeypatch.setattr(
        importlib.import_module("tiltproof.verify.branch_and_bound"), "SUSPECTS", luck.choice([1, 3, 64])
    )
    suspicion = luck.choice([0.0, 0.02, 0.3, 1.0])
    text = luck.choice(["R(-10:25)", "Tu(-0.1:0.7), Tv(-0.2:0.5)", "Sc(-2:5), R(-1:5), B(-0.01:0.05)"])
    transform, images = parse(text), luck.randint(1, 5)
    tiling = Tiling(transform, tuple(luck.randint(1, 4) for _ in transform.parts))
    prover = Stand(images, tiling, luck.choice([0, 4, 64, 4096]), luck)

    def confirm(known, rows, _):
        for image in rows.tolist():
            if not bool(prover.bad[image].isinf().any()) and luck.random() < 0.5:
                known.falsified[image], known.found[image] = True, (0.0,)

    def margins_at(rows, _):
        return torch.tensor([-1.0 if luck.random() < suspicion else 1.0 for _ in rows])

    precise_from, budget = luck.choice([0, 2, 99]), BranchAndBound(max_boxes=luck.choice([1, 30, 300]))
    search = search_of(prover, tiling, budget, confirm, margins_at, precise_from)
    search.work(AdaptiveBatchSize(luck.choice([7, 64, 1000])), lambda: None)
    whole = Fraction(1)
    for low, high in zip(tiling.outer_low.tolist(), tiling.outer_high.tolist(), strict=True):
        whole *= Fraction(high) - Fraction(low)
    for result in results(search):
        boxes = [(low, high) for image, low, high in prover.proved if image == result.image]
        points = [[luck.uniform(*end) for end in zip(transform.low, transform.high, strict=True)] for _ in range(5)]
        inside = [sum(holds(box, point) for box in boxes) for point in points]
        if result.verdict is Verdict.CERTIFIED:
            assert sum(volume(box) for box in boxes) == whole, "no more and no fewer"
            assert min(inside) >= 1
            assert bool(prover.bad[result.image].isinf().any())
        elif result.verdict is Verdict.FALSIFIED:
            assert search.state.witnesses.falsified[result.image]
            assert sum(volume(box) for box in boxes) < whole
        else:
            assert result.verdict is Verdict.UNKNOWN
            assert not search.state.witnesses.falsified[result.image]
            assert sum(volume(box) for box in boxes) < whole
            bad = not bool(prover.bad[result.image].isinf().any())
            assert bad or result.boxes >= budget.max_boxes, "nothing stood in the way"


def test_images_that_are_halved_further_than_others_beside_them(monkeypatch):
    """Between two bounds, one image's boxes are bisected again while those of another, which has spent more, wait: none is lost."""
    monkeypatch.setattr(importlib.import_module("tiltproof.verify.branch_and_bound"), "EARLY", 0.15)
    tiling = Tiling(parse("R(-10:25)"), (2,))
    prover = Stand(
        2,
        tiling,
        4096,
        SimpleNamespace(randint=lambda *_: 7, choice=lambda _: 0.3, random=lambda: 1.0, randrange=lambda _: 0),
    )
    prover.bad[0], prover.share[1] = (
        torch.inf,
        1.0,
    )  # the first must be cut into 128 pieces, the second is wrong at a point
    search = search_of(prover, tiling, BranchAndBound(max_boxes=400))
    halved, join = [], Pairs.join
    monkeypatch.setattr(
        Pairs, "join", staticmethod(lambda parts: halved.append(set(parts[-1].image.tolist())) or join(parts))
    )
    search.work(AdaptiveBatchSize(1000), lambda: None)
    assert {0} in halved, "no image's halves waited"
    verdicts = [result.verdict for result in results(search)]
    assert verdicts == [Verdict.CERTIFIED, Verdict.UNKNOWN]
    assert len({box[0][0] for image, *box in prover.proved if image == 0}) == 128


def volume(box):
    total = Fraction(1)
    for low, high in zip(*box, strict=True):
        total *= Fraction(high) - Fraction(low)
    return total


def holds(box, point):
    return all(low <= x <= high for low, high, x in zip(*box, point, strict=True))
