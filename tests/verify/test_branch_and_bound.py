"""The search's books with a stand-in for bounds: whatever is halved how often at once, what is certified was proved box by box."""

import importlib
import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.transforms.notation import parse
from tiltproof.verify.branch_and_bound import AdaptiveSearch
from tiltproof.verify.partition import Tiling
from tiltproof.verify.prover import Outcome
from tiltproof.verify.results import Budget, Verdict


class Stand:
    """Proves boxes that are narrow enough for their image and do not hold its bad point; now and then memory runs out."""

    def __init__(self, images, tiling, few, luck):
        axes = len(tiling.low)
        self.labels, self.few, self.luck, self.proved = torch.zeros(images, dtype=torch.int64), few, luck, []
        self.share = torch.tensor([[2.0 ** -luck.randint(0, 4) for _ in range(axes)] for _ in range(images)])
        place = torch.tensor(
            [[luck.choice([0.0, 1.0, 0.5, luck.random()]) for _ in range(axes)] for _ in range(images)]
        )
        self.bad = tiling.low + (tiling.high - tiling.low) * place.double()
        self.bad[torch.tensor([luck.random() < 0.7 for _ in range(images)])] = torch.inf
        self.span = tiling.high - tiling.low

    def changes(self):
        return ()

    def bound(self, images, low, high, dtype=None):
        if len(images) > 1 and self.luck.random() < 0.1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        narrow = ((high - low) <= self.span * self.share[images] * 1.001).all(1)
        wrong = ((low <= self.bad[images]) & (self.bad[images] <= high)).all(1)
        bound = torch.where(narrow & ~wrong, 1.0, torch.where(wrong, torch.nan, -1.0)).double()
        self.given = [*zip(images.tolist(), low.tolist(), high.tolist(), bound.tolist(), strict=True)]
        shares = torch.rand(low.shape, generator=torch.Generator().manual_seed(self.luck.randrange(99))).double()
        return Outcome(bound, bound, torch.zeros_like(bound), shares)


class Search(AdaptiveSearch):
    """Notes what was proved, once it is taken off the stack."""

    def bound(self, *arguments):
        self.met = []
        inner = self.prover.bound

        def noted(*given):
            outcome = inner(*given)
            self.met += self.prover.given
            return outcome

        self.prover.bound = noted
        try:
            outcome = super().bound(*arguments)
        finally:
            self.prover.bound = inner
        self.prover.proved += [(image, low, high) for image, low, high, bound in self.met if bound > 0]
        return outcome


@pytest.mark.parametrize("seed", range(60))
def test_what_is_certified_was_proved_box_by_box(seed, monkeypatch):
    """Also where middles of boxes look like counterexamples, and are none or are."""
    luck = random.Random(seed)
    monkeypatch.setattr(
        importlib.import_module("tiltproof.verify.branch_and_bound"), "SUSPECTS", luck.choice([1, 3, 64])
    )
    suspicion = luck.choice([0.0, 0.02, 0.3, 1.0])
    text = luck.choice(["R(-10:25)", "Tu(-0.1:0.7), Tv(-0.2:0.5)", "Sc(-2:5), R(-1:5), B(-0.01:0.05)"])
    transform, images = parse(text), luck.randint(1, 5)
    tiling = Tiling(transform, tuple(luck.randint(1, 4) for _ in transform.parts))
    prover = Stand(images, tiling, luck.choice([0, 4, 64, 4096]), luck)

    def confirm(rows, _):
        for image in rows.tolist():
            if not bool(prover.bad[image].isinf().any()) and luck.random() < 0.5:
                attacker.falsified[image], attacker.found[image] = True, (0.0,)

    attacker = SimpleNamespace(
        STATE=("margin", "found", "falsified"),
        correct=torch.ones(images, dtype=torch.bool),
        falsified=torch.zeros(images, dtype=torch.bool),
        margin=torch.ones(images).double(),
        found=[None] * images,
        alive=lambda: torch.arange(images),
        margins_at=lambda rows, _: torch.tensor([-1.0 if luck.random() < suspicion else 1.0 for _ in rows]),
        confirm=confirm,
    )
    search = Search(prover, attacker, tiling, precise_from=luck.choice([0, 2, 99]))
    budget = Budget(boxes=luck.choice([1, 30, 300]))
    search.work(AdaptiveBatchSize(luck.choice([7, 64, 1000])), budget, lambda: None)
    whole = Fraction(1)
    for low, high in zip(tiling.outer_low.tolist(), tiling.outer_high.tolist(), strict=True):
        whole *= Fraction(high) - Fraction(low)
    for result in search.results(0, 0.0):
        boxes = [(low, high) for image, low, high in prover.proved if image == result.image]
        points = [[luck.uniform(*end) for end in zip(transform.low, transform.high, strict=True)] for _ in range(5)]
        inside = [sum(holds(box, point) for box in boxes) for point in points]
        if result.verdict is Verdict.CERTIFIED:
            assert sum(volume(box) for box in boxes) == whole, "no more and no fewer"
            assert min(inside) >= 1
            assert bool(prover.bad[result.image].isinf().any())
        elif result.verdict is Verdict.FALSIFIED:
            assert attacker.falsified[result.image]
            assert sum(volume(box) for box in boxes) < whole
        else:
            assert result.verdict is Verdict.UNKNOWN
            assert not attacker.falsified[result.image]
            assert sum(volume(box) for box in boxes) < whole
            bad = not bool(prover.bad[result.image].isinf().any())
            assert bad or result.boxes >= budget.boxes, "nothing stood in the way"


def test_images_that_are_halved_further_than_others_beside_them(monkeypatch):
    """Between two bounds, one image's halves go on to be halved while another's, which has spent more, wait to be proved: none is lost."""
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
    )  # the first has to be cut into 128 pieces, the second is wrong at a point
    attacker = SimpleNamespace(
        STATE=("margin", "found", "falsified"),
        correct=torch.ones(2, dtype=torch.bool),
        falsified=torch.zeros(2, dtype=torch.bool),
        margin=torch.ones(2).double(),
        found=[None] * 2,
        alive=lambda: torch.arange(2),
        margins_at=lambda rows, _: torch.ones(len(rows)),
    )
    search = Search(prover, attacker, tiling)
    pushed, push = [], search._push
    monkeypatch.setattr(search, "_push", lambda rows, *others: pushed.append(set(rows.tolist())) or push(rows, *others))
    search.work(AdaptiveBatchSize(1000), Budget(boxes=400), lambda: None)
    assert {0} in pushed, "no image's halves waited"
    verdicts = [result.verdict for result in search.results(0, 0.0)]
    assert verdicts == [Verdict.CERTIFIED, Verdict.UNKNOWN]
    assert len({box[0][0] for image, *box in prover.proved if image == 0}) == 128


def volume(box):
    total = Fraction(1)
    for low, high in zip(*box, strict=True):
        total *= Fraction(high) - Fraction(low)
    return total


def holds(box, point):
    return all(low <= x <= high for low, high, x in zip(*box, point, strict=True))


@pytest.mark.parametrize("where", ["image", "boxes", "inherited"])
def test_memory_that_runs_out_while_boxes_are_laid_out(where, monkeypatch):
    """The books lie on the device, so whatever is allocated for them may fail too, and be tried again with fewer boxes: image 1 cannot be
    proved, and image 0 must not lend it boxes."""
    transform = parse("R(-10:10)")
    tiling = Tiling(transform, (4,))
    bad = torch.tensor([torch.inf, 9.0, torch.inf, torch.inf])
    proved = []

    class Narrow:
        labels, few, dtype = torch.zeros(len(bad), dtype=torch.int64), 0, torch.float64

        def changes(self):
            return ()

        def bound(self, images, low, high, _=None):
            narrow, wrong = (high - low)[:, 0] < 1.5, (low[:, 0] <= bad[images]) & (bad[images] <= high[:, 0])
            bound = torch.where(narrow & ~wrong, 1.0, -1.0).double()
            proved.extend(
                zip(images[bound > 0].tolist(), low[bound > 0].tolist(), high[bound > 0].tolist(), strict=True)
            )
            return Outcome(bound, bound, torch.zeros_like(bound), torch.ones_like(low))

    attacker = SimpleNamespace(
        STATE=("margin", "found", "falsified"),
        correct=torch.ones(len(bad), dtype=torch.bool),
        falsified=torch.zeros(len(bad), dtype=torch.bool),
        margin=torch.ones(len(bad)).double(),
        found=[None] * len(bad),
        alive=lambda: torch.arange(len(bad)),
        margins_at=lambda rows, _: torch.ones(len(rows)),
        confirm=lambda *_: None,
    )
    search = AdaptiveSearch(Narrow(), attacker, tiling, precise_from=99)
    begin, cat, calls = search._begin, torch.cat, []

    def short(boxes):
        """Memory runs out once, when boxes are laid below others."""
        calls.clear()
        if len(search.image) and len(search.fresh[: max(0, boxes)]) and not failed:
            monkeypatch.setattr(torch, "cat", out_of_memory)
        try:
            begin(boxes)
        finally:
            monkeypatch.setattr(torch, "cat", cat)

    def out_of_memory(*given):
        calls.append(given)
        if len(calls) == {"image": 1, "boxes": 2, "inherited": 4}[where]:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return cat(*given)

    failed = []
    monkeypatch.setattr(search, "_begin", short)
    search.work(AdaptiveBatchSize(12), Budget(boxes=300), lambda: None)
    assert failed
    whole = Fraction(tiling.outer_high.item()) - Fraction(tiling.outer_low.item())
    for result in search.results(0, 0.0):
        assert (result.verdict is Verdict.CERTIFIED) == bool(bad[result.image].isinf()), result
        if result.verdict is Verdict.CERTIFIED:
            boxes = [(low, high) for image, low, high in proved if image == result.image]
            assert sum(volume(box) for box in boxes) == whole, "no more and no fewer"
