"""Backward passes in rounds: the bounds equal those of refining everything at once, or nothing; and how much is refined."""

import importlib

import pytest
import torch
from torch import nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import BackwardCost, margins, read_network, refine, run, shallow_share
from tiltproof.verify.prover import FEW, ClassRefinement

pytestmark = pytest.mark.usefixtures("in_proof")

CLASSES, COUNT = 40, 80


class Branches(nn.Module):
    """A residual block: two branches are open at a time, with no early-exit test between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.last = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(torch.relu(x + self.third(torch.relu(self.second(x)))))


def network_of(kind: str) -> nn.Module:
    torch.manual_seed(2)
    if kind == "branches":
        return Branches().eval()
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, CLASSES)]
    if kind == "one layer":
        layers = layers[-3:]
        layers[0] = nn.Linear(6, 12)
    return nn.Sequential(*layers, *([nn.Tanh()] if kind == "tanh last" else [])).eval()


KINDS = ["plain", "branches", "one layer", "tanh last"]


class Problem:
    """Some boxes around random points, from hopeless to easy; every other one is active."""

    def __init__(self, kind: str, dtype: torch.dtype = torch.float64) -> None:
        self.model = network_of(kind).to(dtype)
        generator = torch.Generator().manual_seed(0)
        center = torch.randn(COUNT, 6, generator=generator).to(dtype)
        slopes = torch.randn(2, COUNT, 6, generator=generator).to(dtype)
        size = torch.logspace(-3, 0, COUNT).to(dtype).unsqueeze(1)
        self.form = AffineForm(torch.cat([center[None], slopes * size]), size.expand_as(center) * 0.3)
        self.labels = self.model(center).argmax(1)
        self.network = read_network(self.model, (6,), center[:1]).network_as(dtype)
        self.forms = run(self.network, self.form)
        form = margins(self.network, self.forms, self.labels)
        self.lower = form.lower.double().scatter(1, self.labels.unsqueeze(1), torch.inf)
        self.likely = (form.center - form.slopes.abs().sum(0) - form.radius / 2).double()
        self.rows = torch.arange(1, COUNT, 2)[(self.lower[1::2] <= 0).any(1)]

    def rounds(self) -> ClassRefinement:
        best, likely = self.lower[self.rows].clone(), self.likely[self.rows]
        return ClassRefinement(self.network, self.forms, self.labels, self.rows, best, likely)

    def sampled(self) -> torch.Tensor:
        """Return the least of many margins of each box, [R, K]."""
        e = torch.rand(1000, 2, 1, 1, dtype=torch.float64) * 2 - 1
        s = torch.rand(1000, COUNT, 6, dtype=torch.float64) * 2 - 1
        form = self.form
        x = form.center.double() + (e * form.slopes.double()).sum(1) + s * form.radius.double()
        outputs = self.model.double()(x)
        own = self.labels.view(1, -1, 1).expand(len(outputs), -1, 1)
        return (outputs.gather(2, own) - outputs).amin(0)[self.rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_same_boxes_are_proved(kind, dtype):
    problem = Problem(kind, dtype)
    opened = (~(problem.lower[problem.rows] > 0)).nonzero(as_tuple=True)
    bound, _ = refine(
        problem.network, problem.forms, problem.labels, problem.rows[opened[0]], opened[1], enough=0.0, shared=False
    )
    all_at_once = problem.lower[problem.rows].clone()
    all_at_once[opened] = torch.maximum(all_at_once[opened], bound)
    proved = (all_at_once > 0).all(1)
    assert proved.any()
    assert not proved.all()
    for most, together in ((3, 0), (1000, 0), (1000, 2048), (7, 2048)):
        rounds = problem.rounds()
        shares = rounds.work(most, together, shallow_share(problem.network))
        assert torch.equal((rounds.best > 0).all(1), proved)
        assert (rounds.best >= problem.lower[problem.rows]).all()
        assert shares.shape == (len(problem.rows), 2)
        assert 0 < float(rounds.passes.sum()) <= rounds.refined <= 2 * len(opened[0])
    least = problem.sampled()
    others = least != 0
    assert (rounds.best[others] <= least[others] + 1e-9).all()


@torch.no_grad()
def test_a_hopeless_box_is_given_up_after_its_first_class():
    problem = Problem("plain")
    rounds = problem.rounds()
    rounds.work(1000, 0, 1.0)
    failed = ~(rounds.best > 0).all(1)
    refined = rounds.best != problem.lower[problem.rows]
    assert (rounds.opened[failed].sum(1) > FEW).any()
    assert (refined[failed].sum(1) <= FEW).any()
    assert rounds.refined < int(rounds.opened.sum())


@pytest.mark.parametrize("most", [4, 9])
@torch.no_grad()
def test_no_more_at_a_time_than_memory_allows(most, monkeypatch):
    problem, seen = Problem("plain"), []
    share = shallow_share(problem.network)
    module = importlib.import_module("tiltproof.verify.prover")

    def counted(network, forms, labels, pairs, classes, enough, shared, cost, shallow):
        seen.append((len(pairs), shallow))
        return refine(network, forms, labels, pairs, classes, enough, shared, cost, shallow)

    monkeypatch.setattr(module, "refine", counted)
    problem.rows = torch.arange(4)  # easy ones, as if the forward pass had left all their classes open
    problem.lower = problem.lower.clamp(max=-1.0).scatter(1, problem.labels.unsqueeze(1), torch.inf)
    rounds = problem.rounds()
    rounds.work(most, 0, share)
    assert (rounds.best > 0).all()
    assert all(count <= max(most, most / (4 * share)) if shallow else count <= most for count, shallow in seen)
    assert any(shallow for _, shallow in seen)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_shallow_bounds_hold_and_cost_less(kind):
    problem = Problem(kind)
    pairs = torch.arange(COUNT).repeat_interleave(CLASSES - 1)
    classes = (problem.labels[pairs] + torch.arange(1, CLASSES).repeat(COUNT)) % CLASSES
    found = {}
    for shallow in (True, False):
        cost = BackwardCost()
        found[shallow], _ = refine(
            problem.network, problem.forms, problem.labels, pairs, classes, 0.0, False, cost, shallow
        )
        found[shallow, "passes"] = float(cost.passes.sum())
    assert (found[True] <= torch.maximum(found[False], found[True].clamp(max=0.0)) + 1e-12).all()
    whole = BackwardCost()
    refine(problem.network, problem.forms, problem.labels, pairs, classes, cost=whole)
    assert whole.passes.tolist() == [1.0] * len(pairs)
    assert found[True, "passes"] <= found[False, "passes"] < len(pairs) or kind == "one layer"
    problem.rows = torch.arange(COUNT)
    least = problem.sampled()[pairs, classes]
    assert (found[True] <= least + 1e-9).all()


def test_shares_by_hand():
    read = {kind: read_network(network_of(kind), (6,), torch.rand(1, 6)).network_as(torch.float32) for kind in KINDS}
    total = 6 + 16 + 16 + 12 + 12 + CLASSES
    assert shallow_share(read["plain"]) == pytest.approx((12 + 12 + 16) / total)
    # no early-exit test on the way
    assert shallow_share(read["one layer"]) == pytest.approx(1 - CLASSES / (6 + 12 + 12 + CLASSES))
    # the block as a whole: up to the ReLU before it
    assert shallow_share(read["branches"]) == pytest.approx(1 - (6 + 12 + CLASSES) / (6 + 7 * 12 + CLASSES))
