"""The largest proved share of a range: branch and bound from the identity outward, in one tiling of the whole range.

Open boxes are bounded in the order of the share at which they begin, those of all images together. Every range that no
open box reaches into is proved, at any time: the proved share of an image is the least share at which a box begins that
is not proved. A counterexample of share s is a bound from above: boxes that begin at s or further out are dropped, and
of the others only what lies within share s is bounded.

Why the claim is covered: a box of the tiling is proved within the least share c of a counterexample known at that
time, and c only falls. Let t be the proved share. A parameter vector of share at most t lies in the closed boxes that
begin below t (the tiling has no gaps, and boxes that begin at t or later touch it at their edges only); those are all
proved within some c, and c > t because no proof holds at a counterexample.

Noise (`Linf`) has no share: every box is proved for all of it, and every counterexample is moved by all of it. So the claim is about
the parameters of a share and the whole noise. What is proved at share t holds at smaller ones, whose parameters are among those of t.
Halving boxes does not divide noise: the proof of an image ends where nothing is left of its margin, and not near a counterexample. A
quarter of the gap before that end is not claimed, so that a checker whose bounds round otherwise proves the claim again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.verify.attack import Attacker, Counterexamples
from tiltproof.verify.branch_and_bound import PRECISE_FROM
from tiltproof.verify.options import Limits
from tiltproof.verify.prover import BackwardPolicy, Prover
from tiltproof.verify.radius_results import RadiusResult
from tiltproof.verify.rays import Rays
from tiltproof.verify.results import ImageResult, Reason, Verdict
from tiltproof.verify.shares import Shares
from tiltproof.verify.spec import THOROUGH_SAMPLES, THOROUGH_STEPS, ClassificationSpec, Spec
from tiltproof.verify.state import Pairs, Search, SearchState, Tiling, content, leaf_counts, refuse


@dataclass
class RadiusState(SearchState):
    """The state of a search outward. All tensors [N] are on the state's device, except `cap`."""

    cap: Tensor = field(default_factory=lambda: torch.empty(0))
    """Least share of a counterexample, rounded up; 1 while there is none. On the CPU."""
    pool: Pairs | None = None
    """The open boxes that begin below the cap."""
    dropped: Tensor = field(default_factory=lambda: torch.empty(0))
    """Number of boxes that begin at the cap or further out ..."""
    dropped_content: Tensor = field(default_factory=lambda: torch.empty(0))
    dropped_share: Tensor = field(default_factory=lambda: torch.empty(0))
    """... and the least share at which one of them begins; infinite while there is none."""
    lower: Tensor = field(default_factory=lambda: torch.empty(0))
    """The proved share."""

    @classmethod
    def start(
        cls, spec: Spec, witnesses: Any, policy: BackwardPolicy, device: torch.device | str = "cpu"
    ) -> RadiusState:
        state = super().start(spec, witnesses, policy, device)
        state.cap = torch.ones(len(spec), dtype=torch.float64)
        state.dropped, state.dropped_content = torch.zeros_like(state.boxes), torch.zeros_like(state.covered)
        state.dropped_share, state.lower = torch.full_like(state.seconds, torch.inf), torch.zeros_like(state.seconds)
        return state

    @property
    def finished(self) -> Tensor:
        """Images that are not searched any further."""
        return self.certified | self.exhausted


class RadiusSpec(ClassificationSpec):
    """The margin is positive for every parameter of the proved share."""

    def __init__(self, prover: Prover, attacker: Attacker, shares: Shares, reserve: float = 0.0) -> None:
        """``reserve``: a share that is proved, but not claimed."""
        super().__init__(prover, attacker)
        self.shares, self.reserve = shares, reserve

    def open_images(self, state: SearchState) -> Tensor:
        """All images that are right; those with a counterexample as well, which is out of reach of smaller ranges."""
        correct: Tensor = state.witnesses.correct
        return correct.nonzero().flatten().to(state.device)

    def tally(self, state: SearchState) -> dict[Verdict, int]:
        """Count an image once it is finished; its verdict is about the whole range."""
        assert isinstance(state, RadiusState)
        known: Counterexamples = state.witnesses
        done = state.finished.cpu() & known.correct
        wrong = int((~known.correct).sum())
        unknown = int((done & ~known.falsified & (state.lower.cpu() < 1)).sum())
        return {
            Verdict.CERTIFIED: int((done & ~known.falsified).sum()) - unknown,
            Verdict.UNKNOWN: unknown + (wrong if known.own else 0),
            Verdict.FALSIFIED: int((done & known.falsified).sum()),
            Verdict.MISCLASSIFIED: 0 if known.own else wrong,
        }

    def finish(self, state: SearchState) -> None:
        """Say of unknown images whether rounding alone keeps them open."""
        known: Counterexamples = state.witnesses
        self._explain(state, (state.exhausted.cpu() & known.correct & ~known.falsified).nonzero().flatten())

    def results(self, state: SearchState, tiling: Tiling, first: int, more_seconds: float) -> list[ImageResult]:
        assert isinstance(state, RadiusState)
        known: Counterexamples = state.witnesses
        trees, halved = state.splits.trees(tuple(tiling.base.tolist()))
        share = self.proved_share(state, tiling, leaf_counts(tiling, halved))
        reasons = self._reasons(state)
        results: list[ImageResult] = []
        for k in range(len(self)):
            verdict = self._verdict(known, k, share[k])
            unknown, falsified = verdict is Verdict.UNKNOWN, verdict is Verdict.FALSIFIED
            margin = float(known.margin[k])
            if verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN):
                margin = (
                    float(torch.minimum(state.proved[k, 0], state.open_bound[k])) if known.correct[k] else -math.inf
                )
            results.append(
                RadiusResult(
                    image=first + k,
                    label=int(self.prover.labels[k]),
                    verdict=verdict,
                    margin=margin,
                    grid=tuple(tiling.base.tolist()) if share[k] > 0 else None,
                    tree=trees[k] if share[k] > 0 else None,
                    counterexample=known.found[k] if falsified else None,
                    open_box=state.open_box.get(k) if unknown else None,
                    boxes=int(state.boxes[k]),
                    seconds=float(state.seconds[k]) + more_seconds,
                    reason=reasons.get(k) if unknown else None,
                    share=share[k],
                    perturbation=known.perturbation.get(k) if falsified else None,
                )
            )
        return results

    @staticmethod
    def _verdict(known: Counterexamples, k: int, share: float) -> Verdict:
        if not known.correct[k]:
            return Verdict.UNKNOWN if known.own else Verdict.MISCLASSIFIED
        if known.falsified[k]:
            return Verdict.FALSIFIED
        return Verdict.CERTIFIED if share == 1 else Verdict.UNKNOWN

    def proved_share(self, state: RadiusState, tiling: Tiling, leaves: list[int]) -> list[float]:
        """Return the proved share of each image. It is taken anew from all boxes that are not proved, and every box of
        the tiling must be accounted for: proved, open or dropped."""
        assert state.pool is not None
        known: Counterexamples = state.witnesses
        image, (low, high) = state.pool.image, tiling.bounds(state.pool.boxes)
        begins = self.shares.of_boxes(low, high)
        open_content = torch.zeros_like(state.covered).index_add_(0, image, content(low, high))
        open_ = torch.zeros_like(state.leaves).index_add_(0, image, torch.ones_like(image))
        everything = content(tiling.outer_low.unsqueeze(0), tiling.outer_high.unsqueeze(0))
        right = known.correct
        share = state.dropped_share.scatter_reduce(0, image, begins, "amin").clamp(max=1).cpu()
        share = torch.where(right & (state.proved[:, 0] > 0).cpu(), share, 0.0)
        counted = (state.leaves + open_ + state.dropped).cpu()
        whole = (state.covered + open_content + state.dropped_content == everything).cpu()
        whole &= counted == torch.tensor(leaves)
        refuse(right & ~whole, "its result leaves out some parameters, or boxes that were not proved")
        # share 0 claims nothing: with noise, the identity itself may be a counterexample
        share = torch.where(share < 1, (share - self.reserve).clamp(min=0), share)
        refuse(
            known.falsified & (share > 0) & (share >= state.cap),
            "an evaluation contradicts its proof; a bound is wrong",
        )
        found: list[float] = share.tolist()
        return found


class RadiusSearch(Search):
    """Proves the images from the identity outward until the proved share is within ``gap`` of a counterexample's.

    Boxes are halved to ``pieces`` along each parameter before any is bounded, and bounded in float64 from
    ``precise_from`` halvings more.
    """

    state: RadiusState
    spec: RadiusSpec

    def __init__(
        self,
        spec: RadiusSpec,
        tiling: Tiling,
        state: RadiusState,
        limits: Limits,
        rays: Rays,
        pieces: tuple[int, ...],
        precise_from: int = PRECISE_FROM,
    ) -> None:
        super().__init__(spec, tiling, state)
        self.limits, self.rays = limits, rays
        target = [math.ceil(math.log2(count / base)) for count, base in zip(pieces, tiling.base.tolist(), strict=True)]
        self.target = torch.tensor(target, device=state.device).clamp(min=0)
        self.precise_from = precise_from + int(self.target.sum())
        first, rows = self.tiling.first(), spec.open_images(state)
        state.waiting[rows] = len(first)
        images, unbounded = (
            rows.repeat_interleave(len(first)),
            state.proved.new_full((len(rows) * len(first), 1), -torch.inf),
        )
        state.pool = Pairs(images, first.repeat(len(rows)), unbounded)
        state.exhausted[:] = True  # those that are not to be searched
        state.exhausted[rows] = False
        self._look(state)

    def work(self, batch: AdaptiveBatchSize, report: Callable[[], None]) -> None:
        """Search until every image is finished; then attack those without a counterexample once more."""
        while not bool(self.state.finished.all()):
            self.commit(batch, self._step)
            report()
        self._attack_again(self.state)

    def _step(self, state: SearchState, size: int) -> None:
        """Bound the open boxes nearest to the identity; probe and halve those that are not proved."""
        assert isinstance(state, RadiusState)
        began, size = time.perf_counter(), min(size, self.spec.cost.most_boxes)
        pairs = self._nearest(state, size)
        coarse = (pairs.boxes.level < self.target).any(1)
        if bool(coarse.any()):
            pairs, rest = pairs[coarse.nonzero().flatten()], pairs[(~coarse).nonzero().flatten()]
            self._put(state, rest)
            axes = (pairs.boxes.level < self.target).int().argmax(1)
            self._halve(state, pairs, axes)
            self._look(state)
            return
        low, high = self._within_cap(state, pairs)
        precise = pairs.boxes.level.sum(1) >= self.precise_from
        outcome = self.spec.bound(state, pairs.image, low, high, precise, size)
        pairs.bound = outcome.bound
        state.count(pairs.image, time.perf_counter() - began)
        done = self.spec.done(state, pairs.image, pairs.bound)
        state.settle(pairs.image, pairs.bound, done, *self.tiling.bounds(pairs.boxes))
        left = (~done).nonzero().flatten()
        if len(left):
            self._probe(
                state, pairs.image[left], ((low[left] + high[left]) / 2).clamp(self.tiling.low, self.tiling.high)
            )
            self._branch(state, pairs[left], outcome.shares[left])
        self._look(state)

    def _nearest(self, state: RadiusState, size: int) -> Pairs:
        """Take the boxes that begin at the least shares out of the pool, of images that are not finished."""
        pool = self._pool(state)
        live = (~state.finished)[pool.image]
        begins = torch.where(live, self._begins(pool), torch.inf)
        chosen = begins.topk(min(size, int(live.sum())), largest=False).indices
        rest = torch.ones_like(live)
        rest[chosen] = False
        state.pool = pool[rest.nonzero().flatten()]
        return pool[chosen]

    @staticmethod
    def _pool(state: RadiusState) -> Pairs:
        assert state.pool is not None
        return state.pool

    def _put(self, state: RadiusState, pairs: Pairs) -> None:
        state.pool = Pairs.join([self._pool(state), pairs])

    def _begins(self, pairs: Pairs) -> Tensor:
        """Return the share at which each box begins."""
        return self.spec.shares.of_boxes(*self.tiling.bounds(pairs.boxes))

    def _within_cap(self, state: RadiusState, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the part of each box within the least share of a counterexample, rounded outward."""
        low, high = self.tiling.bounds(pairs.boxes)
        cap_low, cap_high = self.spec.shares.ends(state.cap.to(low.device)[pairs.image])
        return torch.maximum(low, cap_low), torch.minimum(high, cap_high)

    def _probe(self, state: RadiusState, rows: Tensor, middle: Tensor) -> None:
        """Evaluate the middles of open boxes; keep what is clearly nearer than the counterexamples known."""
        wrong = (self.spec.attacker.margins_at(rows, middle) < 0).nonzero().flatten()
        if not len(wrong):
            return
        rows, middle = rows[wrong].cpu(), middle[wrong].cpu()
        share = self.rays.shares.of_points(middle)
        nearer = (share < state.cap[rows] - self.rays.gap / 4).nonzero().flatten()
        order = nearer[share[nearer].argsort(stable=True)]
        firsts = {int(row): k for k, row in zip(order.flip(0).tolist(), rows[order].flip(0).tolist(), strict=True)}
        best = torch.tensor([*firsts.values()], dtype=torch.int64)
        lower = state.lower.cpu()[rows[best]]
        self.rays.keep(state.witnesses, state.cap, rows[best], middle[best], lower)

    def _branch(self, state: RadiusState, pairs: Pairs, shares: Tensor) -> None:
        """Halve open boxes; where none can be halved, the image is finished."""
        splittable = self.tiling.can_split(pairs.boxes).any(1)
        stuck = pairs[(~splittable).nonzero().flatten()]
        state.exhausted[stuck.image] = True
        for row in stuck.image.unique().tolist():
            state.reasons[row] = self._halving_is_no_help()
        self._put(state, stuck)
        keep = splittable.nonzero().flatten()
        pairs, shares = pairs[keep], shares[keep]
        if len(pairs):
            self._halve(state, pairs, self.tiling.best_axes(pairs.boxes, shares))

    def _halve(self, state: RadiusState, pairs: Pairs, axes: Tensor) -> None:
        state.splits.note(pairs.image, pairs.boxes, axes)
        state.waiting.index_add_(0, pairs.image, torch.ones_like(pairs.image))  # one box less, and two more
        self._put(state, Pairs(pairs.image.repeat(2), pairs.boxes.split(axes), pairs.bound.repeat(2, 1)))

    def _look(self, state: RadiusState) -> None:
        """Drop boxes that begin at the cap or further out; update the proved shares; find out which images are done."""
        pool, known = self._pool(state), state.witnesses
        begins, cap = self._begins(pool), state.cap.to(state.device)
        falsified = known.falsified.to(state.device)
        outside = (falsified[pool.image] & (begins >= cap[pool.image])).nonzero().flatten()
        if len(outside):
            image = pool.image[outside]
            state.dropped.index_add_(0, image, torch.ones_like(image))
            state.dropped_content.index_add_(0, image, content(*self.tiling.bounds(pool.boxes[outside])))
            state.dropped_share.scatter_reduce_(0, image, begins[outside], "amin")
            inside = torch.ones_like(begins, dtype=torch.bool)
            inside[outside] = False
            inside = inside.nonzero().flatten()
            pool, begins = pool[inside], begins[inside]
            state.pool = pool
        state.lower = state.dropped_share.scatter_reduce(0, pool.image, begins, "amin").clamp(max=1)
        waits = torch.zeros_like(state.waiting).index_add_(0, pool.image, torch.ones_like(pool.image)) > 0
        searched = ~state.finished
        state.certified |= searched & (~waits | (falsified & (cap - state.lower <= self.rays.gap - self.spec.reserve)))
        spent = searched & ~state.certified & self.limits.spent(state.boxes, state.seconds)
        state.exhausted |= spent
        for row in spent.nonzero().flatten().tolist():
            seconds = self.limits.max_seconds
            out_of_time = seconds is not None and float(state.seconds[row]) >= seconds
            state.reasons[row] = Reason.SECONDS if out_of_time else Reason.BOXES
        self._give_up(state, pool, begins)
        self._note_open(state, pool, begins)

    def _give_up(self, state: RadiusState, pool: Pairs, begins: Tensor) -> None:
        """Finish images whose nearest open box halving cannot prove; tested whenever an image's boxes have doubled."""
        due = ((state.boxes >= state.next_look) & ~state.finished).nonzero().flatten()
        if len(due):
            nearest = self._nearest_of(pool, begins, due)
            low, high = self._within_cap(state, nearest)
            hopeless = due[self.spec.hopeless(state, nearest.image, low, high)]
            state.exhausted[hopeless] = True
            for row in hopeless.tolist():
                state.reasons[row] = self._halving_is_no_help()
            state.next_look[due] = 2 * state.boxes[due]

    def _halving_is_no_help(self) -> Reason:
        return Reason.NOISE if self.tiling.noise else Reason.OPEN

    def _note_open(self, state: RadiusState, pool: Pairs, begins: Tensor) -> None:
        """Record the nearest open box of images that are abandoned, and the least bound of their open boxes."""
        rows = state.exhausted.nonzero().flatten()
        rows = rows[torch.isin(rows, pool.image)]
        rows = rows[[row not in state.open_box for row in rows.tolist()]]
        if not len(rows):
            return
        mine = torch.isin(pool.image, rows)  # other images may still close their boxes
        state.open_bound.scatter_reduce_(0, pool.image[mine], pool.bound[mine, 0], "amin")
        nearest = self._nearest_of(pool, begins, rows)
        low, high = (end.clamp(self.tiling.low, self.tiling.high) for end in self._within_cap(state, nearest))
        for row, a, b in zip(rows.tolist(), low.tolist(), high.tolist(), strict=True):
            state.open_box[row] = (tuple(a), tuple(b))

    @staticmethod
    def _nearest_of(pool: Pairs, begins: Tensor, rows: Tensor) -> Pairs:
        """Return the open box of each of these images that begins first."""
        order = begins.argsort(stable=True, descending=True)
        place = torch.zeros(int(rows.max()) + 1, dtype=torch.int64, device=begins.device)
        mine = order[torch.isin(pool.image[order], rows)]
        for_image = dict(zip(pool.image[mine].tolist(), mine.tolist(), strict=True))  # the last one stays
        for row in rows.tolist():
            place[row] = for_image[row]
        return pool[place[rows]]

    def _attack_again(self, state: RadiusState) -> None:
        """Attack images without a counterexample thoroughly, over the whole range."""
        known: Counterexamples = state.witnesses
        rows = (state.exhausted.cpu() & known.correct & ~known.falsified).nonzero().flatten()
        self.spec.attacker.search(known, rows, THOROUGH_SAMPLES, THOROUGH_STEPS)
        rows = rows[known.falsified[rows]]
        points = [known.found[row] for row in rows.tolist()]
        if points:
            found = torch.tensor(points, dtype=torch.float64)
            state.cap[rows] = self.rays.shares.of_points(found)
            self.rays.keep(known, state.cap, rows, found, state.lower.cpu()[rows])
