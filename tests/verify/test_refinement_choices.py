"""Which margins are refined, and which boxes get a backward pass, affects speed alone."""

import importlib
from dataclasses import replace

import torch

from tiltproof import BranchAndBound, Execution, RunFolder, certify, check
from tiltproof.data import load as load_data
from tiltproof.models import load as load_model
from tiltproof.verify.prover import BUCKETS, TRIES, WORTHWHILE, BackwardPolicy, CostModel
from tiltproof.verify.state import SearchState


def test_margins_refined_together_give_the_same_verdicts(monkeypatch):
    refinement = importlib.import_module("tiltproof.verify.prover")
    model = load_model("mnist-r30")
    images, labels = (tensor[:6] for tensor in load_data("mnist-sample"))
    plain = certify(model, images, labels, "R(30)")
    work, counts = refinement.ClassRefinement.work, []

    def counted(self, *arguments):
        share = work(self, *arguments)
        counts.append((arguments[1], self.refined))
        return share

    monkeypatch.setattr(refinement.ClassRefinement, "work", counted)
    cost_model(monkeypatch, speculative_margins=2048)
    other = certify(model, images, labels, "R(30)")
    assert {limit for limit, _ in counts} == {2048}
    assert sum(refined for _, refined in counts) > 0
    assert other.verdicts == plain.verdicts
    assert other.boxes == plain.boxes
    assert all(mine > 0 for mine, verdict in zip(other.margins, other.verdicts, strict=True) if verdict == "certified")


def cost_model(monkeypatch, **changes):
    """Plan as another device would."""
    plain = CostModel.of
    monkeypatch.setattr(CostModel, "of", lambda *given: replace(plain(*given), **changes))


def test_the_gate_lets_through_what_a_plain_loop_would():
    generator = torch.Generator().manual_seed(0)
    policy, tried, won = BackwardPolicy(), [0] * BUCKETS, [0] * BUCKETS
    for _ in range(12):
        first_order = torch.randn(90, generator=generator)
        remainder = torch.rand(90, generator=generator) * 4
        remainder[0], first_order[1] = torch.nan, torch.inf
        opened = torch.rand(90, generator=generator) < 0.8
        found = policy.promising(opened, first_order, remainder)
        ratio = torch.where(first_order > 0, remainder / first_order, torch.inf).double()
        bucket = (2 * ratio.log2() + 4).nan_to_num(posinf=BUCKETS, neginf=0).clamp(0, BUCKETS).long()
        bucket = torch.where(opened, bucket, BUCKETS).tolist()
        seen, wanted = [0] * (BUCKETS + 1), []
        for place, k in enumerate(bucket):
            if k < BUCKETS:
                open_bucket = tried[k] >= TRIES and won[k] >= WORTHWHILE * tried[k]
                if open_bucket or seen[k] < TRIES - tried[k]:
                    wanted.append(place)
            seen[k] += 1
        assert found.chosen.tolist() == wanted
        proved = torch.rand(len(wanted), generator=generator) < 0.1
        policy.learn(found, proved)
        for place, good in zip(wanted, proved.tolist(), strict=True):
            tried[bucket[place]] += 1
            won[bucket[place]] += good
        assert policy.tried.tolist() == tried
        assert policy.won.tolist() == won


def test_the_gate_lets_no_boxes_through_where_they_are_too_few_for_a_pass():
    """Boxes with a known small chance do not count, boxes that merely wait do."""
    policy, opened = BackwardPolicy(), torch.ones(100, dtype=torch.bool)
    first_order, remainder = torch.ones(100), torch.cat([torch.full((60,), 1.0), torch.full((40,), 16.0)])
    policy.least_boxes = 101
    assert policy.promising(opened, first_order, remainder).chosen.tolist() == []
    policy.least_boxes = 100
    found = policy.promising(opened, first_order, remainder)
    assert found.chosen.tolist() == [*range(TRIES), *range(60, 60 + TRIES)]
    policy.learn(found, found.chosen < 60)
    assert policy.promising(opened, first_order, remainder).chosen.tolist() == []
    policy.least_boxes = 60
    assert policy.promising(opened, first_order, remainder).chosen.tolist() == [*range(60)]


def test_boxes_halved_more_than_once_at_a_time_are_proved_in_fewer_rounds(monkeypatch, tmp_path):
    """A GPU does this with the last boxes: the same verdicts, and a tiling that the checker proves again."""
    model = load_model("mnist-r30")
    images, labels = (tensor[:4] for tensor in load_data("mnist-sample"))
    count, rounds = SearchState.count, []
    monkeypatch.setattr(SearchState, "count", lambda *given: rounds.append(len(given[1])) or count(*given))
    plain = certify(model, images, labels, "R(2), Sh(2), C(2)", execution=Execution(batch_size=2048))
    one_by_one, rounds[:] = rounds.copy(), []
    with monkeypatch.context() as patch:
        cost_model(patch, speculative_boxes=2048)
        other = certify(
            model,
            images,
            labels,
            "R(2), Sh(2), C(2)",
            execution=Execution(batch_size=2048),
            run=RunFolder(tmp_path / "run"),
        )
        several, rounds[:] = rounds.copy(), []
        certify(
            model,
            images,
            labels,
            "R(2), Sh(2), C(2)",
            search=BranchAndBound(max_boxes=30),
            execution=Execution(batch_size=2048),
        )
    assert len(several) < len(one_by_one)
    assert sum(several) > sum(one_by_one)
    assert other.verdicts == plain.verdicts
    assert check(tmp_path / "run", model, images, labels).certified == plain.verdicts.count("certified")
    # not if the budget is nearly spent: there every box counts
    short, rounds[:] = rounds.copy(), []
    certify(
        model,
        images,
        labels,
        "R(2), Sh(2), C(2)",
        search=BranchAndBound(max_boxes=30),
        execution=Execution(batch_size=2048),
    )
    assert rounds == short
